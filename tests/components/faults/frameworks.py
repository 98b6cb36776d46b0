"""Faults of PyTorch's and JAX's computations on two GPUs, beside TensorFlow's."""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.framework_stacks import (
    planned,
    receipt_of,
    run,
    run_of,
    with_frameworks_on_gpus,
)
from tests.support.healthy_host import Document, data
from tests.support.host_parts import PROVISION, held_by_ann

fault, harmless = faults_on(with_frameworks_on_gpus)

ELSEWHERE = "/opt/gpufleet/stacks/tensorflow-2.13.1/lib/python3.11/site-packages/nvidia/cudnn/lib"


def no_gpu(snapshot: Document, framework: str, title: str, reason: str) -> None:
    """The framework uses no GPU: every entry says why."""
    ran = run(snapshot, framework)
    ran.update(no_gpu=reason, capabilities=[])
    for entry in (*ran["matmul"], *ran["convolution"]):
        entry.update(device=None, wrong=None, error=f"{title} reports 0 GPUs: {reason}")
    ran["matmul"] = [entry for entry in ran["matmul"] if "precision" not in entry]
    ran["tower_sum"] = {"devices": [], "wrong": None, "error": "no device computed"}
    if "compile" in ran:
        ran["compile"] = {
            "device": None,
            "wrong": None,
            "lacks": "a GPU",
            "error": None,
            "seconds": None,
        }


@fault("stack.compile", verdict="NOT-DECLARED", cause="uses no GPU", remedy="")
@fault(
    "stack.matmul",
    remedy="driver.loaded",
    cause="pytorch-2.6.0 on /GPU:0 could not multiply: PyTorch reports 0 GPUs: RuntimeError:"
    " CUDA unknown error",
)
@fault(
    "stack.gpu",
    remedy="driver.loaded",
    cause="no result of GPU 0, 1 of 2 declared; its programs compute on the CPU, or fail:"
    " PyTorch reports 0 GPUs: RuntimeError: CUDA unknown error",
)
@fault("stack.convolution", cause="could not convolve: PyTorch reports 0 GPUs", remedy=PROVISION)
def pytorch_on_the_cpu_and_nobody_noticed(plan: Document, snapshot: Document) -> None:
    no_gpu(snapshot, "pytorch", "PyTorch", "RuntimeError: CUDA unknown error")


@fault(
    "stack.matmul",
    remedy="driver.loaded",
    cause="jax-0.5.3 on /GPU:0 could not multiply: JAX reports 0 GPUs: Unable to load cuSPARSE",
)
@fault("stack.gpu", cause="no result of GPU 0, 1 of 2 declared", remedy="driver.loaded")
@fault("stack.convolution", cause="could not convolve: JAX reports 0 GPUs", remedy=PROVISION)
def jax_fell_back_to_the_cpu(plan: Document, snapshot: Document) -> None:
    no_gpu(snapshot, "jax", "JAX", "Unable to load cuSPARSE. Is it installed?")


@fault("stack.matmul", cause="jax-0.5.3 on /GPU:1 was computed on /CPU:0 instead", remedy=PROVISION)
@fault("stack.gpu", cause="jax-0.5.3: no result of GPU 1 of 2 declared", remedy="gpu.count")
def jax_computed_on_the_cpu(plan: Document, snapshot: Document) -> None:
    for entry in run(snapshot, "jax")["matmul"]:
        if entry["requested"] == "/GPU:1":
            entry["device"] = "/CPU:0"


@fault("stack.build", cause="PyTorch of pytorch-2.6.0 is a CPU-only build", remedy=PROVISION)
@fault("stack.release", cause="has torch 2.6.0+cpu, planned is 2.6.0", remedy=PROVISION)
@fault(
    "stack.libraries",
    verdict="INCONCLUSIVE",
    remedy="a host with a GPU",
    cause="It is unknown whether PyTorch of pytorch-2.6.0 finds libcudart.so.12",
)
@fault(
    "stack.mapped",
    verdict="INCONCLUSIVE",
    remedy="stack.libraries",
    cause="PyTorch of pytorch-2.6.0 mapped no CUDA library",
)
@fault("stack.matmul", cause="Torch not compiled with CUDA enabled", remedy="driver.loaded")
@fault("stack.gpu", cause="no result of GPU 0, 1 of 2 declared", remedy="driver.loaded")
@fault("stack.convolution", cause="could not convolve", remedy=PROVISION)
@fault("stack.compile", verdict="NOT-DECLARED", cause="uses no GPU", remedy="")
def a_cpu_wheel_over_the_gpu_wheel(plan: Document, snapshot: Document) -> None:
    no_gpu(snapshot, "pytorch", "PyTorch", "AssertionError: Torch not compiled with CUDA enabled")
    real = run_of("pytorch-cpu")
    run(snapshot, "pytorch").update(
        build=real["build"],
        mapped=[],
        loader={**real["loader"], "failed": [], "opened": ["libcuda.so.1"]},
    )
    for stack in data(snapshot, "stacks")["stacks"]:
        if stack["name"] == "pytorch-2.6.0":
            stack["packages"]["torch"] = "2.6.0+cpu"


