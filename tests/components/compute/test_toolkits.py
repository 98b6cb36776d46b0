"""The computations of toolkits and stacks: busy GPUs, speed floors, GPUs in parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.components.base import holders, subjects
from gpufleet.components.base.registry import Finding, required
from gpufleet.components.base.remedies import person
from gpufleet.components.checks import CHECKS
from gpufleet.components.compute import toolkits as checks
from gpufleet.documents.verdict import Verdict
from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.probing import probe_config
from gpufleet.judge import judge
from tests.components.faults.compute import (
    a_gpu_whose_memory_others_hold,
    cublas_without_memory_beside_a_job,
    cublas_without_memory_that_nobody_holds,
)
from tests.support.healthy_host import Document, data, excused, other_than, verdicts
from tests.support.host_parts import compute_run, framework, with_gpus


def test_a_kernel_made_from_ptx_is_reported_and_no_fault(
    plan: Document, snapshot: Document
) -> None:
    with_gpus(plan, snapshot)
    framework(snapshot)["matmul"][0]["first_s"] = 1830.4
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["stack.capability"]["verdict"] == "PASS"
    evidence = found["stack.capability"]["evidence"]
    assert "compiles PTX at the first use, which took 1830.4 s" in evidence


def test_a_stack_that_was_still_compiling_is_no_hung_driver(
    plan: Document, snapshot: Document
) -> None:
    """Each night was too short for it, and was reported as a hang."""
    with_gpus(plan, snapshot)
    framework(snapshot).update(
        state="hung",
        error="no answer within 29 s",
        matmul=[],
        tower_sum=None,
        small=None,
        capabilities=[],
        compiled=True,
    )
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert "HUNG" not in {check["verdict"] for check in found.values()}
    assert found["stack.matmul"]["verdict"] == "INCONCLUSIVE"
    assert "still compiling it: no answer within 29 s" in found["stack.matmul"]["cause"]
    assert "provision --limit gpu01 --force" in found["stack.matmul"]["remedy"]


@pytest.mark.parametrize(
    ("mps", "verdict"),
    [
        ([{"pid": 41, "user": "ann", "command": "nvidia-cuda-mps-server"}], "INCONCLUSIVE"),
        ([], "HUNG"),
        (None, "HUNG"),
    ],
)
def test_a_program_that_waits_for_an_mps_server_is_no_hung_driver(
    plan: Document, snapshot: Document, mps: list[Document] | None, verdict: str
) -> None:
    """The remedy was a reboot, in the middle of somebody's job."""
    with_gpus(plan, snapshot)
    data(snapshot, "gpus")["mps"] = mps
    hung = {"state": "hung", "seconds": 50.0, "error": "no answer within 50 s", "data": None}
    compute_run(snapshot)["cublas"][0].update(error="no answer within 20 s", hung=True)
    snapshot["sections"].update(driver=hung, stacks=hung)
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    for name in ("toolkit.cublas", "driver.cuda", "stack.matmul", "host.probe"):
        assert found[name]["verdict"] == verdict, name
        assert ("pid 41 (ann, nvidia-cuda-mps-server)" in found[name]["cause"]) is bool(mps)
        assert ("reboot" in found[name]["remedy"]) is (not mps), name
    # Where nvidia-smi does not answer either, it is the driver.
    snapshot["sections"]["smi"] = hung
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["driver.cuda"]["verdict"] == "HUNG"


def test_who_holds_a_gpu_is_read_from_nvidia_smi_too(plan: Document, snapshot: Document) -> None:
    with_gpus(plan, snapshot)
    a_gpu_whose_memory_others_hold(plan, snapshot)
    data(snapshot, "driver")["holders"] = None
    data(snapshot, "smi")["devices"][0]["processes"] = [
        {"pid": 12, "name": "/usr/bin/python3", "memory_mib": 70000}
    ]
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert "held by pid 12 (unknown user, python3)" in found["toolkit.cublas"]["cause"]
    assert found["toolkit.cublas"]["held"] is True and "held" not in found["gpu.smi"]
    del snapshot["sections"]["smi"]
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert "its processes are unknown" in found["toolkit.cublas"]["cause"]
    assert "held" not in found["toolkit.cublas"]


