"""The kernel's log of a host with two GPUs, which compute right, and whose counters are clean.

What this host's kernel logged may have been repaired by a reset since, which its driver does not
log; what stands has left a trace in the card, or is no matter of a card's state. What comes while
the host is verified is in `after_load`.
"""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.host_parts import event

fault, harmless = faults_on(with_cards)
XID = "NVRM: Xid (PCI:0000:00:00): "


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="Xid 79 of 0000:00:00.0: the GPU has fallen off the bus",
    remedy="power it off and on",
)
def fallen_off_the_bus(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=79, address="0000:00:00.0")


@fault("kernel.log", cause="Xid 48 of 0000:00:00.0 (2 times)", remedy="-i 0000:00:00.0")
@fault("gpu.memory-errors", cause="2 uncorrected memory errors", remedy="--gpu-reset -i 0")
def double_bit_error(plan: Document, snapshot: Document) -> None:
    for name in ("smi", "smi_after"):
        data(snapshot, name)["devices"][0]["ecc_uncorrected_volatile"] = 2
    event(snapshot, "xid", code=48, address="0000:00:00.0", count=2)


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="not contained; whether the card was reset since is unclear",
    remedy="echo 'gpufleet: GPU 0000:00:00.0 was reset' > /dev/kmsg",
)
def an_error_before_a_reset_that_nobody_recorded(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=95, address="0000:00:00.0")


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="Xid 109 of 0000:01:00.0: context switch",
    remedy="-i 0000:01:00.0",
)
def a_program_that_did_not_give_the_card_back(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=109, address="0000:01:00.0")


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="Xid 999 of 0000:00:00.0: a number that is not in NVIDIA's catalogue",
    remedy="look the number up",
)
def an_unknown_xid(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=999, address="0000:00:00.0", pid=5, process="python")


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="link 3: NETIR_LINK_EVT/NETIR_LINK_DOWN, peer disabled",
    remedy="--gpu-reset -i 0000:00:00.0",
)
def a_link_went_down(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["loaded"] = data(snapshot, "smi")["driver_version"] = "535.261.03"
    event(
        snapshot,
        "xid",
        code=149,
        address="0000:00:00.0",
        text=XID + "149, NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x021425c6 0x00000000 0x0 0x0)",
    )


@fault(
    "kernel.log",
    cause="Xid 154 of 0000:01:00.0: the driver asks for a recovery action: reboot",
    remedy="power it off and on",
)
def the_driver_asks_for_a_reboot(plan: Document, snapshot: Document) -> None:
    event(
        snapshot,
        "xid",
        code=154,
        address="0000:01:00.0",
        text="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    )
    event(
        snapshot,
        "xid",
        code=154,
        address="0000:00:00.0",
        text="GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)",
    )


@fault(
    "kernel.log",
    cause="let work end, then reset, after Xid 48 (",
    remedy="if it comes back, replace the card",
)
def the_driver_asks_for_a_reset_after_errors_of_the_memory(
    plan: Document, snapshot: Document
) -> None:
    for code in (31, 48, 63):
        event(snapshot, "xid", code=code, address="0000:01:00.0")
    event(
        snapshot,
        "xid",
        code=154,
        address="0000:01:00.0",
        text="GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
    )


@harmless
def a_row_put_on_record_and_mistakes_of_programs(plan: Document, snapshot: Document) -> None:
    for code in (13, 31, 32, 43, 45, 63, 68, 69, 92, 94):
        event(snapshot, "xid", code=code, address="0000:00:00.0", pid=5, process="python")
    for kind in ("hung-task", "out-of-memory", "io-error", "api-mismatch", "key-rejected"):
        event(snapshot, kind)
    event(snapshot, "pcie-error", address="0000:00:1c.0")
    event(
        snapshot,
        "pcie-error",
        address="0000:e1:00.0",
        text="{1}[Hardware Error]: event severity: recoverable | Error 0, type: recoverable"
        " | section_type: PCIe error | device_id: 0000:e1:00.0",
    )
    event(
        snapshot,
        "pcie-error",
        address="0000:00:1d.0",
        below=["0000:00:00.0"],
        text="pcieport 0000:00:1d.0: AER: Uncorrected (Non-Fatal) error received: id=00e8",
    )
    for code in (22013, 20001, 12028):
        event(
            snapshot,
            "sxid",
            code=code,
            address="0000:c1:00.0",
            text=f"SXid (PCI:0000:c1:00.0): {code}, Non-fatal, Link 61",
        )
    # The driver's counters are clean, whatever the log has lost.
    data(snapshot, "kernel_log")["complete"] = False


@fault("kernel.log", cause="uncorrectable errors on the PCI bus", remedy="reseat")
def uncorrected_error_on_the_bus(plan: Document, snapshot: Document) -> None:
    event(snapshot, "pcie-error", address="0000:01:00.0")


@fault(
    "kernel.log",
    cause="The PCI port 0000:00:1c.0 had a fatal error; 0000:01:00.0 is reached",
    remedy="check its riser",
)
def a_fatal_error_of_the_port_above_a_card(plan: Document, snapshot: Document) -> None:
    event(
        snapshot,
        "pcie-error",
        address="0000:00:1c.0",
        below=["0000:01:00.0"],
        text="pcieport 0000:00:1c.0: AER: Uncorrected (Fatal) error received: id=00e0",
    )


@fault("kernel.log", cause="could not initialise an unnamed card", remedy="reboot")
def the_driver_could_not_initialise(plan: Document, snapshot: Document) -> None:
    event(snapshot, "init-failed")


@fault(
    "kernel.log",
    cause="0000:01:00.0 needs the open kernel modules, and the proprietary ones are loaded",
    remedy="declare gpu_driver: {module: open}",
)
def a_card_that_needs_the_open_modules(plan: Document, snapshot: Document) -> None:
    event(snapshot, "needs-open-module", address="0000:01:00.0")


@fault(
    "kernel.log",
    cause="0000:01:00.0 is too old for the open kernel modules",
    remedy="declare gpu_driver: {module: proprietary}",
)
def a_card_that_needs_the_proprietary_modules(plan: Document, snapshot: Document) -> None:
    event(snapshot, "needs-proprietary-module", address="0000:01:00.0")


@fault(
    "kernel.log",
    cause="assigned no address to the memory of 0000:01:00.0",
    remedy="enable Above 4G decoding in the firmware",
)
def a_card_without_a_memory_region(plan: Document, snapshot: Document) -> None:
    event(snapshot, "no-memory-region", address="0000:01:00.0")


@fault(
    "kernel.log", cause="uncorrectable memory or processor error", remedy="management controller"
)
def the_machine_erred(plan: Document, snapshot: Document) -> None:
    event(snapshot, "machine-check")


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="kept an uncorrectable error of the boot before",
    remedy="if it was repaired, reboot",
)
def the_boot_before_ended_with_an_error(plan: Document, snapshot: Document) -> None:
    event(snapshot, "previous-boot")


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="A device that the firmware does not name",
    remedy="management controller",
)
def the_firmware_names_no_device(plan: Document, snapshot: Document) -> None:
    event(snapshot, "pcie-error")


