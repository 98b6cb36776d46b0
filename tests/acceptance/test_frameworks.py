"""TensorFlow, PyTorch and JAX on one host: each computes with its own CUDA, whatever is offered.

The tests of this module are one story on the same host, and run in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.support import lab_frameworks
from tests.support.lab_fleet import Fleet
from tests.support.lab_frameworks import ROOT, SITE, WHERE

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ARTIFACTS = lab_frameworks.ARTIFACTS
UP = lab_frameworks.UP

WHEELS = f"{SITE}/nvidia/*/lib"


@dataclass(frozen=True)
class Stack:
    """A stack of the inventory: the places that its CUDA may come from, and a library it has."""

    framework: str
    places: tuple[str, ...]
    library: str
    decoys: str  # directories of libraries with the same names, of another release


OWN = {
    "tensorflow-2.18.1": Stack(
        "tensorflow", ("/usr/local/cuda-12.5/",), "libcudnn.so.9.3.0",
        f"{ROOT}/pytorch-2.6.0/{WHEELS}"),
    "pytorch-2.6.0": Stack(
        "torch", (f"{ROOT}/pytorch-2.6.0/",), "libcudnn_graph.so.9",
        f"{ROOT}/jax-0.5.3/{WHEELS}"),
    "pytorch-1.13.1": Stack(
        "torch", (f"{ROOT}/pytorch-1.13.1/",), "libcudnn_ops_infer.so.8",
        "/usr/local/cuda-11.8/lib64"),
    "jax-0.5.3": Stack(
        "jax", (f"{ROOT}/jax-0.5.3/",), "libcudnn_graph.so.9",
        f"{ROOT}/pytorch-2.6.0/{WHEELS}"),
    "jax-0.5.3-local": Stack(
        "jax", ("/usr/local/cuda-12.5/", f"{ROOT}/jax-0.5.3-local/"), "libcudnn.so.9.3.0",
        f"{ROOT}/jax-0.5.3/{WHEELS}"),
}  # fmt: skip

# Multiply on the CPU, have cuDNN open what it opens when it is used, and NVRTC compile; say which
# files of CUDA are mapped then.
PROGRAM = r"""
import ctypes, numpy, os, re, sys
a = (numpy.arange(64 * 64) % 5).reshape(64, 64).astype("float32")
if sys.argv[1] == "tensorflow":
    import tensorflow
    product = tensorflow.linalg.matmul(a, a).numpy()
elif sys.argv[1] == "torch":
    import torch
    product = (torch.from_numpy(a) @ torch.from_numpy(a)).numpy()
    assert torch.backends.cudnn.version()
else:
    import jax
    product = numpy.asarray(jax.jit(lambda x: x @ x)(a))
    from jax._src.lib import cuda_path
    print(cuda_path)
assert (product == a.dot(a)).all()
files = lambda: sorted({line.split(None, 5)[5].strip() for line in open("/proc/self/maps")
                        if "/" in line})
named = lambda stem: [path for path in files() if re.search(r"/%s\.so" % stem, path)]
cudnn, = named("libcudnn")
cudnn = ctypes.CDLL(cudnn)
cudnn.cudnnCreate(ctypes.byref(ctypes.c_void_p()))
for name in ("Ops", "Cnn", "Adv", "Graph", "OpsInfer", "CnnInfer", "AdvInfer", "CnnTrain", "AdvTrain"):
    if hasattr(cudnn, "cudnn%sVersionCheck" % name):
        getattr(cudnn, "cudnn%sVersionCheck" % name)()
nvrtc, = named("libnvrtc")
nvrtc, program = ctypes.CDLL(nvrtc), ctypes.c_void_p()
nvrtc.nvrtcCreateProgram(ctypes.byref(program), b"__global__ void f() {}", b"f", 0, None, None)
assert nvrtc.nvrtcCompileProgram(program, 0, None) == 0
print("mapped")
for path in files():
    if re.search(r"/lib(cu[a-z]|nv|nccl)[^/]*\.so", path) and not re.search(
            r"/lib(cuda|nvidia-[^/]*)\.so", path):
        print(path)
