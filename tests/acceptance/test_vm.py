"""A driver that comes back: modules exchanged while the host runs, or by one reboot.

On a virtual machine under software emulation, with a kernel of its own and stand-ins for NVIDIA's
modules that load, unload and are in use for as long as somebody has their device open. One story,
in its order; half a minute for each boot.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import vm
from tests.support.lab_fleet import ROOT
from tests.support.virtual_machine import booted

pytestmark = [pytest.mark.lab, pytest.mark.slow]

OLD, NEW = vm.VERSIONS
MARKER = "/var/lib/gpufleet/reboot-pending.json"


@pytest.fixture(scope="module")
def machine() -> Iterator[vm.Machine]:
    with booted(vm.PLAIN) as (found,):
        on_disk(found, OLD)
        found.on("modprobe nvidia && modprobe nvidia-uvm")
        yield found


def on_disk(machine: vm.Machine, version: str) -> None:
    """Leave the files of installed packages: modules and library of a version."""
    machine.on(
        f"""set -e
        modules=/lib/modules/$(uname -r)/updates/dkms libraries=/usr/lib/x86_64-linux-gnu
        mkdir -p $modules
        cp /opt/standin/{version}/*.ko $modules/
        depmod
        rm -f $libraries/libcuda.so*
        cp /opt/standin/{version}/libcuda.so.{version} $libraries/
        ln -s libcuda.so.{version} $libraries/libcuda.so.1"""
    )


def restart(machine: vm.Machine, folder: Path, reboot: str = "auto") -> str:
    """The last step of the role; what it said, on one line."""
    role = {"name": "gpufleet.gpu.nvidia_driver", "tasks_from": "restart"}
    tasks = [{"ansible.builtin.include_role": role}]
    plays = [{"hosts": "all", "become": True, "gather_facts": False, "tasks": tasks}]
    driver = {"managed": True, "source": "distro", "reboot": reboot}
    plan = {"host": "gpu-vm", "expect": {"count": 1}, "driver": driver}
    hosts = {"all": {"hosts": {"gpu-vm": {**machine.variables, "gpu_plan": plan}}}}
    play, inventory = folder / "play.yml", folder / "hosts.yml"
    play.write_text(json.dumps(plays))
    inventory.write_text(json.dumps(hosts))
    program = ROOT / ".venv" / "bin" / "ansible-playbook"
    words = [program, play, "-i", inventory, "--diff"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return " ".join(done.stdout.split())


def seen(machine: vm.Machine) -> tuple[str, str, Any]:
    """The loaded version, the boot, the marker."""
    version = machine.on("cat /proc/driver/nvidia/version /sys/module/nvidia_uvm/version")
    boot = machine.on("cat /proc/sys/kernel/random/boot_id").strip()
    marker = machine.on(f"cat {MARKER} 2>/dev/null || echo null")
    assert version.split()[-1] in version.splitlines()[0], "both modules are of one version"
    return version.split()[-1], boot, json.loads(marker)


def test_modules_are_exchanged_without_a_reboot_where_nothing_holds_a_gpu(
    machine: vm.Machine, tmp_path: Path
) -> None:
    version, boot, _ = seen(machine)
    assert version == OLD
    on_disk(machine, NEW)
    output = restart(machine, tmp_path)
    assert f"-kernel module nvidia {OLD} +kernel module nvidia {NEW}" in output
    assert "changed=1 " in output
    assert seen(machine) == (NEW, boot, None)
    assert "changed=0 " in restart(machine, tmp_path)


def test_somebody_who_holds_a_gpu_is_named_and_a_reboot_brings_the_other_driver(
    machine: vm.Machine, tmp_path: Path
) -> None:
    before = seen(machine)
    on_disk(machine, OLD)
    program = "sh -c 'exec sleep infinity </dev/nvidia0'"
    hold = f"systemd-run --quiet --uid=deploy --unit=holder {program}"
    machine.on(f"{hold} && until ls -l /proc/[0-9]*/fd 2>/dev/null | grep -q nvidia0; do :; done")
    pid = machine.on("systemctl show --property=MainPID --value holder").strip()
    named = f"the GPU is held by sleep (pid {pid} of deploy)"

    assert named in restart(machine, tmp_path, reboot="never")
    assert seen(machine) == before

    output = restart(machine, tmp_path)
    version, boot, marker = seen(machine)
    assert boot != before[1]
    assert (version, marker) == (OLD, None)
    assert "failed=0" in output
    assert "changed=0 " in restart(machine, tmp_path)
    assert seen(machine) == (OLD, boot, None)
