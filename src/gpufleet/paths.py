"""Locations of gpufleet's playbooks, roles and plugins: in the checkout, or beside the wheel."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = PACKAGE.parents[1]
# The wheel carries the collection beside the package, where Ansible finds it by its name.
_INSTALLED = PACKAGE.parent / "ansible_collections" / "gpufleet" / "gpu"

IN_CHECKOUT = (_CHECKOUT / "ansible.cfg").exists()
ROOT = _CHECKOUT if IN_CHECKOUT else _INSTALLED
# The lab and the developers' programs; a checkout packed of an installed gpufleet has none.
HAS_TOOLS = (ROOT / "tools").is_dir()
PLAYBOOKS = ROOT / "playbooks"
# How a person calls gpufleet, in the commands that messages show.
PROGRAM = "./gpufleet" if IN_CHECKOUT else "gpufleet"
LAB_INVENTORY = ROOT / "inventory" / "lab"
# A checkout keeps its reports; an installed gpufleet writes them into the current directory.
# So does an account that may not write into the checkout, such as that of the nightly.
REPORTS = (ROOT if IN_CHECKOUT and os.access(ROOT, os.W_OK) else Path.cwd()) / "reports"


# A file name may have 255 bytes. Endings, and the names of partial files, need the rest.
_MOST_BYTES = 230


def host_file_name(host: str) -> str:
    """A host's name as a file name, without an ending: each host has another one.

    Letters, digits, `_`, `-` and `.` stay; other characters, and a dot at the beginning, become `%`
    and the hexadecimal digits of their bytes. The rest of a longer name becomes a checksum.
    """

    def escaped(match: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))

    name = re.sub(r"^\.|[^\w.-]", escaped, host) or "%"
    if len(name.encode()) <= _MOST_BYTES:
        return name
    digest = hashlib.sha256(host.encode("utf-8", "surrogatepass")).hexdigest()
    # "%." is no escape, so that no other name is written like this.
    return f"{name.encode()[: _MOST_BYTES - 66].decode(errors='ignore')}%.{digest}"
