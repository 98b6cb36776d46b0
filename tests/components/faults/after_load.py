"""Faults that only appear while the verification itself uses the GPUs."""

from __future__ import annotations

from gpufleet.on_host.smi_document import parse_smi
from lab.gpus.smi_text import Texts, smi_text
from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.host_parts import event

fault, harmless = faults_on(with_cards)


def printed_after(snapshot: Document, texts: Texts, cards: int = 2) -> None:
    """Let nvidia-smi have said this of the first card, once the work was done."""
    places = [
        {"pci/pci_bus_id": f"00000000:0{at}:00.0", **(texts if at == 0 else {})}
        for at in range(cards)
    ]
    data(snapshot, "smi_after").update(parse_smi(smi_text(places)))


def logged_after(snapshot: Document, kind: str, **fields: object) -> None:
    """Let the kernel have logged this after the first reading."""
    event(snapshot, kind, **fields)
    logged = data(snapshot, "kernel_log")["events"].pop()
    data(snapshot, "kernel_log_after")["events"].append(logged)


@fault(
    "gpu.after-load",
    remedy="drain the host, end its programs and any display",
    cause="GPU 0 (0000:00:00.0) had 3 uncorrected memory errors since the driver was loaded (new"
    " during the verification's own load)",
)
def memory_errors_under_load(plan: Document, snapshot: Document) -> None:
    printed_after(snapshot, {"ecc_errors/volatile/dram_uncorrectable": "3"})


@fault(
    "gpu.after-load",
    cause="will remap a faulty memory row at the next reset (new during",
    remedy="nvidia-smi --gpu-reset -i 0",
)
def a_row_to_remap_after_load(plan: Document, snapshot: Document) -> None:
    printed_after(snapshot, {"remapped_rows/remapped_row_pending": "Yes"})


@fault(
    "gpu.after-load",
    cause="GPU 0 (0000:00:00.0) is throttled by heat at 95 °C (new during",
    remedy="check fans",
)
def heat_after_load(plan: Document, snapshot: Document) -> None:
    printed_after(
        snapshot,
        {
            "clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown": "Active",
            "temperature/gpu_temp": "95 C",
        },
    )


LINK = "pci/pci_gpu_link_info/link_widths/current_link_width"
COUNTERS = "clocks_event_reasons_counters/clocks_event_reasons_counters_"


@fault(
    "gpu.after-load",
    cause="GPU 0 (0000:00:00.0) had to send 894 packets of its PCIe link again in 9 s (new during",
    remedy="reseat the GPU",
    verdict="INCONCLUSIVE",
)
def packets_sent_again_under_load(plan: Document, snapshot: Document) -> None:
    printed_after(snapshot, {"pci/replay_counter": "1000"})


@fault(
    "gpu.after-load",
    cause="was slowed down by the power brake for 8.5 of 9 s (new during",
    remedy="the rack's power limit",
    verdict="INCONCLUSIVE",
)
def a_power_brake_under_load(plan: Document, snapshot: Document) -> None:
    slowed_after(snapshot, "hw_power_brake", 8_500_000)


@fault(
    "gpu.after-load",
    cause="was slowed down by heat (hardware) for 60 of 200 s (new during",
    remedy="check fans",
    verdict="INCONCLUSIVE",
)
def time_of_heat_under_load(plan: Document, snapshot: Document) -> None:
    snapshot["finished"] = "2026-11-20T12:03:20Z"
    slowed_after(snapshot, "hw_therm_slowdown", 60_000_000)


def slowed_after(snapshot: Document, name: str, microseconds: int) -> None:
    for section, value in (("smi", 0), ("smi_after", microseconds)):
        card = data(snapshot, section)["devices"][0]
        card["elements"][f"{COUNTERS}{name}"] = f"{value} us"


@harmless
def what_a_healthy_card_adds_under_load(plan: Document, snapshot: Document) -> None:
    """A few replays, moments of a slowdown, the time at the power limit, corrected CRC errors."""
    printed_after(snapshot, {"pci/replay_counter": "700"})
    slowed_after(snapshot, "hw_power_brake", 1_000_000)
    slowed_after(snapshot, "hw_therm_slowdown", 1_000_000)
    slowed_after(snapshot, "sw_therm_slowdown", 9_000_000)
    nvlink_errors_after(snapshot, {"crc_flit": 800})


