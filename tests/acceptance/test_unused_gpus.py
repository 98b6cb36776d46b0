"""Frameworks on a host that shows two GPUs which none of them can use: on the CPU, and noticed.

The cards are stand-ins: `nvidia-smi` lists them, device nodes and `/proc` name them, and CUDA's
driver library starts and counts them. CUDA's real runtime, of each stack's own packages, refuses
that library, and each framework then says so in its own words. The tests are one story.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.gpus.smi_text import CUDA, DRIVER, smi_text
from tests.support import stand_ins
from tests.support.fault_proof import Checks, copy_to_host
from tests.support.gpu_containers import CARDS
from tests.support.lab_fleet import Fleet

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ARTIFACTS = ("--cuda", "12.5")
UP = ("--hosts", "lab1")

ROOT = "/opt/gpufleet/stacks"
STACKS = ("tensorflow-2.18.1", "pytorch-2.6.0", "pytorch-1.13.1", "jax-0.5.3", "jax-0.5.3-local")
PLACE = "/srv/stand-in-cards"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
COUNTED = ("-i", "inventory/frameworks", "-e", json.dumps({"gpu_toolkits": []}))
DECLARED = (*COUNTED, "-e", json.dumps({"gpu_expect": {"count": 2}}))

# What each of them says of a driver whose GPUs it counts, and cannot use.
REASONS = {
    "tensorflow-2.18.1": "InternalError: cudaGetDevice() failed. Status: API call is not supported"
                         " in the installed CUDA driver",
    "pytorch-2.6.0": "PyTorch reports 0 GPUs: RuntimeError: Unexpected error from"
                     " cudaGetDeviceCount()",
    "pytorch-1.13.1": "PyTorch reports 0 GPUs: RuntimeError: Unexpected error from"
                      " cudaGetDeviceCount()",
    "jax-0.5.3": "JAX reports 0 GPUs: RuntimeError: Unable to initialize backend 'cuda'",
    "jax-0.5.3-local": "JAX reports 0 GPUs: RuntimeError: Unable to initialize backend 'cuda'",
}  # fmt: skip

INSTALL = f"""set -e
{CARDS}
for name in libcuda libnvidia-ml; do
    cp {PLACE}/$name.so.1 {LIBRARIES}/$name.so.{DRIVER}
    ln -sf $name.so.{DRIVER} {LIBRARIES}/$name.so.1
    ln -sf $name.so.1 {LIBRARIES}/$name.so
done
/sbin/ldconfig
cp {PLACE}/nvidia-smi /usr/bin/
chmod 755 /usr/bin/nvidia-smi
"""
SMI = f"""#!/bin/sh
case "$*" in
-q*) cat {PLACE}/smi.xml;;
-L) printf 'GPU 0: NVIDIA H100 80GB HBM3\\nGPU 1: NVIDIA H100 80GB HBM3\\n';;
*) printf '0, Disabled\\n1, Disabled\\n';;
esac
"""


def show_cards(fleet: Fleet, folder: Path) -> None:
    """Put two cards into the host."""
    stand_ins.compiled(folder, stand_ins.DRIVER)
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "smi.xml").write_text(smi_text(({}, {}), DRIVER, CUDA))
    copy_to_host(fleet, folder, PLACE)
    fleet.on("lab1", INSTALL)


@pytest.fixture(scope="module")
def healthy(fleet: Fleet) -> Fleet:
    """The host with its stacks, before it has any card."""
    fleet.gpufleet("provision", *COUNTED)
    return fleet


@pytest.fixture(scope="module")
def unused(healthy: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Checks:
    """The checks of the host with the cards."""
    show_cards(healthy, tmp_path_factory.mktemp("cards") / "unusable")
    return healthy.verdicts(1, *DECLARED)["lab1"]


def test_cuda_starts_and_the_stacks_are_whole(unused: Checks) -> None:
    """So it is the frameworks' own fall to the CPU that is caught. The cards are not on the bus."""
    for check in ("driver.cuda", "stack.build", "stack.files", "stack.release"):
        assert unused[check]["verdict"] == "PASS", unused[check]
    assert "nvidia-smi lists a GPU" in unused["gpu.visible"]["cause"]


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_on_the_cpu_is_reported_with_its_own_reason(unused: Checks, stack: str) -> None:
    gpu, matmul = unused["stack.gpu"], unused["stack.matmul"]
    assert (gpu["verdict"], matmul["verdict"]) == ("FAIL", "FAIL")
    for number in (0, 1):
        assert f"{stack} on /GPU:{number} could not multiply: {REASONS[stack]}" in matmul["cause"]
    assert f"{stack}: no result of GPU 0, 1 of 2 declared" in gpu["cause"]
    assert f"{stack} on " not in matmul["evidence"]


def test_the_remedy_leads_to_the_driver_and_the_cards(unused: Checks) -> None:
    for check in ("driver.loaded", "driver.cuda", "driver.nodes", "gpu.count", "reboot"):
        assert check in unused["stack.matmul"]["remedy"]
    assert "programs compute on the CPU, or fail: " in unused["stack.gpu"]["cause"]