@fault("stack.build", cause="JAX of jax-0.5.3 is a CPU-only build", remedy=PROVISION)
@fault(
    "stack.libraries",
    verdict="INCONCLUSIVE",
    remedy="a host with a GPU",
    cause="It is unknown whether JAX of jax-0.5.3 finds libcudart.so.12",
)
@fault(
    "stack.mapped",
    verdict="INCONCLUSIVE",
    remedy="stack.libraries",
    cause="JAX of jax-0.5.3 mapped no CUDA library",
)
@fault(
    "stack.matmul",
    cause="JAX reports 0 GPUs: no CUDA plugin of JAX is installed",
    remedy="driver.loaded",
)
@fault("stack.gpu", cause="no result of GPU 0, 1 of 2 declared", remedy="driver.loaded")
@fault("stack.convolution", cause="could not convolve", remedy=PROVISION)
def jax_without_its_plugin(plan: Document, snapshot: Document) -> None:
    real = run_of("jax-cpu")
    no_gpu(snapshot, "jax", "JAX", real["no_gpu"])
    run(snapshot, "jax").update(
        build=real["build"],
        mapped=[],
        loader={**real["loader"], "failed": [], "opened": ["libcuda.so.1"]},
    )


@fault("stack.build", cause="was built for CUDA 11.8, planned is 12.4", remedy=PROVISION)
def pytorch_for_another_cuda(plan: Document, snapshot: Document) -> None:
    run(snapshot, "pytorch")["build"]["cuda"] = "11.8"


@fault("stack.release", cause="numpy 1.26.4 -> 2.4.6", remedy=PROVISION)
@fault(
    "stack.numpy",
    remedy=PROVISION,
    cause="exchanges no arrays with numpy 2.4.6: RuntimeError: Numpy is not available; PyTorch"
    " before 2.3 needs numpy 1",
)
@fault(
    "stack.matmul",
    cause="could not multiply: RuntimeError: Numpy is not available",
    remedy="stack.libraries",
)
@fault("stack.gpu", cause="no result of GPU 0, 1", remedy="stack.matmul")
@fault("stack.convolution", cause="could not convolve", remedy=PROVISION)
def numpy_2_under_a_build_for_numpy_1(plan: Document, snapshot: Document) -> None:
    real, ran = run_of("pytorch-1.13.1-numpy-2"), run(snapshot, "pytorch")
    ran.update(numpy=real["numpy"], tower_sum=real["tower_sum"])
    for entry in (*ran["matmul"], *ran["convolution"]):
        entry.update(device=None, wrong=None, error=real["matmul"][0]["error"])
    receipt_of(snapshot, "pytorch")["packages"]["numpy"] = "1.26.4"


@fault(
    "stack.mapped",
    remedy=PROVISION,
    cause="PyTorch of pytorch-2.6.0 maps libraries from outside"
    " /opt/gpufleet/stacks/pytorch-2.6.0: /usr/lib/x86_64-linux-gnu/libcudnn_ops.so.9",
)
def pytorch_with_the_systems_cudnn(plan: Document, snapshot: Document) -> None:
    run(snapshot, "pytorch")["mapped"].append("/usr/lib/x86_64-linux-gnu/libcudnn_ops.so.9")


@fault(
    "stack.mapped",
    cause=f"JAX of jax-0.5.3 maps libraries from outside"
    f" /opt/gpufleet/stacks/jax-0.5.3: {ELSEWHERE}/libcudnn.so.9",
    remedy=PROVISION,
)
def jax_with_another_stacks_cudnn(plan: Document, snapshot: Document) -> None:
    run(snapshot, "jax")["mapped"].append(f"{ELSEWHERE}/libcudnn.so.9")


