"""Each fault on each framework: it is named for each of them, and the printed remedies repair all.

One story on one host with five stacks: each kind of fault is done to all of them at once, verified,
and repaired by the commands that the verification prints.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import lab_frameworks
from tests.support.fault_proof import copy_to_host
from tests.support.lab_fleet import ROOT as PROJECT
from tests.support.lab_fleet import Fleet
from tests.support.lab_frameworks import ROOT, SITE, WHERE

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ARTIFACTS = lab_frameworks.ARTIFACTS
UP = lab_frameworks.UP

TF, TORCH, OLD, JAX, LOCAL = (
    f"{ROOT}/{name}"
    for name in (
        "tensorflow-2.18.1",
        "pytorch-2.6.0",
        "pytorch-1.13.1",
        "jax-0.5.3",
        "jax-0.5.3-local",
    )
)
TOOLKIT = "/usr/local/cuda-12.5/targets/x86_64-linux/lib"
OTHER_TOOLKIT = "/usr/local/cuda-11.8/targets/x86_64-linux/lib"
DECOY = "/opt/decoy"
# PyTorch's own index has it, PyPI has none of its builds for the CPU alone.
CPU_TORCH, CPU_WHEELS = "torch==2.13.0+cpu", "/root/cpu-wheels"


def nvidia(stack: str, path: str) -> str:
    """A file of an nvidia-* wheel."""
    return f"{stack}/{SITE}/nvidia/{path}"


def pip(stack: str, package: str) -> str:
    """The command of a person who does not know of the lock."""
    return f"{stack}/bin/python -m pip install -q --no-deps {package}"


def over(path: str, other: str) -> str:
    """Put another release's file in the place of one."""
    return f"cp --remove-destination {other} {path}"


@dataclass(frozen=True)
class Kind:
    """A fault of each stack, and the parts of the causes that are reported then, by check.

    `person` takes away what no command of ours may.
    """

    inject: tuple[str, ...]
    reported: dict[str, tuple[str, ...]]
    person: str = ""


