"""Containers whose accounts are others on the host: Docker's `userns-remap`, and rootless engines.

On a virtual machine under software emulation, since no engine in a container may map accounts, with
Docker, a stand-in for NVIDIA's kernel module, and one for the container toolkit's repository. What
other tests mount over files of /proc would keep such containers from starting. One story, in its
order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import vm
from tests.support.virtual_machine import CARD, booted, containers, provision, with_containers

pytestmark = [pytest.mark.lab, pytest.mark.slow]

REMAPPED = """set -e
mkdir -p /etc/docker
echo '{"userns-remap": "default"}' >/etc/docker/daemon.json
systemctl restart docker"""
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
    return with_containers(machine, tmp_path_factory.mktemp("mapped"))


def test_provisioning_keeps_the_mapping_and_its_containers_have_the_gpus(
    machine: vm.Machine, inventory: Path
) -> None:
    assert "name=userns" in machine.on(MAPPED)
    output = provision(inventory)
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

    provision(inventory)
    found = containers(inventory)
    assert (found["containers.runtime"]["verdict"], found["containers.gpus"]["verdict"]) == (
        ("PASS", "PASS")
    ), found
    assert "The rootless docker of deploy was not tried" in found["containers.runtime"]["evidence"]
    assert "name=rootless" in machine.on(OWN_DOCKER), "it runs as before"
