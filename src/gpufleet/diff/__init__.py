"""What a host lacks of its plan, and whether its driver needs a restart. Pure comparison."""

from .changes import changes
from .repairs import steps_of

__all__ = ["changes", "steps_of"]