@fault("kernel.log", cause="The PCI port 0000:00:1c.0 had a fatal error", remedy="reseat")
def the_firmware_reports_the_port_above_a_card(plan: Document, snapshot: Document) -> None:
    event(
        snapshot,
        "pcie-error",
        address="0000:00:1c.0",
        below=["0000:01:00.0"],
        text="{1}[Hardware Error]: event severity: fatal | Error 0, type: fatal"
        " | section_type: PCIe error | device_id: 0000:00:1c.0",
    )


@fault("kernel.log", cause="SXid 12028 of the NVSwitch 0000:c1:00.0", remedy="vendor")
def a_switch_erred(plan: Document, snapshot: Document) -> None:
    event(
        snapshot,
        "sxid",
        code=12028,
        address="0000:c1:00.0",
        text="SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 32 egress",
    )


@fault(
    "kernel.log",
    cause="SXid 26006 of the NVSwitch 0000:c1:00.0: soe halt",
    remedy="reset all GPUs and NVSwitches",
)
def a_switch_erred_without_the_word_fatal(plan: Document, snapshot: Document) -> None:
    event(
        snapshot,
        "sxid",
        code=26006,
        address="0000:c1:00.0",
        text="SXid (PCI:0000:c1:00.0): 26006, SOE Halt",
    )


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="does not reach back to the boot",
    remedy="Storage=persistent",
)
@fault("gpu.memory-errors", cause="will retire a faulty memory page", remedy="--gpu-reset -i 0")
def the_log_was_overwritten_and_a_counter_is_not_clean(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel_log")["complete"] = False
    for name in ("smi", "smi_after"):
        data(snapshot, name)["devices"][0]["retired_pending"] = True


@fault("kernel.log", cause="The kernel failed in NVIDIA's driver", remedy="reboot it")
def the_driver_s_code_failed(plan: Document, snapshot: Document) -> None:
    event(snapshot, "driver-oops")


@fault("kernel.log", verdict="INCONCLUSIVE", cause="The kernel failed (an oops)", remedy="reboot")
def other_code_of_the_kernel_failed(plan: Document, snapshot: Document) -> None:
    event(snapshot, "oops")


@fault("kernel.log", verdict="INCONCLUSIVE", cause="stuck in NVIDIA's driver", remedy="reboot")
def a_processor_was_stuck_in_nvidia_smi(plan: Document, snapshot: Document) -> None:
    event(snapshot, "driver-lockup", process="nvidia-smi", pid=5, count=3)


@fault("kernel.log", verdict="INCONCLUSIVE", cause="needs a reset or is lost", remedy="nvidia-smi")
def the_driver_s_own_words_on_a_reset(plan: Document, snapshot: Document) -> None:
    event(snapshot, "driver-error")


@fault("kernel.log", verdict="INCONCLUSIVE", cause="which NVLinks lead", remedy="gpu.nvlink")
def links_that_were_not_trained(plan: Document, snapshot: Document) -> None:
    event(snapshot, "link-training")


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="0000:01:00.0 could not be woken",
    remedy="power it off and on",
)
def a_card_that_was_not_woken(plan: Document, snapshot: Document) -> None:
    event(snapshot, "power-state", address="0000:01:00.0")


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="The link of the PCI port 0000:00:1c.0 went down; 0000:01:00.0 is reached",
    remedy="check its riser",
)
def the_link_of_a_card_s_port_went_down(plan: Document, snapshot: Document) -> None:
    event(snapshot, "link-down", address="0000:00:1c.0", below=["0000:01:00.0"])


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="Xid 45 of 0000:00:00.0: NVLink 5: network interface",
    remedy="look the number up",
)
def an_xid_that_only_the_end_of_a_program_names(plan: Document, snapshot: Document) -> None:
    event(
        snapshot,
        "xid",
        code=45,
        address="0000:00:00.0",
        text=XID + "45, pid=5, name=python3, Ch 00000001 caused by previous Xid 149",
    )


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="SXid 28006 of the NVSwitch 0000:c1:00.0: a number that is in none",
    remedy="nothing has to be reset",
)
def a_number_of_a_switch_that_the_line_calls_harmless(plan: Document, snapshot: Document) -> None:
    event(
        snapshot,
        "sxid",
        code=28006,
        address="0000:c1:00.0",
        text="SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 32",
    )


@harmless
def what_concerns_no_card_of_this_host(plan: Document, snapshot: Document) -> None:
    event(snapshot, "lockup")
    event(snapshot, "power-state", address="0000:99:00.0")
    event(snapshot, "link-down", address="0000:00:1d.0", below=[])
    event(
        snapshot,
        "xid",
        code=45,
        address="0000:00:00.0",
        text=XID + "45, pid=5, name=python3, Ch 00000001 caused by previous Xid 31",
    )


@fault("kernel.log", cause="could not be read", remedy="run as root", verdict="INCONCLUSIVE")
@fault(
    "kernel.application-errors",
    verdict="INCONCLUSIVE",
    cause="could not be read",
    remedy="kernel.log",
)
@fault("kernel.after-load", verdict="INCONCLUSIVE", cause="not read before", remedy="kernel.log")
def no_log(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel_log").update(source=None, complete=False, since_boot=False)