def test_a_check_is_held_only_if_nothing_else_of_it_is_unknown(
    plan: Document, snapshot: Document
) -> None:
    """A card that could not be read, beside one that a job had, was a busy night like any other."""
    with_gpus(plan, snapshot)
    a_gpu_whose_memory_others_hold(plan, snapshot)

    def held(*findings: Finding) -> bool:
        each = replace(CHECKS["toolkit.cublas"], function=lambda plan, observed: iter(findings))
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(CHECKS, each.id, each)
            found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
        return found[each.id].get("held", False)

    busy = Finding("GPU 0 was not tested", "wait", verdict=Verdict.INCONCLUSIVE, held=True)
    unread = Finding("GPU 1 was not read", "verify", verdict=Verdict.INCONCLUSIVE)
    broken = Finding("GPU 1 is broken", "replace it")
    assert held(busy, busy)
    assert not held(busy, unread) and not held(busy, broken) and not held(unread)


def test_a_desktop_that_nvidia_smi_lists_holds_no_gpu(plan: Document, snapshot: Document) -> None:
    with_gpus(plan, snapshot)
    cublas_without_memory_that_nobody_holds(plan, snapshot)
    data(snapshot, "smi")["devices"][0].update(
        memory_free_mib=300,
        processes=[
            {"pid": 7, "name": "/usr/lib/xorg/Xorg", "memory_mib": 20},
            {"pid": 8, "name": "/usr/bin/python3", "memory_mib": 200},
        ],
    )
    # Root saw that nobody has a card open: the Python that nvidia-smi lists is the probe's own.
    assert verdicts(plan, snapshot)["toolkit.cublas"] == "FAIL"
    data(snapshot, "driver")["holders"] = None
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["toolkit.cublas"]["cause"].endswith("held by pid 8 (unknown user, python3)")


@pytest.mark.parametrize("container", [True, False])
def test_who_cannot_see_others_does_not_blame_the_hardware(
    plan: Document, snapshot: Document, container: bool
) -> None:
    with_gpus(plan, snapshot)
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


@pytest.mark.parametrize(
    "name", ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 3080 Laptop GPU"]
)
def test_the_floor_of_the_declared_model_is_not_for_a_part_of_it(
    plan: Document, snapshot: Document, name: str
) -> None:
    with_gpus(plan, snapshot)
    found = compute_run(snapshot)
    for device, entry in zip(found["devices"], found["cublas"], strict=True):
        device["name"], entry["tflops"] = name, 4.0
    plan["expect"].update(tflops=15.3, tflops_because="30% of 51 TFLOP/s, data sheet")
    assert verdicts(plan, snapshot)["gpu.throughput"] == "NOT-DECLARED"
    plan["expect"]["tflops_because"] = "gpu_expect.tflops"
    assert verdicts(plan, snapshot)["gpu.throughput"] == "FAIL"


def test_of_cards_in_parts_cuda_shows_a_program_one(plan: Document, snapshot: Document) -> None:
    with_gpus(plan, snapshot)
    plan["driver"]["mig"] = {"all": ["7g.80gb"]}
    for card in data(snapshot, "gpus")["mig"]:
        card.update(mode="on", instances=["7g.80gb"])
    boot = data(snapshot, "driver")["mig_boot"]
    boot.update(
        unit="gpufleet-mig.service", enabled=True, layout={"0": ["7g.80gb"], "1": ["7g.80gb"]}
    )
    for spec in data(snapshot, "containers")["cdi"]:
        spec["devices"] = ["0:0", "1:0", "all"]
    found, in_container = compute_run(snapshot), data(snapshot, "containers")["run"]["framework"]
    found.update(
        peer=[],
        **{
            name: found[name][:1]
            for name in ("devices", "cublas", "cudnn", "bandwidth", "sustained")
        },
    )
    del found["nvrtc"]["ran"][1], framework(snapshot)["matmul"][1], in_container["matmul"][1]
    framework(snapshot)["small"]["local_devices"].pop()
    judged = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    apart = excused(plan)
    alone = {name: row["verdict"] for name, row in judged.items() if name not in apart}
    assert other_than("PASS", alone) == {}
    for check in ("toolkit.device-query", "stack.gpu"):
        assert "only that one was tested" in judged[check]["evidence"]
    found["devices"].clear()
    assert verdicts(plan, snapshot)["toolkit.device-query"] == "FAIL"
    declared = {"gpu_expect": {"count": 2}, "gpu_mig": ["7g.80gb"]}
    host = InventoryHost("gpu01", declared, Connection("gpu01"))
    assert probe_config(host, ProbeOptions("facts"))["expect_gpus"] == 1


