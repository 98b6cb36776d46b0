"""Declarations that the plan refuses, before anything changes on the host.

Injected are declarations, of which the plan is made together with what the probe saw of the host.
"""

from __future__ import annotations

from typing import Any

from tests.faults.catalogue import Fault


def wanted(**declared: Any) -> Any:
    """A fault that is a declaration."""
    return lambda found: found.update(declared)


OLD_DRIVER = {"gpu_driver": {"branch": "470", "source": "preinstalled"}, "gpu_expect": {"count": 2}}

FAULTS = [
    Fault(
        "50",
        "a toolkit is newer than the driver allows",
        "plan",
        "host.plan",
        r"gpu_driver.*470 is too old: CUDA 12.3",
        "declare an older CUDA, or use a newer branch",
        wanted(**OLD_DRIVER, gpu_toolkits=["12.3"]),
    ),
    Fault(
        "50",
        "a framework's CUDA is newer than the driver allows",
        "plan",
        "host.plan",
        r"gpu_driver.*470 is too old",
        "declare an older CUDA, or use a newer branch",
        wanted(**OLD_DRIVER, gpu_stacks=[{"tensorflow": "2.18.1"}]),
    ),
    Fault(
        "x40",
        "a declared container toolkit has known vulnerabilities",
        "plan",
        "host.plan",
        "container toolkit 1.17.7 has known vulnerabilities: CVE-2025-23266, ",
        r"accept them deliberately with accept_cves: \[CVE-2025-23266, ",
        wanted(gpu_containers={"toolkit": "1.17.7"}),
    ),
]

# On a host whose /tmp is a file system of its own, mounted noexec.
NO_EXEC_TMP = [
    Fault(
        "11",
        "`/tmp` is mounted noexec: NVIDIA's installer could not run",
        "plan",
        "host.plan",
        "/tmp is mounted noexec, and NVIDIA's installer runs from there",
        "set gpu_tmpdir to a directory on a file system without noexec",
        wanted(gpu_toolkits=["12.3"]),
    ),
]
FAULTS += NO_EXEC_TMP
