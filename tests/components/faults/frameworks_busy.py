"""GPUs that others hold, beside PyTorch and JAX: what these were seen to say in public threads."""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.framework_stacks import run, with_frameworks_on_gpus
from tests.support.healthy_host import Document, data
from tests.support.host_parts import held_by_ann

fault, harmless = faults_on(with_frameworks_on_gpus)

# jax-ml/jax#23770: a GPU that another process used exclusively.
XLA_TAKEN = (
    "unable to create StreamExecutor for CUDA:{0}: failed initializing StreamExecutor for"
    " CUDA device ordinal {0}: INTERNAL: failed call to cuDevicePrimaryCtxRetain:"
    " CUDA_ERROR_DEVICE_UNAVAILABLE: CUDA-capable device(s) is/are busy or unavailable"
)
# jax-ml/jax#10830: a GPU whose memory was full.
XLA_FULL = (
    "unable to create StreamExecutor for CUDA:{0}: failed initializing StreamExecutor for"
    " CUDA device ordinal {0}: INTERNAL: failed call to cuDevicePrimaryCtxRetain:"
    " CUDA_ERROR_OUT_OF_MEMORY: out of memory; total memory reported: 34089730048"
)
# google-deepmind/jax_privacy#10: no room for an array.
XLA_ARRAY = (
    "XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 176.00MiB"
    " (184549376B) on device ordinal 0"
)
# pytorch/pytorch#100691, and with CUDA up to 11.5 pytorch/pytorch#58824.
TORCH_TAKEN = "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
TORCH_TAKEN_11 = "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"

WAIT = "wait until these processes end"
HELD = "; held by pid 4711 (ann, python3)"


def exclusively(plan: Document, snapshot: Document) -> None:
    """One process may use a GPU, and a job of Ann's is that process."""
    held_by_ann(snapshot)
    plan["expect"]["compute_mode"] = "exclusive_process"
    for device in data(snapshot, "smi")["devices"]:
        device["compute_mode"] = "exclusive_process"


def refused(snapshot: Document, framework: str, error: str, *numbers: int) -> None:
    """The framework computes on none of these GPUs, for this reason."""
    ran = run(snapshot, framework)
    for entry in (*ran["matmul"], *ran["convolution"]):
        number = int(entry["requested"].rpartition(":")[2])
        if number in numbers:
            entry.update(device=None, wrong=None, tflops=None, error=error.format(number))
    left = [each for each in ran["tower_sum"]["devices"] if int(each[-1]) not in numbers]
    ran["tower_sum"] = (
        {"devices": left, "wrong": 0, "error": None}
        if left
        else {"devices": [], "wrong": None, "error": "no device computed"}
    )
    ran["matmul"] = [
        entry for entry in ran["matmul"] if "precision" not in entry or not entry["error"]
    ]


@fault(
    "stack.matmul",
    verdict="INCONCLUSIVE",
    remedy=WAIT,
    cause="jax-0.5.3 on /GPU:0 was not tested: another process uses it exclusively (JAX reports"
    " 0 GPUs: unable to create StreamExecutor for CUDA:0: ",
)
@fault("stack.gpu", "stack.convolution", verdict="INCONCLUSIVE", cause=HELD, remedy=WAIT)
def jax_on_gpus_that_a_job_has_for_itself(plan: Document, snapshot: Document) -> None:
    exclusively(plan, snapshot)
    run(snapshot, "jax").update(
        capabilities=[],
        no_gpu="RuntimeError: Unable to initialize backend"
        " 'cuda': INTERNAL: no supported devices found for platform CUDA",
    )
    refused(snapshot, "jax", "JAX reports 0 GPUs: " + XLA_TAKEN, 0, 1)


@fault(
    "stack.matmul",
    verdict="INCONCLUSIVE",
    remedy=WAIT,
    cause="jax-0.5.3 on /GPU:0 was not tested: another process uses it exclusively (JAX reports"
    " 1 GPU: unable to create StreamExecutor for CUDA:0: ",
)
@fault("stack.gpu", "stack.convolution", verdict="INCONCLUSIVE", cause=HELD, remedy=WAIT)
def jax_on_the_gpu_that_a_job_left(plan: Document, snapshot: Document) -> None:
    exclusively(plan, snapshot)
    run(snapshot, "jax")["capabilities"].pop()
    refused(snapshot, "jax", "JAX reports 1 GPU: " + XLA_TAKEN, 0)


