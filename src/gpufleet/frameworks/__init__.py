"""The frameworks that a stack can run: a descriptor for each, and the table of them.

Nothing else names a framework; the other packages iterate over the table, or read a descriptor.
"""

from .descriptor import Framework, FrameworkId, Part
from .libraries import is_in_no_toolkit
from .table import DEFAULT, FRAMEWORKS, UNNAMED, framework_id, framework_of, reporting, titles

__all__ = [
    "DEFAULT",
    "FRAMEWORKS",
    "UNNAMED",
    "Framework",
    "FrameworkId",
    "Part",
    "framework_id",
    "framework_of",
    "is_in_no_toolkit",
    "reporting",
    "titles",
]
