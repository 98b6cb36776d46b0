"""Hosts whose processes are gone though podman takes them for running.

A container's monitor, conmon, tells podman of the container's end by a file. Where the monitor was
killed first, or all processes ended with the machine and /run is on its disk, nobody tells podman:
it runs no command in the container, does not start it, and keeps its address, even if the container
is removed.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from lab.command import podman, run
from lab.errors import LabError

STATE = "dead"
# Where conmon writes the exit status of a container, and that of one that was killed.
EXITS = Path("/run/libpod/exits")
KILLED = "137"
# Where podman mounts the network namespaces of containers.
NAMESPACES = Path("/run/netns")


def restore_namespaces(place: Path = NAMESPACES) -> None:
    """Mount an empty namespace where the machine's stop has left only the file.

    Where one is missing podman lists no containers, those of others included.
    """
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for path in place.glob("netns-*"):
        if path.stat().st_mtime < booted and not os.path.ismount(path):
            run("unshare", f"--net={path}", "true")


def is_dead(container: dict[str, Any]) -> bool:
    """Return whether a container does not run although podman's document says so."""
    state = container["State"]
    if state["Status"] not in ("running", "stopping") or _watched(container):
        return False
    done = run("runc", "state", container["Id"], check=False)
    return done.returncode != 0 or json.loads(done.stdout)["status"] == "stopped"


def _watched(container: dict[str, Any]) -> bool:
    """Return whether the container's monitor lives."""
    try:
        words = Path(f"/proc/{container['State']['ConmonPid']}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return container["Id"] in words


def settle(name: str) -> None:
    """Tell podman that a dead host has ended, and have it release mounts, network and address."""
    # The cleanup restarts a container, halfway, unless somebody stopped it. There is nothing to
    # stop, so podman may fail; what it has noted is seen below.
    podman("stop", "--time", "0", name, check=False)
    identity = podman("container", "inspect", "--format", "{{.Id}}", name)
    (EXITS / identity).write_text(KILLED, encoding="ascii")
    podman("container", "cleanup", name)
    status = podman("container", "inspect", "--format", "{{.State.Status}}", name)
    if status != "exited":
        raise LabError(
            f"podman says that {name} is {status}, and its processes are gone",
            f"Remove it: podman rm --force {name}",
        )
