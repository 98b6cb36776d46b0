"""Labelled containers on a host on which SELinux enforces a policy.

On a virtual machine under software emulation, with Docker, a stand-in for NVIDIA's kernel module,
one for the container toolkit's repository, and one for the policy of containers, which Debian does
not have. One story, in its order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import vm
from tests.support.virtual_machine import CARD, booted, containers, provision, with_containers

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# The kernel loads a module only with the label that those in /lib/modules have.
LABELLED = """set -e
chcon -t modules_object_t /opt/standin/*/*.ko
mkdir -p /etc/docker
echo '{"selinux-enabled": true}' >/etc/docker/daemon.json
systemctl restart docker"""


@pytest.fixture(scope="module")
def machine() -> Iterator[vm.Machine]:
    with booted(vm.SELINUX_DOCKER) as (found,):
        found.on(LABELLED)
        found.on(CARD)
        yield found


@pytest.fixture(scope="module")
def inventory(machine: vm.Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_containers(machine, tmp_path_factory.mktemp("labelled"))


def test_a_labelled_container_is_denied_the_gpus_until_the_boolean_is_set(
    machine: vm.Machine, inventory: Path
) -> None:
    assert machine.on("getenforce").strip() == "Enforcing"
    provision(inventory)
    assert "selinux" in machine.on("docker info --format '{{.SecurityOptions}}'")
    found = containers(inventory)["containers.gpus"]
    assert found["verdict"] == "FAIL"
    # It names each node to the engine, which makes one with the container's label.
    assert "nvidia-docker" not in found["cause"]
    assert (
        "Started by docker run --gpus all or docker run --runtime=nvidia, a container cannot open"
        " /dev/nvidia0 (Permission denied)"
    ) in found["cause"]
    assert "setsebool -P container_use_devices on" in found["remedy"]

    machine.on("setsebool -P container_use_devices on")
    found = containers(inventory)["containers.gpus"]
    assert found["verdict"] == "PASS"
    for way in ("nvidia-docker run", "docker run --gpus all", "docker run --runtime=nvidia"):
        assert f"Started by {way}, a container opens the same GPUs" in found["evidence"]


def test_the_trial_leaves_nothing_in_memory(machine: vm.Machine) -> None:
    """Docker labels each file of a volume: it would copy all of /usr into the container's layer."""
    assert machine.on("ls /run | grep gpufleet- || :") == ""
    assert machine.on("docker volume ls --quiet; docker ps --all --quiet") == ""
    assert machine.on("find /run -xdev -size +1M") == ""
