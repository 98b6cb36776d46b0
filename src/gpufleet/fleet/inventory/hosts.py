"""The hosts of an inventory as the rest of gpufleet has them: documents, and stacks' locks.

Reads the locks of stacks only.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpufleet.components.declare import declaration_of
from gpufleet.documents.spec import Declaration, Spec
from gpufleet.paths import ROOT

GROUP = "gpu_hosts"


@dataclass(frozen=True)
class Become:
    """Settings of sudo. `enabled` None: use sudo only if it works without a password."""

    enabled: bool | None = None
    user: str = "root"
    # Excluded from repr, which logs and tracebacks show.
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Connection:
    """How to reach one host, by Ansible's settings."""

    name: str
    kind: str = "ssh"
    address: str = ""
    user: str | None = None
    port: int | None = None
    key: str | None = None
    ssh_arguments: tuple[str, ...] = ()
    connect_timeout_s: int = 10
    ssh_executable: str = "ssh"
    python: str = "python3"
    become: Become = Become()
    # Runs the command on from where it arrives: srun and its options.
    launcher: tuple[str, ...] = ()


@dataclass(frozen=True)
class InventoryHost:
    """One host of the inventory and its `gpu_*` variables.

    `locks` are the stacks' locks in `locks_dir`, {file name: sha256}; the directory may be absent.
    `keeps_artifacts`: downloaded artifacts stay on the host after the install (artifacts_keep).
    `domain` is the host's value of the selector's `domain`. `origins` has the file and line of
    each declared value, {`gpu_stacks[0].tensorflow`: `FILE:LINE`}.
    """

    name: str
    variables: dict[str, Any]
    connection: Connection
    locks: dict[str, str] = field(default_factory=dict)
    locks_dir: Path = ROOT / "stacks"
    keeps_artifacts: bool = False
    domain: str | None = None
    origins: dict[str, str] = field(default_factory=dict)

    @functools.cached_property
    def declaration(self) -> Declaration:
        """The variables, parsed once."""
        return declaration_of(self.variables)

    @property
    def spec(self) -> Spec:
        """The declaration by the variables, without its refused parts."""
        return self.declaration.spec

    def origin(self, where: str) -> str | None:
        """`FILE:LINE` of a place in the variables, or of the nearest value around it."""
        ends = (i for i in range(len(where), 0, -1) if where[i : i + 1] in {"", ".", "["})
        return next((self.origins[where[:i]] for i in ends if where[:i] in self.origins), None)


@dataclass(frozen=True)
class HostSelector:
    """Which hosts of which inventories, and extra variables for all of them.

    `domain` names a failure domain: a variable (`rack: r1`) or a prefix of groups (`rack_r1`).
    """

    inventories: Sequence[str] = ()
    limit: str | None = None
    extra_vars: Sequence[str] = ()
    vault_password_files: Sequence[str] = ()
    group: str = GROUP
    domain: str | None = None


@functools.cache
def locks_in(directory: Path) -> dict[str, str]:
    """The sha256 of the stacks' locks in a directory, by file name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.glob("*.lock")
    }
