"""Each role alone, in somebody else's playbook, from the built collection.

The examples are the playbooks. They run from a directory of their own, with an inventory that
declares nothing but the hosts and the lab's artifacts, in the order of a host's life.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.paths import ROOT
from tests.support import planted_adapters
from tests.support.gpu_containers import toolkit_repository
from tests.support.lab_fleet import RUNFILE, STACK, TOOLKIT, Fleet, end_of
from tests.support.planted_adapters import ADDRESS, PLACE, PORTS

pytestmark = pytest.mark.lab
UP = ("--hosts", "lab1")
BIN = ROOT / ".venv" / "bin"

Example = Callable[..., str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory outside the checkout with the installed collection, examples and inventory."""
    site = tmp_path_factory.mktemp("site")
    subprocess.run([BIN / "gpufleet", "build", "--output", site / "dist"], cwd=ROOT, check=True)
    (archive,) = (site / "dist").glob("gpufleet-gpu-*.tar.gz")
    options = ("--offline", "--force", "--collections-path", site / "collections")
    subprocess.run(
        [BIN / "ansible-galaxy", "collection", "install", *options, archive], cwd=site, check=True
    )
    shutil.copytree(ROOT / "examples", site / "playbooks")
    (site / "inventory").mkdir()
    shutil.copy(ROOT / "inventory" / "lab" / "hosts.py", site / "inventory")
    return site


