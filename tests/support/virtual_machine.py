"""Virtual machines of the lab for tests, which are skipped where its programs are missing."""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab import vm
from lab.progress import Progress
from lab.settings import Lab
from tests.support.gpu_containers import LEGACY
from tests.support.lab_fleet import ROOT

# An emulated processor is slow, and slower beside other work.
UNHURRIED = ("--deadline", "1800")
CARD = f"insmod /opt/standin/{vm.VERSIONS[0]}/nvidia.ko && test -c /dev/nvidia0"


@contextmanager
def booted(kind: vm.Kind, count: int = 1) -> Iterator[list[vm.Machine]]:
    """Machines that have booted. `gpufleet test --all` installs the programs that they need."""
    if lacking := vm.missing():
        pytest.skip(f"apt-get install --no-install-recommends {' '.join(lacking)}")
    with vm.together(Lab.from_environment(os.environ), Progress(), kind, count) as machines:
        yield machines


def unhurried() -> dict[str, str]:
    """The environment for Ansible on an emulated processor, which is slow to let root log in."""
    return {**os.environ, "ANSIBLE_TIMEOUT": "120"}


def with_containers(machine: vm.Machine, place: Path) -> Path:
    """An inventory of the machine with one card, whose containers have it.

    `place`: where the inventory is written, and the stand-in for the toolkit's repository, which is
    put on the machine as well.
    """
    repository = place / "toolkit"
    python = ROOT / ".venv" / "bin" / "python"
    subprocess.run([python, "-m", "lab", "toolkit-repository", repository], cwd=ROOT, check=True)
    words = ["tar", "-C", repository, "-cz", "."]
    packed = subprocess.run(words, check=True, capture_output=True).stdout
    machine.on("mkdir -p /srv/toolkit")
    machine.on("base64 -d | tar -C /srv/toolkit -xz", stdin=b64encode(packed).decode())
    declared = {
        "gpu_stacks": [],
        "gpu_containers": LEGACY,
        "gpu_expect": {"count": 1},
        "nvidia_docker_repo_url": "file:///srv/toolkit",
        "nvidia_docker_repo_key": "file:///srv/toolkit/key.asc",
        "nvidia_docker_repo_key_fingerprint": (repository / "fingerprint").read_text().strip(),
    }
    hosts = {"gpu_hosts": {"hosts": {"gpu-vm": {**machine.variables, **declared}}}}
    file = place / "hosts.yml"
    file.write_text(json.dumps({"all": {"children": hosts}}))
    return file


def provision(inventory: Path) -> str:
    """Provision the machine; returns what was printed."""
    return _gpufleet("provision", "-i", inventory)


def containers(inventory: Path) -> dict[str, dict[str, Any]]:
    """Verify the machine: {id: check} of those of containers."""
    rows = json.loads(_gpufleet("verify", "--json", "-i", inventory))["hosts"]["gpu-vm"]["checks"]
    return {row["id"]: row for row in rows if row["id"].startswith("containers.")}


def _gpufleet(*words: str | Path) -> str:
    """The standard output; the status also tells of cards that the PCI bus does not have here."""
    done = subprocess.run(
        [ROOT / "gpufleet", *words, *UNHURRIED],
        cwd=ROOT, env=unhurried(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in {0, 1, 3}, f"{done.stdout}\n{done.stderr}"
    return done.stdout
