"""The common parts of frameworks' runs: products, convolutions, libraries; outputs of real runs."""

from __future__ import annotations

import ctypes.util
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.workload import own_libraries
from gpufleet.workload.command import FRAMEWORKS
from gpufleet.workload.exactness import small_operand
from gpufleet.workload.framework_run import (
    convolutions,
    convolved,
    first_device,
    products,
    run_stages,
    small_images,
    tried,
)
from gpufleet.workload.timing import BUDGET_MIB, SIZE_FORMATS, SIZE_GPU
from tests.support.framework_stacks import run_of

numpy = pytest.importorskip("numpy", reason="numpy belongs to stacks; none is here")


class Engine:
    """A stand-in for a framework on GPUs: numpy computes, and says it was a GPU."""

    title, no_gpu = "JAX", "the plugin failed"

    def __init__(self, gpus: int = 2, *, spoil: str = "", lower: tuple[str, ...] = ()) -> None:
        self.gpus, self.spoil, self.lower = {*range(gpus)}, spoil, lower
        self.refused: dict[int, str] = {}

    def precisions(self, _device: str) -> tuple[str, ...]:
        return self.lower

    def multiply(self, found: dict[str, Any], a: Any, b: Any) -> Any:
        if found.get("precision") == "float8":
            raise RuntimeError("\"addmm\" not implemented for 'Float8'")
        if self.spoil == "error":
            raise RuntimeError("out of memory")
        found.update(device="/CPU:0" if self.spoil == "device" else found["requested"], tflops=1.0)
        return a @ b + (self.spoil == "result")

    def tower_sum(self, _devices: list[str], operands: list[Any], b: Any) -> Any:
        return sum(a @ b for a in operands)

    def convolve(self, found: dict[str, Any], images: Any, kernels: Any) -> Any:
        found["device"] = found["requested"]
        return convolved(numpy, images, kernels)[:, :, :, 1 if self.spoil == "shape" else 0 :]


def options(expect: str = "2", size: int = 16) -> Any:
    return SimpleNamespace(expect_gpus=expect, size=size, deadline=60)


def test_each_device_has_a_product_in_each_precision() -> None:
    found = products(numpy, Engine(lower=("float16", "float8")), options())
    assert [
        (each["requested"], each.get("precision"), each["wrong"], each["error"])
        for each in found["matmul"]
    ] == [
        (device, *rest)
        for device in ("/GPU:0", "/GPU:1")
        for rest in ((None, 0, None), ("float16", 0, None), ("float8", None, None))
    ]
    assert "not implemented" in found["matmul"][2]["not_applicable"]
    assert found["tower_sum"] == {"devices": ["/GPU:0", "/GPU:1"], "wrong": 0, "error": None}


def test_what_a_driver_refuses_is_no_missing_precision() -> None:
    class Old(Engine):
        def multiply(self, found: dict[str, Any], a: Any, b: Any) -> Any:
            if found.get("precision"):
                raise RuntimeError(
                    "CUDA error: the provided PTX was compiled with an unsupported toolchain."
                )
            return Engine.multiply(self, found, a, b)

    found = products(numpy, Old(lower=("float16",)), options("1"))["matmul"][1]
    assert found["not_applicable"] is None
    assert "unsupported toolchain" in found["error"]


def test_a_framework_without_gpus_says_why() -> None:
    found = products(numpy, Engine(gpus=0), options("1"))
    assert [each["error"] for each in found["matmul"]] == ["JAX reports 0 GPUs: the plugin failed"]
    assert found["tower_sum"]["error"] == "no device computed"
    assert (
        convolutions(numpy, Engine(gpus=0), options("1"))["convolution"][0]["error"]
        == "JAX reports 0 GPUs: the plugin failed"
    )


