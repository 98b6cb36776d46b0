"""`verify/test_smoke.py` on this machine, with planted toolkits, fails what is broken.

Lab hosts compare it with the checks: `tests/acceptance/test_provisioned.py`.
"""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

from tests.support.command_line import PLAN, ROOT, SNAPSHOT, run
from tests.support.warm_start import run_warm

SMOKE = ROOT / "verify" / "test_smoke.py"
LIBRARY = "cuda-11.8/lib64/libcudnn_ops.so"
# What `ldconfig -p` lists is this machine's own.
TESTS = "nvidia_smi or nvcc or cudnn_links or default_link or container or matrix_product"
# A stand-in for PyTorch, with the device and each element of its products.
TORCH = """
class Product(float):
    min = max = lambda self: self
    __matmul__ = lambda self, other: self
    device = "{device}"
class cuda: is_available = staticmethod(lambda: False)
ones = lambda *args, **kwargs: Product({value})
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A directory with a toolkit, its cuDNN, the default link and a stack."""
    toolkit = tmp_path / "cuda-11.8"
    for name in ("bin", "lib64"):
        (toolkit / name).mkdir(parents=True)
    plant(
        toolkit / "bin/nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n"
    )
    plant(tmp_path / f"{LIBRARY}.9.1.0", "")
    (tmp_path / f"{LIBRARY}.9").symlink_to("libcudnn_ops.so.9.1.0")
    (tmp_path / LIBRARY).symlink_to("libcudnn_ops.so.9")
    (tmp_path / "cuda").symlink_to("cuda-11.8")
    stack = tmp_path / "stacks/pytorch"
    plant(stack / "torch.py", TORCH.format(device="cpu", value="1024.0"))
    plant(stack / "bin/python", f'#!/bin/sh\nPYTHONPATH={stack} exec {sys.executable} -S "$@"\n')
    return tmp_path


def plant(path: Path, text: str) -> None:
    """Write a program or a library."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)
    path.chmod(0o755)


def smoke(host: Path, tests: str = TESTS, **variables: str) -> str:
    """The outcome of the tests of this name."""
    known = {"GPUS": "0", "PREFIX": str(host), "STACKS": f"{host}/stacks", **variables}
    env = {**os.environ, **{f"SMOKE_{name}": value for name, value in known.items()}}
    done = run_warm("-m", "pytest", SMOKE, "-k", tests, "-p", "no:cacheprovider", "-rfs", env=env)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return done.stdout


def test_it_passes_what_is_whole_and_skips_what_is_absent_with_the_reason(host: Path) -> None:
    output = smoke(host)
    assert "4 passed, 2 skipped, 1 deselected" in output, output
    assert "the PCI bus has no NVIDIA GPU" in output
    assert "it needs a GPU, docker or podman, and SMOKE_IMAGE" in output
    output = smoke(host / "nowhere", "nvcc or matrix_product", PREFIX=f"{host}/stacks")
    assert "2 skipped" in output, output
    assert f"{host}/stacks has no toolkit" in output
    assert f"{host}/nowhere/stacks has no stack" in output


@pytest.mark.parametrize("link", [LIBRARY, f"{LIBRARY}.9"])
def test_a_link_of_cudnn_that_is_gone_fails(host: Path, link: str) -> None:
    (host / link).unlink()
    assert "FAILED verify/test_smoke.py::test_cudnn_links" in smoke(host, "cudnn_links")


@pytest.mark.parametrize("target", ["libcudnn_ops.so.9.0.0", "libcudnn_cnn.so.9.1.0"])
def test_a_link_of_cudnn_to_no_file_or_to_another_library_fails(host: Path, target: str) -> None:
    plant(host / "cuda-11.8/lib64/libcudnn_cnn.so.9.1.0", "")
    for name in ("so", "so.9"):
        (host / f"cuda-11.8/lib64/libcudnn_cnn.{name}").symlink_to("libcudnn_cnn.so.9.1.0")
    assert "1 passed" in smoke(host, "cudnn_links")
    (host / f"{LIBRARY}.9").unlink()
    (host / f"{LIBRARY}.9").symlink_to(target)
    assert "FAILED verify/test_smoke.py::test_cudnn_links" in smoke(host, "cudnn_links")


def test_a_default_link_to_no_toolkit_or_to_another_release_fails(host: Path) -> None:
    assert "1 passed" in smoke(host, "default_link", CUDA="11.8")
    assert "1 failed" in smoke(host, "default_link", CUDA="12.4")
    (host / "cuda").unlink()
    assert "is not there" in smoke(host, "default_link")
    assert "1 failed" in smoke(host, "default_link", CUDA="11.8")
    (host / "cuda").symlink_to("stacks")
    assert "1 failed" in smoke(host, "default_link")


def test_a_compiler_of_another_release_fails(host: Path) -> None:
    (host / "cuda-11.8").rename(host / "cuda-12.4")
    assert "1 failed" in smoke(host, "nvcc")


@pytest.mark.parametrize(
    ("device", "value", "outcome"),
    [("cuda:0", "1024.0", "passed"), ("cuda:0", "1024.5", "failed"), ("cpu", "1024.0", "failed")],
)
def test_a_product_that_is_wrong_or_on_the_cpu_beside_a_gpu_fails(
    host: Path, device: str, value: str, outcome: str
) -> None:
    plant(host / "stacks/pytorch/torch.py", TORCH.format(device=device, value=value))
    assert f"1 {outcome}" in smoke(host, "matrix_product", GPUS="1")


def test_gpus_that_nvidia_smi_does_not_list_fail(host: Path) -> None:
    assert "1 failed" in smoke(host, "nvidia_smi", GPUS="99")


def test_it_imports_nothing_of_gpufleet() -> None:
    tree = ast.parse(SMOKE.read_text())
    found = [
        ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert found == ["import os", "import shlex", "from pathlib import Path", "import pytest"]


def test_the_suite_runs_without_it_and_it_runs_alone() -> None:
    saved = ("--gpu-snapshot", SNAPSHOT, "--gpu-plan", PLAN, "--collect-only", "-q")
    suite = run("pytest", "verify", *saved).stdout
    assert "verify/test_cudnn.py::test_links[gpu01]" in suite and "test_smoke" not in suite
    alone = run("pytest", "verify/test_smoke.py", *saved).stdout
    assert "verify/test_smoke.py::test_nvcc[local]" in alone and "7 tests" in alone
