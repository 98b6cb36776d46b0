"""A host on which SELinux enforces a policy: it is provisioned and verified like any other.

On a virtual machine under software emulation, with Debian's policy: a container has no SELinux of
its own. Without a stack, whose wheels would not fit on its disk.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import vm
from tests.support.lab_fleet import ROOT, TOOLKIT
from tests.support.virtual_machine import booted, unhurried

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# An emulated processor is slow, and slower beside other work.
UNHURRIED = ("--deadline", "1800")
# What gpufleet installs and writes without a stack.
PLACES = f"{TOOLKIT} /usr/local/cuda /var/lib/gpufleet /etc/ld.so.conf.d /etc/ld.so.cache"


@pytest.fixture(scope="module")
def machine() -> Iterator[vm.Machine]:
    with booted(vm.SELINUX) as (found,):
        yield found


@pytest.fixture(scope="module")
def inventory(machine: vm.Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine alone, with the lab's artifacts."""
    python = ROOT / ".venv" / "bin" / "python"
    subprocess.run([python, "-m", "lab", "artifacts"], cwd=ROOT, check=True)
    lab = subprocess.run(
        [ROOT / "inventory" / "lab" / "hosts.py", "--list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    known = json.loads(lab.stdout)["all"]["vars"]
    declared = {
        "gpu_accept_nvidia_eula": True,
        "gpu_stacks": [],
        "gpu_toolkits": [{"cuda": "11.8", "cudnn": ["8.6"]}],
        "gpu_cuda_default": "11.8",
        "gpu_expect": {"count": 0},
    }
    variables = {**known, **declared, **machine.variables}
    hosts = {"gpu_hosts": {"hosts": {"gpu-vm": variables}}}
    file = tmp_path_factory.mktemp("selinux") / "hosts.yml"
    file.write_text(json.dumps({"all": {"children": hosts}}))
    return file


def gpufleet(*words: str | Path) -> str:
    done = subprocess.run(
        [ROOT / "gpufleet", *words],
        cwd=ROOT, env=unhurried(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + ("" if "--json" in words else done.stderr)


def test_what_is_installed_has_the_policys_labels(machine: vm.Machine, inventory: Path) -> None:
    assert machine.on("getenforce").strip() == "Enforcing"
    gpufleet("provision", *UNHURRIED, "-i", inventory)
    assert machine.on(f"restorecon -n -v -R {PLACES}") == ""
    assert ":lib_t:" in machine.on(f"ls -Z $(readlink -f {TOOLKIT}/lib64/libcudart.so.11.0)")
    # What a service may load, which is confined more than a login.
    load = f"import ctypes; ctypes.CDLL('{TOOLKIT}/lib64/libcudart.so.11.0')"
    machine.on(f'systemd-run --quiet --wait --pipe /usr/bin/python3 -c "{load}"')


def test_it_is_verified_without_a_denial(machine: vm.Machine, inventory: Path) -> None:
    machine.on("dmesg --clear")
    checks = json.loads(gpufleet("verify", "--json", *UNHURRIED, "-i", inventory))["hosts"][
        "gpu-vm"
    ]
    assert checks["verdict"] == "PASS"
    denied = [line for line in machine.on("dmesg").splitlines() if "avc:" in line]
    assert [line for line in denied if "python" in line or "gpufleet" in line] == []


def test_it_is_repaired_with_the_same_labels(machine: vm.Machine, inventory: Path) -> None:
    machine.on(f"truncate -s 100 {TOOLKIT}/bin/ptxas; rm /usr/local/cuda")
    gpufleet("provision", *UNHURRIED, "-i", inventory)
    assert machine.on(f"restorecon -n -v -R {PLACES}") == ""
    assert "No host differs" in gpufleet("provision", *UNHURRIED, "-i", inventory)
