"""The kernel's log of a host with two GPUs."""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.host_parts import event

fault, harmless = faults_on(with_cards)


@fault("kernel.log",
       cause="Xid 79 of 0000:00:00.0: the GPU has fallen off the bus", remedy="power it off and on")
def fallen_off_the_bus(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=79, address="0000:00:00.0")


@fault("kernel.log", cause="Xid 48 of 0000:00:00.0 (2 times)", remedy="-i 0000:00:00.0")
def double_bit_error(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=48, address="0000:00:00.0", count=2)


@fault("kernel.log", cause="Xid 154 of 0000:01:00.0: the driver asks for", remedy="or a reboot")
def the_driver_asks_for_a_reboot(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=154, address="0000:01:00.0",
          text="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    event(snapshot, "xid", code=154, address="0000:00:00.0",
          text="GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)")


@harmless
def a_row_put_on_record_and_mistakes_of_programs(plan: Document, snapshot: Document) -> None:
    for code in (13, 31, 43, 45, 63, 68, 109, 999):
        event(snapshot, "xid", code=code, address="0000:00:00.0", pid=5, process="python")
    for kind in ("hung-task", "out-of-memory", "io-error", "api-mismatch", "key-rejected"):
        event(snapshot, kind)
    event(snapshot, "pcie-error", address="0000:00:1c.0")


@fault("kernel.log", cause="uncorrectable errors on the PCI bus", remedy="reseat")
def uncorrected_error_on_the_bus(plan: Document, snapshot: Document) -> None:
    event(snapshot, "pcie-error", address="0000:01:00.0")


@fault("kernel.log", cause="could not initialise an unnamed card", remedy="reboot")
def the_driver_could_not_initialise(plan: Document, snapshot: Document) -> None:
    event(snapshot, "init-failed")


@fault("kernel.log",
       cause="uncorrectable memory or processor error", remedy="management controller")
def the_machine_erred(plan: Document, snapshot: Document) -> None:
    event(snapshot, "machine-check")


@fault("kernel.log", cause="SXid 12028 of the NVSwitch 0000:c1:00.0", remedy="vendor")
def a_switch_erred(plan: Document, snapshot: Document) -> None:
    event(snapshot, "sxid", code=12028, address="0000:c1:00.0")


@fault("kernel.log", verdict="INCONCLUSIVE",
       cause="does not reach back to the boot", remedy="Storage=persistent")
def the_log_was_overwritten(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel_log")["complete"] = False


@fault("kernel.log", cause="could not be read", remedy="run as root", verdict="INCONCLUSIVE")
@fault("kernel.application-errors", verdict="INCONCLUSIVE",
       cause="could not be read", remedy="kernel.log")
@fault("kernel.after-load", verdict="INCONCLUSIVE", cause="not read before", remedy="kernel.log")
def no_log(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel_log").update(source=None, complete=False, since_boot=False)