@pytest.fixture
def example(site: Path, fleet: Fleet) -> Example:
    """Runs an example on lab1; returns what ansible-playbook prints."""

    def run(name: str, *options: str, status: int = 0) -> str:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        done = subprocess.run(
            [
                BIN / "ansible-playbook",
                "-i",
                "inventory/hosts.py",
                f"playbooks/{name}.yml",
                *options,
            ],
            cwd=site,
            env={
                **kept,
                "GPUFLEET_LAB": fleet.instance,
                "ANSIBLE_COLLECTIONS_PATH": str(site / "collections"),
                "ANSIBLE_HOME": str(site / "home"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, f"{end_of(done.stdout)}\n{end_of(done.stderr)}"
        return done.stdout

    return run


# Each role refuses in its own way; CI asks those that install something.
ASKED = {"cuda", "nvidia_docker", "nvidia_driver", "stacks"}


@pytest.mark.parametrize(
    ("role", "declaration"),
    [
        pytest.param(role, declaration, marks=[pytest.mark.slow] * (role not in ASKED))
        for role, declaration in (
            ("nvidia_docker", "gpu_containers: {engine: docker}"),
            ("nvidia_driver", 'gpu_driver: {branch: "535"'),
            ("network", "gpu_network: {driver: inbox}"),
            ("cuda", 'gpu_toolkits: ["12.4.1"]'),
            ("adoption", 'gpu_toolkits: ["12.4.1"]'),
            ("artifacts", 'gpu_toolkits: ["12.4.1"]'),
            ("gpu_environment", 'gpu_toolkits: ["12.4.1"]'),
            ("pull_verify", "gpu_expect: {count: 8}"),
            ("stacks", 'gpu_stacks: [{tensorflow: "2.13.1"}]'),
            ("removal", 'gpu_toolkits: ["12.4.1"]'),
        )
    ],
)
def test_a_role_without_its_declaration_names_it_and_changes_nothing(
    example: Example, fleet: Fleet, site: Path, role: str, declaration: str
) -> None:
    (site / "playbooks" / "alone.yml").write_text(
        f"- hosts: all\n  become: true\n  gather_facts: false\n  roles: [gpufleet.gpu.{role}]\n"
    )
    before = fleet.state("lab1")
    output = example("alone", status=2)
    assert "Nothing was changed on lab1: nothing is declared for this role." in output
    assert declaration in output.replace("\\", "")
    assert fleet.state("lab1") == before


def test_the_plan_is_shown_and_packages_are_installed(example: Example) -> None:
    assert "changed=0" in example("gpu_plan")
    example("host_packages")
    assert "changed=0" in example("host_packages")


def test_artifacts_are_delivered_and_nothing_is_installed(example: Example, fleet: Fleet) -> None:
    example("artifacts")
    assert RUNFILE in fleet.on("lab1", "ls /var/cache/gpufleet/artifacts")
    fleet.on("lab1", f"test ! -e {TOOLKIT}")
    assert "changed=0" in example("artifacts")


def test_cuda_has_the_default_link_and_the_linkers_configuration(
    example: Example, fleet: Fleet
) -> None:
    example("cuda")
    assert fleet.on("lab1", "readlink /usr/local/cuda").strip().endswith("cuda-11.8")
    assert "libcublas.so.11" in fleet.on("lab1", "ldconfig -p")
    assert "changed=0" in example("cuda")


def test_the_environment_is_written(example: Example, fleet: Fleet) -> None:
    example("gpu_environment")
    assert f"{TOOLKIT}/bin/nvcc" in fleet.on(
        "lab1", "env -i bash -lc 'readlink -f $(command -v nvcc)'"
    )
    assert "changed=0" in example("gpu_environment")


def test_a_toolkit_without_a_receipt_is_adopted(example: Example, fleet: Fleet) -> None:
    """Then its receipt comes back, as a toolkit that was adopted is not removed."""
    receipts = "/var/lib/gpufleet/receipts"
    fleet.on("lab1", f"mv {receipts} {receipts}.kept")
    example("adoption")
    assert "adopted" in fleet.on("lab1", f"cat {receipts}/toolkit-11.8*.json")
    assert "changed=0" in example("adoption")
    fleet.on("lab1", f"rm -r {receipts} && mv {receipts}.kept {receipts}")


def test_cudnn_is_installed_into_the_toolkit(example: Example, fleet: Fleet) -> None:
    example("cudnn")
    assert "libcudnn.so.8" in fleet.on("lab1", f"ls {TOOLKIT}/lib64")
    assert "changed=0" in example("cudnn")


def test_a_pinned_tensorflow_has_the_toolkit_that_it_needs(example: Example, fleet: Fleet) -> None:
    example("tensorflow_gpu")
    program = "import tensorflow; print(tensorflow.__version__)"
    assert "2.13.1" in fleet.on("lab1", f"{STACK}/bin/python -c '{program}' 2>/dev/null")
    assert "changed=0" in example("tensorflow_gpu")


def test_a_host_verifies_itself(example: Example, fleet: Fleet) -> None:
    example("pull_verify")
    fleet.on("lab1", "systemctl start gpufleet-pull.service || journalctl -u gpufleet-pull >&2")
    result = json.loads(fleet.on("lab1", "cat /var/lib/gpufleet-pull/lab1.json"))["result"]
    assert result["verdict"] == "PASS", result["checks"]
    assert "changed=0" in example("pull_verify")


@pytest.mark.slow
@pytest.mark.parametrize("installed", [False, True])
def test_a_control_host_verifies_every_night(
    example: Example,
    fleet: Fleet,
    site: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    installed: bool,
) -> None:
    """By a checkout, and by a package as `uv tool install` leaves it, which packs itself."""
    if installed:
        (wheel,) = (site / "dist").glob("*.whl")
        zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
        monkeypatch.setenv("HOME", str(tmp_path))
    example("nightly_verify")
    assert "gpufleet-nightly.timer" in fleet.on("lab1", "systemctl list-timers")
    assert "verify" in fleet.on("lab1", "gpufleet --help")
    assert "changed=0" in example("nightly_verify")


@pytest.mark.slow
def test_containers_get_the_gpus(example: Example, fleet: Fleet, tmp_path: Path) -> None:
    repository = "-e", json.dumps(toolkit_repository(fleet, tmp_path, "lab1"))
    example("nvidia_docker", *repository)
    assert "nvidia" in fleet.on("lab1", "docker info --format '{{json .Runtimes}}'")
    assert "changed=0" in example("nvidia_docker", *repository)


def test_the_driver_is_announced_and_nothing_is_changed(example: Example, fleet: Fleet) -> None:
    before = fleet.state("lab1")
    assert "changed=2" in example("nvidia_driver", "--check")
    runfile = {"branch": "535.261.03", "source": "runfile", "module": "open"}
    declared = json.dumps({"gpu_driver": runfile, "gpu_accept_nvidia_eula": True})
    output = example("nvidia_driver", "-e", declared, status=2)
    assert "Nobody has published a checksum of NVIDIA-Linux-x86_64-535.261.03.run" in output
    assert fleet.state("lab1") == before


def network(**declared: object) -> tuple[str, str]:
    """The option that declares these parts of gpu_network, and the ports."""
    expect = {"network": [{"ports": "mlx5_0"}]}
    return "-e", json.dumps({"gpu_network": declared, "gpu_expect": expect})


@pytest.mark.slow
def test_network_adapters_are_set_up_and_what_is_not_declared_goes(
    example: Example, fleet: Fleet, tmp_path: Path
) -> None:
    planted_adapters.plant(fleet, "lab1", tmp_path)
    small, redirecting = ("2010", ["001d", "001d"]), ["0000", "0000"]
    assert planted_adapters.registers(fleet, "lab1") == small
    settings = {"max_read_request_bytes": 4096, "acs": "off"}
    before = fleet.state("lab1")
    output = example("network", "--check", "--diff", *network(driver="inbox", **settings))
    assert "Would install rdma-core" in output
    assert f"Would apply --max-read-request 4096 --acs-off --adapter {ADDRESS}" in output
    assert (fleet.state("lab1"), planted_adapters.registers(fleet, "lab1")) == (before, small)

    example("network", *network(driver="inbox", **settings))
    assert planted_adapters.registers(fleet, "lab1") == ("5010", redirecting)
    assert "ibstat" in fleet.on("lab1", "ls /usr/sbin/ibstat /usr/lib/udev/rules.d/*rdma*")
    journal = "journalctl -u gpufleet-network -o cat --no-pager"
    assert f"{ADDRESS}: MaxReadReq was 512 bytes, is 4096" in fleet.on("lab1", journal)
    assert "access control (ACS) was 0x001d, is 0x0000" in fleet.on("lab1", journal)
    assert fleet.on("lab1", "systemctl is-enabled gpufleet-network") == "enabled\n"
    assert "changed=0" in example("network", *network(driver="inbox", **settings))

    # A reset of the device, and the boot after it.
    config = f"/sys/bus/pci/devices/{ADDRESS}/config"
    reset = f"printf '\\020\\040' | dd of={config} bs=1 seek=104 conv=notrunc status=none"
    fleet.on("lab1", reset)
    assert planted_adapters.registers(fleet, "lab1")[0] == "2010"
    fleet.on("lab1", "systemctl restart gpufleet-network")
    assert planted_adapters.registers(fleet, "lab1")[0] == "5010"
    assert f"{PORTS[0]}: access control (ACS) is off already" in fleet.on("lab1", journal)
    fleet.on("lab1", reset)
    assert "changed=0" not in example("network", *network(driver="inbox", **settings))
    assert planted_adapters.registers(fleet, "lab1")[0] == "5010"

    # A register that cannot be written fails the run with the unit's words, and a removal ends it.
    fleet.on("lab1", f"{reset} && mount -o bind,ro {PLACE}{config} {config}")
    output = example("network", *network(driver="inbox", **settings), status=2)
    assert f"{ADDRESS}: not set: its configuration cannot be written" in output
    fleet.on("lab1", f"umount {config}")

    example("network", *network(driver="inbox"))
    fleet.on("lab1", "test ! -e /opt/gpufleet/network")
    assert "gpufleet-network" not in fleet.on("lab1", "systemctl list-units --all")
    assert "changed=0" in example("network", *network(driver="inbox"))


@pytest.mark.slow
def test_network_adapters_are_refused_before_anything_changes(
    example: Example, fleet: Fleet
) -> None:
    before = fleet.state("lab1")
    output = example("network", *network(max_read_request_bytes=1000), status=2)
    assert "gpu_network.max_read_request_bytes is a number (1000), not one of 128" in output
    fleet.on("lab1", "umount /proc/cpuinfo && sed 's/^flags.*/& hypervisor/' /proc/cpuinfo >/tmp/c")
    fleet.on("lab1", "mount --bind /tmp/c /proc/cpuinfo")
    output = example("network", *network(acs="off"), status=2)
    assert "the host is a virtual machine" in output
    fleet.on("lab1", "umount /proc/cpuinfo")
    assert fleet.state("lab1") == before


@pytest.mark.slow
def test_the_network_setup_is_removed_by_a_command(example: Example, fleet: Fleet) -> None:
    example("network", *network(max_read_request_bytes=1024))
    fleet.on("lab1", "test -e /opt/gpufleet/network")
    fleet.gpufleet("remove", "--network", "--yes")
    left = "find /etc /opt -name '*gpufleet-network*' -o -path '/opt/gpufleet/network*'"
    assert fleet.on("lab1", left) == ""
    fleet.on("lab1", "dpkg -s rdma-core")
    fleet.on("lab1", "umount --recursive --lazy /sys")


@pytest.mark.slow
def test_stacks_of_several_frameworks_are_installed(example: Example, fleet: Fleet) -> None:
    example("stacks")
    for stack, module in (("tensorflow-2.13.1", "tensorflow"), ("pytorch-2.6.0", "torch")):
        python = f"/opt/gpufleet/stacks/{stack}/bin/python"
        fleet.on("lab1", f"{python} -c 'import {module}' 2>/dev/null")
    assert "changed=0" in example("stacks")
    example("removal", "-e", '{"removal_what": [{"what": "stack", "id": "pytorch-2.6.0"}]}')


def test_what_is_removed_leaves_nothing(example: Example, fleet: Fleet) -> None:
    example("removal")
    fleet.on("lab1", f"test ! -e {STACK} && test ! -e {TOOLKIT}")
    assert "changed=0" in example("removal")
