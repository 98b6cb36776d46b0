"""Faults of TensorFlow's computations on two GPUs."""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data
from tests.support.host_parts import PROVISION, compute_run, framework, held_by_ann, with_gpus

fault, harmless = faults_on(with_gpus)


def out_of_memory_beside_a_job(snapshot: Document) -> str:
    held_by_ann(snapshot)
    return "InternalError: failed to allocate: CUDA_ERROR_OUT_OF_MEMORY: out of memory"


def of_capability(snapshot: Document, capability: str) -> None:
    """All GPUs have another compute capability."""
    for device in compute_run(snapshot)["devices"]:
        device["compute_capability"] = capability


@fault("stack.hello", cause="evaluates 'Hello, TensorFlow!' to 'Hallo'", remedy=PROVISION)
def another_greeting(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["hello"]["value"] = "Hallo"


@fault("stack.hello", cause="hello fails: InternalError: no", remedy=PROVISION)
def no_greeting(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["errors"] = {"hello": "InternalError: no"}


@fault(
    "stack.local-devices",
    cause="lists 1 GPU, declared is gpu_expect: {count: 2} (XLA_GPU does not count",
    remedy="stack.capability",
)
def an_xla_gpu_only(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["local_devices"][1]["type"] = "XLA_GPU"


@fault(
    "stack.local-devices",
    verdict="INCONCLUSIVE",
    cause="has 0 MiB to use on /device:GPU:0",
    remedy="nvidia-smi",
)
def a_listed_gpu_without_memory(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["local_devices"][1]["memory_mib"] = 0


@fault(
    "stack.gpu-device-name",
    cause="tf.test.gpu_device_name() of tensorflow-2.13.1 is ''",
    remedy="stack.libraries",
)
def no_name_of_a_gpu(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["gpu_device_name"] = ""


@fault("stack.device-placement", cause="instead of a GPU", remedy="stack.libraries")
def placed_on_the_cpu(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["placement"] = ["/job:localhost/device:CPU:0"]


@fault(
    "stack.device-placement", verdict="INCONCLUSIVE", cause="logs no device", remedy="stack.matmul"
)
def placed_nowhere(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["placement"] = []


@fault(
    "stack.capability",
    cause="compute capability 3.0 is below the minimum of tensorflow-2.13.1, 3.5",
    remedy="resolve",
)
def a_gpu_too_old_for_the_build(plan: Document, snapshot: Document) -> None:
    of_capability(snapshot, "3.0")


@fault("stack.capability", cause="ignores a GPU: Ignoring visible gpu device", remedy="resolve")
def a_gpu_that_tensorflow_ignores(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["said"] = [
        "Ignoring visible gpu device (device: 0, name: Tesla K10, compute capability: 3.0) with"
        " Cuda compute capability 3.0. The minimum required Cuda capability is 3.5."
    ]


@fault(
    "stack.capability",
    cause="neither machine code nor PTX for compute capability 8.8",
    remedy="resolve",
)
def a_gpu_that_no_code_reaches(plan: Document, snapshot: Document) -> None:
    plan["stacks"][0]["compute_capability"] = {
        "min": "3.5",
        "native": ["3.5", "9.0"],
        "ptx": ["9.0"],
    }
    of_capability(snapshot, "8.8")


@fault("stack.matmul", cause="on /GPU:0 has no measured throughput", remedy="gpu.throughput")
def a_product_without_a_time(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["matmul"][0]["tflops"] = None


@fault(
    "stack.matmul",
    verdict="INCONCLUSIVE",
    cause="Blas GEMM launch failed",
    remedy="wait until these processes end",
)
@fault("stack.gpu", cause="held by pid 4711 (ann, python3)", remedy="wait", verdict="INCONCLUSIVE")
def tensorflow_without_memory_beside_a_job(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["matmul"][0].update(
        wrong=None, device=None, error="InternalError: Blas GEMM launch failed : a.shape=(2048, 2"
    )
    held_by_ann(snapshot)


@fault(
    "stack.matmul",
    cause="could not multiply: InternalError: Blas GEMM launch failed",
    remedy="gpu.count",
)
@fault("stack.gpu", cause="no result of GPU 0", remedy="gpu.count")
def tensorflow_without_memory_that_nobody_holds(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["matmul"][0].update(
        wrong=None, device=None, error="InternalError: Blas GEMM launch failed : a.shape=(2048, 2"
    )


@fault(
    "stack.matmul",
    verdict="INCONCLUSIVE",
    cause="on /GPU:0 was not tested: it has no memory left",
    remedy="wait until these processes",
)
@fault("stack.gpu", cause="held by pid 4711 (ann, python3)", remedy="wait", verdict="INCONCLUSIVE")
def no_sum_where_every_gpu_is_held(plan: Document, snapshot: Document) -> None:
    for entry in framework(snapshot)["matmul"]:
        entry.update(wrong=None, device=None, error=out_of_memory_beside_a_job(snapshot))
    framework(snapshot)["tower_sum"] = {"devices": [], "wrong": None, "error": "no device computed"}


@fault(
    "stack.matmul",
    verdict="INCONCLUSIVE",
    cause="on all devices together was not tested: it has no memory left",
    remedy="wait",
)
def no_memory_for_the_sum_beside_a_job(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["tower_sum"].update(wrong=None, error=out_of_memory_beside_a_job(snapshot))


@fault(
    "stack.matmul",
    cause="the sum of all devices' results is wrong or missing (rows that were not checked)",
    remedy="devices",
)
@fault("stack.gpu", cause="held by pid 4711 (ann, python3)", remedy="wait", verdict="INCONCLUSIVE")
def a_sum_without_a_word_beside_a_job(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["matmul"][0].update(
        wrong=None, device=None, error=out_of_memory_beside_a_job(snapshot)
    )
    framework(snapshot)["tower_sum"].update(wrong=None, error=None)


@fault(
    "stack.matmul",
    verdict="INCONCLUSIVE",
    cause="was not tested: it has no memory left",
    remedy="wait",
)
@fault("stack.gpu", cause="stopped before this step", remedy="stack.matmul", verdict="INCONCLUSIVE")
def a_first_session_without_memory_beside_a_job(plan: Document, snapshot: Document) -> None:
    framework(snapshot).update(
        state="failed", matmul=[], tower_sum=None, error=out_of_memory_beside_a_job(snapshot)
    )


@fault(
    "stack.hello",
    verdict="INCONCLUSIVE",
    cause="hello was not tested: it has no memory left",
    remedy="wait",
)
@fault("stack.local-devices", cause="held by pid 4711", remedy="wait", verdict="INCONCLUSIVE")
@fault("stack.gpu-device-name", cause="held by pid 4711", remedy="wait", verdict="INCONCLUSIVE")
@fault("stack.device-placement", cause="held by pid 4711", remedy="wait", verdict="INCONCLUSIVE")
def small_checks_without_memory_beside_a_job(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["errors"] = dict.fromkeys(
        ("hello", "local_devices", "gpu_device_name", "placement"),
        out_of_memory_beside_a_job(snapshot),
    )


@fault(
    "containers.matmul",
    verdict="INCONCLUSIVE",
    cause="in a container on /GPU:1 was not tested: it has no memory",
    remedy="wait",
)
def a_container_without_memory_beside_a_job(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["framework"]["matmul"][1].update(
        wrong=None, device=None, error=out_of_memory_beside_a_job(snapshot)
    )


@fault(
    "containers.matmul",
    verdict="INCONCLUSIVE",
    cause="in a container was not tested: it has no memory left",
    remedy="wait",
)
def a_container_whose_first_session_has_no_memory(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["framework"].update(
        state="failed", matmul=[], error=out_of_memory_beside_a_job(snapshot)
    )


@fault("toolkit.cublas", cause="on GPU 0: cudaSetDevice returned 46", remedy="driver.loaded")
@fault("gpu.throughput", cause="GPU 0 has no measured throughput", remedy="toolkit.cublas")
def a_gpu_that_refuses_though_it_lets_all_in(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cublas"][0].update(
        wrong=None, tflops=None, error="cudaSetDevice returned 46 cudaErrorDevicesUnavailable"
    )
    held_by_ann(snapshot)


@fault(
    "toolkit.cublas",
    verdict="INCONCLUSIVE",
    cause="on GPU 0 was not tested: another process uses it exclusively"
    " (cudaSetDevice"
    " returned 46 cudaErrorDevicesUnavailable); held by pid 4711",
    remedy="wait",
)
@fault("gpu.throughput", cause="held by pid 4711", remedy="wait", verdict="INCONCLUSIVE")
def a_gpu_that_lets_one_process_in(plan: Document, snapshot: Document) -> None:
    a_gpu_that_refuses_though_it_lets_all_in(plan, snapshot)
    plan["expect"]["compute_mode"] = "exclusive_process"
    for device in data(snapshot, "smi")["devices"]:
        device["compute_mode"] = "exclusive_process"


@fault(
    "cudnn.convolution",
    cause="on GPU 0: cudnnCreate returned 1 CUDNN_STATUS_NOT_INITIALIZED",
    remedy="driver.loaded",
)
def a_broken_cudnn_beside_a_job_that_leaves_room(plan: Document, snapshot: Document) -> None:
    held_by_ann(snapshot)
    for device, free in zip(data(snapshot, "smi")["devices"], (3500, 12), strict=True):
        device["memory_free_mib"] = free
    compute_run(snapshot)["cudnn"][0].update(
        wrong=None, error="cudnnCreate returned 1 CUDNN_STATUS_NOT_INITIALIZED"
    )
