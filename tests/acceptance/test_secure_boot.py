"""A host with Secure Boot: its key is missing, awaits its enrolment, and is enrolled.

On a virtual machine under software emulation, with UEFI firmware, Debian's shim, GRUB and kernel,
and stand-ins for NVIDIA's modules that are signed as DKMS signs. One story, in its order.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import secure_boot, vm
from tests.support.lab_fleet import ROOT
from tests.support.virtual_machine import booted

pytestmark = [pytest.mark.lab, pytest.mark.slow]

VERSION = vm.VERSIONS[0]
KEY, PASSWORD = "/var/lib/dkms/mok.pub", "lab"
# What DKMS does: it makes a key, and signs what it builds.
SIGNED = f"""set -e
modules=/lib/modules/$(uname -r)/updates/dkms sign=/lib/modules/$(uname -r)/build/scripts/sign-file
for name in nvidia nvidia-uvm; do
  install -D /opt/standin/{VERSION}/$name.ko $modules/$name.ko
  $sign sha512 /var/lib/dkms/mok.key {KEY} $modules/$name.ko
done
depmod"""


@pytest.fixture(scope="module")
def machine() -> Iterator[vm.Machine]:
    with booted(vm.SECURE_BOOT) as (found,):
        yield found


@pytest.fixture(scope="module")
def inventory(machine: vm.Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    declared = {"gpu_driver": {"branch": "535", "source": "distro"}, "gpu_expect": {"count": 1}}
    hosts = {"gpu_hosts": {"hosts": {"gpu-vm": {**machine.variables, **declared}}}}
    file = tmp_path_factory.mktemp("secure-boot") / "hosts.yml"
    file.write_text(json.dumps({"all": {"children": hosts}}))
    return file


def verdict(inventory: Path, check: str = "driver.secure-boot") -> dict[str, Any]:
    words = ("verify", "--json", "--deadline", "1800", "-i", inventory)
    done = subprocess.run(
        [ROOT / "gpufleet", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    checks = json.loads(done.stdout)["hosts"]["gpu-vm"]["checks"]
    (found,) = [row for row in checks if row["id"] == check]
    return dict(found)


def loaded(machine: vm.Machine) -> bool:
    shown = machine.on("modprobe nvidia 2>&1; ls -d /proc/driver/nvidia 2>&1 || :")
    return shown.splitlines()[-1] == "/proc/driver/nvidia"


def test_without_a_key_the_remedy_makes_one(machine: vm.Machine, inventory: Path) -> None:
    assert "[integrity]" in machine.on("cat /sys/kernel/security/lockdown")
    found = verdict(inventory)
    assert found["verdict"] == "FAIL"
    assert "is not enrolled: the kernel refuses them" in found["cause"]
    made = found["remedy"].partition(f"unless {KEY} exists, ")[2].partition("; then ")[0]
    assert made.startswith("openssl req "), found["remedy"]
    machine.on(f"mkdir -p /var/lib/dkms && {made}")
    machine.on(SIGNED)
    assert not loaded(machine)
    refused = verdict(inventory, "kernel.log")
    assert refused["verdict"] == "FAIL"
    assert refused["explained_by"] == "driver.secure-boot"


def test_a_key_that_is_not_enrolled_is_imported_as_it_says(
    machine: vm.Machine, inventory: Path
) -> None:
    remedy = verdict(inventory)["remedy"]
    assert f"as root: mokutil --import {KEY} (package mokutil)" in remedy
    machine.on(
        f"mokutil --generate-hash={PASSWORD} >/root/hash && mokutil --import {KEY}"
        " --hash-file /root/hash"
    )
    found = verdict(inventory)
    assert found["verdict"] == "FAIL"
    assert "awaits its enrolment" in found["cause"]
    assert "reboot, and on the console choose Enroll MOK" in found["remedy"]


def test_once_it_is_enrolled_the_modules_load(machine: vm.Machine, inventory: Path) -> None:
    with secure_boot.enrolment(machine.console, PASSWORD):
        machine.on("systemctl reboot", check=False)
    assert vm.settled(machine)
    assert loaded(machine)
    found = verdict(inventory)
    assert (found["verdict"], found["evidence"].count("'enrolled': True")) == ("PASS", 1)
