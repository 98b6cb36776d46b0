# Apache-2.0, see LICENSE
"""Documentation that modules share: what check mode and diff mode mean."""

from __future__ import annotations


class ModuleDocFragment:
    """Each module adds ``support`` to both."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Predicts changes without making them.
  diff_mode:
    description: Returns what changed, or would change in check mode.
"""