KINDS = {
    "another release's cuDNN in the place of the stack's": Kind(
        (over(nvidia(TORCH, "cudnn/lib/libcudnn_graph.so.9"),
              nvidia(JAX, "cudnn/lib/libcudnn_ops.so.9")),
         over(nvidia(JAX, "cudnn/lib/libcudnn_graph.so.9"),
              nvidia(TORCH, "cudnn/lib/libcudnn_ops.so.9")),
         over(nvidia(OLD, "cudnn/lib/libcudnn_ops_infer.so.8"),
              f"{OTHER_TOOLKIT}/libcudnn_ops_infer.so.8.6.0"),
         # The library belongs to the toolkit that TensorFlow and the other JAX share.
         over(f"{TOOLKIT}/libcudnn_graph.so.9.3.0",
              nvidia(TORCH, "cudnn/lib/libcudnn_graph.so.9"))),
        {"stack.files": ("pytorch-2.6.0", "jax-0.5.3", "pytorch-1.13.1",
                         "cudnn/lib/libcudnn_ops_infer.so.8"),
         "cudnn.files": ("libcudnn_graph.so.9.3.0",)}),
    "pip install of another nvidia-* wheel": Kind(
        (pip(TORCH, "nvidia-nvjitlink-cu12==12.6.85"),
         pip(OLD, "nvidia-cuda-nvrtc-cu11==11.8.89"),
         pip(JAX, "nvidia-nvjitlink-cu12==12.4.127"),
         pip(LOCAL, "nvidia-nccl-cu12==2.21.5")),
        {"stack.release": (
            "nvidia-nvjitlink-cu12 12.4.127 -> 12.6.85",
            "nvidia-cuda-nvrtc-cu11 11.7.99 -> 11.8.89",
            "nvidia-nvjitlink-cu12 12.9.86 -> 12.4.127", "nvidia-nccl-cu12")}),
    "a numpy that the release was not built for": Kind(
        (pip(OLD, "numpy==2.0.2"), pip(JAX, "numpy==1.24.4"), pip(TF, "numpy==2.2.6")),
        {"stack.release": ("numpy 1.26.4 -> 2.0.2", "-> 1.24.4", "-> 2.2.6")}),
    "the CPU's build over the GPU's": Kind(
        (pip(TORCH, f"--no-index --find-links {CPU_WHEELS} {CPU_TORCH}"),
         pip(OLD, f"--no-index --find-links {CPU_WHEELS} {CPU_TORCH}"),
         pip(TF, "tensorflow-cpu==2.18.1"),
         *(f"{stack}/bin/python -m pip uninstall -q -y jax-cuda12-plugin jax-cuda12-pjrt"
           for stack in (JAX, LOCAL))),
        {"stack.build": ("PyTorch of pytorch-2.6.0 is a CPU-only build",
                         "PyTorch of pytorch-1.13.1 is a CPU-only build",
                         "TensorFlow of tensorflow-2.18.1 is a CPU-only build",
                         "JAX of jax-0.5.3 is a CPU-only build",
                         "JAX of jax-0.5.3-local is a CPU-only build"),
         "stack.release": ("torch 2.6.0 -> 2.13.0+cpu", "torch 1.13.1 -> 2.13.0+cpu",
                           "jax-cuda12-plugin")}),
    "a library that is missing": Kind(
        (f"rm {nvidia(TORCH, 'cusparse/lib/libcusparse.so.12')}",
         f"rm {nvidia(OLD, 'cublas/lib/libcublas.so.11')}",
         f"rm {nvidia(JAX, 'cusolver/lib/libcusolver.so.11')}",
         f"rm {nvidia(LOCAL, 'nccl/lib/libnccl.so.2')}",
         f"rm {TOOLKIT}/libcufft.so.11.*"),
        {"stack.files": ("cusparse/lib/libcusparse.so.12 (missing)",
                         "cublas/lib/libcublas.so.11 (missing)",
                         "cusolver/lib/libcusolver.so.11 (missing)",
                         "nccl/lib/libnccl.so.2 (missing)"),
         "toolkit.files": ("libcufft.so.11",),
         "stack.libraries": ("libcusolver.so.11", "libnccl.so.2", "libcufft.so.11"),
         "stack.matmul": ("libcusparse.so.12", "libcublas.so.11")}),
    "every name of CUDA in the linker's cache, from elsewhere": Kind(
        (f"mkdir -p {DECOY} && cp -L {TORCH}/{SITE}/nvidia/cudnn/lib/*.so.* {DECOY}/"
         f" && cp -L {nvidia(JAX, 'cuda_runtime/lib/libcudart.so.12')}"
         f" {OTHER_TOOLKIT}/libcudnn*.so.8 {DECOY}/"
         f" && echo {DECOY} >/etc/ld.so.conf.d/000-decoy.conf && /sbin/ldconfig",),
        {"linker.cache": (f"The linker loads libcudnn.so.9 from {DECOY}/libcudnn.so.9",)},
        f"rm -r {DECOY} /etc/ld.so.conf.d/000-decoy.conf; /sbin/ldconfig"),
    "LD_LIBRARY_PATH and PYTHONPATH of other stacks for everybody": Kind(
        (f"printf 'export LD_LIBRARY_PATH={TORCH}/{SITE}/nvidia/cudnn/lib:{OTHER_TOOLKIT}"
         f" PYTHONPATH={JAX}/{SITE}:{OLD}/{SITE}\\n' >/etc/profile.d/decoy.sh",),
        {"environment.login": (f"A login sets LD_LIBRARY_PATH={TORCH}/{SITE}/nvidia/cudnn/lib",
                               f"A login sets PYTHONPATH={JAX}/{SITE}")},
        "rm /etc/profile.d/decoy.sh"),
}  # fmt: skip


@pytest.fixture(scope="module")
def host(fleet: Fleet) -> Fleet:
    """lab1 with the five stacks, healthy."""
    fleet.gpufleet("provision", *WHERE)
    return fleet


def give_cpu_wheel(host: Fleet) -> None:
    """Have PyTorch's build for the CPU on lab1, or skip where no index of this machine has it."""
    with tempfile.TemporaryDirectory() as folder:
        words = (
            PROJECT / ".venv/bin/python",
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--python-version",
            "3.11",
            "--only-binary",
            ":all:",
            "-d",
            folder,
            CPU_TORCH,
        )
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(
                f"{done.stderr.strip().splitlines()[-1]}: declare PyTorch's index for it,"
                " PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
            )
        copy_to_host(host, Path(folder), CPU_WHEELS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_is_named_for_each_stack_and_its_remedy_repairs_all(host: Fleet, kind: str) -> None:
    fault = KINDS[kind]
    if any(CPU_TORCH in line for line in fault.inject):
        give_cpu_wheel(host)
    host.on("lab1", "set -e\n" + "\n".join(fault.inject))
    found = host.verdicts(1, *WHERE)["lab1"]
    for check, parts in fault.reported.items():
        assert found[check]["verdict"] == "FAIL", check
        for part in parts:
            assert part in found[check]["cause"], (check, found[check]["cause"])
    repairs = [
        repair
        for check in found.values()
        if "explained_by" not in check
        if check["verdict"] not in {"PASS", "NOT-DECLARED"}
        for repair in check["repairs"]
    ]
    # A person who comes after a command is for where that does not help.
    assert (repairs[0]["by"] == "person") is bool(fault.person)
    if fault.person:
        host.on("lab1", fault.person)
        repairs = []
    for command in dict.fromkeys(part["command"] for part in repairs if "command" in part):
        assert command.startswith("./gpufleet "), command
        host.gpufleet(*shlex.split(command)[1:], *WHERE)
    host.verdicts(0, *WHERE)
