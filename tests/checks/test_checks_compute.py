"""What toolkits and stacks compute: each check catches the break that it is for, and no other.

A row breaks a healthy host with two GPUs in one way and lists every check that then is not as
before.
"""

from __future__ import annotations

import pytest

from gpufleet.checks import compute as checks
from gpufleet.checks import holders, judge
from gpufleet.inventory import Connection, InventoryHost
from gpufleet.verification.session import ProbeOptions, probe_config
from tests.checks import test_checks
from tests.support.healthy_host import Break, Document, Row, data, document, registering, verdicts

PROVISION = "./gpufleet provision --limit gpu01"

FAULTS: list[Row] = []
fault = registering(FAULTS)


def run(snapshot: Document) -> Document:
    found: Document = data(snapshot, "compute")["runs"][0]
    return found


def framework(snapshot: Document) -> Document:
    found: Document = data(snapshot, "stacks")["stacks"][0]["framework"]
    return found


def held_by_ann(snapshot: Document) -> None:
    """Somebody computes on the host; the persistence daemon only keeps it awake."""
    data(snapshot, "driver")["holders"] = [
        {"pid": 900, "user": "nvidia-persistenced", "command": "nvidia-persiste",
         "nodes": ["/dev/nvidia0"]},
        {"pid": 4711, "user": "ann", "command": "python3", "nodes": ["/dev/nvidia0"]}]
    data(snapshot, "smi")["devices"][0]["memory_free_mib"] = 300


# -- toolkits --------------------------------------------------------------------------------------


@fault(toolkit__cublas=("cuBLAS of CUDA 11.8 on GPU 1 gave 1 wrong rows", "out of service"))
def one_wrong_row(plan: Document, snapshot: Document) -> None:
    run(snapshot)["cublas"][1]["wrong"] = 1


@fault(toolkit__cublas=("on GPU 0 gave unchecked wrong rows", "out of service"))
def a_product_that_was_not_checked(plan: Document, snapshot: Document) -> None:
    run(snapshot)["cublas"][0]["wrong"] = None


@fault(toolkit__cublas=("on GPU 0: killed by SIGSEGV", "driver.loaded"),
       gpu__throughput=("GPU 0 has no measured throughput", "toolkit.cublas"))
def cublas_that_crashes(plan: Document, snapshot: Document) -> None:
    run(snapshot)["state"] = "failed"
    run(snapshot)["cublas"][0].update(wrong=None, tflops=None, error="killed by SIGSEGV")


@fault(toolkit__cublas=("on GPU 0: no answer within 60 s", "state D"),
       gpu__throughput=("GPU 0 has no measured throughput", "toolkit.cublas"))
def cublas_that_hangs(plan: Document, snapshot: Document) -> None:
    run(snapshot)["state"] = "hung"
    run(snapshot)["cublas"][0].update(wrong=None, tflops=None, error="no answer within 60 s")


@fault(toolkit__cublas=("nothing was computed on GPU 1", "toolkit.device-query"))
def a_gpu_that_was_left_out(plan: Document, snapshot: Document) -> None:
    run(snapshot)["cublas"].pop()


@fault(toolkit__cublas=("no answer: stopped in the stage cublas, no answer within 60 s", "state D"),
       cudnn__convolution=("nothing was computed on GPU 0, 1", "state D"),
       toolkit__nvrtc=("The rest of CUDA 11.8: no answer", "state D"),
       gpu__throughput=("No GPU has a measured throughput", "toolkit.cublas"),
       gpu__sustained=("stopped before this step", "--deadline"),
       gpu__bandwidth=("stopped before this step", "--deadline"),
       gpu__peer=("stopped before this step", "--deadline"))
def a_run_that_was_stopped(plan: Document, snapshot: Document) -> None:
    run(snapshot).update(state="hung", error="stopped in the stage cublas, no answer within 60 s",
                         cublas=[], cudnn=[], bandwidth=None, peer=None, sustained=None)


@fault(toolkit__cublas=("GPU 0 was not tested: only 312 MiB of its memory are free, 1024 are"
                        " needed;"
                        " held by pid 4711 (ann, python3)", "wait until these processes end"),
       gpu__throughput=("held by pid 4711 (ann, python3)", "wait"))
