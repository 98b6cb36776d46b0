"""What the frameworks' runs share: products, convolutions, libraries; and PyTorch's and JAX's own
parts, on stand-ins for a host with GPUs."""

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

from gpufleet.workload import own_libraries, pytorch_programs
from gpufleet.workload.command import FRAMEWORKS
from gpufleet.workload.exactness import small_operand
from gpufleet.workload.framework_run import (
    convolutions,
    convolved,
    first_device,
    missing_gpu,
    products,
    run_stages,
    small_images,
    tried,
    wanted_by,
)
from gpufleet.workload.jax_run import Jax, Lines, readable
from gpufleet.workload.jax_run import device_name as jax_device
from gpufleet.workload.pytorch_run import PyTorch, dotted
from gpufleet.workload.tensorflow_run import TensorFlow
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
            raise RuntimeError('"addmm" not implemented for \'Float8\'')
        if self.spoil == "error":
            raise RuntimeError("out of memory")
        found.update(device="/CPU:0" if self.spoil == "device" else found["requested"], tflops=1.0)
        return a @ b + (self.spoil == "result")

    def tower_sum(self, _devices: list[str], operands: list[Any], b: Any) -> Any:
        return sum(a @ b for a in operands)

    def convolve(self, found: dict[str, Any], images: Any, kernels: Any) -> Any:
        found["device"] = found["requested"]
        return convolved(numpy, images, kernels)[:, :, :, 1 if self.spoil == "shape" else 0:]


def options(expect: str = "2", size: int = 16) -> Any:
    return SimpleNamespace(expect_gpus=expect, size=size, deadline=60)


def test_each_device_has_a_product_in_each_precision() -> None:
    found = products(numpy, Engine(lower=("float16", "float8")), options())
    assert [(each["requested"], each.get("precision"), each["wrong"], each["error"])
            for each in found["matmul"]] == [
        (device, *rest) for device in ("/GPU:0", "/GPU:1")
        for rest in ((None, 0, None), ("float16", 0, None), ("float8", None, None))]
    assert "not implemented" in found["matmul"][2]["not_applicable"]
    assert found["tower_sum"] == {"devices": ["/GPU:0", "/GPU:1"], "wrong": 0, "error": None}


def test_what_a_driver_refuses_is_no_missing_precision() -> None:
    class Old(Engine):
        def multiply(self, found: dict[str, Any], a: Any, b: Any) -> Any:
            if found.get("precision"):
                raise RuntimeError("CUDA error: the provided PTX was compiled with an unsupported"
                                   " toolchain.")
            return Engine.multiply(self, found, a, b)
    found = products(numpy, Old(lower=("float16",)), options("1"))["matmul"][1]
    assert found["not_applicable"] is None
    assert "unsupported toolchain" in found["error"]


def test_a_framework_without_gpus_says_why() -> None:
    found = products(numpy, Engine(gpus=0), options("1"))
    assert [each["error"] for each in found["matmul"]] == [
        "JAX reports 0 GPUs: the plugin failed"]
    assert found["tower_sum"]["error"] == "no device computed"
    assert convolutions(numpy, Engine(gpus=0), options("1"))["convolution"][0]["error"] \
        == "JAX reports 0 GPUs: the plugin failed"


def test_a_gpu_that_was_refused_has_its_own_reason_and_the_others_their_numbers() -> None:
    """JAX lists none but the second one, which keeps its number; nobody declared how many."""
    engine = Engine()
    engine.gpus, engine.refused = {1}, {0: "unable to create StreamExecutor for CUDA:0: taken"}
    found = products(numpy, engine, options("any"))
    assert [(each["requested"], each["device"], each["error"]) for each in found["matmul"]] == [
        ("/GPU:0", None, "JAX reports 1 GPU: unable to create StreamExecutor for CUDA:0: taken"),
        ("/GPU:1", "/GPU:1", None)]
    assert found["tower_sum"] == {"devices": ["/GPU:1"], "wrong": 0, "error": None}
    assert first_device(engine.gpus) == "/GPU:1"
    assert first_device(range(0)) == "/CPU:0"


@pytest.mark.parametrize(("spoil", "what"), [
    ("result", {"wrong": 16}), ("device", {"device": "/CPU:0", "wrong": 0}),
    ("error", {"wrong": None, "error": "RuntimeError: out of memory"})])
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
        part = images[image, :, 2 * row:2 * row + 3, 2 * column:2 * column + 3]
        assert found[at] == (part * kernels[kernel]).sum()
    assert convolutions(numpy, Engine(1, spoil="shape"), options("1"))["convolution"][0][
        "wrong"] == found.size


