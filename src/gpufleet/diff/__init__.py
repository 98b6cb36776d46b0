"""What a host lacks of its plan, and whether its driver needs a restart. Pure comparison."""

from .changes import changes

__all__ = ["changes"]
