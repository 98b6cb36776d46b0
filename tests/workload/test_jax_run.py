"""JAX's own parts of a run, on stand-ins for a host with GPUs."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.workload.framework_run import missing_gpu, wanted_by
from gpufleet.workload.jax_run import Jax, Lines, device_name, readable

pytest.importorskip("numpy", reason="numpy belongs to stacks; none is here")


def test_jax_reads_the_device_from_the_result() -> None:
    def array(*devices: tuple[str, int]) -> Any:
        return SimpleNamespace(
            devices=lambda: [SimpleNamespace(platform=kind, id=number) for kind, number in devices]
        )

    assert device_name(array(("gpu", 1))) == "/GPU:1"
    assert device_name(array(("cpu", 0))) == "/CPU:0"
    assert device_name(array(("gpu", 0), ("gpu", 1))) is None


# What XLA wrote and JAX raised on a GPU that another process used exclusively (jax-ml/jax#23770),
# and on one whose memory was full (jax-ml/jax#10830); both before JAX has any device.
TAKEN = (
    "2024-09-19 21:50:58.963539: W external/xla/xla/service/platform_util.cc:199] unable to"
    " create StreamExecutor for CUDA:0: failed initializing StreamExecutor for CUDA device"
    " ordinal 0: INTERNAL: failed call to cuDevicePrimaryCtxRetain:"
    " CUDA_ERROR_DEVICE_UNAVAILABLE: CUDA-capable device(s) is/are busy or unavailable\n"
)
FULL = (
    "2022-05-25 16:37:26.030963: W external/org_tensorflow/tensorflow/compiler/xla/service/"
    "platform_util.cc:200] unable to create StreamExecutor for CUDA:2: failed initializing"
    " StreamExecutor for CUDA device ordinal 2: INTERNAL: failed call to"
    " cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory; total memory reported:"
    " 34089730048\n"
)
RAISED = (
    "Unable to initialize backend 'cuda': INTERNAL: no supported devices found for platform"
    " CUDA (you may need to uninstall the failing plugin package, or set JAX_PLATFORMS=cpu to"
    " skip this backend.)"
)


def jax(
    monkeypatch: pytest.MonkeyPatch, written: str, *found: list[Any] | None, expect: str = "any"
) -> Jax:
    """A run of JAX that has looked for devices: what was written meanwhile, and what it found, or
    raised where that is None; then once more."""
    answers = iter(found)
    platforms: list[str] = []

    def devices() -> list[Any]:
        os.write(2, written.encode() if not platforms else b"")
        answer = next(answers)
        if answer is None:
            raise RuntimeError(RAISED)
        return answer

    monkeypatch.setattr(
        "gpufleet.workload.jax_run.bridge", lambda: SimpleNamespace(_backend_errors={})
    )
    run = Jax()
    run.crash, run.libraries, run.log = None, SimpleNamespace(cuda_device_count=int), Lines()
    run.jax = SimpleNamespace(
        devices=devices,
        config=SimpleNamespace(update=lambda _name, platform: platforms.append(platform)),
    )
    monkeypatch.setattr(run, "versions", dict)
    run.reported = run.start(SimpleNamespace(expect_gpus=expect))
    assert platforms == ["cpu"] * (None in found)
    return run


PROCESSOR = SimpleNamespace(platform="cpu", id=0)


@pytest.mark.parametrize(("written", "number"), [(TAKEN, 0), (FULL, 2)])
def test_jax_goes_on_without_gpus_that_xla_was_refused_and_keeps_its_words(
    monkeypatch: pytest.MonkeyPatch, written: str, number: int
) -> None:
    run = jax(monkeypatch, written, None, [PROCESSOR])
    assert run.gpus == {}
    assert run.no_gpu == (
        "RuntimeError: Unable to initialize backend 'cuda': INTERNAL: no"
        " supported devices found for platform CUDA"
    )
    assert run.refused == {number: written.partition("] ")[2].strip()}
    entry = {"requested": f"/GPU:{number}", "error": None}
    assert str(missing_gpu(entry, run)).startswith(
        f"JAX reports 0 GPUs: unable to create StreamExecutor for CUDA:{number}: "
    )


def test_jax_that_ends_in_its_search_is_not_content_with_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each program of the host ends there, also where nothing is said of its GPUs."""
    run = jax(monkeypatch, "", None, [PROCESSOR])
    assert [*run.refused] == [0]
    assert wanted_by(run, SimpleNamespace(expect_gpus="any")) == ["/GPU:0"]
    with pytest.raises(RuntimeError, match="Unable to initialize backend"):
        jax(monkeypatch, "", None, expect="0")


