"""TensorFlow's own parts of a run, on stand-ins for a host with GPUs."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.workload.tensorflow_run import TensorFlow

pytest.importorskip("numpy", reason="numpy belongs to stacks; none is here")


@pytest.mark.parametrize(
    ("written", "gpus", "cuda", "reason"),
    [
        (
            "E cuda_driver.cc:152] failed call to cuInit: INTERNAL: CUDA error: CUDA_ERROR_UNKNOWN\n",
            0,
            True,
            "failed call to cuInit: INTERNAL: CUDA error: CUDA_ERROR_UNKNOWN",
        ),
        (
            "W gpu_device.cc:2344] Cannot dlopen some GPU libraries. Please make sure\n",
            0,
            True,
            "Cannot dlopen some GPU libraries",
        ),
        ("", 0, False, "it was built without CUDA"),
        ("", 0, True, None),
        ("", 2, True, None),
    ],
)
def test_tensorflow_says_why_it_lists_no_gpu(
    monkeypatch: pytest.MonkeyPatch, written: str, gpus: int, cuda: bool, reason: str | None
) -> None:
    def engine(_tensorflow: object) -> Any:
        os.write(2, written.encode())
        return SimpleNamespace(names=[], gpus=gpus, multiply=None, tower_sum=None)

    monkeypatch.setattr("gpufleet.workload.tensorflow_run.Eager", engine)
    run = TensorFlow()
    run.tensorflow = SimpleNamespace(
        __version__="2.18.1", test=SimpleNamespace(is_built_with_cuda=lambda: cuda)
    )
    assert run.start()["no_gpu"] == reason
    assert [*run.gpus] == [*range(gpus)]
