"""One fault of a card has one root, whose remedy helps; a second fault stays a root of its own."""

from __future__ import annotations

import pytest

from gpufleet.components.base import subjects
from gpufleet.judge import judge
from tests.components.faults.after_load import logged_after, printed_after
from tests.support.healthy_host import Document, data, nvlinks
from tests.support.host_parts import (
    compute_run,
    event,
    framework,
    no_gpu_for_programs,
    printed,
    with_gpus,
)

FIRST, SECOND = "0000:00:00.0", "0000:01:00.0"
UNKNOWN = "cudaMemcpy returned 999 cudaErrorUnknown"
REFUSED = "cudaMalloc returned 46 cudaErrorDevicesUnavailable"
ECC = "cudaDeviceSynchronize returned 214 cudaErrorECCUncorrectable"
PARTS = ("cublas", "formats", "consensus", "host_copies", "bandwidth", "sustained")


@pytest.fixture
def host(plan: Document, snapshot: Document) -> tuple[Document, Document]:
    """A host with two GPUs."""
    with_gpus(plan, snapshot)
    return plan, snapshot


def checks_of(host: tuple[Document, Document]) -> dict[str, Document]:
    """The checks that do not pass, by their ids."""
    return {
        check["id"]: check
        for check in judge.judge(*host)["checks"]
        if check["verdict"] not in {"PASS", "NOT-DECLARED"}
    }


def roots(host: tuple[Document, Document]) -> list[str]:
    return [name for name, check in checks_of(host).items() if "explained_by" not in check]


def fails(snapshot: Document, error: str, *parts: str, gpu: int = 0) -> None:
    """Let these parts of the run have ended with an error on a GPU."""
    for part in parts or PARTS:
        for entry in compute_run(snapshot)[part]:
            if entry["gpu"] == gpu:
                entry.update(wrong=None, error=error)
                entry.update({key: None for key in ("tflops", "gib_s") if key in entry})
                entry.update({"samples": []} if "samples" in entry else {})


def peers_fail(snapshot: Document, error: str, gpu: int) -> None:
    for entry in compute_run(snapshot)["peer"]:
        if gpu in (entry["from"], entry["to"]):
            entry.update(wrong=None, gib_s=None, error=error)


def off_the_bus_under_load(snapshot: Document, address: str = SECOND) -> None:
    logged_after(snapshot, "xid", code=79, address=address)
    printed_after(snapshot, {}, cards=1)
    # The other card has no peer that it could list; NVML still counts the one that is lost.
    data(snapshot, "smi_after").update(attached=2, nvlink=[nvlinks(0, peers=[])])
    fails(snapshot, UNKNOWN, "sustained", "bandwidth", gpu=1)
    peers_fail(snapshot, UNKNOWN, 1)


# -- errors of a run -------------------------------------------------------------------------------


def test_a_mode_that_lets_no_program_compute_is_the_root_of_what_it_refuses(
    host: tuple[Document, Document],
) -> None:
    printed(host[1], {"compute_mode": "Prohibited"}, {})
    fails(host[1], REFUSED)
    peers_fail(host[1], REFUSED, 0)
    assert roots(host) == ["gpu.settings"]
    assert "-c DEFAULT" in checks_of(host)["gpu.settings"]["remedy"]


@pytest.mark.parametrize(("error", "gpu"), [(ECC, 0), (REFUSED, 1)])
def test_a_mode_explains_no_other_error_and_no_other_card(
    host: tuple[Document, Document], error: str, gpu: int
) -> None:
    printed(host[1], {"compute_mode": "Prohibited"}, {})
    fails(host[1], error, "sustained", gpu=gpu)
    assert roots(host) == ["gpu.settings", "gpu.sustained"]


def test_a_wrong_result_beside_an_explained_error_stays_a_root(
    host: tuple[Document, Document],
) -> None:
    printed(host[1], {"compute_mode": "Prohibited"}, {})
    fails(host[1], REFUSED)
    compute_run(host[1])["sustained"][1]["wrong"] = 3
    assert roots(host) == ["gpu.settings", "gpu.sustained"]


def test_a_memory_error_during_the_load_is_one_root(host: tuple[Document, Document]) -> None:
    logged_after(host[1], "xid", code=48, address=FIRST)
    printed_after(host[1], {"ecc_errors/volatile/dram_uncorrectable": "1"})
    fails(host[1], ECC, "sustained")
    assert roots(host) == ["kernel.after-load"]
    fails(host[1], ECC, "bandwidth", gpu=1)
    assert roots(host) == ["gpu.bandwidth", "kernel.after-load"]