def a_gpu_whose_memory_others_hold(plan: Document, snapshot: Document) -> None:
    run(snapshot)["cublas"][0].update(
        busy={"free_mib": 312, "wanted_mib": 1024}, wrong=None, tflops=None)
    held_by_ann(snapshot)


@fault(toolkit__cublas=("it has no memory left (cublasCreate_v2 returned 1"
                        " CUBLAS_STATUS_NOT_INITIALIZED); held by pid 4711", "wait"),
       gpu__throughput=("held by pid 4711", "wait"))
def cublas_without_memory_beside_a_job(plan: Document, snapshot: Document) -> None:
    run(snapshot)["cublas"][0].update(
        wrong=None, tflops=None,
        error="cublasCreate_v2 returned 1 CUBLAS_STATUS_NOT_INITIALIZED")
    held_by_ann(snapshot)


@fault(toolkit__cublas=("on GPU 0: cublasCreate_v2 returned 1", "driver.loaded"),
       gpu__throughput=("GPU 0 has no measured throughput", "toolkit.cublas"))
def cublas_without_memory_that_nobody_holds(plan: Document, snapshot: Document) -> None:
    run(snapshot)["cublas"][0].update(
        wrong=None, tflops=None,
        error="cublasCreate_v2 returned 1 CUBLAS_STATUS_NOT_INITIALIZED")


@fault(toolkit__device_query=("cuInit returned 803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
                              "driver.loaded"))
