"""The kernel log since boot: errors of GPUs, driver and machine.

The meaning of each Xid is in `catalog/data/xids.yml`. Errors that programs caused are reported and
fail no check: a host is not drained for its users' mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpufleet.catalog import facts
from gpufleet.model.plan import Plan
from gpufleet.model.sections.host import Event
from gpufleet.model.verdict import Verdict

from .registry import (
    AS_ROOT,
    HARDWARE,
    Evidence,
    Finding,
    check,
    no_gpus_declared,
    shortened,
)
from .sections import Sections

# The Xid by which the driver reports the recovery action of a GPU.
RECOVERY = 154
NOTED = {"api-mismatch": "see driver.loaded", "hung-task": "a program waited too long",
        "out-of-memory": "the kernel killed a program", "io-error": "a disk or file system error"}


@check("kernel.log", reads=("kernel_log", "gpus"), repair=HARDWARE, skip_reason=no_gpus_declared)
def log(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The kernel log has no failure of a GPU, the driver or the machine since boot."""
    kernel_log = observed["kernel_log"]
    cards = {card["address"]: card["driver"] for card in observed["gpus"]["pci"]}
    # The driver reports that a card was reset and needs no further action.
    recovered = {event["address"]: event["uptime_s"] or 0 for event in kernel_log["events"]
              if event["kind"] == "xid" and (meaning(event) or {}).get("kind") == "record"
              and event["code"] == RECOVERY}
    for event in kernel_log["events"]:
        if event["kind"] != "xid" or (event["uptime_s"] or 0) >= recovered.get(event["address"], 0):
            yield from _event_findings(event, cards)
    if kernel_log["source"] is None:
        yield Finding(
            "The kernel log since boot could not be read:"
            f" {kernel_log['error'] or 'no journal, dmesg or log file'}",
            f"{AS_ROOT}; in a container: read the machine's own log (journalctl -k -b)",
            verdict=Verdict.INCONCLUSIVE, about=("kernel-log",))
    elif not kernel_log["complete"]:
        yield Finding(
            f"The kernel log ({kernel_log['source']}) does not reach back to the boot: its first"
            " messages are lost",
            "keep more of it: set Storage=persistent and a larger SystemMaxUse in"
            " /etc/systemd/journald.conf; it is complete again after the next boot",
            verdict=Verdict.INCONCLUSIVE)
    noted = [f"{event['kind']} ({NOTED[event['kind']]}): {event['text']}"
            for event in kernel_log["events"] if event["kind"] in NOTED]
    yield Evidence(f"{kernel_log['source']}, since boot; {shortened(noted) or 'nothing of note'}")


def _event_findings(event: Event, cards: dict[str, str | None]) -> Iterator[Finding]:
    kind, address = event["kind"], event["address"] or "an unnamed card"
    times = f" ({event['count']} times)" if event["count"] > 1 else ""
    if kind == "xid" and (known := meaning(event)) and known["kind"] in {"hardware", "driver"}:
        remedy = facts.document("xids.yml")["remedies"][known["remedy"]].format(gpu=address)
        yield Finding(f"Xid {event['code']} of {address}{times}: {known['means']}", remedy,
                      event["text"])
    elif kind == "sxid":
        yield Finding(f"SXid {event['code']} of the NVSwitch {address}{times}: a fatal error",
                      "drain the host and reboot it; if it returns, contact the vendor",
                      event["text"])
    elif kind == "key-rejected" and "nvidia" not in cards.values():
        yield Finding(
            "The kernel refused a module: the key of its signature is not enrolled (Secure Boot)",
            "mokutil --import the key that signs the driver's modules (DKMS:"
            " /var/lib/dkms/mok.pub), reboot, and enrol it at the console; or disable Secure"
            " Boot in the firmware", event["text"], about=("key",))
    elif kind == "init-failed":
        yield Finding(
            f"The driver could not initialise {address}{times}",
            "reboot; if it persists: try another driver (gpu_driver), then check the GPU's seat and"
            " power",
            event["text"])
    elif kind == "pcie-error" and event["address"] in cards:
        yield Finding(f"{address} has uncorrectable errors on the PCI bus{times}",
                      "reseat the card and check its riser; if it returns, replace it",
                      event["text"])
    elif kind == "machine-check":
        yield Finding(
            f"The machine had an uncorrectable memory or processor error{times}",
            "drain the host; find the module to replace in the management controller's log",
            event["text"])


@check("kernel.application-errors", reads=("kernel_log",), severity="minor",
       skip_reason=no_gpus_declared)
def application_errors(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Errors that programs caused are reported, and do not make a host unhealthy."""
    kernel_log = observed["kernel_log"]
    if kernel_log["source"] is None:
        yield Finding("Errors of programs are unknown: the kernel log could not be read",
                      "see kernel.log", verdict=Verdict.INCONCLUSIVE, about=("kernel-log",))
        return
    for event in kernel_log["events"]:
        known = meaning(event)
        if event["kind"] == "xid" and (known is None or known["kind"] == "application"):
            by = f" by {event['process'] or 'process'} {event['pid']}" if event["pid"] else ""
            yield Evidence(
                f"Xid {event['code']} of {event['address']}, {event['count']} times, last"
                f"{by}: {known['means'] if known else 'not in the table of Xids'}"
            )


def meaning(event: Event) -> dict[str, Any] | None:
    """The table's entry for an Xid."""
    found: dict[str, Any] | None = facts.document("xids.yml")["xids"].get(event["code"])
    if found and found.get("unless", "\n") in event["text"]:
        return {**found, "kind": "record"}
    return found