def test_the_counters_of_memory_explain_an_error_that_the_kernel_did_not_log(
    host: tuple[Document, Document],
) -> None:
    printed_after(host[1], {"ecc_errors/volatile/dram_uncorrectable": "1"})
    fails(host[1], ECC, "sustained")
    assert roots(host) == ["gpu.after-load"]
    fails(host[1], UNKNOWN, "sustained")
    assert roots(host) == ["gpu.sustained", "gpu.after-load"]


def test_a_card_off_the_bus_explains_its_errors_and_what_its_driver_asks_for(
    host: tuple[Document, Document],
) -> None:
    printed(host[1], {"gpu_reset_status/reset_required": "Yes"}, {})
    event(host[1], "xid", code=79, address=FIRST)
    fails(host[1], UNKNOWN, "cublas")
    assert roots(host) == ["kernel.log"]
    data(host[1], "kernel_log")["events"].clear()
    assert roots(host) == ["gpu.recovery"]


def test_the_same_error_of_a_card_has_one_root_and_another_one_its_own(
    host: tuple[Document, Document],
) -> None:
    fails(host[1], UNKNOWN, "cublas", "sustained", "bandwidth")
    assert roots(host) == ["toolkit.cublas"]
    fails(host[1], ECC, "bandwidth")
    assert roots(host) == ["toolkit.cublas", "gpu.bandwidth"]


# -- during the load -------------------------------------------------------------------------------


def test_a_card_that_falls_off_during_the_load_is_one_root(
    host: tuple[Document, Document],
) -> None:
    off_the_bus_under_load(host[1])
    found = checks_of(host)
    assert roots(host) == ["kernel.after-load"]
    assert {"gpu.sustained", "gpu.bandwidth", "gpu.peer", "gpu.after-load"} < set(found)


def test_the_xid_of_another_card_does_not_explain_a_card_that_is_lost(
    host: tuple[Document, Document],
) -> None:
    off_the_bus_under_load(host[1], FIRST)
    assert roots(host) == ["gpu.after-load", "kernel.after-load"]


def test_an_error_that_names_a_lost_card_is_of_the_card_and_not_of_the_driver(
    host: tuple[Document, Document],
) -> None:
    logged_after(host[1], "xid", code=79, address=SECOND)
    data(host[1], "smi_after").update(
        devices=[],
        attached=2,
        status=15,
        error=f"Unable to determine the device handle for GPU1: 0000{SECOND}: GPU is lost.",
    )
    found = checks_of(host)
    assert roots(host) == ["kernel.after-load"]
    assert "driver.loaded" not in found["gpu.after-load"]["remedy"]
    assert "lists 0" not in found["gpu.after-load"]["cause"]


# -- subjects --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "cause", "expected"),
    [
        (ECC, f"card/{FIRST}", True),
        (ECC, f"memory/{FIRST}", True),
        (ECC, f"memory/{SECOND}", False),
        (UNKNOWN, f"memory/{FIRST}", False),
        (UNKNOWN, f"card/{FIRST}/compute/cudaErrorUnknown", True),
        (UNKNOWN, f"card/{FIRST}/compute/refused", False),
        (REFUSED, f"card/{FIRST}/compute/refused", True),
        ("in /a@b|c", f"card/{FIRST}/compute", True),
    ],
)
def test_an_error_is_about_its_card_and_its_kind(error: str, cause: str, expected: bool) -> None:
    assert subjects.covered(subjects.computing(FIRST, error), [cause]) is expected


def test_what_else_explains_a_finding_is_not_explained_by_it() -> None:
    (pair,) = subjects.either("card/a", "card/b")
    assert subjects.itself(pair) == "card/a"
    assert all(subjects.covered([pair], [one]) for one in ("card/a", "card/b"))
    assert not subjects.covered([pair], ["card/c"])
    assert subjects.itself("/a|b") == "/a|b"
    assert not subjects.covered(["/a|/b"], ["/b"])
    assert subjects.covered(subjects.either(*map(str, range(5000))), ["4999"])


# -- a card that is slow ---------------------------------------------------------------------------


def slow_under_load(snapshot: Document, reasons: list[str], share: float = 1, gpu: int = 0) -> None:
    """Let a GPU be slow from the start, and so many of its samples under load name these reasons."""
    compute_run(snapshot)["cublas"][gpu]["tflops"] = 12.0
    samples = compute_run(snapshot)["sustained"][gpu]["samples"]
    for at, sample in enumerate(samples):
        sample.update(tflops=12.0, throttle=reasons if at < max(2, share * len(samples)) else [])