def nvlink_errors_after(snapshot: Document, errors: dict[str, int]) -> None:
    before, after = (data(snapshot, name)["nvlink"][0] for name in ("smi", "smi_after"))
    before["errors"] = dict.fromkeys(errors, 0)
    after["errors"] = errors


@fault(
    "gpu.after-load",
    cause="NVLinks of GPU 0 (0000:00:00.0) grew in 9 s: replay by 10, crc_data by 901 (new during",
    remedy="Xid 74",
    verdict="INCONCLUSIVE",
)
def nvlink_errors_under_load(plan: Document, snapshot: Document) -> None:
    nvlink_errors_after(snapshot, {"replay": 10, "recovery": 9, "crc_flit": 900, "crc_data": 901})


@fault(
    "gpu.after-load",
    cause="GPU 0 (0000:00:00.0) uses 8 PCIe lanes, and used 16 before (new during",
    remedy="reseat the GPU",
    verdict="INCONCLUSIVE",
)
def lanes_lost_under_load(plan: Document, snapshot: Document) -> None:
    printed_after(snapshot, {LINK: "8x"})


@fault(
    "gpu.after-load",
    cause="The GPU at 0000:01:00.0 is on the PCI bus, but nvidia-smi does not",
    remedy="kernel.log",
)
def a_card_lost_under_load(plan: Document, snapshot: Document) -> None:
    printed_after(snapshot, {}, cards=1)


@fault("host.probe", "gpu.after-load", cause="hung", remedy="on the host", verdict="HUNG")
def nvidia_smi_hangs_after_load(plan: Document, snapshot: Document) -> None:
    snapshot["sections"]["smi_after"] = {
        "state": "hung",
        "seconds": 50.0,
        "error": "no answer within 50 s",
        "data": None,
    }


@fault(
    "gpu.after-load",
    "kernel.after-load",
    cause="were not read again after the work",
    remedy="driver.loaded",
    verdict="INCONCLUSIVE",
)
def a_snapshot_of_an_earlier_release(plan: Document, snapshot: Document) -> None:
    del snapshot["sections"]["smi_after"], snapshot["sections"]["kernel_log_after"]


@harmless
def what_is_no_matter_of_load(plan: Document, snapshot: Document) -> None:
    """A link that became idle, a limit that somebody set, clocks that just fell, a little heat."""
    printed_after(
        snapshot,
        {
            "clocks_event_reasons/clocks_event_reason_gpu_idle": "Not Active",
            "clocks_event_reasons/clocks_event_reason_hw_slowdown": "Active",
            "utilization/gpu_util": "80 %",
            "temperature/gpu_temp": "70 C",
            "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "1",
        },
    )


@fault(
    "kernel.after-load",
    remedy="power it off and on",
    cause="the GPU has fallen off the bus (new during the verification's own load)",
)
def off_the_bus_under_load(plan: Document, snapshot: Document) -> None:
    logged_after(snapshot, "xid", code=79, address="0000:00:00.0")


@fault(
    "kernel.log", cause="Xid 48 of 0000:00:00.0", remedy="-i 0000:00:00.0", verdict="INCONCLUSIVE"
)
def an_error_of_long_before(plan: Document, snapshot: Document) -> None:
    logged_after(snapshot, "xid", code=48, address="0000:00:00.0")
    event(snapshot, "xid", code=48, address="0000:00:00.0")


@fault(
    "kernel.after-load",
    cause="no other program used the GPUs",
    remedy="verify --deep",
    verdict="INCONCLUSIVE",
)
def an_exception_of_the_verifications_own_programs(plan: Document, snapshot: Document) -> None:
    logged_after(snapshot, "xid", code=31, address="0000:00:00.0", pid=9, process="python3")


@harmless
def an_exception_beside_somebodys_job(plan: Document, snapshot: Document) -> None:
    logged_after(snapshot, "xid", code=31, address="0000:00:00.0", pid=9, process="python3")
    data(snapshot, "driver")["holders"] = [
        {"pid": 9, "user": "ann", "command": "python3", "nodes": ["/dev/nvidia0"]}
    ]


@harmless
def a_process_that_was_ended(plan: Document, snapshot: Document) -> None:
    logged_after(snapshot, "xid", code=45, address="0000:00:00.0", pid=9, process="python3")


@fault(
    "kernel.after-load",
    cause="It is unknown what the kernel logged",
    remedy="see kernel.log",
    verdict="INCONCLUSIVE",
)
def a_log_that_is_not_read_again(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel_log_after").update(source=None, error="dmesg: not permitted")