def test_a_small_job_does_not_excuse_a_gpu_with_room(plan: Document, snapshot: Document) -> None:
    with_gpus(plan, snapshot)
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
    with_gpus(plan, snapshot)
    first, *others = compute_run(snapshot)["sustained"][0]["samples"]
    first["throttle"] = ["hw-slowdown", "hw-slowdown"]
    for sample in others:
        sample["throttle"] = None
    assert verdicts(plan, snapshot)["gpu.sustained"] == "PASS"


@pytest.mark.parametrize(
    ("model", "kept", "verdict"),
    [("H100", 0.9, "FAIL"), ("GeForce RTX 3090", 0.9, "PASS"), ("GeForce RTX 3090", 0.7, "FAIL")],
)
def test_a_card_for_desktops_may_hold_its_temperature_and_keeps_its_speed(
    plan: Document, snapshot: Document, model: str, kept: float, verdict: str
) -> None:
    with_gpus(plan, snapshot)
    plan["expect"]["model"] = None
    for device in [*data(snapshot, "smi")["devices"], *compute_run(snapshot)["devices"]]:
        device["name"] = f"NVIDIA {model}"
    for entry in compute_run(snapshot)["sustained"]:
        entry["checked"] *= 100
        for at, sample in enumerate(entry["samples"]):
            best = 100 * sample["tflops"]
            sample.update(tflops=best if at < 60 else kept * best, throttle=["sw-thermal"])
    assert verdicts(plan, snapshot)["gpu.sustained"] == verdict


def test_where_nothing_is_declared_any_placement_will_do(
    plan: Document, snapshot: Document
) -> None:
    with_gpus(plan, snapshot)
    plan["expect"]["count"] = None
    assert verdicts(plan, snapshot)["stack.device-placement"] == "PASS"


@pytest.mark.parametrize(
    "error",
    [
        "InternalError: Blas GEMM launch failed : a.shape=(2048, 2048)",
        "InternalError: Blas xGEMM launch failed",
        "ResourceExhaustedError: OOM when allocating tensor with shape[2048,2048]",
        "cudaSetDevice returned 2 cudaErrorMemoryAllocation",
        "cuDevicePrimaryCtxRetain returned 2 CUDA_ERROR_OUT_OF_MEMORY",
        "cublasCreate_v2 returned 3 CUBLAS_STATUS_ALLOC_FAILED",
        # google-deepmind/jax_privacy#10, google/flax#3376
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 176.00MiB (184549376B)",
        "failed to create cublas handle: the resource allocation failed",
    ],
)
def test_errors_of_a_full_gpu_are_known(error: str) -> None:
    assert holders.NO_ROOM.search(error)


def test_other_errors_are_not_taken_for_a_full_gpu() -> None:
    assert not holders.NO_ROOM.search("cudaSetDevice returned 35 cudaErrorInsufficientDriver")
    assert not holders.NO_ROOM.search("killed by SIGSEGV")