@pytest.mark.parametrize(
    ("reasons", "remedy"),
    [
        (["hw-power-brake", "hw-slowdown"], "check the power supplies"),
        (["hw-thermal", "hw-slowdown"], "check fans"),
        (["sw-thermal"], "check fans"),
    ],
)
def test_what_slows_a_card_down_under_load_is_the_root_of_its_speed(
    host: tuple[Document, Document], reasons: list[str], remedy: str
) -> None:
    slow_under_load(host[1], reasons)
    found = checks_of(host)
    assert roots(host) == ["gpu.sustained"]
    assert found["gpu.throughput"]["explained_by"] == "gpu.sustained"
    assert found["gpu.sustained"]["remedy"].startswith(remedy)


def test_a_card_that_is_slow_without_a_reason_is_so_from_the_start(
    host: tuple[Document, Document],
) -> None:
    slow_under_load(host[1], [])
    assert roots(host) == ["gpu.throughput"]


def test_a_throttled_card_does_not_explain_another_one_that_is_slow(
    host: tuple[Document, Document],
) -> None:
    slow_under_load(host[1], ["hw-power-brake"])
    compute_run(host[1])["cublas"][1]["tflops"] = 12.0
    assert roots(host) == ["gpu.throughput", "gpu.sustained"]


def test_two_throttled_samples_do_not_explain_a_card_that_is_slow_from_the_start(
    host: tuple[Document, Document],
) -> None:
    slow_under_load(host[1], ["hw-power-brake"], share=0)
    assert roots(host) == ["gpu.throughput", "gpu.sustained"]


def test_heat_after_the_load_does_not_explain_a_card_that_is_slow_from_the_start(
    host: tuple[Document, Document],
) -> None:
    printed_after(
        host[1], {"clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown": "Active"}
    )
    compute_run(host[1])["cublas"][0]["tflops"] = 12.0
    assert roots(host) == ["gpu.throughput", "gpu.after-load"]


# -- the NVLink fabric -----------------------------------------------------------------------------


def fabric_manager(snapshot: Document, *, active: bool) -> None:
    data(snapshot, "gpus")["nvswitches"] = ["0000:86:00.0"]
    data(snapshot, "driver")["fabric"] = {
        "unit": "nvidia-fabricmanager.service",
        "enabled": True,
        "active": active,
        "version": "535.261.03",
    }


@pytest.mark.parametrize("state", ["Not Started", "In Progress"])
def test_a_fabric_manager_that_does_not_run_explains_unregistered_cards(
    host: tuple[Document, Document], state: str
) -> None:
    fabric_manager(host[1], active=False)
    texts = {"fabric/state": state, "fabric/status": "N/A"}
    printed(host[1], texts, texts)
    found = checks_of(host)
    assert roots(host) == ["driver.fabric"]
    assert found["gpu.fabric"]["explained_by"] == "driver.fabric"
    assert "fabric/status" not in found["gpu.fabric"]["cause"]


@pytest.mark.parametrize(
    ("state", "status"), [("Completed", "N/A"), ("Completed", "Insufficient Resources")]
)
def test_a_fabric_manager_that_does_not_run_explains_nothing_of_a_registered_card(
    host: tuple[Document, Document], state: str, status: str
) -> None:
    fabric_manager(host[1], active=False)
    printed(host[1], {"fabric/state": state, "fabric/status": status}, {})
    assert roots(host) == ["gpu.fabric", "driver.fabric"]


# -- what hangs ------------------------------------------------------------------------------------


def hang(snapshot: Document, *sections: str) -> None:
    for name in sections:
        snapshot["sections"][name] = {
            "state": "hung",
            "seconds": 60,
            "error": "no answer within 60 s",
            "data": None,
        }


def run_hangs(snapshot: Document) -> None:
    """Let the driver have answered no program of the toolkit."""
    run = compute_run(snapshot)
    run.update(state="hung", error="no answer within 120 s", devices=[])
    run["nvrtc"]["ran"] = []
    for part in (*PARTS, "peer", "cudnn"):
        run[part] = []


def test_an_open_xid_is_the_root_where_nvidia_smi_hangs(host: tuple[Document, Document]) -> None:
    event(host[1], "xid", code=119, address=SECOND)
    hang(host[1], "smi", "smi_after")
    found = checks_of(host)
    assert roots(host) == ["kernel.log"]
    assert found["kernel.log"]["verdict"] == "FAIL"
    assert found["gpu.throttle"]["explained_by"] == "kernel.log"
    run_hangs(host[1])
    assert roots(host) == ["kernel.log"]


def test_an_xid_during_the_load_is_the_root_where_nvidia_smi_hangs_after_it(
    host: tuple[Document, Document],
) -> None:
    logged_after(host[1], "xid", code=119, address=SECOND)
    hang(host[1], "smi_after")
    assert roots(host) == ["kernel.after-load"]