def test_routines_say_what_is_wrong() -> None:
    def fails() -> bool:
        raise RuntimeError("cuSolver internal error")
    assert tried([("fft", lambda: True), ("solve", lambda: False), ("qr", fails)]) == {
        "routines": {"fft": None, "solve": "its result is wrong",
                     "qr": "RuntimeError: cuSolver internal error"}}


def test_a_stage_that_fails_keeps_those_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    def stages(_options: object) -> list[Any]:
        return [("importing", lambda: {"version": "1"}), ("failing", lambda: {}["gone"])]
    run_stages(SimpleNamespace(name="jax", variables=(), stages=stages), options())
    lines = [json.loads(line.partition(": ")[2]) for line in capsys.readouterr().out.splitlines()
             if line]
    assert [(line["framework"], line["version"], line["error"]) for line in lines] == [
        ("jax", None, "stopped while importing"), ("jax", "1", "stopped while failing"),
        ("jax", "1", "KeyError: 'gone'")]


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=FRAMEWORKS)
def test_a_run_leaves_the_memory_of_gpus_to_others(
    framework: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it is imported, and whatever an image or a job sets: memory is taken as it is needed.
    JAX would take three quarters of each GPU, TensorFlow all of it; PyTorch takes none ahead."""
    wanted = {"tensorflow": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, "pytorch": {},
              "jax": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}}[framework.name]
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
    mib = 2 ** 20
    product = 3 * 4 * SIZE_GPU ** 2 + 3 * 2 * SIZE_FORMATS ** 2
    images, kernels = small_images(numpy)
    assert product + images.nbytes + kernels.nbytes + 2 * 32 * 16 * 16 * 4 < BUDGET_MIB * mib / 8


# -- libraries -------------------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with wheels; its Python is this one."""
    site = tmp_path / "lib/python3.11/site-packages"
    for name in ("nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cublas/lib/libcublas.so.12",
                 "nvidia/cublas/lib/libnvblas.so.12", "torch/lib/libcudart-e409450e.so.11.0",
                 "torch/lib/libgomp-a34b3233.so.1"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("no library")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(site), "/usr/lib/python3/dist-packages"])
    return site


def test_the_libraries_of_an_environment_are_its_binding_s_and_its_wheels(
    environment: Path
) -> None:
    assert [*own_libraries.own_libraries()] == [
        "libcublas.so.12", "libcudnn.so.9", "libcudart-e409450e.so.11.0"]
    toolkit = "/usr/local/cuda-12.4/lib64/libcublas.so.12"
    (environment / "_gpufleet_binding.json").write_text(json.dumps({"libraries": [toolkit]}))
    assert own_libraries.own_libraries()["libcublas.so.12"] == toolkit


def test_a_library_that_does_not_open_is_told(environment: Path) -> None:
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
        "ran": True, "opened": [], "failed": [{"library": "libcuda.so.1", "error": wants}]}


def test_a_library_that_ends_its_process_costs_another_one() -> None:
    libc = ctypes.util.find_library("c") or "libc.so.6"
    assert own_libraries.dies(libc, "abort") == signal.SIGABRT
    assert own_libraries.dies(libc, "getpid") == 0
    assert own_libraries.dies(libc, "no_such_function") == 0
    assert own_libraries.dies("/no/such/library.so", "getpid") == 0


# -- TensorFlow ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("written", "gpus", "cuda", "reason"), [
    ("E cuda_driver.cc:152] failed call to cuInit: INTERNAL: CUDA error: CUDA_ERROR_UNKNOWN\n",
     0, True, "failed call to cuInit: INTERNAL: CUDA error: CUDA_ERROR_UNKNOWN"),
    ("W gpu_device.cc:2344] Cannot dlopen some GPU libraries. Please make sure\n", 0, True,
     "Cannot dlopen some GPU libraries"),
    ("", 0, False, "it was built without CUDA"), ("", 0, True, None), ("", 2, True, None)])
def test_tensorflow_says_why_it_lists_no_gpu(
    monkeypatch: pytest.MonkeyPatch, written: str, gpus: int, cuda: bool, reason: str | None
) -> None:
    def engine(_tensorflow: object) -> Any:
        os.write(2, written.encode())
        return SimpleNamespace(names=[], gpus=gpus, multiply=None, tower_sum=None)
    monkeypatch.setattr("gpufleet.workload.tensorflow_run.Eager", engine)
    run = TensorFlow()
    run.tensorflow = SimpleNamespace(
        __version__="2.18.1", test=SimpleNamespace(is_built_with_cuda=lambda: cuda))
    assert run.start()["no_gpu"] == reason
    assert [*run.gpus] == [*range(gpus)]


# -- PyTorch ---------------------------------------------------------------------------------------


def torch(**more: Any) -> Any:
    """A stand-in for as much of PyTorch as a host with GPUs shows."""
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2,
                           get_device_capability=lambda gpu: (7, 5) if gpu else (9, 0))
    return SimpleNamespace(cuda=cuda, float16=1, bfloat16=2, **more)


