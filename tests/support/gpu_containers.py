"""GPUs in containers on lab hosts: stand-ins for the cards and for NVIDIA's toolkit repository."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.hosts import STAND_IN_MAJOR
from tests.support.lab_fleet import ROOT, Fleet, lab

# A toolkit that gives containers their GPUs by NVIDIA's legacy hook, behind systemd's back.
LEGACY = {"toolkit": "1.17.8", "accept_cves": ["CVE-2026-24260"]}
# Two cards of a driver that is loaded. Their nodes can be opened, and are of a major number that no
# container may open by default, so that one that has lost them shows it.
CARDS = f"""
mkdir -p /srv/driver/nvidia/gpus/0000:01:00.0 /srv/driver/nvidia/gpus/0000:02:00.0
echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03' >/srv/driver/nvidia/version
mountpoint -q /proc/driver || mount --bind /srv/driver /proc/driver
mountpoint -q /proc/devices || {{
    majors='{STAND_IN_MAJOR} nvidia\\n{STAND_IN_MAJOR} nvidia-uvm'
    sed "s|^Block|$majors\\n&|" /proc/devices >/srv/devices
    mount --bind /srv/devices /proc/devices
}}
[ -e /dev/nvidia0 ] || {{
    mknod -m 666 /dev/nvidia0 c {STAND_IN_MAJOR} 0
    mknod -m 666 /dev/nvidia1 c {STAND_IN_MAJOR} 1
    mknod -m 666 /dev/nvidiactl c {STAND_IN_MAJOR} 255
}}
"""
NO_CARDS = """
umount /proc/driver /proc/devices; rm -rf /dev/nvidia* /dev/char; rm -f /run/cdi/nvidia.yaml
"""
# As the lab's own Podman: on a lab host there is no overlay over an overlay, no limit of processes,
# and crun may not raise a limit that it wants.
PODMAN = r"""
mkdir -p /etc/containers
printf '[storage]\ndriver = "vfs"\nrunroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"\n' >/etc/containers/storage.conf
printf '[containers]\ndefault_ulimits = []\npids_limit = 0\n[engine]\nruntime = "runc"\n' \
    >/etc/containers/containers.conf
apt-get update -q && apt-get install -qy --no-install-recommends runc
"""


def toolkit_repository(fleet: Fleet, place: Path, *hosts: str) -> dict[str, str]:
    """Make the toolkit's repository in a directory, put it on hosts; the variables that name it."""
    lab(fleet, "toolkit-repository", str(place))
    packed = subprocess.run(["tar", "-C", place, "-c", "."], check=True, capture_output=True).stdout
    for host in hosts:
        subprocess.run(
            [ROOT / ".venv/bin/python", "-m", "lab", "exec", host, "--",
             "sh", "-c", "mkdir -p /srv/toolkit && tar -C /srv/toolkit -x"],
            cwd=ROOT, env=fleet.environment, input=packed, check=True,
        )  # fmt: skip
    return {
        "nvidia_docker_repo_url": "file:///srv/toolkit",
        "nvidia_docker_repo_key": "file:///srv/toolkit/key.asc",
        "nvidia_docker_repo_key_fingerprint": (place / "fingerprint").read_text().strip(),
    }


@pytest.fixture(scope="module")
def declared(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The declaration; the toolkit's repository is on both hosts."""
    return {
        "gpu_stacks": [],
        "gpu_containers": LEGACY,
        **toolkit_repository(fleet, tmp_path_factory.mktemp("toolkit"), "lab1", "lab2"),
    }


def words(declared: dict[str, Any], host: str = "lab1", **more: Any) -> list[str]:
    return ["--limit", host, "-e", json.dumps({**declared, **more})]


def containers(
    fleet: Fleet, declared: dict[str, Any], status: int | None = None, **more: Any
) -> dict[str, dict[str, Any]]:
    """The verdicts of the checks of containers on lab1."""
    output = fleet.gpufleet("verify", "--json", *words(declared, **more), status=status).stdout
    checks = json.loads(output)["hosts"]["lab1"]["checks"]
    return {check["id"]: check for check in checks if check["id"].startswith("containers.")}