"""


def mapped(fleet: Fleet, name: str, start: str) -> tuple[list[str], list[str]]:
    """The output of a stack that computes, and the files of CUDA that it maps then."""
    command = f"{start} {ROOT}/{name}/bin/python -W ignore - {OWN[name].framework}"
    output = fleet.on("lab1", f"{command} <<'E' 2>/tmp/said || cat /tmp/said >&2\n{PROGRAM}E\n")
    before, _, after = output.partition("mapped\n")
    return before.split(), after.split()


# How a program may be started, and what was done to the host before. {} is a path of directories
# with libraries of the same names.
STARTS = {
    "clean": ("", "env -i"),
    "profile": (
        "echo 'export LD_LIBRARY_PATH={}' >/etc/profile.d/hostile.sh",
        "env -i CUDA_ROOT=/nonexistent CUDA_HOME=/nonexistent sh -lc 'exec \"$@\"' sh"),
    "cache": (
        "echo {} | tr : '\\n' >/etc/ld.so.conf.d/000-hostile.conf; /sbin/ldconfig", "env -i"),
}  # fmt: skip


def test_one_provision_brings_all_five(fleet: Fleet) -> None:
    output = " ".join(fleet.gpufleet("provision", *WHERE).stdout.split())
    assert "all declared checks pass" in output
    for stack in OWN:
        assert f"{stack} multiplies matrices exactly on the CPU" in output


def test_a_second_run_changes_nothing(fleet: Fleet) -> None:
    before = fleet.state("lab1")
    assert "changed=0 " in fleet.gpufleet("provision", "--force", *WHERE).stdout
    assert fleet.state("lab1") == before


def test_the_host_is_healthy(fleet: Fleet) -> None:
    found = fleet.verdicts(0, *WHERE)["lab1"]
    assert {found[check]["verdict"] for check in ("stack.matmul", "stack.mapped")} == {"PASS"}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", OWN)
def test_a_stack_maps_its_own_libraries_only(fleet: Fleet, name: str, start: str) -> None:
    stack = OWN[name]
    before, words = STARTS[start]
    decoys = ":".join(fleet.on("lab1", f"ls -d {stack.decoys}").split())
    try:
        fleet.on("lab1", before.format(decoys))
        output, files = mapped(fleet, name, words)
    finally:
        fleet.on("lab1", "rm -f /etc/profile.d/hostile.sh /etc/ld.so.conf.d/000-hostile.conf;"
                         " /sbin/ldconfig")  # fmt: skip
    assert any(path.endswith(f"/{stack.library}") for path in files), files
    assert [path for path in files if not path.startswith(stack.places)] == []
    names = [path.rpartition("/")[2] for path in files]
    assert len(names) == len(set(names))
    if stack.framework == "jax":  # where it finds ptxas and libdevice
        assert (output[0] + "/").startswith(stack.places)
        assert fleet.on(
            "lab1", f"ls {output[0]}/bin/ptxas {output[0]}/nvvm/libdevice/libdevice.10.bc"
        )


@pytest.mark.parametrize(("name", "other"), [
    ("pytorch-2.6.0", "jax-0.5.3"), ("jax-0.5.3", "pytorch-2.6.0")])  # fmt: skip
def test_another_stack_on_pythonpath_brings_none_of_its_libraries(
    fleet: Fleet, name: str, other: str
) -> None:
    _, files = mapped(fleet, name, f"env -i PYTHONPATH={ROOT}/{other}/{SITE}")
    assert any(path.endswith(f"/{OWN[name].library}") for path in files), files
    assert [path for path in files if not path.startswith(OWN[name].places)] == []


def test_without_the_binding_the_same_host_mixes_them(fleet: Fleet) -> None:
    """The proof can fail: what the tests above offer is taken where nothing binds."""
    line = f"{ROOT}/pytorch-2.6.0/{SITE}/_gpufleet_binding.pth"
    decoys = ":".join(fleet.on("lab1", f"ls -d {OWN['pytorch-2.6.0'].decoys}").split())
    try:
        fleet.on("lab1", f"mv {line} /root/")
        _, files = mapped(fleet, "pytorch-2.6.0", f"env -i LD_LIBRARY_PATH={decoys}")
    finally:
        fleet.on("lab1", f"mv /root/_gpufleet_binding.pth {line}")
    assert any(path.startswith(f"{ROOT}/jax-0.5.3/") for path in files)
    fleet.verdicts(0, *WHERE)


def test_stacks_share_the_files_of_packages_that_several_have(fleet: Fleet) -> None:
    places = " ".join(f"{ROOT}/{name}" for name in OWN)
    together = int(fleet.on("lab1", f"du -scm {places} | tail -1").split()[0])
    apart = sum(int(fleet.on("lab1", f"du -sm {ROOT}/{name}").split()[0]) for name in OWN)
    assert together < apart


DECOY = "/opt/decoy"
JAX, TORCH, OLD, LOCAL = (
    f"{ROOT}/{name}" for name in ("jax-0.5.3", "pytorch-2.6.0", "pytorch-1.13.1", "jax-0.5.3-local")
)
# What people do to such hosts, and what they are told: {check: parts of its cause}.
FAULTS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "another cuDNN in the place of the wheel's": (
        f"cd {TORCH}/{SITE}/nvidia/cudnn/lib && cp --remove-destination"
        f" {JAX}/{SITE}/nvidia/cudnn/lib/libcudnn_graph.so.9 .",
        {"stack.files": ("nvidia/cudnn/lib/libcudnn_graph.so.9",)},
    ),
    "pip install of another nvidia wheel": (
        f"{JAX}/bin/python -m pip install -q --no-deps nvidia-nvjitlink-cu12==12.4.127",
        {"stack.release": ("nvidia-nvjitlink-cu12 12.9.86 -> 12.4.127",),
         "stack.libraries": ("libcusparse.so.12: undefined symbol: __nvJitLink",)},
    ),
    "numpy 2 under a release that needs 1": (
        f"{OLD}/bin/python -m pip install -q --no-deps numpy==2.0.2",
        {"stack.release": ("numpy 1.26.4 -> 2.0.2",), "stack.numpy": ("needs numpy 1",)},
    ),
    "a missing library": (
        f"rm {LOCAL}/{SITE}/nvidia/nccl/lib/libnccl.so.2",
        {"stack.files": ("nvidia/nccl/lib/libnccl.so.2 (missing)",),
         "stack.libraries": ("libnccl.so.2",)},
    ),
    "a decoy cuDNN in the linker's cache": (
        f"mkdir -p {DECOY} && cp {TORCH}/{SITE}/nvidia/cudnn/lib/libcudnn.so.9 {DECOY}/"
        f" && echo {DECOY} >/etc/ld.so.conf.d/000-decoy.conf && /sbin/ldconfig",
        {"linker.cache": (f"The linker loads libcudnn.so.9 from {DECOY}/libcudnn.so.9",)},
    ),
    "LD_LIBRARY_PATH and another stack's packages for everybody": (
        f"printf 'export LD_LIBRARY_PATH={DECOY} PYTHONPATH={TORCH}/{SITE}\\n'"
        " >/etc/profile.d/decoy.sh",
        {"environment.login": (
            f"A login sets LD_LIBRARY_PATH={DECOY}", f"A login sets PYTHONPATH={TORCH}/{SITE}")},
    ),
}  # fmt: skip
# What only a person may take away.
BY_PERSON = (
    f"rm -r {DECOY} /etc/ld.so.conf.d/000-decoy.conf /etc/profile.d/decoy.sh; /sbin/ldconfig"
)


def test_what_people_do_to_them_is_named_all_at_once(fleet: Fleet) -> None:
    wanted: list[tuple[str, str]] = []
    for breakage, reported in FAULTS.values():
        fleet.on("lab1", f"set -e; {breakage}")
        wanted += [(check, part) for check, parts in reported.items() for part in parts]
    found = fleet.verdicts(1, *WHERE)["lab1"]
    for check, part in wanted:
        assert found[check]["verdict"] == "FAIL", check
        assert part in found[check]["cause"], check
        assert found[check]["remedy"], check


def test_a_build_for_the_processor_is_named(fleet: Fleet) -> None:
    """The plugin is what makes JAX one for GPUs: without it JAX computes on, on the CPU."""
    fleet.on("lab1", f"{BY_PERSON}; {LOCAL}/bin/python -m pip uninstall -qy jax-cuda12-plugin")
    found = fleet.verdicts(1, *WHERE)["lab1"]
    assert found["stack.release"]["verdict"] == "FAIL"
    assert "jax-cuda12-plugin" in found["stack.release"]["cause"]
    assert {found[check]["verdict"] for check in ("linker.cache", "environment.login")} == {"PASS"}


def test_the_printed_remedy_repairs_all_of_them(fleet: Fleet) -> None:
    output = " ".join(fleet.gpufleet("provision", "--limit", "lab1", *WHERE).stdout.split())
    assert "all declared checks pass" in output
    fleet.verdicts(0, *WHERE)
