"""What the plan refuses, before anything changes on the host.

Injected are wishes, of which the plan is made together with what the probe saw of the host.
"""

from __future__ import annotations

from typing import Any

from tests.faults.catalogue import Fault


def wished(**wishes: Any) -> Any:
    """A fault that is a wish."""
    return lambda found: found.update(wishes)


OLD_DRIVER = {"gpu_driver": {"branch": "470", "source": "preinstalled"}, "gpu_expect": {"count": 2}}

FAULTS = [
    Fault("50", "a toolkit is newer than the driver allows", "plan", "host.plan",
          r"gpu_driver.*470 is too old: CUDA 12.3", "declare an older CUDA, or use a newer branch",
          wished(**OLD_DRIVER, gpu_toolkits=["12.3"])),
    Fault("50", "a framework's CUDA is newer than the driver allows", "plan", "host.plan",
          r"gpu_driver.*470 is too old", "declare an older CUDA, or use a newer branch",
          wished(**OLD_DRIVER, gpu_stacks=[{"tensorflow": "2.18.1"}])),
]

# On a host whose /tmp is a file system of its own, mounted noexec.
NO_EXEC_TMP = [
    Fault("11", "`/tmp` is mounted noexec: NVIDIA's installer could not run", "plan", "host.plan",
          "/tmp is mounted noexec, and NVIDIA's installer runs from there",
          "set gpu_tmpdir to a directory on a file system without noexec",
          wished(gpu_toolkits=["12.3"])),
]
FAULTS += NO_EXEC_TMP