@pytest.mark.parametrize(
    "error",
    [
        # NVIDIA/DIGITS#2005, pytorch/pytorch#2704, tensorflow/tensorflow#48558: CUDA up to 11.5
        "Check failed: error == cudaSuccess (46 vs. 0)  all CUDA-capable devices are busy or"
        " unavailable",
        "cuda runtime error (46) : all CUDA-capable devices are busy or unavailable at THCStorage.cu",
        "InternalError: CUDA runtime implicit initialization on GPU:0 failed. Status: all CUDA-capable"
        " devices are busy or unavailable",
        # pytorch/pytorch#100691, google-research/pix2struct#53: later ones
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "InternalError: cudaSetDevice() on GPU:0 failed. Status: CUDA-capable device(s) is/are busy or"
        " unavailable",
        "cudaSetDevice returned 46 cudaErrorDevicesUnavailable",
    ],
)
def test_errors_of_a_gpu_that_another_process_has_are_known(error: str) -> None:
    assert subjects.TAKEN.search(error)
    assert not subjects.TAKEN.search("RuntimeError: CUDA error: invalid device ordinal")


def test_without_a_gpu_only_the_compiler_is_judged(plan: Document, snapshot: Document) -> None:
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["toolkit.nvrtc"]["verdict"] == "PASS"
    assert "no GPU: it was only compiled" in found["toolkit.nvrtc"]["evidence"]
    assert checks.no_gpus(plan) == "gpu_expect: {count: 0}"
    assert found["toolkit.cublas"]["verdict"] == "NOT-DECLARED"


def with_wheels(plan: Document, snapshot: Document) -> None:
    """CUDA comes from the stack's wheels alone; its cuBLAS loaded the GPUs."""
    with_gpus(plan, snapshot)
    (stack,) = plan["stacks"]
    stack.update(cuda_source="pip", cuda="12.6", toolkit_path=None)
    plan.update(toolkits=[], cudnn=[])
    compute_run(snapshot).update(toolkit=stack["venv"], cudnn=[])


LOADED = (
    "toolkit.cublas",
    "gpu.formats",
    "gpu.consensus",
    "gpu.host-copies",
    "gpu.throughput",
    "gpu.sustained",
    "gpu.bandwidth",
    "gpu.peer",
)


def test_hosts_with_cuda_from_wheels_alone_are_not_excused(
    plan: Document, snapshot: Document
) -> None:
    """All checks of load were skipped there: no toolkit is declared."""
    with_wheels(plan, snapshot)
    judged = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert {name: judged[name]["verdict"] for name in LOADED} == dict.fromkeys(LOADED, "PASS")
    assert "cuBLAS of CUDA 12.6 of tensorflow-2.13.1" in judged["toolkit.cublas"]["evidence"]
    assert judged["toolkit.nvrtc"]["verdict"] == "NOT-DECLARED"
    compute_run(snapshot)["sustained"][1]["wrong"] = 4130
    assert verdicts(plan, snapshot)["gpu.sustained"] == "FAIL"


@pytest.mark.parametrize(
    ("mode", "cause"),
    [("full", "no stack of gpufleet has cuBLAS in a wheel"), ("facts", "the snapshot has mode")],
)
def test_wheels_that_were_not_loaded_are_not_healthy(
    plan: Document, snapshot: Document, mode: str, cause: str
) -> None:
    with_wheels(plan, snapshot)
    data(snapshot, "compute")["runs"].clear()
    snapshot["mode"] = mode
    judged = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert other_than("INCONCLUSIVE", {name: judged[name]["verdict"] for name in LOADED}) == {}
    assert cause in judged["toolkit.cublas"]["cause"]


def test_sums_with_the_same_remedy_as_data_are_one_finding(
    plan: Document, snapshot: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remedy that is data has no hash, and the check ended with an error."""
    with_gpus(plan, snapshot)
    monkeypatch.setattr(checks, "DEVICE_FAULT", person("take the device out of service"))
    for entry in required(compute_run(snapshot)["consensus"], "sums"):
        if entry["gpu"] == 1 and entry["format"] in {"fp32", "fp64"}:
            entry["wrong"] = 1
    (found,) = [
        check for check in judge.judge(plan, snapshot)["checks"] if check["id"] == "gpu.consensus"
    ]
    assert found["verdict"] == "FAIL"
    assert "Random products in fp32, fp64 on GPU 1 gave 1 wrong sum" in found["cause"]
    assert found["remedy"] == "take the device out of service"