def a_driver_that_refuses(plan: Document, snapshot: Document) -> None:
    run(snapshot)["driver"] = {"cuinit": 803, "version": "12.2",
                               "error": "cuInit returned 803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}


@fault(toolkit__device_query=("lists 1 GPUs, declared is gpu_expect: {count: 2}", "gpu.count"))
def a_gpu_that_cuda_is_not_shown(plan: Document, snapshot: Document) -> None:
    run(snapshot)["devices"].pop()


@fault(toolkit__device_query=("GPU 0 (NVIDIA H100 PCIe) has no memory_mib, sm_count",
                              "kernel log"))
def a_gpu_without_figures(plan: Document, snapshot: Document) -> None:
    run(snapshot)["devices"][0].update(memory_mib=0, sm_count=0)


@fault(toolkit__device_query=("is at 0000:0f:00.0, where the PCI bus has no NVIDIA GPU",
                              "gpu.count"))
def a_gpu_that_is_nowhere(plan: Document, snapshot: Document) -> None:
    run(snapshot)["devices"][0]["address"] = "0000:0f:00.0"


@fault(toolkit__nvrtc=("NVRTC of CUDA 11.8: there is no libnvrtc.so.*", PROVISION))
def no_compiler(plan: Document, snapshot: Document) -> None:
    run(snapshot)["nvrtc"].update(ptx=False, error="there is no libnvrtc.so.* in /usr/local/x")


@fault(toolkit__nvrtc=("returns no PTX", PROVISION))
def a_compiler_that_makes_nothing(plan: Document, snapshot: Document) -> None:
    run(snapshot)["nvrtc"]["ptx"] = False


@fault(toolkit__nvrtc=("reports version 12.3", PROVISION))
def a_compiler_of_another_release(plan: Document, snapshot: Document) -> None:
    run(snapshot)["nvrtc"]["version"] = "12.3"


@fault(toolkit__nvrtc=("A kernel by NVRTC of CUDA 11.8 on GPU 1 gave 3 wrong numbers",
                       "out of service"))
def a_kernel_that_computes_wrong(plan: Document, snapshot: Document) -> None:
    run(snapshot)["nvrtc"]["ran"][1]["wrong"] = 3


@fault(toolkit__nvrtc=("maps libraries from outside /usr/local/cuda-11.8: /opt/x/libnvrtc.so.12",
                       PROVISION))
def libraries_of_another_tree(plan: Document, snapshot: Document) -> None:
    run(snapshot)["mapped"].append("/opt/x/libnvrtc.so.12")


@fault(cudnn__convolution=("cuDNN 8.6.0 in CUDA 11.8 on GPU 0: killed by SIGABRT", "gpu.count"))
def cudnn_that_crashes(plan: Document, snapshot: Document) -> None:
    run(snapshot)["cudnn"][0].update(wrong=None, error="killed by SIGABRT")


@fault(cudnn__convolution=("on GPU 1 gave 4 wrong numbers", "out of service"))
def cudnn_that_computes_wrong(plan: Document, snapshot: Document) -> None:
    run(snapshot)["cudnn"][1]["wrong"] = 4


@fault(cudnn__convolution=("reports version 8.9.7", PROVISION))
def cudnn_of_another_release(plan: Document, snapshot: Document) -> None:
    for entry in run(snapshot)["cudnn"]:
        entry["version"] = "8.9.7"


@fault(cudnn__convolution=("nothing was computed on GPU 0, 1", "toolkit.device-query"))
def a_planned_cudnn_that_nobody_tried(plan: Document, snapshot: Document) -> None:
    run(snapshot)["cudnn"] = []


# -- speed -----------------------------------------------------------------------------------------


@fault(gpu__throughput=("GPU 1 multiplies float32 at 9.8 TFLOP/s, the minimum is 15.3 (30% of 51",
                        "gpu.throttle"))
def slower_than_its_model(plan: Document, snapshot: Document) -> None:
    run(snapshot)["cublas"][1]["tflops"] = 9.8


@fault(gpu__throughput=("at 34.4 TFLOP/s, the minimum is 40.0 (gpu_expect.tflops)", "gpu.settings"),
       gpu__sustained=("keeps", "gpu.throttle"))
def slower_than_declared(plan: Document, snapshot: Document) -> None:
    plan["expect"].update(tflops=40.0, tflops_because="gpu_expect.tflops")


@fault(gpu__throughput=("GPU 0 has no measured throughput", "toolkit.cublas"))
def nothing_per_second(plan: Document, snapshot: Document) -> None:
    run(snapshot)["cublas"][0]["tflops"] = 0.0


@fault(gpu__throughput=("gpu_expect.tflops: not set, and no minimum of the model is known",
                        "gpu_expect: {tflops: ...}"))
def a_model_that_nobody_knows(plan: Document, snapshot: Document) -> None:
    for device in run(snapshot)["devices"]:
        device["name"] = "NVIDIA X9000"


@fault(gpu__sustained=("--deep: not requested", "--deep"), gpu__bandwidth=("--deep", "--deep"),
       gpu__peer=("--deep", "--deep"))
def not_asked_to_be_deep(plan: Document, snapshot: Document) -> None:
    data(snapshot, "compute")["deep"] = False
    run(snapshot).update(sustained=None, bandwidth=None, peer=None)


@fault(gpu__sustained=("The deep run stopped before this step", "--deadline"),
       gpu__bandwidth=("stopped before this step", "--deadline"),
       gpu__peer=("stopped before this step", "--deadline"))
def deep_and_never_got_there(plan: Document, snapshot: Document) -> None:
    run(snapshot).update(sustained=None, bandwidth=None, peer=None)


@fault(gpu__sustained=("throttled by its hardware under load (hw-thermal), at 93 degrees",
                       "fans"))
def too_hot_under_load(plan: Document, snapshot: Document) -> None:
    for sample in run(snapshot)["sustained"][0]["samples"][90:92]:
        sample.update(temperature_c=93, throttle=["hw-thermal"])


@fault(gpu__sustained=("GPU 1 fell from", "airflow"))
def slower_and_slower_under_load(plan: Document, snapshot: Document) -> None:
    for at, sample in enumerate(run(snapshot)["sustained"][1]["samples"]):
        sample["tflops"] = 40 - at / 5


@fault(gpu__sustained=("was still hot when the run ended", "wait until it is cool"))
def hot_for_a_long_time(plan: Document, snapshot: Document) -> None:
    run(snapshot)["sustained"][0]["settled_s"] = None


@fault(gpu__sustained=("Sustained load on GPU 0 gave 2 wrong rows", "out of service"))
def wrong_under_load(plan: Document, snapshot: Document) -> None:
    run(snapshot)["sustained"][0]["wrong"] = 2


@fault(gpu__bandwidth=("GPU 0 copies its memory at 220.0 GiB/s, the minimum is 931",
                       "gpu.throttle"))
def slow_memory(plan: Document, snapshot: Document) -> None:
    run(snapshot)["bandwidth"][0]["gib_s"] = 220.0


@fault(gpu__bandwidth=("Copying memory on GPU 1 gave 1 wrong blocks", "out of service"))
def memory_that_forgets(plan: Document, snapshot: Document) -> None:
    run(snapshot)["bandwidth"][1]["wrong"] = 1


@fault(gpu__peer=("4096 numbers changed on the way from GPU 1 to GPU 0", "ACS"))
def a_bridge_that_changes_what_passes(plan: Document, snapshot: Document) -> None:
    run(snapshot)["peer"][1]["wrong"] = 4096


# -- TensorFlow ------------------------------------------------------------------------------------


@fault(stack__hello=("evaluates 'Hello, TensorFlow!' to 'Hallo'", PROVISION))
def another_greeting(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["hello"]["value"] = "Hallo"


@fault(stack__hello=("hello fails: InternalError: no", PROVISION))
def no_greeting(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["errors"] = {"hello": "InternalError: no"}


@fault(stack__local_devices=("lists 1 GPUs, declared is gpu_expect: {count: 2} (XLA_GPU does"
                             " not count",
                             "stack.capability"))
def an_xla_gpu_only(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["local_devices"][1]["type"] = "XLA_GPU"


@fault(stack__local_devices=("has 0 MiB to use on /device:GPU:0", "nvidia-smi"))
def a_listed_gpu_without_memory(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["local_devices"][1]["memory_mib"] = 0


@fault(stack__gpu_device_name=("tf.test.gpu_device_name() of tensorflow-2.13.1 is ''",
                               "stack.libraries"))
def no_name_of_a_gpu(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["gpu_device_name"] = ""


@fault(stack__device_placement=("instead of a GPU", "stack.libraries"))
def placed_on_the_cpu(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["placement"] = ["/job:localhost/device:CPU:0"]


@fault(stack__device_placement=("logs no device", "stack.matmul"))
def placed_nowhere(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["placement"] = []


@fault(stack__capability=("compute capability 3.0 is below the minimum of tensorflow-2.13.1,"
                          " 3.5", "resolve"))
def a_gpu_too_old_for_the_build(plan: Document, snapshot: Document) -> None:
    run(snapshot)["devices"][0]["compute_capability"] = "3.0"


@fault(stack__capability=("ignores a GPU: Ignoring visible gpu device", "resolve"))
def a_gpu_that_tensorflow_ignores(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["said"] = [
        "Ignoring visible gpu device (device: 0, name: Tesla K10, compute capability: 3.0) with"
        " Cuda compute capability 3.0. The minimum required Cuda capability is 3.5."]


@fault(stack__capability=("neither machine code nor PTX for compute capability 8.8", "resolve"))
def a_gpu_that_no_code_reaches(plan: Document, snapshot: Document) -> None:
    plan["stacks"][0]["compute_capability"] = {"min": "3.5", "native": ["3.5", "9.0"],
                                               "ptx": ["9.0"]}
    run(snapshot)["devices"][0]["compute_capability"] = "8.8"


@fault(stack__matmul=("on /GPU:0 has no measured throughput", "gpu.throughput"))
def a_product_without_a_time(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["matmul"][0]["tflops"] = None


@fault(stack__matmul=("Blas GEMM launch failed", "wait until these processes end"),
       stack__gpu=("held by pid 4711 (ann, python3)", "wait"))
def tensorflow_without_memory_beside_a_job(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["matmul"][0].update(
        wrong=None, device=None, error="InternalError: Blas GEMM launch failed : a.shape=(2048, 2")
    held_by_ann(snapshot)


@fault(stack__matmul=("could not multiply: InternalError: Blas GEMM launch failed", "gpu.count"),
       stack__gpu=("no result of GPU 0", "gpu.count"))
def tensorflow_without_memory_that_nobody_holds(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["matmul"][0].update(
        wrong=None, device=None, error="InternalError: Blas GEMM launch failed : a.shape=(2048, 2")


def out_of_memory_beside_a_job(snapshot: Document) -> str:
    held_by_ann(snapshot)
    return "InternalError: failed to allocate: CUDA_ERROR_OUT_OF_MEMORY: out of memory"


@fault(stack__matmul=("on /GPU:0 was not tested: it has no memory left", "wait until these"
                                                                         " processes"),
       stack__gpu=("held by pid 4711 (ann, python3)", "wait"))
def no_sum_where_every_gpu_is_held(plan: Document, snapshot: Document) -> None:
    for entry in framework(snapshot)["matmul"]:
        entry.update(wrong=None, device=None, error=out_of_memory_beside_a_job(snapshot))
    framework(snapshot)["tower_sum"] = {"devices": [], "wrong": None, "error": "no device computed"}


@fault(stack__matmul=("on all devices together was not tested: it has no memory left", "wait"))
def no_memory_for_the_sum_beside_a_job(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["tower_sum"].update(
        wrong=None, error=out_of_memory_beside_a_job(snapshot))


@fault(stack__matmul=("the sum of all devices' results is wrong or missing (None)", "devices"),
       stack__gpu=("held by pid 4711 (ann, python3)", "wait"))
def a_sum_without_a_word_beside_a_job(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["matmul"][0].update(
        wrong=None, device=None, error=out_of_memory_beside_a_job(snapshot))
    framework(snapshot)["tower_sum"].update(wrong=None, error=None)


@fault(stack__matmul=("was not tested: it has no memory left", "wait"),
       stack__gpu=("stopped before this step", "stack.matmul"))
def a_first_session_without_memory_beside_a_job(plan: Document, snapshot: Document) -> None:
    framework(snapshot).update(state="failed", matmul=[], tower_sum=None,
                               error=out_of_memory_beside_a_job(snapshot))


@fault(stack__hello=("hello was not tested: it has no memory left", "wait"),
       stack__local_devices=("held by pid 4711", "wait"),
       stack__gpu_device_name=("held by pid 4711", "wait"),
       stack__device_placement=("held by pid 4711", "wait"))
def small_checks_without_memory_beside_a_job(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["errors"] = dict.fromkeys(
        ("hello", "local_devices", "gpu_device_name", "placement"),
        out_of_memory_beside_a_job(snapshot))


@fault(containers__matmul=("in a container on /GPU:1 was not tested: it has no memory", "wait"))
def a_container_without_memory_beside_a_job(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["framework"]["matmul"][1].update(
        wrong=None, device=None, error=out_of_memory_beside_a_job(snapshot))


@fault(containers__matmul=("in a container was not tested: it has no memory left", "wait"))
def a_container_whose_first_session_has_no_memory(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["framework"].update(
        state="failed", matmul=[], error=out_of_memory_beside_a_job(snapshot))


@fault(toolkit__cublas=("on GPU 0: cudaSetDevice returned 46", "driver.loaded"),
       gpu__throughput=("GPU 0 has no measured throughput", "toolkit.cublas"))
def a_gpu_that_refuses_though_it_lets_all_in(plan: Document, snapshot: Document) -> None:
    run(snapshot)["cublas"][0].update(
        wrong=None, tflops=None, error="cudaSetDevice returned 46 cudaErrorDevicesUnavailable")
    held_by_ann(snapshot)


@fault(toolkit__cublas=("on GPU 0 was not tested: another process uses it exclusively"
                        " (cudaSetDevice"
                        " returned 46 cudaErrorDevicesUnavailable); held by pid 4711", "wait"),
       gpu__throughput=("held by pid 4711", "wait"))
def a_gpu_that_lets_one_process_in(plan: Document, snapshot: Document) -> None:
    a_gpu_that_refuses_though_it_lets_all_in(plan, snapshot)
    plan["expect"]["compute_mode"] = "exclusive_process"
    for device in data(snapshot, "smi")["devices"]:
        device["compute_mode"] = "exclusive_process"


@fault(cudnn__convolution=("on GPU 0: cudnnCreate returned 1 CUDNN_STATUS_NOT_INITIALIZED",
                           "driver.loaded"))
def a_broken_cudnn_beside_a_job_that_leaves_room(plan: Document, snapshot: Document) -> None:
    held_by_ann(snapshot)
    for device, free in zip(data(snapshot, "smi")["devices"], (3500, 12), strict=True):
        device["memory_free_mib"] = free
    run(snapshot)["cudnn"][0].update(
        wrong=None, error="cudnnCreate returned 1 CUDNN_STATUS_NOT_INITIALIZED")


# -- the table -------------------------------------------------------------------------------------

BUSY = {"a_gpu_whose_memory_others_hold", "cublas_without_memory_beside_a_job",
        "tensorflow_without_memory_beside_a_job", "no_sum_where_every_gpu_is_held",
        "no_memory_for_the_sum_beside_a_job", "a_first_session_without_memory_beside_a_job",
        "small_checks_without_memory_beside_a_job", "a_container_without_memory_beside_a_job",
        "a_container_whose_first_session_has_no_memory", "a_gpu_that_lets_one_process_in"}


@pytest.mark.parametrize(("name", "break_it", "caught"), FAULTS, ids=[row[0] for row in FAULTS])
def test_a_fault_is_caught_by_its_checks_alone(
    name: str, break_it: Break, caught: dict[str, tuple[str, str]]
) -> None:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    test_checks.with_gpus(plan, snapshot)
    before = verdicts(plan, snapshot)
    assert set(before.values()) == {"PASS"}
    break_it(plan, snapshot)
    after = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert {check for check in before if after[check]["verdict"] != "PASS"} == set(caught)
    for check_id, (cause, remedy) in caught.items():
        assert cause in after[check_id]["cause"]
        assert remedy in after[check_id]["remedy"]
        # Somebody's job is no fault of the host.
        assert (after[check_id]["verdict"] == "INCONCLUSIVE") >= (name in BUSY)


def test_a_kernel_made_from_ptx_is_told_and_no_fault(plan: Document, snapshot: Document) -> None:
    test_checks.with_gpus(plan, snapshot)
    framework(snapshot)["matmul"][0]["first_s"] = 1830.4
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["stack.capability"]["verdict"] == "PASS"
    evidence = found["stack.capability"]["evidence"]
    assert "compiles PTX at the first use, which took 1830.4 s" in evidence


def test_who_holds_a_gpu_is_read_from_nvidia_smi_too(plan: Document, snapshot: Document) -> None:
    test_checks.with_gpus(plan, snapshot)
    a_gpu_whose_memory_others_hold(plan, snapshot)
    data(snapshot, "driver")["holders"] = None
    data(snapshot, "smi")["devices"][0]["processes"] = [
        {"pid": 12, "name": "/usr/bin/python3", "memory_mib": 70000}]
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert "held by pid 12 (unknown user, python3)" in found["toolkit.cublas"]["cause"]
    del snapshot["sections"]["smi"]
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert "its processes are unknown" in found["toolkit.cublas"]["cause"]


def test_a_desktop_that_nvidia_smi_lists_holds_no_gpu(plan: Document, snapshot: Document) -> None:
    test_checks.with_gpus(plan, snapshot)
    cublas_without_memory_that_nobody_holds(plan, snapshot)
    data(snapshot, "smi")["devices"][0].update(memory_free_mib=300, processes=[
        {"pid": 7, "name": "/usr/lib/xorg/Xorg", "memory_mib": 20},
        {"pid": 8, "name": "/usr/bin/python3", "memory_mib": 200}])
    # Root saw that nobody has a card open: the Python that nvidia-smi lists is the probe's own.
    assert verdicts(plan, snapshot)["toolkit.cublas"] == "FAIL"
    data(snapshot, "driver")["holders"] = None
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["toolkit.cublas"]["cause"].endswith("held by pid 8 (unknown user, python3)")


@pytest.mark.parametrize("container", [True, False])
def test_who_cannot_see_others_does_not_blame_the_hardware(
    plan: Document, snapshot: Document, container: bool
) -> None:
    test_checks.with_gpus(plan, snapshot)
    cublas_without_memory_that_nobody_holds(plan, snapshot)
    data(snapshot, "smi")["devices"][0]["memory_free_mib"] = 200
    data(snapshot, "kernel")["container"] = None
    assert verdicts(plan, snapshot)["toolkit.cublas"] == "FAIL"
    if container:
        data(snapshot, "kernel")["container"] = "docker"
    else:
        data(snapshot, "driver")["holders"] = None
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["toolkit.cublas"]["verdict"] == "INCONCLUSIVE"
    assert "its processes are unknown" in found["toolkit.cublas"]["cause"]


@pytest.mark.parametrize("name", [
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 3080 Laptop GPU"])
def test_the_floor_of_the_declared_model_is_not_for_a_part_of_it(
    plan: Document, snapshot: Document, name: str
) -> None:
    test_checks.with_gpus(plan, snapshot)
    for device, entry in zip(run(snapshot)["devices"], run(snapshot)["cublas"], strict=True):
        device["name"], entry["tflops"] = name, 4.0
    plan["expect"].update(tflops=15.3, tflops_because="30% of 51 TFLOP/s, data sheet")
    assert verdicts(plan, snapshot)["gpu.throughput"] == "NOT-DECLARED"
    plan["expect"]["tflops_because"] = "gpu_expect.tflops"
    assert verdicts(plan, snapshot)["gpu.throughput"] == "FAIL"


def test_of_cards_in_parts_cuda_shows_a_program_one(plan: Document, snapshot: Document) -> None:
    test_checks.with_gpus(plan, snapshot)
    plan["driver"]["mig"] = {"all": ["7g.80gb"]}
    for card in data(snapshot, "gpus")["mig"]:
        card.update(mode="on", instances=["7g.80gb"])
    found, in_container = run(snapshot), data(snapshot, "containers")["run"]["framework"]
    found.update(peer=[], **{name: found[name][:1] for name in (
        "devices", "cublas", "cudnn", "bandwidth", "sustained")})
    del found["nvrtc"]["ran"][1], framework(snapshot)["matmul"][1], in_container["matmul"][1]
    framework(snapshot)["small"]["local_devices"].pop()
    judged = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert {check["verdict"] for check in judged.values()} == {"PASS"}
    for check in ("toolkit.device-query", "stack.gpu"):
        assert "only that one was tested" in judged[check]["evidence"]
    found["devices"].clear()
    assert verdicts(plan, snapshot)["toolkit.device-query"] == "FAIL"
    wishes = {"gpu_expect": {"count": 2}, "gpu_mig": ["7g.80gb"]}
    host = InventoryHost("gpu01", wishes, Connection("gpu01"))
    assert probe_config(host, ProbeOptions("facts"))["expect_gpus"] == 1


def test_a_small_job_does_not_excuse_a_gpu_with_room(plan: Document, snapshot: Document) -> None:
    test_checks.with_gpus(plan, snapshot)
    cublas_without_memory_beside_a_job(plan, snapshot)
    for device in data(snapshot, "smi")["devices"]:
        device["memory_free_mib"] = 60000
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["toolkit.cublas"]["verdict"] == "FAIL"
    data(snapshot, "smi")["devices"][0]["memory_free_mib"] = 200
    assert verdicts(plan, snapshot)["toolkit.cublas"] == "INCONCLUSIVE"


def test_one_sample_that_is_held_back_or_not_read_is_no_fault(
    plan: Document, snapshot: Document
) -> None:
    test_checks.with_gpus(plan, snapshot)
    first, *others = run(snapshot)["sustained"][0]["samples"]
    first["throttle"] = ["hw-slowdown", "hw-slowdown"]
    for sample in others:
        sample["throttle"] = None
    assert verdicts(plan, snapshot)["gpu.sustained"] == "PASS"


def test_where_nothing_is_declared_any_placement_will_do(
    plan: Document, snapshot: Document
) -> None:
    test_checks.with_gpus(plan, snapshot)
    plan["expect"]["count"] = None
    assert verdicts(plan, snapshot)["stack.device-placement"] == "PASS"


@pytest.mark.parametrize("error", [
    "InternalError: Blas GEMM launch failed : a.shape=(2048, 2048)",
    "InternalError: Blas xGEMM launch failed",
    "ResourceExhaustedError: OOM when allocating tensor with shape[2048,2048]",
    "cudaSetDevice returned 2 cudaErrorMemoryAllocation",
    "cuDevicePrimaryCtxRetain returned 2 CUDA_ERROR_OUT_OF_MEMORY",
    "cublasCreate_v2 returned 3 CUBLAS_STATUS_ALLOC_FAILED",
])
def test_errors_of_a_full_gpu_are_known(error: str) -> None:
    assert holders.NO_ROOM.search(error)


def test_other_errors_are_not_taken_for_a_full_gpu() -> None:
    assert not holders.NO_ROOM.search("cudaSetDevice returned 35 cudaErrorInsufficientDriver")
    assert not holders.NO_ROOM.search("killed by SIGSEGV")


def test_without_a_gpu_only_the_compiler_is_judged(plan: Document, snapshot: Document) -> None:
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["toolkit.nvrtc"]["verdict"] == "PASS"
    assert "no GPU: it was only compiled" in found["toolkit.nvrtc"]["evidence"]
    assert checks.no_gpus(plan) == "gpu_expect: {count: 0}"
    assert found["toolkit.cublas"]["verdict"] == "NOT-DECLARED"