def test_a_gpu_that_was_refused_has_its_own_reason_and_the_others_their_numbers() -> None:
    """JAX lists none but the second one, which keeps its number; nobody declared how many."""
    engine = Engine()
    engine.gpus, engine.refused = {1}, {0: "unable to create StreamExecutor for CUDA:0: taken"}
    found = products(numpy, engine, options("any"))
    assert [(each["requested"], each["device"], each["error"]) for each in found["matmul"]] == [
        ("/GPU:0", None, "JAX reports 1 GPU: unable to create StreamExecutor for CUDA:0: taken"),
        ("/GPU:1", "/GPU:1", None),
    ]
    assert found["tower_sum"] == {"devices": ["/GPU:1"], "wrong": 0, "error": None}
    assert first_device(engine.gpus) == "/GPU:1"
    assert first_device(range(0)) == "/CPU:0"


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        ("result", {"wrong": 16}),
        ("device", {"device": "/CPU:0", "wrong": 0}),
        ("error", {"wrong": None, "error": "RuntimeError: out of memory"}),
    ],
)
def test_a_wrong_product_is_no_right_one(spoil: str, what: dict[str, Any]) -> None:
    found = products(numpy, Engine(1, spoil=spoil), options("1"))["matmul"][0]
    assert {key: found[key] for key in what} == what


def test_sums_of_small_operands_fit_into_bfloat16() -> None:
    a, b = small_operand(numpy, 1024, 1), small_operand(numpy, 1024, 0)
    assert {*numpy.unique(a)} == {-1, 0, 1}
    assert 100 < abs(a @ b).max() < 256


def test_the_convolution_is_that_of_its_definition() -> None:
    images, kernels = small_images(numpy)
    found = convolved(numpy, images, kernels)
    assert found.shape == (2, 32, 16, 16)
    for at in ((0, 0, 0, 0), (1, 31, 15, 15), (0, 5, 3, 9)):
        image, kernel, row, column = at
        part = images[image, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
        assert found[at] == (part * kernels[kernel]).sum()
    assert (
        convolutions(numpy, Engine(1, spoil="shape"), options("1"))["convolution"][0]["wrong"]
        == found.size
    )


def test_routines_say_what_is_wrong() -> None:
    def fails() -> bool:
        raise RuntimeError("cuSolver internal error")

    assert tried([("fft", lambda: True), ("solve", lambda: False), ("qr", fails)]) == {
        "routines": {
            "fft": None,
            "solve": "its result is wrong",
            "qr": "RuntimeError: cuSolver internal error",
        }
    }


def test_a_stage_that_fails_keeps_those_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    def stages(_options: object) -> list[Any]:
        return [("importing", lambda: {"version": "1"}), ("failing", lambda: {}["gone"])]

    run_stages(SimpleNamespace(name="jax", variables=(), stages=stages), options())
    lines = [
        json.loads(line.partition(": ")[2]) for line in capsys.readouterr().out.splitlines() if line
    ]
    assert [(line["framework"], line["version"], line["error"]) for line in lines] == [
        ("jax", None, "stopped while importing"),
        ("jax", "1", "stopped while failing"),
        ("jax", "1", "KeyError: 'gone'"),
    ]


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=FRAMEWORKS)
def test_a_run_leaves_the_memory_of_gpus_to_others(
    framework: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it is imported, and whatever an image or a job sets: memory is taken as it is needed.
    JAX would take three quarters of each GPU, TensorFlow all of it; PyTorch takes none ahead."""
    wanted = {
        # And TensorFlow leaves out no GPU that is small beside others.
        "tensorflow": {
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "TF_MIN_GPU_MULTIPROCESSOR_COUNT": "1",
        },
        "pytorch": {},
        "jax": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    }[framework.name]
    for name in wanted:
        monkeypatch.setenv(name, "no")
    at_import: dict[str, str] = {}

    def imports() -> dict[str, Any]:
        at_import.update(os.environ)
        return {}

    run = framework()
    monkeypatch.setattr(run, "stages", lambda _options: [("importing", imports)])
    with monkeypatch.context() as own:
        own.setattr(os, "environ", dict(os.environ))
        run_stages(run, options())
    assert {name: at_import[name] for name in wanted} == wanted
    assert "importing" in capsys.readouterr().out


def test_what_is_computed_takes_an_eighth_of_the_memory_that_a_run_may_have() -> None:
    """Operands and result in float32, those of one precision below, and the images."""
    mib = 2**20
    product = 3 * 4 * SIZE_GPU**2 + 3 * 2 * SIZE_FORMATS**2
    images, kernels = small_images(numpy)
    assert product + images.nbytes + kernels.nbytes + 2 * 32 * 16 * 16 * 4 < BUDGET_MIB * mib / 8


# -- libraries -------------------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with wheels; its Python is this one."""
    site = tmp_path / "lib/python3.11/site-packages"
    for name in (
        "nvidia/cudnn/lib/libcudnn.so.9",
        "nvidia/cublas/lib/libcublas.so.12",
        "nvidia/cublas/lib/libnvblas.so.12",
        "torch/lib/libcudart-e409450e.so.11.0",
        "torch/lib/libgomp-a34b3233.so.1",
    ):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("no library")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(site), "/usr/lib/python3/dist-packages"])
    return site


