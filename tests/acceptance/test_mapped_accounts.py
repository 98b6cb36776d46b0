"""Containers whose accounts are others on the host: Docker's `userns-remap`, and rootless engines.

On a virtual machine under software emulation, since no engine in a container may map accounts, with
Docker, a stand-in for NVIDIA's kernel module, and one for the container toolkit's repository. What
other tests mount over files of /proc would keep such containers from starting. One story, in its
order.
"""

from __future__ import annotations

import json
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import vm
from tests.support.gpu_containers import LEGACY
from tests.support.lab_fleet import ROOT
from tests.support.virtual_machine import booted, unhurried

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# An emulated processor is slow, and slower beside other work.
UNHURRIED = ("--deadline", "1800")
REMAPPED = """set -e
mkdir -p /etc/docker /srv/toolkit
echo '{"userns-remap": "default"}' >/etc/docker/daemon.json
systemctl restart docker"""
CARD = f"insmod /opt/standin/{vm.VERSIONS[0]}/nvidia.ko && test -c /dev/nvidia0"
MAPPED = "docker info --format '{{.SecurityOptions}}'"
# As its installer starts it, for as long as the account has a session.
ROOTLESS = """set -e
loginctl enable-linger deploy
until [ -S /run/user/$(id -u deploy)/bus ]; do sleep 1; done
systemd-run --quiet --unit=rootless --uid=deploy --setenv=HOME=/home/deploy \
  --setenv=XDG_RUNTIME_DIR=/run/user/$(id -u deploy) --setenv=PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  /usr/share/docker.io/contrib/dockerd-rootless.sh --iptables=false
until [ -S /run/user/$(id -u deploy)/docker.sock ]; do systemctl is-active --quiet rootless; done"""
OWN_DOCKER = (
    "DOCKER_HOST=unix:///run/user/$(id -u deploy)/docker.sock docker info"
    " --format '{{.SecurityOptions}}'"
)


@pytest.fixture(scope="module")
def machine() -> Iterator[vm.Machine]:
    with booted(vm.DOCKER) as (found,):
        found.on(REMAPPED)
        found.on(CARD)
        yield found


@pytest.fixture(scope="module")
def inventory(machine: vm.Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine alone, with the toolkit's repository on it."""
    place = tmp_path_factory.mktemp("mapped")
    repository = place / "toolkit"
    python = ROOT / ".venv" / "bin" / "python"
    subprocess.run([python, "-m", "lab", "toolkit-repository", repository], cwd=ROOT, check=True)
    words = ["tar", "-C", repository, "-cz", "."]
    packed = subprocess.run(words, check=True, capture_output=True).stdout
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


def gpufleet(*words: str | Path) -> str:
    """The standard output; the status also tells of cards that the PCI bus does not have here."""
    done = subprocess.run(
        [ROOT / "gpufleet", *words, *UNHURRIED],
        cwd=ROOT, env=unhurried(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in {0, 1, 3}, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def containers(inventory: Path) -> dict[str, dict[str, Any]]:
    rows = json.loads(gpufleet("verify", "--json", "-i", inventory))["hosts"]["gpu-vm"]["checks"]
    return {row["id"]: row for row in rows if row["id"].startswith("containers.")}


def test_provisioning_keeps_the_mapping_and_its_containers_have_the_gpus(
    machine: vm.Machine, inventory: Path
) -> None:
    assert "name=userns" in machine.on(MAPPED)
    output = gpufleet("provision", "-i", inventory)
    assert "name=userns" in machine.on(MAPPED)
    written = json.loads(machine.on("cat /etc/docker/daemon.json"))
    assert (written["userns-remap"], written["live-restore"]) == ("default", True), output
    found = containers(inventory)
    assert {name for name, row in found.items() if row["verdict"] == "PASS"} == {
        f"containers.{name}" for name in ("runtime", "cdi", "gpus", "reload", "vulnerable")
    }, found
    for way in ("nvidia-docker run", "docker run --gpus all", "docker run --runtime=nvidia"):
        assert (
            f"Started by {way}, a container opens the same GPUs"
            in (found["containers.gpus"]["evidence"])
        )


def test_a_device_file_that_is_closed_to_mapped_accounts_is_found(
    machine: vm.Machine, inventory: Path
) -> None:
    machine.on("chmod 660 /dev/nvidia0")
    found = containers(inventory)["containers.gpus"]
    assert found["verdict"] == "FAIL"
    assert "a container cannot open /dev/nvidia0 (Permission denied)" in found["cause"]
    assert "set NVreg_DeviceFileMode=0666" in found["remedy"]
    # What the driver does with that option; the next test ends with a container that opens it.
    machine.on("chmod 666 /dev/nvidia0")


def test_a_host_with_nobodys_engine_but_a_rootless_one_is_not_healthy(
    machine: vm.Machine, inventory: Path
) -> None:
    machine.on(ROOTLESS)
    assert "name=rootless" in machine.on(OWN_DOCKER)
    machine.on("systemctl disable --now docker.service docker.socket")
    found = containers(inventory)
    runtime = found["containers.runtime"]
    assert runtime["verdict"] == "FAIL"
    assert "ocker does not answer: Cannot connect to the Docker daemon" in runtime["cause"]
    assert "The rootless docker of deploy was not tried" in runtime["evidence"]
    others = {row["verdict"] for name, row in found.items() if name.endswith((".gpus", ".reload"))}
    assert others == {"INCONCLUSIVE"}

    gpufleet("provision", "-i", inventory)
    found = containers(inventory)
    assert (found["containers.runtime"]["verdict"], found["containers.gpus"]["verdict"]) == (
        ("PASS", "PASS")
    ), found
    assert "The rootless docker of deploy was not tried" in found["containers.runtime"]["evidence"]
    assert "name=rootless" in machine.on(OWN_DOCKER), "it runs as before"