def test_sections_that_hang_without_a_failure_of_a_card_are_the_root(
    host: tuple[Document, Document],
) -> None:
    hang(host[1], "smi", "compute", "stacks", "containers")
    assert roots(host) == ["host.probe"]
    hang(host[1], "kernel_log")
    assert roots(host) == ["host.probe"]


def test_an_xid_does_not_explain_that_a_file_system_hangs(
    host: tuple[Document, Document],
) -> None:
    event(host[1], "xid", code=119, address=SECOND)
    hang(host[1], "smi", "smi_after", "disks")
    assert {"host.probe", "kernel.log"} <= set(roots(host))


def test_an_xid_of_one_card_does_not_explain_that_another_one_hangs(
    host: tuple[Document, Document],
) -> None:
    event(host[1], "xid", code=79, address=SECOND)
    fails(host[1], "no answer within 60 s", "sustained", gpu=0)
    assert "gpu.sustained" in roots(host)


# -- a card that is gone ---------------------------------------------------------------------------


def gone(snapshot: Document) -> None:
    """Let the second card be on the bus no more, and unknown to the driver and its programs."""
    data(snapshot, "gpus")["pci"].pop()
    data(snapshot, "gpus")["nodes"].remove("/dev/nvidia1")
    data(snapshot, "gpus")["mig"].pop()
    for name in ("smi", "smi_after"):
        report = data(snapshot, name)
        report["devices"].pop()
        report.update(attached=1, nvlink=[nvlinks(0, peers=[])])
        report["nvml"]["count"] = 1
    no_gpu_for_programs(snapshot, 1)
    run = compute_run(snapshot)
    for part in ("formats", "consensus", "host_copies"):
        run[part] = [entry for entry in run[part] if entry["gpu"] == 0]


def test_a_card_that_is_gone_by_the_kernels_word_has_one_root_and_its_address(
    host: tuple[Document, Document],
) -> None:
    gone(host[1])
    event(host[1], "xid", code=79, address=SECOND)
    found = checks_of(host)
    assert roots(host) == ["kernel.log"]
    assert f"{SECOND}, by the kernel log fallen off it" in found["gpu.count"]["cause"]
    assert found["gpu.count"]["remedy"].startswith("power the host off and on")


@pytest.mark.parametrize("addresses", [[FIRST], [SECOND, "0000:0a:00.0"], []])
def test_the_log_of_other_cards_does_not_explain_one_that_is_gone(
    host: tuple[Document, Document], addresses: list[str]
) -> None:
    gone(host[1])
    for address in addresses:
        event(host[1], "xid", code=79, address=address)
    assert "gpu.count" in roots(host)
    assert "check the kernel log" in checks_of(host)["gpu.count"]["remedy"]


# -- frameworks ------------------------------------------------------------------------------------

BUSY = "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
UNKNOWN_OF_A_FRAMEWORK = "RuntimeError: CUDA error: unknown error"


def stack_fails(snapshot: Document, error: str, *gpus: int) -> None:
    """Let the stack have ended with an error on these GPUs."""
    found = framework(snapshot)
    for gpu in gpus:
        found["matmul"][gpu].update(wrong=None, tflops=None, device=None, error=error)
    if len(gpus) == len(found["matmul"]):
        found["tower_sum"] = {"devices": [], "wrong": None, "error": "no device computed"}


@pytest.mark.parametrize("gpus", [[0], [0, 1]])
def test_what_a_framework_meets_on_a_card_is_explained_by_the_card(
    host: tuple[Document, Document], gpus: list[int]
) -> None:
    stack_fails(host[1], BUSY, *gpus)
    printed(host[1], *({"compute_mode": "Prohibited"} if at in gpus else {} for at in range(2)))
    for gpu in gpus:
        fails(host[1], REFUSED, gpu=gpu)
    assert roots(host) == ["gpu.settings"]
    framework(host[1])["matmul"][gpus[0]]["error"] = UNKNOWN_OF_A_FRAMEWORK
    assert roots(host) == ["gpu.settings", "stack.matmul"]


def test_a_wrong_product_of_a_framework_stays_a_root_beside_an_xid(
    host: tuple[Document, Document],
) -> None:
    event(host[1], "xid", code=79, address=FIRST)
    stack_fails(host[1], UNKNOWN_OF_A_FRAMEWORK, 0)
    fails(host[1], UNKNOWN)
    assert roots(host) == ["kernel.log"]
    framework(host[1])["matmul"][1]["wrong"] = 2
    assert "stack.matmul" in roots(host)