def test_pytorch_tells_the_gpus_that_it_uses() -> None:
    run = PyTorch()
    run.torch = torch()
    assert run.start() == {"devices": ["cpu", "cuda:0", "cuda:1"], "capabilities": ["9.0", "7.5"],
                           "no_gpu": None}
    assert run.precisions("/GPU:0") == ["float16", "bfloat16"]
    assert run.precisions("/GPU:1") == ["float16"]


def test_a_count_of_the_management_library_is_no_gpu_that_pytorch_uses() -> None:
    def fails() -> None:
        raise RuntimeError("CUDA unknown error")
    run = PyTorch()
    run.torch = torch(zeros=lambda _n: SimpleNamespace(cuda=fails))
    run.torch.cuda.is_available = lambda: False
    assert run.start() == {"devices": ["cpu"], "capabilities": [],
                           "no_gpu": "RuntimeError: CUDA unknown error"}


@pytest.mark.parametrize(("number", "version"), [
    (90100, "9.1.0"), (92800, "9.28.0"), (8902, "8.9.2"), (7603, "7.6.3"), (22105, "2.21.5"),
    (2708, "2.7.8"), ((2, 21, 5), "2.21.5"), (None, None)])
def test_versions_are_read_as_people_write_them(number: Any, version: str | None) -> None:
    assert dotted(number) == version


def test_a_host_without_a_compiler_is_told_so_before_anything_is_tried(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytorch_programs.shutil, "which", lambda _name: None)
    never = SimpleNamespace(compile=pytest.fail)
    assert pytorch_programs.compiled(numpy, never, "cuda:0", None, 90)["lacks"] \
        == "a C compiler (gcc or clang)"
    assert pytorch_programs.compiled(numpy, never, None, None, 90)["lacks"] == "a GPU"
    assert pytorch_programs.compiled(numpy, SimpleNamespace(), "cuda:0", None, 90) is None


@pytest.mark.parametrize(("error", "key"), [
    ("Dynamo is not supported on Python 3.12+", "lacks"),
    ("Found Tesla P100 which is too old to be supported by the triton GPU compiler", "lacks"),
    ("backend='inductor' raised:\nModuleNotFoundError: No module named 'setuptools'", "error")])
def test_what_cannot_be_compiled_for_is_no_fault_of_the_stack(
    monkeypatch: pytest.MonkeyPatch, error: str, key: str
) -> None:
    def fails(_function: object) -> None:
        raise RuntimeError(error)
    monkeypatch.setattr(pytorch_programs, "lacking", lambda _device: None)
    given = SimpleNamespace(to=lambda _device: None)
    found = pytorch_programs.compiled(numpy, SimpleNamespace(
        compile=fails, from_numpy=lambda _numbers: given), "cuda:0", None, 90)
    assert found[key] == "RuntimeError: " + " ".join(error.split("\n"))
    assert found["wrong"] is None


@pytest.mark.parametrize(("prevented", "seconds", "lacks"), [
    ("a compiler that nobody else can change", 90, "a compiler that nobody else can change"),
    (None, 59, "time (./gpufleet verify --deadline S gives more)")])
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
    found = pytorch_programs.compiled(numpy, SimpleNamespace(
        compile=waits, from_numpy=lambda _numbers: given), "cuda:0", None, 0.2)
    assert found["error"] == "TimeoutError: no answer within 0.2 s"


# -- JAX -------------------------------------------------------------------------------------------


def test_jax_reads_the_device_from_the_result() -> None:
    def array(*devices: tuple[str, int]) -> Any:
        return SimpleNamespace(devices=lambda: [
            SimpleNamespace(platform=kind, id=number) for kind, number in devices])
    assert jax_device(array(("gpu", 1))) == "/GPU:1"
    assert jax_device(array(("cpu", 0))) == "/CPU:0"
    assert jax_device(array(("gpu", 0), ("gpu", 1))) is None


# What XLA wrote and JAX raised on a GPU that another process used exclusively (jax-ml/jax#23770),
# and on one whose memory was full (jax-ml/jax#10830); both before JAX has any device.
TAKEN = ("2024-09-19 21:50:58.963539: W external/xla/xla/service/platform_util.cc:199] unable to"
         " create StreamExecutor for CUDA:0: failed initializing StreamExecutor for CUDA device"
         " ordinal 0: INTERNAL: failed call to cuDevicePrimaryCtxRetain:"
         " CUDA_ERROR_DEVICE_UNAVAILABLE: CUDA-capable device(s) is/are busy or unavailable\n")
FULL = ("2022-05-25 16:37:26.030963: W external/org_tensorflow/tensorflow/compiler/xla/service/"
        "platform_util.cc:200] unable to create StreamExecutor for CUDA:2: failed initializing"
        " StreamExecutor for CUDA device ordinal 2: INTERNAL: failed call to"
        " cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory; total memory reported:"
        " 34089730048\n")
