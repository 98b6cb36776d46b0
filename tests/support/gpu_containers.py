"""GPUs in containers on lab hosts: stand-ins for the cards and for NVIDIA's toolkit repository."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.support.lab_fleet import ROOT, Fleet, lab

CARDS = """
mkdir -p /srv/driver/nvidia
echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03' >/srv/driver/nvidia/version
mountpoint -q /proc/driver || mount --bind /srv/driver /proc/driver
[ -e /dev/nvidia0 ] || {
    mknod -m 666 /dev/nvidia0 c 1 3
    mknod -m 666 /dev/nvidia1 c 1 5
    mknod -m 666 /dev/nvidiactl c 1 7
}
"""


@pytest.fixture(scope="module")
def wishes(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is declared; the toolkit's repository is on both hosts."""
    repository = tmp_path_factory.mktemp("toolkit")
    lab(fleet, "toolkit-repository", str(repository))
    for host in ("lab1", "lab2"):
        packed = subprocess.run(["tar", "-C", repository, "-c", "."], check=True,
                                capture_output=True).stdout  # fmt: skip
        subprocess.run(
            [ROOT / ".venv/bin/python", "-m", "lab", "exec", host, "--",
             "sh", "-c", "mkdir -p /srv/toolkit && tar -C /srv/toolkit -x"],
            cwd=ROOT, env=fleet.environment, input=packed, check=True,
        )  # fmt: skip
    return {
        "gpu_stacks": [],
        "gpu_containers": {"toolkit": "1.17.8"},
        "nvidia_docker_repo_url": "file:///srv/toolkit",
        "nvidia_docker_repo_key": "file:///srv/toolkit/key.asc",
        "nvidia_docker_repo_key_fingerprint": (repository / "fingerprint").read_text().strip(),
    }


def words(wishes: dict[str, Any], host: str = "lab1", **more: Any) -> list[str]:
    return ["--limit", host, "-e", json.dumps({**wishes, **more})]


def containers(
    fleet: Fleet, wishes: dict[str, Any], status: int | None = None, **more: Any
) -> dict[str, dict[str, Any]]:
    """The verdicts of the checks of containers on lab1."""
    said = fleet.gpufleet("verify", "--json", *words(wishes, **more), status=status).stdout
    checks = json.loads(said)["hosts"]["lab1"]["checks"]
    return {check["id"]: check for check in checks if check["id"].startswith("containers.")}