@fault(
    "stack.mapped",
    cause="no receipt of its own toolkit, cuDNN or packages lists that file",
    remedy="move it away",
)
def a_library_that_no_wheel_has(plan: Document, snapshot: Document) -> None:
    run(snapshot, "jax")["mapped"].append("/opt/gpufleet/stacks/jax-0.5.3/lib/libcufft.so.11")


@fault(
    "stack.libraries",
    remedy=PROVISION,
    cause="JAX of jax-0.5.3 cannot load libnvJitLink.so.12, and does not use the GPU",
)
def a_wheel_is_missing(plan: Document, snapshot: Document) -> None:
    ran = run(snapshot, "jax")
    ran["loader"]["opened"].remove("libnvJitLink.so.12")
    ran["loader"]["failed"].append(
        {
            "library": "libnvJitLink.so.12",
            "error": "libnvJitLink.so.12: cannot open shared object file: No such file or directory",
        }
    )
    ran["mapped"] = [path for path in ran["mapped"] if "nvJitLink" not in path]


@fault(
    "stack.libraries",
    remedy=PROVISION,
    cause="PyTorch of pytorch-2.6.0 cannot load libcudnn.so.9, and does not use the GPU:"
    " cudnnOpsVersionCheck returned 1",
)
def a_part_of_cudnn_is_of_another_version(plan: Document, snapshot: Document) -> None:
    run(snapshot, "pytorch")["loader"]["failed"].append(
        {"library": "libcudnn.so.9", "error": "cudnnOpsVersionCheck returned 1"}
    )


@fault("stack.libraries", cause="JAX of jax-0.5.3 cannot load libcupti", remedy=PROVISION)
def cupti_ends_the_process(plan: Document, snapshot: Document) -> None:
    run(snapshot, "jax")["loader"]["failed"].append(
        {
            "library": "libcupti",
            "error": "cuptiGetVersion of libcupti.so.13 ends its process with signal 11",
        }
    )


@fault("stack.convolution", cause="on /GPU:1 gave 12 wrong numbers", remedy="gpu.formats")
def a_wrong_convolution(plan: Document, snapshot: Document) -> None:
    run(snapshot, "pytorch")["convolution"][1]["wrong"] = 12


@fault(
    "stack.convolution",
    cause="jax-0.5.3 on /GPU:0 convolved on /CPU:0 instead",
    remedy="stack.libraries",
)
def a_convolution_elsewhere(plan: Document, snapshot: Document) -> None:
    run(snapshot, "jax")["convolution"][0]["device"] = "/CPU:0"


@fault(
    "stack.convolution",
    verdict="INCONCLUSIVE",
    cause="did not report it",
    remedy="./gpufleet verify",
)
def no_convolution_at_all(plan: Document, snapshot: Document) -> None:
    run(snapshot, "jax")["convolution"] = []


@fault(
    "stack.convolution",
    verdict="INCONCLUSIVE",
    cause="A convolution of pytorch-2.6.0 on /GPU:0 was not tested: it has no memory left",
    remedy="wait",
)
def a_convolution_beside_a_job(plan: Document, snapshot: Document) -> None:
    held_by_ann(snapshot)
    run(snapshot, "pytorch")["convolution"][0].update(
        wrong=None, device=None, error="CUDA_ERROR_OUT_OF_MEMORY: out of memory"
    )


@fault(
    "stack.routines",
    cause="JAX of jax-0.5.3 has no right result of solve: XlaRuntimeError",
    remedy="stack.libraries",
)
def a_solver_that_does_not_start(plan: Document, snapshot: Document) -> None:
    run(snapshot, "jax")["routines"]["solve"] = "XlaRuntimeError: cuSolver internal error"


BEFORE = "stopped before this step"


def ends(snapshot: Document, framework: str, doing: str, *parts: str) -> None:
    """The run ends after its products; these parts were never reported."""
    ran = run(snapshot, framework)
    ran.update(state="failed", error=f"stopped while {doing}, killed by SIGABRT")
    for part in parts:
        ran[part] = None
        if part != "loader":
            del ran[part]


