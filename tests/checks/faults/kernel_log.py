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


@fault("kernel.log", verdict="INCONCLUSIVE",
       cause="Xid 79 of 0000:00:00.0: the GPU has fallen off the bus", remedy="power it off and on")
def fallen_off_the_bus(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=79, address="0000:00:00.0")


@fault("kernel.log", cause="Xid 48 of 0000:00:00.0 (2 times)", remedy="-i 0000:00:00.0")
@fault("gpu.memory-errors", cause="2 uncorrected memory errors", remedy="--gpu-reset -i 0")
def double_bit_error(plan: Document, snapshot: Document) -> None:
    for name in ("smi", "smi_after"):
        data(snapshot, name)["devices"][0]["ecc_uncorrected_volatile"] = 2
    event(snapshot, "xid", code=48, address="0000:00:00.0", count=2)


@fault("kernel.log", verdict="INCONCLUSIVE",
       cause="not contained; whether the card was reset since is unclear",
       remedy="echo 'gpufleet: GPU 0000:00:00.0 was reset' > /dev/kmsg")
def an_error_before_a_reset_that_nobody_recorded(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=95, address="0000:00:00.0")


@fault("kernel.log", verdict="INCONCLUSIVE", cause="Xid 109 of 0000:01:00.0: context switch",
       remedy="-i 0000:01:00.0")
def a_program_that_did_not_give_the_card_back(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=109, address="0000:01:00.0")


@fault("kernel.log", verdict="INCONCLUSIVE",
       cause="Xid 999 of 0000:00:00.0: a number that is not in NVIDIA's catalogue",
       remedy="look the number up")
def an_unknown_xid(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=999, address="0000:00:00.0", pid=5, process="python")


@fault("kernel.log", verdict="INCONCLUSIVE", cause="link 3: NETIR_LINK_EVT/NETIR_LINK_DOWN,"
       " peer disabled",
       remedy="--gpu-reset -i 0000:00:00.0")
def a_link_went_down(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["loaded"] = data(snapshot, "smi")["driver_version"] = "535.261.03"
    event(snapshot, "xid", code=149, address="0000:00:00.0",
          text=XID + "149, NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x021425c6 0x00000000 0x0 0x0)")


@fault("kernel.log", cause="Xid 154 of 0000:01:00.0: the driver asks for a recovery action: reboot",
       remedy="power it off and on")
def the_driver_asks_for_a_reboot(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=154, address="0000:01:00.0",
          text="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    event(snapshot, "xid", code=154, address="0000:00:00.0",
          text="GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)")


@harmless
def a_row_put_on_record_and_mistakes_of_programs(plan: Document, snapshot: Document) -> None:
    for code in (13, 31, 32, 43, 45, 63, 68, 69, 92, 94):
        event(snapshot, "xid", code=code, address="0000:00:00.0", pid=5, process="python")
    for kind in ("hung-task", "out-of-memory", "io-error", "api-mismatch", "key-rejected"):
        event(snapshot, kind)
    event(snapshot, "pcie-error", address="0000:00:1c.0")
    event(snapshot, "pcie-error", address="0000:00:1d.0", below=["0000:00:00.0"],
          text="pcieport 0000:00:1d.0: AER: Uncorrected (Non-Fatal) error received: id=00e8")
    for code in (22013, 20001, 12028):
        event(snapshot, "sxid", code=code, address="0000:c1:00.0",
              text=f"SXid (PCI:0000:c1:00.0): {code}, Non-fatal, Link 61")
    # The driver's counters are clean, whatever the log has lost.
    data(snapshot, "kernel_log")["complete"] = False


@fault("kernel.log", cause="uncorrectable errors on the PCI bus", remedy="reseat")
def uncorrected_error_on_the_bus(plan: Document, snapshot: Document) -> None:
    event(snapshot, "pcie-error", address="0000:01:00.0")


@fault("kernel.log", cause="The PCI port 0000:00:1c.0 had a fatal error; 0000:01:00.0 is reached",
       remedy="check its riser")
def a_fatal_error_of_the_port_above_a_card(plan: Document, snapshot: Document) -> None:
    event(snapshot, "pcie-error", address="0000:00:1c.0", below=["0000:01:00.0"],
          text="pcieport 0000:00:1c.0: AER: Uncorrected (Fatal) error received: id=00e0")


@fault("kernel.log", cause="could not initialise an unnamed card", remedy="reboot")
def the_driver_could_not_initialise(plan: Document, snapshot: Document) -> None:
    event(snapshot, "init-failed")


@fault("kernel.log",
       cause="uncorrectable memory or processor error", remedy="management controller")
def the_machine_erred(plan: Document, snapshot: Document) -> None:
    event(snapshot, "machine-check")


@fault("kernel.log", cause="SXid 12028 of the NVSwitch 0000:c1:00.0", remedy="vendor")
def a_switch_erred(plan: Document, snapshot: Document) -> None:
    event(snapshot, "sxid", code=12028, address="0000:c1:00.0",
          text="SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 32 egress")


@fault("kernel.log", cause="SXid 26006 of the NVSwitch 0000:c1:00.0: soe halt",
       remedy="reset all GPUs and NVSwitches")
def a_switch_erred_without_the_word_fatal(plan: Document, snapshot: Document) -> None:
    event(snapshot, "sxid", code=26006, address="0000:c1:00.0",
          text="SXid (PCI:0000:c1:00.0): 26006, SOE Halt")


@fault("kernel.log", verdict="INCONCLUSIVE",
       cause="does not reach back to the boot", remedy="Storage=persistent")
@fault("gpu.memory-errors", cause="will retire a faulty memory page", remedy="--gpu-reset -i 0")
def the_log_was_overwritten_and_a_counter_is_not_clean(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel_log")["complete"] = False
    for name in ("smi", "smi_after"):
        data(snapshot, name)["devices"][0]["retired_pending"] = True


@fault("kernel.log", cause="could not be read", remedy="run as root", verdict="INCONCLUSIVE")
@fault("kernel.application-errors", verdict="INCONCLUSIVE",
       cause="could not be read", remedy="kernel.log")
@fault("kernel.after-load", verdict="INCONCLUSIVE", cause="not read before", remedy="kernel.log")
def no_log(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel_log").update(source=None, complete=False, since_boot=False)
