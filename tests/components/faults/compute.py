"""Faults of a toolkit's computations on two GPUs, and of their speed."""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data
from tests.support.host_parts import PROVISION, card, compute_run, held_by_ann, with_gpus

fault, harmless = faults_on(with_gpus)


@fault(
    "toolkit.cublas",
    cause="cuBLAS of CUDA 11.8 on GPU 1 gave 1 wrong row",
    remedy="out of service",
)
def one_wrong_row(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cublas"][1]["wrong"] = 1


@fault("toolkit.cublas", cause="on GPU 0 gave rows that were not checked", remedy="out of service")
def a_product_that_was_not_checked(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cublas"][0]["wrong"] = None


@fault("toolkit.cublas", cause="on GPU 0: killed by SIGSEGV", remedy="driver.loaded")
@fault("gpu.throughput", cause="GPU 0 has no measured throughput", remedy="toolkit.cublas")
def cublas_that_crashes(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["state"] = "failed"
    compute_run(snapshot)["cublas"][0].update(wrong=None, tflops=None, error="killed by SIGSEGV")


@fault("toolkit.cublas", cause="on GPU 0: no answer within 60 s", remedy="state D", verdict="HUNG")
@fault("gpu.throughput", cause="GPU 0 has no measured throughput", remedy="toolkit.cublas")
def cublas_that_hangs(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["state"] = "hung"
    compute_run(snapshot)["cublas"][0].update(
        wrong=None, tflops=None, error="no answer within 60 s", hung=True
    )


@fault("toolkit.cublas", cause="nothing was computed on GPU 1", remedy="toolkit.device-query")
def a_gpu_that_was_left_out(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cublas"].pop()


@fault(
    "toolkit.cublas",
    verdict="HUNG",
    cause="no answer: stopped in the stage cublas, no answer within 60 s",
    remedy="state D",
)
@fault(
    "cudnn.convolution", verdict="HUNG", cause="nothing was computed on GPU 0, 1", remedy="state D"
)
@fault("toolkit.nvrtc", cause="The rest of CUDA 11.8: no answer", remedy="state D", verdict="HUNG")
@fault(
    "gpu.throughput",
    verdict="INCONCLUSIVE",
    cause="No GPU has a measured throughput",
    remedy="toolkit.cublas",
)
@fault(
    "gpu.sustained", verdict="INCONCLUSIVE", cause="stopped before this step", remedy="--deadline"
)
@fault(
    "gpu.bandwidth", verdict="INCONCLUSIVE", cause="stopped before this step", remedy="--deadline"
)
@fault("gpu.peer", cause="stopped before this step", remedy="--deadline", verdict="INCONCLUSIVE")
@fault(
    "gpu.formats",
    verdict="HUNG",
    cause="A product in each format of CUDA 11.8: no answer",
    remedy="state D",
)
@fault(
    "gpu.consensus",
    verdict="INCONCLUSIVE",
    remedy="toolkit.nvrtc",
    cause="No random products were computed: stopped in the stage cublas",
)
@fault(
    "gpu.host-copies",
    verdict="INCONCLUSIVE",
    remedy="toolkit.cublas",
    cause="Nothing was copied between the host and its GPUs: stopped in the stage cublas",
)
def a_run_that_was_stopped(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot).update(
        state="hung",
        error="stopped in the stage cublas, no answer within 60 s",
        cublas=[],
        formats=[],
        cudnn=[],
        consensus=None,
        host_copies=None,
        bandwidth=None,
        peer=None,
        sustained=None,
    )


@fault(
    "toolkit.cublas",
    verdict="INCONCLUSIVE",
    cause="GPU 0 was not tested: only 312 MiB of its memory are free, 1024 are"
    " needed;"
    " held by pid 4711 (ann, python3)",
    remedy="wait until these processes end",
)
@fault(
    "gpu.throughput", verdict="INCONCLUSIVE", cause="held by pid 4711 (ann, python3)", remedy="wait"
)
def a_gpu_whose_memory_others_hold(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cublas"][0].update(
        busy={"free_mib": 312, "wanted_mib": 1024}, wrong=None, tflops=None
    )
    held_by_ann(snapshot)


@fault(
    "toolkit.cublas",
    verdict="INCONCLUSIVE",
    cause="it has no memory left (cublasCreate_v2 returned 1"
    " CUBLAS_STATUS_NOT_INITIALIZED); held by pid 4711",
    remedy="wait",
)
@fault("gpu.throughput", cause="held by pid 4711", remedy="wait", verdict="INCONCLUSIVE")
def cublas_without_memory_beside_a_job_that_is_called_like_a_daemon(
    plan: Document, snapshot: Document
) -> None:
    cublas_without_memory_beside_a_job(plan, snapshot)
    data(snapshot, "driver")["holders"][1]["command"] = "dcgm_train"


@fault(
    "toolkit.cublas",
    verdict="INCONCLUSIVE",
    cause="it has no memory left (cublasCreate_v2 returned 1"
    " CUBLAS_STATUS_NOT_INITIALIZED); held by pid 4711",
    remedy="wait",
)
@fault("gpu.throughput", cause="held by pid 4711", remedy="wait", verdict="INCONCLUSIVE")
def cublas_without_memory_beside_a_job(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cublas"][0].update(
        wrong=None, tflops=None, error="cublasCreate_v2 returned 1 CUBLAS_STATUS_NOT_INITIALIZED"
    )
    held_by_ann(snapshot)


@fault("toolkit.cublas", cause="on GPU 0: cublasCreate_v2 returned 1", remedy="driver.loaded")
@fault("gpu.throughput", cause="GPU 0 has no measured throughput", remedy="toolkit.cublas")
def cublas_without_memory_that_nobody_holds(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cublas"][0].update(
        wrong=None, tflops=None, error="cublasCreate_v2 returned 1 CUBLAS_STATUS_NOT_INITIALIZED"
    )


@fault(
    "toolkit.device-query",
    cause="cuInit returned 803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    remedy="driver.loaded",
)
def a_driver_that_refuses(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["driver"] = {
        "cuinit": 803,
        "version": "12.2",
        "error": "cuInit returned 803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    }


@fault(
    "toolkit.device-query",
    cause="lists 1 GPU, declared is gpu_expect: {count: 2}",
    remedy="gpu.count",
)
def a_gpu_that_cuda_is_not_shown(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["devices"].pop()


@fault(
    "toolkit.device-query",
    cause="GPU 0 (NVIDIA H100 PCIe) has no memory_mib, sm_count",
    remedy="kernel log",
)
def a_gpu_without_figures(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["devices"][0].update(memory_mib=0, sm_count=0)


@fault(
    "toolkit.device-query",
    cause="is at 0000:0f:00.0, where the PCI bus has no NVIDIA GPU",
    remedy="gpu.count",
)
def a_gpu_that_is_nowhere(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["devices"][0]["address"] = "0000:0f:00.0"


@fault("toolkit.nvrtc", cause="NVRTC of CUDA 11.8: there is no libnvrtc.so.*", remedy=PROVISION)
def no_compiler(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["nvrtc"].update(
        ptx=False, error="there is no libnvrtc.so.* in /usr/local/x"
    )


@fault("toolkit.nvrtc", cause="returns no PTX", remedy=PROVISION)
def a_compiler_that_makes_nothing(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["nvrtc"]["ptx"] = False


@fault("toolkit.nvrtc", cause="reports version 12.3", remedy=PROVISION)
def a_compiler_of_another_release(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["nvrtc"]["version"] = "12.3"


@fault(
    "toolkit.nvrtc",
    cause="A kernel by NVRTC of CUDA 11.8 on GPU 1 gave 3 wrong numbers",
    remedy="out of service",
)
def a_kernel_that_computes_wrong(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["nvrtc"]["ran"][1]["wrong"] = 3


@fault(
    "toolkit.nvrtc",
    cause="maps libraries from outside /usr/local/cuda-11.8: /opt/x/libnvrtc.so.12",
    remedy=PROVISION,
)
def libraries_of_another_tree(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["mapped"].append("/opt/x/libnvrtc.so.12")


@fault(
    "cudnn.convolution",
    cause="cuDNN 8.6.0 in CUDA 11.8 on GPU 0: killed by SIGABRT",
    remedy="gpu.count",
)
def cudnn_that_crashes(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cudnn"][0].update(wrong=None, error="killed by SIGABRT")


@fault("cudnn.convolution", cause="on GPU 1 gave 4 wrong numbers", remedy="out of service")
def cudnn_that_computes_wrong(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cudnn"][1]["wrong"] = 4


@fault("cudnn.convolution", cause="reports version 8.9.7", remedy=PROVISION)
def cudnn_of_another_release(plan: Document, snapshot: Document) -> None:
    for entry in compute_run(snapshot)["cudnn"]:
        entry["version"] = "8.9.7"


@fault("cudnn.convolution", cause="nothing was computed on GPU 0, 1", remedy="toolkit.device-query")
def a_planned_cudnn_that_nobody_tried(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cudnn"] = []


@fault(
    "gpu.throughput",
    cause="GPU 1 multiplies float32 at 9.8 TFLOP/s, the minimum is 13.84 (90% of",
    remedy="gpu.throttle",
)
def slower_than_its_model(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cublas"][1]["tflops"] = 9.8


@fault(
    "gpu.throughput",
    cause="GPU 1 multiplies float32 at 29.2 TFLOP/s, GPUs of the same model and settings in this"
    " host reach 34.4",
    remedy="gpu.throttle",
)
def fifteen_percent_slower_than_its_siblings(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cublas"][1]["tflops"] = 29.2


def unknown_model(plan: Document, snapshot: Document) -> None:
    """The second GPU is of a model of which nothing is known."""
    plan["expect"]["model"] = None
    for section in ("smi", "smi_after"):
        data(snapshot, section)["devices"][1]["name"] = "NVIDIA X9000"
    compute_run(snapshot)["devices"][1]["name"] = "NVIDIA X9000"


@fault(
    *("gpu.throughput", "gpu.bandwidth", "gpu.sustained"),
    verdict="NOT-DECLARED",
    cause="How fast GPU 1 (NVIDIA X9000) should be is unknown",
    remedy="",
)
def a_gpu_with_neither_minimum_nor_sibling(plan: Document, snapshot: Document) -> None:
    unknown_model(plan, snapshot)
    compute_run(snapshot)["cublas"][1]["tflops"] = 0.001


@fault(
    "gpu.sustained",
    verdict="INCONCLUSIVE",
    cause="GPU 1 reported neither its temperature nor its throttle reasons under load",
    remedy="nvidia-smi -q -d TEMPERATURE",
)
def a_load_whose_heat_nobody_read(plan: Document, snapshot: Document) -> None:
    for sample in compute_run(snapshot)["sustained"][1]["samples"]:
        sample.update(temperature_c=None, throttle=None)


@harmless
def a_load_without_throttle_reasons(plan: Document, snapshot: Document) -> None:
    for entry in compute_run(snapshot)["sustained"]:
        for sample in entry["samples"]:
            sample.update(throttle=None)


@fault(
    "gpu.throughput",
    verdict="INCONCLUSIVE",
    cause="at 9.8 TFLOP/s, the minimum is 13.84 (90% of 15.375 TFLOP/s, DCGM's target), beside a"
    " utilization of 99 % before the test",
    remedy="when nobody else uses the GPU",
)
def slow_beside_a_job(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cublas"][1]["tflops"] = 9.8
    card(snapshot, 1).update(utilization_percent=99, throttle=["sw-power-cap"])


@fault(
    "gpu.throughput",
    verdict="INCONCLUSIVE",
    cause="beside processes of others on it: pid 4711 (/usr/bin/python3)",
    remedy="nobody else",
)
def slow_beside_a_job_that_began_during_the_test(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cublas"][1]["tflops"] = 9.8
    data(snapshot, "smi_after")["devices"][1]["processes"] = [
        {"pid": 4711, "name": "/usr/bin/python3", "memory_mib": 20000}
    ]


@fault(
    "gpu.settings",
    verdict="INCONCLUSIVE",
    cause="GPUs of one model differ in their power limit",
    remedy="declare gpu_expect: {power_limit_w:",
)
def slower_than_a_sibling_with_a_higher_power_limit(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cublas"][1]["tflops"] = 12.0
    card(snapshot, 1)["power_limit_w"] = 500.0


@harmless
def a_job_beside_which_the_minimum_is_reached(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cublas"][1]["tflops"] = 15.1
    card(snapshot, 1).update(utilization_percent=99, throttle=[])


@fault(
    "gpu.sustained",
    cause="GPU 1 keeps 30.0 TFLOP/s under load, GPUs of the same model",
    remedy="cooling",
)
def slower_than_its_siblings_under_load(plan: Document, snapshot: Document) -> None:
    for sample in compute_run(snapshot)["sustained"][1]["samples"]:
        sample["tflops"] = 30.0


@fault(
    "gpu.bandwidth",
    cause="GPU 1 copies its memory at 1350.0 GiB/s, GPUs of the same model",
    remedy="memory-errors",
)
def memory_slower_than_that_of_its_siblings(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["bandwidth"][1]["gib_s"] = 1350.0


@fault(
    "gpu.throughput",
    cause="at 34.4 TFLOP/s, the minimum is 40.0 (gpu_expect.tflops)",
    remedy="gpu.settings",
)
@fault("gpu.sustained", cause="keeps", remedy="gpu.throttle")
def slower_than_declared(plan: Document, snapshot: Document) -> None:
    plan["expect"].update(tflops=40.0, tflops_because="gpu_expect.tflops")


@fault("gpu.throughput", cause="GPU 0 has no measured throughput", remedy="toolkit.cublas")
def nothing_per_second(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["cublas"][0]["tflops"] = 0.0


@fault(
    "gpu.throughput",
    verdict="NOT-DECLARED",
    cause="gpu_expect.tflops: not set, and no minimum of the model is known",
    remedy="gpu_expect: {tflops: ...}",
)
def a_model_that_nobody_knows(plan: Document, snapshot: Document) -> None:
    plan["expect"]["model"] = None
    devices = compute_run(snapshot)["devices"] + data(snapshot, "smi")["devices"]
    for device in devices + data(snapshot, "smi_after")["devices"]:
        device["name"] = "NVIDIA X9000"


@fault("gpu.sustained", cause="--deep: not requested", remedy="--deep", verdict="NOT-DECLARED")
@fault("gpu.bandwidth", cause="--deep", remedy="--deep", verdict="NOT-DECLARED")
@fault("gpu.peer", cause="--deep", remedy="--deep", verdict="NOT-DECLARED")
def not_asked_to_be_deep(plan: Document, snapshot: Document) -> None:
    data(snapshot, "compute")["deep"] = False
    compute_run(snapshot).update(sustained=None, bandwidth=None, peer=None)


@fault(
    "gpu.sustained",
    verdict="INCONCLUSIVE",
    cause="The deep run stopped before this step",
    remedy="--deadline",
)
@fault(
    "gpu.bandwidth", verdict="INCONCLUSIVE", cause="stopped before this step", remedy="--deadline"
)
@fault("gpu.peer", cause="stopped before this step", remedy="--deadline", verdict="INCONCLUSIVE")
def deep_and_never_got_there(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot).update(sustained=None, bandwidth=None, peer=None)


@fault(
    "gpu.sustained",
    cause="throttled by its hardware under load (hw-thermal), at 93 degrees",
    remedy="fans",
)
def too_hot_under_load(plan: Document, snapshot: Document) -> None:
    for sample in compute_run(snapshot)["sustained"][0]["samples"][90:92]:
        sample.update(temperature_c=93, throttle=["hw-thermal"])


@fault(
    "gpu.sustained",
    verdict="INCONCLUSIVE",
    cause="GPU 0 fell from 38.0 to 29.0 TFLOP/s under load, at 70 degrees, and reports no reason",
    remedy="power supply",
)
def slower_without_a_reason(plan: Document, snapshot: Document) -> None:
    for entry in compute_run(snapshot)["sustained"]:
        for at, sample in enumerate(entry["samples"]):
            sample.update(tflops=38.0 if at < 60 else 29.0, throttle=[])


def slower_at_set_clocks(snapshot: Document, before: list[str], clock_mhz: int | None) -> None:
    """Half of the samples are slow and limited by set clocks, whose value in them is given."""
    for entry in compute_run(snapshot)["sustained"]:
        for sample in entry["samples"][:60]:
            sample.update(tflops=38.0, throttle=before, clock_sm_mhz=875)
        for sample in entry["samples"][60:]:
            sample.update(tflops=29.0, throttle=["application-clocks"], clock_sm_mhz=clock_mhz)


NO_REASON = "GPU 0 fell from 38.0 to 29.0 TFLOP/s under load, at 70 degrees, and reports no reason"


@fault("gpu.sustained", verdict="INCONCLUSIVE", cause=NO_REASON, remedy="power supply")
def slower_at_clocks_that_were_set_all_the_time(plan: Document, snapshot: Document) -> None:
    slower_at_set_clocks(snapshot, ["application-clocks"], 666)


@fault("gpu.sustained", verdict="INCONCLUSIVE", cause=NO_REASON, remedy="power supply")
def slower_at_set_clocks_that_are_no_lower(plan: Document, snapshot: Document) -> None:
    """Power that a slow GPU does not draw limits it no longer, and the set clocks do."""
    slower_at_set_clocks(snapshot, ["sw-power-cap"], 875)


@fault("gpu.sustained", verdict="INCONCLUSIVE", cause=NO_REASON, remedy="power supply")
def slower_at_set_clocks_that_were_not_read(plan: Document, snapshot: Document) -> None:
    slower_at_set_clocks(snapshot, [], None)


@fault("gpu.sustained", verdict="INCONCLUSIVE", cause=NO_REASON, remedy="power supply")
def slower_when_the_power_limit_is_off(plan: Document, snapshot: Document) -> None:
    """The limit was on in most samples, and in none of the slow ones."""
    for entry in compute_run(snapshot)["sustained"]:
        for at, sample in enumerate(entry["samples"]):
            slow = at >= 80
            sample.update(tflops=29.0 if slow else 38.0, throttle=["sw-power-cap"][slow:])


@harmless
def slower_since_lower_clocks_were_set(plan: Document, snapshot: Document) -> None:
    slower_at_set_clocks(snapshot, [], 666)


@harmless
def slower_at_the_power_limit(plan: Document, snapshot: Document) -> None:
    for entry in compute_run(snapshot)["sustained"]:
        for at, sample in enumerate(entry["samples"]):
            sample.update(tflops=38.0 if at < 60 else 29.0, throttle=["sw-power-cap"])


@fault("gpu.sustained", cause="GPU 1 fell from", remedy="airflow")
def slower_and_slower_under_load(plan: Document, snapshot: Document) -> None:
    for at, sample in enumerate(compute_run(snapshot)["sustained"][1]["samples"]):
        sample["tflops"] = 40 - at / 5


@fault(
    "gpu.sustained",
    verdict="INCONCLUSIVE",
    cause="was still hot when the run ended",
    remedy="wait until it is cool",
)
def hot_for_a_long_time(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["sustained"][0]["settled_s"] = None


@fault(
    "gpu.sustained", cause="Sustained load on GPU 0 gave 2 wrong products", remedy="out of service"
)
def wrong_under_load(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["sustained"][0]["wrong"] = 2


@fault(
    "toolkit.cublas",
    verdict="INCONCLUSIVE",
    cause="cuBLAS of CUDA 11.8 on GPU 1: not every product was checked",
    remedy="verify",
)
@fault(
    "gpu.sustained",
    verdict="INCONCLUSIVE",
    cause="Sustained load on GPU 1: not every product was checked",
    remedy="verify",
)
def products_of_which_only_the_last_was_checked(plan: Document, snapshot: Document) -> None:
    for part in ("cublas", "sustained"):
        del compute_run(snapshot)[part][1]["checked"]


@fault(
    "gpu.sustained",
    remedy="airflow",
    cause="GPU 1 is slowed by heat (sw-thermal) in 120 of 120 samples under load, at 70 degrees,"
    " to 23.",
)
def slowed_by_heat_to_61_percent(plan: Document, snapshot: Document) -> None:
    for at, sample in enumerate(compute_run(snapshot)["sustained"][1]["samples"]):
        sample.update(tflops=38.0 if at < 60 else 23.2, throttle=["sw-power-cap", "sw-thermal"])


def in_bf16(snapshot: Document) -> Document:
    """The result of BF16 on GPU 1."""
    found: Document = compute_run(snapshot)["formats"][11]
    return found


@fault(
    "gpu.formats",
    remedy="out of service",
    cause="bf16 by cuBLAS of CUDA 11.8 on GPU 1 gave 3 wrong numbers",
)
def a_tensor_core_that_computes_wrong(plan: Document, snapshot: Document) -> None:
    in_bf16(snapshot)["wrong"] = 3


@fault("gpu.formats", remedy="kernel log", cause="on GPU 1: cublasGemmEx returned 13")
def a_format_that_fails(plan: Document, snapshot: Document) -> None:
    in_bf16(snapshot).update(
        wrong=None, error="cublasGemmEx returned 13 CUBLAS_STATUS_EXECUTION_FAILED"
    )


@fault(
    "gpu.formats",
    remedy="use a toolkit",
    verdict="INCONCLUSIVE",
    cause="bf16 by cuBLAS of CUDA 11.8 on GPU 1 was not tested: cublasGemmEx returned 15",
)
def a_format_that_cublas_does_not_support(plan: Document, snapshot: Document) -> None:
    in_bf16(snapshot).update(
        wrong=None, error="cublasGemmEx returned 15 CUBLAS_STATUS_NOT_SUPPORTED"
    )


@fault("gpu.formats", remedy="out of service", cause="on GPU 1 gave numbers that were not checked")
def a_format_that_was_not_checked(plan: Document, snapshot: Document) -> None:
    in_bf16(snapshot)["wrong"] = None


@fault(
    "gpu.formats",
    remedy="verify",
    verdict="INCONCLUSIVE",
    cause="bf16 by cuBLAS of CUDA 11.8 on GPU 1: no product was checked",
)
def a_format_of_which_nothing_was_compared(plan: Document, snapshot: Document) -> None:
    in_bf16(snapshot)["checked"] = 0


@fault(
    "gpu.formats",
    remedy="verify",
    verdict="INCONCLUSIVE",
    cause="A product in each format of CUDA 11.8 was not tested",
)
def a_probe_that_knows_float32_only(plan: Document, snapshot: Document) -> None:
    del compute_run(snapshot)["formats"]


@harmless
def cards_without_bf16(plan: Document, snapshot: Document) -> None:
    entries = [each for each in compute_run(snapshot)["formats"] if each["format"] == "bf16"]
    for entry in entries:
        entry.update(
            wrong=None, checked=0, not_applicable="it needs compute capability 8.0, the GPU has 7.0"
        )


@fault(
    "gpu.host-copies",
    remedy="out of service",
    cause="Copying between host and GPU on GPU 1 gave 7 wrong numbers",
)
def numbers_that_change_between_host_and_gpu(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["host_copies"][1]["wrong"] = 7


@fault(
    "gpu.host-copies",
    remedy="toolkit.cublas",
    verdict="INCONCLUSIVE",
    cause="Nothing was copied between the host and its GPUs: it was not reported",
)
def a_probe_that_copied_nothing(plan: Document, snapshot: Document) -> None:
    del compute_run(snapshot)["host_copies"]


def sums_of(snapshot: Document, gpu: int, name: str) -> Document:
    found: Document = next(
        entry
        for entry in compute_run(snapshot)["consensus"]
        if (entry["gpu"], entry["format"]) == (gpu, name)
    )
    return found


@fault(
    "gpu.consensus",
    cause="Random products in fp16 on GPU 1 gave 1 wrong sum",
    remedy="out of service",
)
def a_card_that_contradicts_itself(plan: Document, snapshot: Document) -> None:
    sums_of(snapshot, 1, "fp16")["wrong"] = 1


@fault(
    "gpu.consensus",
    verdict="INCONCLUSIVE",
    cause="bf16 on compute capability 9.0: 2 GPUs have 2 different sums of the same products after"
    " 8 rounds, and no sum is that of most of them",
    remedy="other hosts that have such GPUs",
)
def two_cards_that_disagree(plan: Document, snapshot: Document) -> None:
    sums_of(snapshot, 0, "bf16")["sums"][3:] = ["0123456789abcdef", "0123456789abcdee"]


@fault(
    "gpu.consensus",
    cause="bf16 on compute capability 9.0: GPU 0 has another sum of the same products than 9 of 10"
    " GPUs, each time after 8 rounds",
    remedy="out of service",
)
def a_card_that_disagrees_with_those_of_other_hosts(plan: Document, snapshot: Document) -> None:
    two_cards_that_disagree(plan, snapshot)
    common = {"format": "bf16", "capability": "9.0", "seed": 20783, "rounds": 8}
    plan["sums"] = [
        {**common, "sum": sums_of(snapshot, 1, "bf16")["sums"][3], "gpus": 9},
        {**common, "sum": "0123456789abcdef", "gpus": 1},
    ]


@fault(
    "gpu.consensus",
    verdict="INCONCLUSIVE",
    cause="Random products in int8 on GPU 0 were not computed: nvrtcCompileProgram returned 6",
    remedy="toolkit.device-query",
)
def an_nvrtc_that_refuses_the_kernel(plan: Document, snapshot: Document) -> None:
    sums_of(snapshot, 0, "int8").update(
        wrong=None, sums=[], error="nvrtcCompileProgram returned 6 NVRTC_ERROR_COMPILATION"
    )


@fault(
    "gpu.consensus",
    verdict="INCONCLUSIVE",
    cause="Random products in fp32, fp64, fp16, int8, tf32, bf16, fp8-e4m3, fp8-e5m2 on GPU 0 were"
    " not computed: nvrtcCompileProgram returned 6 NVRTC_ERROR_COMPILATION. Random products in"
    " fp32, fp64,",
    remedy="toolkit.device-query",
)
def an_nvrtc_that_refuses_every_kernel(plan: Document, snapshot: Document) -> None:
    for entry in compute_run(snapshot)["consensus"]:
        entry.update(
            wrong=None, sums=[], error="nvrtcCompileProgram returned 6 NVRTC_ERROR_COMPILATION"
        )


@fault(
    "gpu.consensus",
    verdict="INCONCLUSIVE",
    cause="No random products were computed: it was not reported",
    remedy="toolkit.device-query",
)
def a_probe_that_knows_no_random_products(plan: Document, snapshot: Document) -> None:
    del compute_run(snapshot)["consensus"]


@fault(
    "gpu.consensus",
    verdict="INCONCLUSIVE",
    cause="Random products in tf32 on GPU 1: what is compared with other GPUs is missing",
    remedy="verify",
)
def a_card_without_its_sums(plan: Document, snapshot: Document) -> None:
    sums_of(snapshot, 1, "tf32")["sums"] = []


@harmless
def cards_without_fp8(plan: Document, snapshot: Document) -> None:
    for gpu in range(2):
        sums_of(snapshot, gpu, "fp8-e4m3").update(
            wrong=None, sums=[], not_applicable="it needs NVRTC 12.4, this is 11.8"
        )


@harmless
def cards_of_which_one_computes_fewer_rounds(plan: Document, snapshot: Document) -> None:
    del sums_of(snapshot, 1, "fp64")["sums"][4:]


@fault(
    "gpu.bandwidth",
    cause="GPU 0 copies its memory at 220.0 GiB/s, the minimum is 1088 (95% of",
    remedy="gpu.throttle",
)
def slow_memory(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["bandwidth"][0]["gib_s"] = 220.0


@fault("gpu.bandwidth", cause="Copying memory on GPU 1 gave 1 wrong block", remedy="out of service")
def memory_that_forgets(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["bandwidth"][1]["wrong"] = 1


@fault(
    "gpu.bandwidth",
    verdict="INCONCLUSIVE",
    cause="GPU 1: its free memory was not filled with patterns: other programs compute on it",
    remedy="when nobody else uses the GPU",
)
def memory_that_other_programs_need(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["bandwidth"][1].update(filled_mib=None, unfilled="programs")


@fault(
    "gpu.bandwidth",
    verdict="INCONCLUSIVE",
    cause="more of it is in use than this test's own, and NVML lists no program",
    remedy="drop_caches",
)
def memory_with_the_page_cache_of_the_kernel(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["bandwidth"][0].update(filled_mib=None, unfilled="in-use")


@fault(
    "gpu.bandwidth",
    verdict="INCONCLUSIVE",
    cause="its display and the programs that draw need it",
    remedy="log out of the desktop",
)
def memory_that_a_display_needs(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["bandwidth"][0].update(filled_mib=None, unfilled="display")


@harmless
def memory_of_a_virtual_gpu_whose_programs_are_not_listed(
    plan: Document, snapshot: Document
) -> None:
    compute_run(snapshot)["bandwidth"][0].update(filled_mib=None, unfilled="virtual")


@fault(
    "gpu.bandwidth",
    verdict="INCONCLUSIVE",
    cause="GPU 0: none of its free memory was filled with patterns: too little was free",
    remedy="nvidia-smi lists it",
)
def memory_of_which_nothing_was_filled(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["bandwidth"][0].update(filled_mib=0, unfilled=None)


@harmless
def memory_that_an_earlier_workload_did_not_fill(plan: Document, snapshot: Document) -> None:
    row = compute_run(snapshot)["bandwidth"][0]
    row.update(filled_mib=0)
    row.pop("unfilled", None)


@harmless
def memory_of_a_gpu_that_is_the_host_s(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["bandwidth"][0].update(filled_mib=None, unfilled="integrated")


@fault(
    "gpu.peer",
    cause="Copies from GPU 0 to GPU 1 reach 0.2 GiB/s, the minimum is 2.9 (5% of the slower",
    remedy="gpu.pcie",
)
def copies_through_the_host_at_a_crawl(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["peer"][0].update(access=False, gib_s=0.2)


@fault(
    "gpu.peer",
    cause="GPU 0 to GPU 1 reach 20.0 GiB/s, the minimum is 104.8 (of 18 NVLinks)",
    remedy="gpu.nvlink",
)
def nvlink_as_slow_as_pcie(plan: Document, snapshot: Document) -> None:
    for device in compute_run(snapshot)["devices"]:
        device["name"] = "NVIDIA H100 80GB HBM3"
    for entry in compute_run(snapshot)["bandwidth"]:
        entry["gib_s"] = 2600.0
    for entry in compute_run(snapshot)["peer"][1:]:
        entry["gib_s"] = 360.0


@fault(
    "gpu.peer",
    cause="GPU 0 and GPU 1 cannot address each other's memory, though NVLink connects them",
    remedy="topo -p2p",
)
def no_access_between_gpus_that_nvlink_connects(plan: Document, snapshot: Document) -> None:
    nvlink_as_slow_as_pcie(plan, snapshot)
    compute_run(snapshot)["peer"][0].update(access=False, gib_s=30.0)


@harmless
def encrypted_copies_between_confidential_gpus(plan: Document, snapshot: Document) -> None:
    nvlink_as_slow_as_pcie(plan, snapshot)
    data(snapshot, "smi")["nvml"]["confidential"] = True
    for entry in compute_run(snapshot)["peer"]:
        entry.update(access=False, gib_s=1.9)


@fault(
    "gpu.peer",
    cause="GPU 0 and GPU 1 cannot address each other's memory, though NVLink connects them",
    remedy="topo -p2p",
)
def copies_through_the_host_with_protected_pcie(plan: Document, snapshot: Document) -> None:
    encrypted_copies_between_confidential_gpus(plan, snapshot)
    data(snapshot, "smi")["nvml"]["multi_gpu_mode"] = 1


@fault(
    "gpu.peer",
    cause="Copies from GPU 0 to GPU 1 reach 0 GiB/s, the minimum is 0.0 (through the host",
    remedy="gpu.pcie",
)
def encrypted_copies_between_gpus_that_move_nothing(plan: Document, snapshot: Document) -> None:
    encrypted_copies_between_confidential_gpus(plan, snapshot)
    compute_run(snapshot)["peer"][0]["gib_s"] = 0


@fault(
    "gpu.peer",
    verdict="INCONCLUSIVE",
    cause="GPU 1 to GPU 0 reach 0.2 GiB/s, the minimum is 2.9",
    remedy="nobody else",
)
def copies_between_gpus_beside_a_job(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["peer"][1].update(access=False, gib_s=0.2)
    card(snapshot)["processes"] = [{"pid": 4711, "name": "python3", "memory_mib": 20000}]


@fault("gpu.peer", cause="0.2 GiB/s, the minimum is 0.5 (of any PCIe slot)", remedy="gpu.pcie")
def copies_over_a_link_that_was_not_read(plan: Document, snapshot: Document) -> None:
    copies_through_the_host_at_a_crawl(plan, snapshot)
    compute_run(snapshot)["devices"][0]["link"] = None


@fault(
    "gpu.peer",
    verdict="INCONCLUSIVE",
    remedy="wait until these processes end",
    cause="GPU 1 to GPU 0 was not tested: it has no memory left (cudaMalloc returned 2",
)
def copies_to_a_gpu_whose_memory_others_hold(plan: Document, snapshot: Document) -> None:
    """It was a failure of the GPUs' connection."""
    compute_run(snapshot)["peer"][1].update(
        wrong=None, gib_s=None, error="cudaMalloc returned 2 cudaErrorMemoryAllocation"
    )
    held_by_ann(snapshot)


@harmless
def copies_through_the_host(plan: Document, snapshot: Document) -> None:
    for entry in compute_run(snapshot)["peer"]:
        entry.update(access=False, gib_s=6.5)


@fault(
    "gpu.peer",
    verdict="INCONCLUSIVE",
    cause="Nothing was copied from GPU 1 to GPU 0",
    remedy="verify --deep",
)
def a_pair_between_which_nothing_was_copied(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["peer"].pop()


@fault("gpu.peer", cause="Copying from GPU 1 to GPU 0 gave 4096 wrong numbers", remedy="ACS")
def a_bridge_that_changes_what_passes(plan: Document, snapshot: Document) -> None:
    compute_run(snapshot)["peer"][1]["wrong"] = 4096
