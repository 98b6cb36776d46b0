"""Locations of gpufleet's playbooks, roles and plugins: in the checkout, or beside the wheel."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = PACKAGE.parents[1]
# The wheel carries the collection beside the package, where Ansible finds it by its name.
_INSTALLED = PACKAGE.parent / "ansible_collections" / "gpufleet" / "gpu"

IN_CHECKOUT = (_CHECKOUT / "ansible.cfg").exists()
ROOT = _CHECKOUT if IN_CHECKOUT else _INSTALLED
PLAYBOOKS = ROOT / "playbooks"
LAB_INVENTORY = ROOT / "inventory" / "lab"
# A checkout keeps its reports; an installed gpufleet writes them into the current directory.
REPORTS = (ROOT if IN_CHECKOUT else Path.cwd()) / "reports"


def host_file_name(host: str) -> str:
    """A host's name as a file name, without an ending."""
    return re.sub(r"[^\w.-]", "_", host).lstrip(".") or "_"