@fault(
    "stack.convolution",
    cause="PyTorch of pytorch-2.6.0 ended in this step: stopped while"
    " convolving, killed by SIGABRT",
    remedy=PROVISION,
)
@fault("stack.routines", verdict="INCONCLUSIVE", cause=BEFORE, remedy="stack.convolution")
@fault("stack.libraries", verdict="INCONCLUSIVE", cause=BEFORE, remedy="stack.convolution")
@fault("stack.workers", verdict="INCONCLUSIVE", cause=BEFORE, remedy="stack.convolution")
@fault("stack.compile", verdict="INCONCLUSIVE", cause=BEFORE, remedy="stack.convolution")
def a_run_that_dies_in_its_convolution(plan: Document, snapshot: Document) -> None:
    ends(
        snapshot, "pytorch", "convolving", "convolution", "routines", "loader", "workers", "compile"
    )


@fault(
    "stack.routines",
    cause="JAX of jax-0.5.3 ended in this step: stopped while transforming and solving",
    remedy=PROVISION,
)
@fault("stack.libraries", verdict="INCONCLUSIVE", cause=BEFORE, remedy="stack.routines")
def a_run_that_dies_in_its_solver(plan: Document, snapshot: Document) -> None:
    ends(snapshot, "jax", "transforming and solving", "routines", "loader")


CUDNN = "lib/python3.11/site-packages/nvidia/cudnn/lib"


@fault(
    "stack.files",
    cause=f"1 of its 2 files changed under /opt/gpufleet/stacks/pytorch-2.6.0:"
    f" {CUDNN}/libcudnn_graph.so.9 (size)",
    remedy=PROVISION,
)
@fault(
    "stack.libraries",
    cause="PyTorch of pytorch-2.6.0 ended in this step: stopped while PyTorch"
    " opened its libraries, killed by SIGABRT",
    remedy=PROVISION,
)
@fault(
    "stack.workers", "stack.compile", verdict="INCONCLUSIVE", cause=BEFORE, remedy="stack.libraries"
)
def a_run_that_dies_of_another_releases_cudnn(plan: Document, snapshot: Document) -> None:
    """As it was with PyTorch 2.6.0, whose libcudnn_graph.so.9 was that of JAX's cuDNN 9.28."""
    receipt_of(snapshot, "pytorch").update(
        files=2, changed=[{"path": f"{CUDNN}/libcudnn_graph.so.9", "what": "size"}]
    )
    ends(snapshot, "pytorch", "PyTorch opened its libraries", "loader", "workers", "compile")


@fault("stack.files", cause="libcudnn.so.9 (missing)", remedy=PROVISION)
@fault(
    "stack.matmul",
    cause="JAX of jax-0.5.3 does not run: stopped while importing JAX",
    remedy=PROVISION,
)
@fault(
    "stack.build",
    "stack.libraries",
    "stack.gpu",
    "stack.convolution",
    "stack.routines",
    verdict="INCONCLUSIVE",
    cause=BEFORE,
    remedy="stack.matmul",
)
def a_run_that_dies_of_a_library_that_is_gone(plan: Document, snapshot: Document) -> None:
    receipt_of(snapshot, "jax")["changed"] = [{"path": f"{CUDNN}/libcudnn.so.9", "what": "missing"}]
    ends(snapshot, "jax", "importing JAX", "matmul", "convolution", "routines", "loader", "build")
    run(snapshot, "jax").update(matmul=[], build=None)


@harmless
def a_release_without_a_transform_or_a_solver(plan: Document, snapshot: Document) -> None:
    run(snapshot, "pytorch")["routines"] = {}


@fault("stack.workers", cause="killed by signal: Bus error", remedy="df /dev/shm")
def no_room_in_shared_memory(plan: Document, snapshot: Document) -> None:
    run(snapshot, "pytorch")["workers"].update(
        wrong=None,
        error="RuntimeError: DataLoader worker (pid 123) is killed by signal: Bus"
        " error. It is possible that dataloader's workers are out of shared"
        " memory. Please try to raise your shared memory limit.",
    )


@fault("stack.workers", cause="an unknown number of batches are wrong", remedy="df /dev/shm")
def workers_that_were_not_compared(plan: Document, snapshot: Document) -> None:
    run(snapshot, "pytorch")["workers"]["wrong"] = None


@fault(
    "stack.compile",
    verdict="NOT-DECLARED",
    cause="cannot compile functions on this host, which lacks a C compiler (gcc or clang):"
    " torch.compile was not tested",
    remedy="install it",
)
def a_host_without_a_compiler(plan: Document, snapshot: Document) -> None:
    run(snapshot, "pytorch")["compile"].update(wrong=None, lacks="a C compiler (gcc or clang)")


