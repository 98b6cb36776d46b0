"""Programs of the operating system that a verb needs, and their Debian packages.

In a checkout, root gets them installed; everybody else gets the command that installs them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpufleet.campaign.provision.playbook import log, run
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import InventoryHost
from gpufleet.paths import IN_CHECKOUT

# {program or file: the package that provides it}
SSH = {"ssh": "openssh-client"}
LAB = {
    "podman": "podman",
    "runc": "runc",
    "mmdebstrap": "mmdebstrap",
    "makeself": "makeself",
    "iptables": "iptables",
    "xz": "xz-utils",
    "zstd": "zstd",
    "/usr/lib/podman/netavark": "netavark",
    "/usr/lib/podman/aardvark-dns": "aardvark-dns",
    **SSH,
}


def require(programs: Mapping[str, str]) -> None:
    """Install the packages of missing programs; a `ConfigurationError` where that is not allowed.

    Only root in a checkout installs packages.
    """
    missing = sorted({package for program, package in programs.items() if not found(program)})
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or not IN_CHECKOUT or not shutil.which("apt-get"):
        raise ConfigurationError(
            f"Packages are not installed: {', '.join(missing)}.",
            "",
            f"Install them first:\n  sudo {shlex.join(command)}",
        )
    log(f"Installing packages: {', '.join(missing)}")
    for step in (["apt-get", "update", "--quiet"], [*command, "--quiet"]):
        status = run(step, sys.stderr, stdin=subprocess.DEVNULL)
        if status:
            raise ConfigurationError(
                f"{shlex.join(step)} failed with status {status}.", "", "See its output above."
            )
    if absent := sorted(program for program in programs if not found(program)):
        raise ConfigurationError(
            f"{', '.join(absent)} cannot be found, though {', '.join(missing)} is installed.",
            "",
            f"Install it again: sudo apt-get install --reinstall {shlex.join(missing)}",
        )


def require_ssh(hosts: Iterable[InventoryHost]) -> None:
    """`require` the ssh client where a host is reached by it."""
    if any(host.connection.kind == "ssh" for host in hosts):
        require(SSH)


def found(program: str) -> bool:
    """Return whether a program exists, by name or by path."""
    if program.startswith("/"):
        return Path(program).exists()
    return shutil.which(program) is not None
