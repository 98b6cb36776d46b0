"""Faults of what frameworks and toolkits compute: on stand-ins for NVIDIA's libraries, which the
real smoke test runs, and with a stand-in for a stack's interpreter, which the real probe runs."""

from __future__ import annotations

from typing import Any

from tests.faults.catalogue import Fault
from tests.support.computing_gpu_host import Computing

PROCESSOR = "/job:localhost/replica:0/task:0/device:CPU:0"
OLD = (
    "Ignoring visible gpu device (device: 0, name: Stand-in GPU, pci bus id: 0000:00:00.0,"
    " compute capability: 3.0) with Cuda compute capability 3.0. The minimum required Cuda"
    " capability is 3.5."
)
COMPILED = (
    "TensorFlow was not built with CUDA kernel binaries compatible with compute capability"
    " 9.0. CUDA kernels will be jit-compiled from PTX, which could take 30 minutes or"
    " longer."
)


def on_the_processor(host: Computing) -> None:
    """TensorFlow lists the GPUs for XLA alone, and multiplies on the processor."""
    small: dict[str, Any] = host.framework["small"]
    for device in small["local_devices"][1:]:
        device.update(type="XLA_GPU", name=device["name"].replace("GPU", "XLA_GPU"))
    small.update(gpu_device_name="", placement=[PROCESSOR])
    for entry in host.framework["matmul"]:
        entry["device"] = PROCESSOR


def memory_held(host: Computing) -> None:
    """Somebody's training has GPU 0's memory: cuBLAS and TensorFlow get none."""
    host.reported.update(free_mib="300")
    host.holders = [{"pid": 4711, "user": "ann", "command": "python3", "nodes": ["/dev/nvidia0"]}]
    host.framework["matmul"][0].update(
        device=None,
        wrong=None,
        tflops=None,
        error="InternalError: Blas GEMM launch failed : a.shape=(2048, 2048), b.shape=(2048, 2048)",
    )


def cublas_not_initialized(host: Computing) -> None:
    """cuBLAS gets no memory, and nobody is there who has it."""
    host.reported.update(cublas="1")


def too_old(host: Computing) -> None:
    """The GPU is older than the build."""
    host.reported.update(capability="30")
    host.chatter = OLD
    host.framework.update(matmul=[], capabilities=[])
    host.framework["small"]["local_devices"] = host.framework["small"]["local_devices"][:1]


def made_from_ptx(host: Computing) -> None:
    """The GPU is newer than the build: its code is made at the first use."""
    host.reported.update(capability="90")
    host.chatter = COMPILED
    host.framework["matmul"][0]["first_s"] = 1834.2


FAULTS = [
    Fault(
        "19",
        "GPU visible, or only XLA_GPU, and ops run on the CPU: training is just slow",
        "stub",
        "stack.matmul",
        "on /GPU:0 was computed on .*CPU:0 instead",
        "stack.libraries",
        on_the_processor,
        also=(
            "stack.gpu",
            "stack.local-devices",
            "stack.gpu-device-name",
            "stack.device-placement",
        ),
    ),
    Fault(
        "45",
        "`Blas GEMM launch failed`: another process holds the memory",
        "stub",
        "stack.matmul",
        r"Blas GEMM launch failed.*held by pid 4711 \(ann, python3\)",
        "wait until these processes end",
        memory_held,
        verdict="INCONCLUSIVE",
        also=("stack.gpu", "toolkit.cublas", "cudnn.convolution", "gpu.throughput"),
    ),
    Fault(
        "45",
        "`CUBLAS_STATUS_NOT_INITIALIZED`, and no process holds the memory",
        "stub",
        "toolkit.cublas",
        "on GPU 0: cublasCreate_v2 returned 1 CUBLAS_STATUS_NOT_INITIALIZED",
        "driver.loaded",
        cublas_not_initialized,
        also=("gpu.formats", "gpu.throughput"),
    ),
    Fault(
        "47",
        "GPU ignored: `minimum required Cuda capability is ...`",
        "stub",
        "stack.capability",
        "minimum required Cuda capability is 3.5",
        "resolve --tensorflow",
        too_old,
        also=("stack.matmul", "stack.gpu", "stack.local-devices"),
    ),
    # Slow once, and right: told in the evidence.
    Fault(
        "48",
        "`jit-compiled from PTX, which could take 30 minutes or longer`",
        "stub",
        "stack.capability",
        "compiles PTX at the first use, which took 1834.2 s.*jit-compiled",
        "",
        made_from_ptx,
        verdict="PASS",
    ),
]