RAISED = ("Unable to initialize backend 'cuda': INTERNAL: no supported devices found for platform"
          " CUDA (you may need to uninstall the failing plugin package, or set JAX_PLATFORMS=cpu to"
          " skip this backend.)")


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
    monkeypatch.setattr("gpufleet.workload.jax_run.bridge",
                        lambda: SimpleNamespace(_backend_errors={}))
    run = Jax()
    run.crash, run.libraries, run.log = None, SimpleNamespace(cuda_device_count=int), Lines()
    run.jax = SimpleNamespace(devices=devices, config=SimpleNamespace(
        update=lambda _name, platform: platforms.append(platform)))
    monkeypatch.setattr(run, "versions", dict)
    run.told = run.start(SimpleNamespace(expect_gpus=expect))
    assert platforms == ["cpu"] * (None in found)
    return run


PROCESSOR = SimpleNamespace(platform="cpu", id=0)


@pytest.mark.parametrize(("written", "number"), [(TAKEN, 0), (FULL, 2)])
def test_jax_goes_on_without_gpus_that_xla_was_refused_and_keeps_its_words(
    monkeypatch: pytest.MonkeyPatch, written: str, number: int
) -> None:
    run = jax(monkeypatch, written, None, [PROCESSOR])
    assert run.gpus == {}
    assert run.no_gpu == ("RuntimeError: Unable to initialize backend 'cuda': INTERNAL: no"
                          " supported devices found for platform CUDA")
    assert run.refused == {number: written.partition("] ")[2].strip()}
    entry = {"requested": f"/GPU:{number}", "error": None}
    assert str(missing_gpu(entry, run)).startswith(
        f"JAX reports 0 GPUs: unable to create StreamExecutor for CUDA:{number}: ")


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
    assert run.told["capabilities"] == ["9.0"]
    assert missing_gpu({"requested": "/GPU:1", "error": None}, run) is None


def test_jax_says_that_it_sees_no_device_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """It then does not try its plugin, and nothing else says why it computes on the CPU."""
    monkeypatch.setattr("gpufleet.workload.jax_run.without_node",
                        lambda: "it sees no device file of a GPU, such as /dev/nvidia0")
    assert jax(monkeypatch, "", [PROCESSOR]).no_gpu \
        == "it sees no device file of a GPU, such as /dev/nvidia0"


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
    monkeypatch.setattr("gpufleet.workload.jax_run.bridge",
                        lambda: SimpleNamespace(_backend_errors=errors))
    assert reason(libraries, []) \
        == "RuntimeError: operation cuInit(0) failed:"
    assert reason(libraries, ["Jax plugin configuration error: Unable to load cuSPARSE: cuda"]) \
        == "Jax plugin configuration error: Unable to load cuSPARSE: cuda"
    errors["cuda"] = "INTERNAL: no device"
    assert reason(libraries, []) == "INTERNAL: no device"


@pytest.mark.parametrize(("library", "number", "version"), [
    ("cuda_runtime", 12030, "12.3"), ("cuda_runtime", 12090, "12.9"), ("cudnn", 90101, "9.1.1"),
    ("cudnn", 8902, "8.9.2"), ("cublas", 120903, None), ("cudnn", None, None)])
def test_the_plugin_s_numbers_are_versions(
    library: str, number: int | None, version: str | None
) -> None:
    assert readable(library, number) == version


# -- what real environments printed ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["pytorch-2.6.0", "pytorch-1.13.1", "jax-0.5.3"])
def test_a_real_run_maps_its_own_libraries_alone(name: str) -> None:
    ran = run_of(name)
    assert ran["state"] == "ok"
    assert ran["build"]["cuda_build"] is True
    assert len(ran["mapped"]) > 10
    assert {path.split("/site-packages/")[0] for path in ran["mapped"]} == {
        f"/opt/gpufleet/stacks/{name}/lib/python3.11"}
    assert [entry["library"] for entry in ran["loader"]["failed"]] == ["libcuda.so.1"]
    assert ran["strangers"] == []


def test_real_runs_say_why_they_use_no_gpu() -> None:
    assert "Found no NVIDIA driver" in run_of("pytorch-2.6.0")["no_gpu"]
    assert run_of("pytorch-cpu")["no_gpu"] == "AssertionError: Torch not compiled with CUDA enabled"
    assert "cuInit(0) failed" in run_of("jax-0.5.3")["no_gpu"]
    assert run_of("jax-cpu")["no_gpu"] == "no CUDA plugin of JAX is installed"
    assert run_of("pytorch-1.13.1-numpy-2")["numpy"]["error"] \
        == "RuntimeError: Numpy is not available"
