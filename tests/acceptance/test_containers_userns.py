"""GPUs in containers of an engine that maps their accounts to others (`userns-remap`).

On a virtual machine under software emulation, with Docker, and stand-ins for the cards and for the
container toolkit's repository.
"""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import vm
from lab.progress import Progress
from lab.settings import Lab
from tests.support.gpu_containers import CARDS, LEGACY
from tests.support.lab_fleet import ROOT

pytestmark = [pytest.mark.lab, pytest.mark.slow]

REMAPPED = """set -e
mkdir -p /etc/docker /srv/toolkit
echo '{"userns-remap": "default"}' >/etc/docker/daemon.json
systemctl restart docker"""


@pytest.fixture(scope="module")
def machine() -> Iterator[vm.Machine]:
    if lacking := vm.missing():
        pytest.skip(f"apt-get install --no-install-recommends {' '.join(lacking)}")
    with vm.running(Lab.from_environment(os.environ), Progress(), vm.DOCKER) as booted:
        booted.on(REMAPPED)
        yield booted


@pytest.fixture(scope="module")
def inventory(machine: vm.Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine alone, with the stand-in's repository on it."""
    place = tmp_path_factory.mktemp("userns")
    repository = place / "toolkit"
    python = ROOT / ".venv" / "bin" / "python"
    words = [python, "-m", "lab", "toolkit-repository", repository]
    subprocess.run(words, cwd=ROOT, check=True)
    packed = subprocess.run(
        ["tar", "-C", repository, "-cz", "."], check=True, capture_output=True
    ).stdout
    machine.on("base64 -d | tar -C /srv/toolkit -xz", stdin=b64encode(packed).decode())
    declared = {
        "gpu_stacks": [],
        "gpu_containers": LEGACY,
        "gpu_expect": {"count": 2},
        "nvidia_docker_repo_url": "file:///srv/toolkit",
        "nvidia_docker_repo_key": "file:///srv/toolkit/key.asc",
        "nvidia_docker_repo_key_fingerprint": (repository / "fingerprint").read_text().strip(),
    }
    hosts = {"gpu_hosts": {"hosts": {"gpu-vm": {**machine.variables, **declared}}}}
    file = place / "hosts.yml"
    file.write_text(json.dumps({"all": {"children": hosts}}))
    return file


def checks(inventory: Path) -> dict[str, dict[str, Any]]:
    words = ("verify", "--json", "--deadline", "1800", "-i", inventory)
    done = subprocess.run(
        [ROOT / "gpufleet", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = json.loads(done.stdout)["hosts"]["gpu-vm"]["checks"]
    return {row["id"]: row for row in found if row["id"].startswith("containers.")}


def test_it_is_provisioned_and_keeps_its_option(machine: vm.Machine, inventory: Path) -> None:
    assert "name=userns" in machine.on("docker info --format '{{.SecurityOptions}}'")
    machine.on(CARDS)
    done = subprocess.run(
        [ROOT / "gpufleet", "provision", "--deadline", "1800", "-i", inventory],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout[-5000:], done.stderr[-3000:])
    assert "name=userns" in machine.on("docker info --format '{{.SecurityOptions}}'")


def test_it_is_judged(machine: vm.Machine, inventory: Path) -> None:
    for row in checks(inventory).values():
        print(row)
    raise AssertionError