def test_jax_keeps_the_numbers_of_the_gpus_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    run = jax(monkeypatch, TAKEN, [SimpleNamespace(platform="gpu", id=1, compute_capability="9.0")])
    assert ([*run.gpus], [*run.refused]) == ([1], [0])
    assert run.device("/GPU:1").id == 1
    assert run.reported["capabilities"] == ["9.0"]
    assert missing_gpu({"requested": "/GPU:1", "error": None}, run) is None


def test_jax_sums_on_gpus_of_each_model_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX refuses one program on GPUs of different models (jax-ml/jax#13203)."""
    numpy = pytest.importorskip("numpy")
    models = ["A100", "A10", "A100"]
    cards = [
        SimpleNamespace(platform="gpu", id=number, device_kind=model)
        for number, model in enumerate(models)
    ]
    run, groups = jax(monkeypatch, "", cards), []

    def pmap(_step: object, *, devices: list[Any], **_more: object) -> Any:
        assert len({device.device_kind for device in devices}) == 1
        groups.append([device.id for device in devices])
        return lambda left, right: numpy.stack([sum(each @ right for each in left)] * len(left))

    run.jax.pmap = pmap
    a, b = [numpy.full((4, 4), n, numpy.float32) for n in (1, 2, 3)], numpy.eye(4, dtype="f")
    result = run.tower_sum(["/GPU:0", "/GPU:1", "/GPU:2"], a, b)
    assert sorted(groups) == [[0, 2], [1]]
    assert (result == 6).all()


def test_jax_says_that_it_sees_no_device_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """It then does not try its plugin, and nothing else says why it computes on the CPU."""
    monkeypatch.setattr(
        "gpufleet.workload.jax_run.without_node",
        lambda: "it sees no device file of a GPU, such as /dev/nvidia0",
    )
    assert (
        jax(monkeypatch, "", [PROCESSOR]).no_gpu
        == "it sees no device file of a GPU, such as /dev/nvidia0"
    )


def reason(libraries: object, log: list[str]) -> str:
    run = Jax()
    run.crash, run.libraries, run.log = None, libraries, Lines()
    run.log.lines += log
    return str(run.reason())


def test_jax_says_why_it_took_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> None:
        raise RuntimeError("operation cuInit(0) failed:\nUnknown CUDA error 303")

    libraries = SimpleNamespace(cuda_device_count=refuses)
    errors: dict[str, str] = {"tpu": "no libtpu.so"}
    monkeypatch.setattr(
        "gpufleet.workload.jax_run.bridge", lambda: SimpleNamespace(_backend_errors=errors)
    )
    assert reason(libraries, []) == "RuntimeError: operation cuInit(0) failed:"
    assert (
        reason(libraries, ["Jax plugin configuration error: Unable to load cuSPARSE: cuda"])
        == "Jax plugin configuration error: Unable to load cuSPARSE: cuda"
    )
    errors["cuda"] = "INTERNAL: no device"
    assert reason(libraries, []) == "INTERNAL: no device"


@pytest.mark.parametrize(
    ("library", "number", "version"),
    [
        ("cuda_runtime", 12030, "12.3"),
        ("cuda_runtime", 12090, "12.9"),
        ("cudnn", 90101, "9.1.1"),
        ("cudnn", 8902, "8.9.2"),
        ("cublas", 120903, None),
        ("cudnn", None, None),
    ],
)
def test_the_plugin_s_numbers_are_versions(
    library: str, number: int | None, version: str | None
) -> None:
    assert readable(library, number) == version
