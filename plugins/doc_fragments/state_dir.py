# Apache-2.0, see LICENSE
"""Documentation that modules share: where gpufleet keeps its state on a host."""

from __future__ import annotations


class ModuleDocFragment:
    """The option ``state_dir``."""

    DOCUMENTATION = r"""
options:
  state_dir:
    description: The directory of gpufleet's state on the host, with receipts and journal.
    type: path
    default: /var/lib/gpufleet
"""
