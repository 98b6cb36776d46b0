"""Build hook: the wheel carries the collection beside the package, where Ansible finds it.

An editable install has none of it: the launcher links the checkout there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COLLECTION = "ansible_collections/gpufleet/gpu"
PARTS = (
    "LICENSE",
    "README.md",
    "ansible.cfg",
    "docs/reference/schemas/inventory.json",
    "galaxy.yml",
    "gpufleet",
    "hatch_build.py",
    "inventory/example",
    "meta",
    "playbooks",
    "plugins",
    "pyproject.toml",
    "requirements.txt",
    "roles",
    "verify",
)


# The launcher, pyproject.toml and this file are for the control host of the nightly: together with
# the package they make a checkout, which the control host runs (`gpufleet pack`).


class WheelHook(BuildHookInterface):
    """Adds the parts of the collection; files and directories in place of symlinks."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """hatchling's hook."""
        if version == "standard":
            build_data["force_include"].update(
                {str(Path(self.root, part)): f"{COLLECTION}/{part}" for part in PARTS}
            )