@fault(
    "stack.matmul",
    verdict="INCONCLUSIVE",
    remedy=WAIT,
    cause="jax-0.5.3 on /GPU:0 was not tested: it has no memory left (JAX reports 0 GPUs: unable"
    " to create StreamExecutor for CUDA:0: ",
)
@fault("stack.gpu", "stack.convolution", verdict="INCONCLUSIVE", cause=HELD, remedy=WAIT)
def jax_on_gpus_whose_memory_is_full(plan: Document, snapshot: Document) -> None:
    held_by_ann(snapshot)
    refused(snapshot, "jax", "JAX reports 0 GPUs: " + XLA_FULL, 0, 1)


@fault(
    "stack.matmul",
    remedy="driver.cuda",
    cause="jax-0.5.3 on /GPU:0 could not multiply: JAX"
    " reports 0 GPUs: unable to create StreamExecutor for CUDA:0: ",
)
@fault(
    "stack.gpu",
    remedy="driver.loaded",
    cause="no result of GPU 0, 1 of 2 declared; its"
    " programs compute on the CPU, or fail: JAX reports 0 GPUs: unable to create StreamExecutor",
)
@fault("stack.convolution", cause="could not convolve: JAX reports 0 GPUs", remedy="stack.matmul")
def jax_on_gpus_that_refuse_though_nobody_holds_them(plan: Document, snapshot: Document) -> None:
    refused(snapshot, "jax", "JAX reports 0 GPUs: " + XLA_TAKEN, 0, 1)


@fault(
    "stack.matmul",
    verdict="INCONCLUSIVE",
    remedy=WAIT,
    cause="jax-0.5.3 on /GPU:0 was not tested: it has no memory left (XlaRuntimeError:"
    " RESOURCE_EXHAUSTED: Failed to allocate request",
)
@fault("stack.gpu", "stack.convolution", verdict="INCONCLUSIVE", cause=HELD, remedy=WAIT)
def jax_without_room_for_an_array(plan: Document, snapshot: Document) -> None:
    held_by_ann(snapshot)
    refused(snapshot, "jax", XLA_ARRAY, 0)


@fault(
    "stack.matmul",
    verdict="INCONCLUSIVE",
    remedy=WAIT,
    cause="pytorch-2.6.0 on /GPU:0 was not tested: another process uses it exclusively",
)
@fault(
    "stack.gpu",
    "stack.convolution",
    "stack.routines",
    "stack.compile",
    remedy=WAIT,
    verdict="INCONCLUSIVE",
    cause=HELD,
)
def pytorch_on_a_gpu_that_a_job_has_for_itself(plan: Document, snapshot: Document) -> None:
    exclusively(plan, snapshot)
    refused(snapshot, "pytorch", TORCH_TAKEN, 0)
    ran = run(snapshot, "pytorch")
    ran["routines"] = dict.fromkeys(ran["routines"], TORCH_TAKEN)
    ran["compile"].update(wrong=None, error=TORCH_TAKEN)


@fault(
    "stack.matmul",
    verdict="INCONCLUSIVE",
    remedy=WAIT,
    cause="pytorch-2.6.0 on /GPU:1 was not tested: another process uses it exclusively",
)
@fault("stack.gpu", "stack.convolution", verdict="INCONCLUSIVE", cause=HELD, remedy=WAIT)
def pytorch_of_an_older_cuda_on_the_second_gpu(plan: Document, snapshot: Document) -> None:
    exclusively(plan, snapshot)
    refused(snapshot, "pytorch", TORCH_TAKEN_11, 1)


@fault(
    "stack.matmul",
    remedy="gpu.count",
    cause="pytorch-2.6.0 on /GPU:0 could not multiply: RuntimeError: CUDA error: CUDA-capable",
)
@fault("stack.gpu", cause="pytorch-2.6.0: no result of GPU 0 of 2 declared", remedy="stack.matmul")
@fault("stack.convolution", cause="could not convolve", remedy="stack.matmul")
def pytorch_on_a_gpu_that_refuses_though_it_lets_all_in(plan: Document, snapshot: Document) -> None:
    held_by_ann(snapshot)
    refused(snapshot, "pytorch", TORCH_TAKEN, 0)