@fault("stack.compile", cause="fails: BackendCompilerFailed", remedy=PROVISION)
def a_function_that_does_not_compile(plan: Document, snapshot: Document) -> None:
    run(snapshot, "pytorch")["compile"].update(
        wrong=None,
        error="BackendCompilerFailed: backend='inductor' raised: ModuleNotFoundError:"
        " No module named 'setuptools'",
    )


@fault("stack.compile", cause="gave 3 wrong numbers", remedy=PROVISION)
def a_compiled_function_with_wrong_results(plan: Document, snapshot: Document) -> None:
    run(snapshot, "pytorch")["compile"]["wrong"] = 3


@fault("stack.compile", verdict="HUNG", cause="no answer within 54 s", remedy="state D")
def a_compiler_that_hangs(plan: Document, snapshot: Document) -> None:
    run(snapshot, "pytorch")["compile"].update(
        wrong=None, error="TimeoutError: no answer within 54 s", hung=True
    )


@fault(
    "stack.matmul",
    cause="pytorch-2.6.0 on /GPU:0 in float16 gave 7 wrong rows of 2048",
    remedy="out of service",
)
def a_wrong_product_of_a_lower_precision(plan: Document, snapshot: Document) -> None:
    next(
        entry for entry in run(snapshot, "pytorch")["matmul"] if entry.get("precision") == "float16"
    )["wrong"] = 7


@harmless
def a_gpu_without_bfloat16(plan: Document, snapshot: Document) -> None:
    for entry in run(snapshot, "pytorch")["matmul"]:
        if entry.get("precision") == "bfloat16":
            entry.update(
                wrong=None,
                device=None,
                tflops=None,
                not_applicable='RuntimeError: "addmm" not implemented for BFloat16',
            )


@fault(
    "stack.capability",
    remedy="resolve --pytorch VERSION",
    cause="pytorch-2.6.0 has neither machine code nor PTX for compute capability 10.0",
)
def a_gpu_that_is_newer_than_the_wheel(plan: Document, snapshot: Document) -> None:
    planned(plan, "pytorch")["compute_capability"]["native"].append("10.0")
    run(snapshot, "pytorch")["capabilities"] = ["10.0"]


@fault(
    "stack.capability",
    remedy="resolve --pytorch VERSION",
    cause="PyTorch of pytorch-2.6.0 ignores a GPU: NVIDIA B200 with CUDA capability sm_100",
)
def a_gpu_that_pytorch_names_as_incompatible(plan: Document, snapshot: Document) -> None:
    run(snapshot, "pytorch")["said"] = [
        "NVIDIA B200 with CUDA capability sm_100 is not compatible with the current PyTorch"
        " installation."
    ]


@fault(
    "stack.compile",
    verdict="HUNG",
    cause="PyTorch of pytorch-2.6.0 hung: stopped while loading data",
    remedy="driver and load",
)
@fault(
    "stack.workers",
    verdict="HUNG",
    cause="PyTorch of pytorch-2.6.0 hung: stopped while loading data",
    remedy="driver and load",
)
def workers_that_never_answer(plan: Document, snapshot: Document) -> None:
    ran = run(snapshot, "pytorch")
    ran.update(
        state="hung", error="stopped while loading data by two workers, no answer within 80 s"
    )
    for part in ("workers", "compile"):
        del ran[part]


@fault(
    "environment.login",
    cause="A login sets JAX_PLATFORMS=cpu: JAX uses no GPU with it",
    remedy="remove it from",
)
def a_profile_that_hides_the_gpus_from_jax(plan: Document, snapshot: Document) -> None:
    data(snapshot, "environment")["login"]["JAX_PLATFORMS"] = "cpu"
    data(snapshot, "environment").setdefault("mentions", {})["JAX_PLATFORMS"] = [
        "/etc/profile.d/jax.sh"
    ]


@fault(
    "environment.login", cause="libraries in /usr/local/cuda-11.8/lib64 override", remedy="remove"
)
def a_profile_that_names_a_toolkit(plan: Document, snapshot: Document) -> None:
    data(snapshot, "environment")["login"]["LD_LIBRARY_PATH"] = "/usr/local/cuda-11.8/lib64"
