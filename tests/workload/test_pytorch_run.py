"""PyTorch's own parts of a run, on stand-ins for a host with GPUs."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.workload import pytorch_programs
from gpufleet.workload.pytorch_run import PyTorch, dotted

numpy = pytest.importorskip("numpy", reason="numpy belongs to stacks; none is here")


def torch(**more: Any) -> Any:
    """A stand-in for as much of PyTorch as a host with GPUs shows."""
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 2,
        get_device_capability=lambda gpu: (7, 5) if gpu else (9, 0),
    )
    return SimpleNamespace(cuda=cuda, float16=1, bfloat16=2, **more)


def test_pytorch_tells_the_gpus_that_it_uses() -> None:
    run = PyTorch()
    run.torch = torch()
    assert run.start() == {
        "devices": ["cpu", "cuda:0", "cuda:1"],
        "capabilities": ["9.0", "7.5"],
        "no_gpu": None,
    }
    assert run.precisions("/GPU:0") == ["float16", "bfloat16"]
    assert run.precisions("/GPU:1") == ["float16"]


def test_a_count_of_the_management_library_is_no_gpu_that_pytorch_uses() -> None:
    def fails() -> None:
        raise RuntimeError("CUDA unknown error")

    run = PyTorch()
    run.torch = torch(zeros=lambda _n: SimpleNamespace(cuda=fails))
    run.torch.cuda.is_available = lambda: False
    assert run.start() == {
        "devices": ["cpu"],
        "capabilities": [],
        "no_gpu": "RuntimeError: CUDA unknown error",
    }


@pytest.mark.parametrize(
    ("number", "version"),
    [
        (90100, "9.1.0"),
        (92800, "9.28.0"),
        (8902, "8.9.2"),
        (7603, "7.6.3"),
        (22105, "2.21.5"),
        (2708, "2.7.8"),
        ((2, 21, 5), "2.21.5"),
        (None, None),
    ],
)
def test_versions_are_read_as_people_write_them(number: Any, version: str | None) -> None:
    assert dotted(number) == version


def test_a_host_without_a_compiler_is_reported_so_before_anything_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pytorch_programs.shutil, "which", lambda _name: None)
    never = SimpleNamespace(compile=pytest.fail)
    assert (
        pytorch_programs.compiled(numpy, never, "cuda:0", None, 90)["lacks"]
        == "a C compiler (gcc or clang)"
    )
    assert pytorch_programs.compiled(numpy, never, None, None, 90)["lacks"] == "a GPU"
    assert pytorch_programs.compiled(numpy, SimpleNamespace(), "cuda:0", None, 90) is None


@pytest.mark.parametrize(
    ("error", "key"),
    [
        ("Dynamo is not supported on Python 3.12+", "lacks"),
        ("Found Tesla P100 which is too old to be supported by the triton GPU compiler", "lacks"),
        ("backend='inductor' raised:\nModuleNotFoundError: No module named 'setuptools'", "error"),
    ],
)
def test_what_cannot_be_compiled_for_is_no_fault_of_the_stack(
    monkeypatch: pytest.MonkeyPatch, error: str, key: str
) -> None:
    def fails(_function: object) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(pytorch_programs, "lacking", lambda _device: None)
    given = SimpleNamespace(to=lambda _device: None)
    found = pytorch_programs.compiled(
        numpy, SimpleNamespace(compile=fails, from_numpy=lambda _numbers: given), "cuda:0", None, 90
    )
    assert found[key] == "RuntimeError: " + " ".join(error.split("\n"))
    assert found["wrong"] is None


@pytest.mark.parametrize(
    ("prevented", "seconds", "lacks"),
    [
        ("a compiler that nobody else can change", 90, "a compiler that nobody else can change"),
        (None, 59, "time (./gpufleet verify --deadline S gives more)"),
    ],
)
def test_what_may_not_be_compiled_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, prevented: str | None, seconds: float, lacks: str
) -> None:
    monkeypatch.setattr(pytorch_programs, "lacking", lambda _device: None)
    never = SimpleNamespace(compile=pytest.fail)
    found = pytorch_programs.compiled(numpy, never, "cuda:0", prevented, seconds)
    assert found["lacks"] == lacks


def test_a_compiler_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(_function: object) -> None:
        signal.sigtimedwait([signal.SIGUSR2], 30)

    monkeypatch.setattr(pytorch_programs, "lacking", lambda _device: None)
    monkeypatch.setattr(pytorch_programs, "LEAST_S", 0)
    given = SimpleNamespace(to=lambda _device: None)
    found = pytorch_programs.compiled(
        numpy,
        SimpleNamespace(compile=waits, from_numpy=lambda _numbers: given),
        "cuda:0",
        None,
        0.2,
    )
    assert (found["error"], found["hung"]) == ("TimeoutError: no answer within 0.2 s", True)