def test_the_libraries_of_an_environment_are_its_binding_s_and_its_wheels(
    environment: Path,
) -> None:
    assert [*own_libraries.own_libraries()] == [
        "libcublas.so.12",
        "libcudnn.so.9",
        "libcudart-e409450e.so.11.0",
    ]
    toolkit = "/usr/local/cuda-12.4/lib64/libcublas.so.12"
    (environment / "_gpufleet_binding.json").write_text(json.dumps({"libraries": [toolkit]}))
    assert own_libraries.own_libraries()["libcublas.so.12"] == toolkit


def test_a_library_that_does_not_open_is_reported(environment: Path) -> None:
    found = own_libraries.open_own_libraries()
    failed = {entry["library"]: entry["error"] for entry in found["failed"]}
    assert {"libcublas.so.12", "libcudnn.so.9", "libcudart-e409450e.so.11.0"} <= {*failed}
    assert str(environment / "nvidia/cublas/lib/libcublas.so.12") in failed["libcublas.so.12"]
    assert found["ran"] is True
    assert not {*found["opened"]} & {*failed}


def test_a_library_that_wants_the_driver_alone_is_not_at_fault(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wants = "libcuda.so.1: cannot open shared object file: No such file or directory"
    monkeypatch.setattr(own_libraries, "try_open", lambda _name: wants)
    assert own_libraries.open_own_libraries() == {
        "ran": True,
        "opened": [],
        "failed": [{"library": "libcuda.so.1", "error": wants}],
    }


def test_a_library_that_ends_its_process_costs_another_one() -> None:
    libc = ctypes.util.find_library("c") or "libc.so.6"
    assert own_libraries.dies(libc, "abort") == signal.SIGABRT
    assert own_libraries.dies(libc, "getpid") == 0
    assert own_libraries.dies(libc, "no_such_function") == 0
    assert own_libraries.dies("/no/such/library.so", "getpid") == 0


# -- what real environments printed ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["pytorch-2.6.0", "pytorch-1.13.1", "jax-0.5.3"])
def test_a_real_run_maps_its_own_libraries_alone(name: str) -> None:
    ran = run_of(name)
    assert ran["state"] == "ok"
    assert ran["build"]["cuda_build"] is True
    assert len(ran["mapped"]) > 10
    assert {path.split("/site-packages/")[0] for path in ran["mapped"]} == {
        f"/opt/gpufleet/stacks/{name}/lib/python3.11"
    }
    assert [entry["library"] for entry in ran["loader"]["failed"]] == ["libcuda.so.1"]
    assert ran["strangers"] == []


def test_real_runs_say_why_they_use_no_gpu() -> None:
    assert "Found no NVIDIA driver" in run_of("pytorch-2.6.0")["no_gpu"]
    assert run_of("pytorch-cpu")["no_gpu"] == "AssertionError: Torch not compiled with CUDA enabled"
    assert "cuInit(0) failed" in run_of("jax-0.5.3")["no_gpu"]
    assert run_of("jax-cpu")["no_gpu"] == "no CUDA plugin of JAX is installed"
    assert (
        run_of("pytorch-1.13.1-numpy-2")["numpy"]["error"] == "RuntimeError: Numpy is not available"
    )
