"""The kernel's log since boot: what it says of cards, driver and machine.

What each number of the driver's messages means stands in `catalog/data/xids.yml`. What programs
brought upon themselves is told and fails nobody: a host is not drained for its users' mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpufleet.catalog import facts
from gpufleet.model.verdict import Verdict

from .registry import (
    HARDWARE,
    Document,
    Evidence,
    Finding,
    Sections,
    check,
    no_gpus_declared,
    shortened,
)

# The Xid by which the driver says what a card needs to recover, or that it needs nothing.
RECOVERY = 154
NOTED = {"api-mismatch": "see driver.loaded", "hung-task": "a program waited too long",
        "out-of-memory": "the kernel ended a program", "io-error": "a disk or file system erred"}


@check("kernel.log", reads=("kernel_log", "gpus"), repair=HARDWARE, skip_reason=no_gpus_declared)
def log(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """The kernel reports no failure of a card, of the driver or of the machine since boot."""
    kernel_log = observed["kernel_log"]
    cards = {card["address"]: card["driver"] for card in observed["gpus"]["pci"]}
    # The driver's own word that a card was reset, and needs nothing more.
    recovered = {event["address"]: event["uptime_s"] or 0 for event in kernel_log["events"]
              if event["kind"] == "xid" and (meaning(event) or {}).get("kind") == "record"
              and event["code"] == RECOVERY}
    for event in kernel_log["events"]:
        if event["kind"] != "xid" or (event["uptime_s"] or 0) >= recovered.get(event["address"], 0):
            yield from _event_findings(event, cards)
    if kernel_log["source"] is None:
        yield Finding(
            "What the kernel said since boot could not be read:"
            f" {kernel_log['error'] or 'no journal, dmesg or log file'}",
            "let the probe become root: ansible_become; in a container: look at the machine's own"
            " log (journalctl -k -b)", verdict=Verdict.INCONCLUSIVE)
    elif not kernel_log["complete"]:
        yield Finding(
            f"The kernel log ({kernel_log['source']}) does not reach back to the boot: its first"
            " messages are lost",
            "keep more of it: Storage=persistent and a greater SystemMaxUse in"
            " /etc/systemd/journald.conf; it is whole again from the next boot on",
            verdict=Verdict.INCONCLUSIVE)
    noted = [f"{event['kind']} ({NOTED[event['kind']]}): {event['text']}"
            for event in kernel_log["events"] if event["kind"] in NOTED]
    yield Evidence(f"{kernel_log['source']}, since boot; {shortened(noted) or 'nothing of note'}")


def _event_findings(event: Document, cards: dict[str, str | None]) -> Iterator[Finding]:
    kind, address = event["kind"], event["address"] or "an unnamed card"
    times = f" ({event['count']} times)" if event["count"] > 1 else ""
    if kind == "xid" and (known := meaning(event)) and known["kind"] in {"hardware", "driver"}:
        remedy = facts.document("xids.yml")["remedies"][known["remedy"]].format(gpu=address)
        yield Finding(f"Xid {event['code']} of {address}{times}: {known['means']}", remedy,
                      event["text"])
    elif kind == "sxid":
        yield Finding(f"SXid {event['code']} of the NVSwitch {address}{times}: a fatal error",
                      "drain the host and reboot it; if it comes back, have the vendor look",
                      event["text"])
    elif kind == "key-rejected" and "nvidia" not in cards.values():
        yield Finding(
            "The kernel refused a module, since its signature's key is not enrolled (Secure Boot)",
            "mokutil --import the key that signs the driver's modules (DKMS:"
            " /var/lib/dkms/mok.pub), reboot, and enrol it at the console; or switch Secure Boot"
            " off in the firmware", event["text"])
    elif kind == "init-failed":
        yield Finding(
            f"The driver could not initialise {address}{times}",
            "reboot; if it stays so: another driver (gpu_driver), then the card's seat and power",
            event["text"])
    elif kind == "pcie-error" and event["address"] in cards:
        yield Finding(f"{address} has errors on the PCI bus that could not be corrected{times}",
                      "reseat the card and look at its riser; if it comes back, replace it",
                      event["text"])
    elif kind == "machine-check":
        yield Finding(
            f"The machine's own memory or processor erred, and it could not be corrected{times}",
            "drain the host; look into the management controller's log for the module to replace",
            event["text"])


@check("kernel.application-errors", reads=("kernel_log",), severity="minor",
       skip_reason=no_gpus_declared)
def application_errors(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """What programs brought upon themselves is told, and does not make a host unhealthy."""
    kernel_log = observed["kernel_log"]
    if kernel_log["source"] is None:
        yield Finding("What programs did wrong is not known: the kernel's log could not be read",
                      "see kernel.log", verdict=Verdict.INCONCLUSIVE)
        return
    for event in kernel_log["events"]:
        known = meaning(event)
        if event["kind"] == "xid" and (known is None or known["kind"] == "application"):
            by = f" by {event['process'] or 'process'} {event['pid']}" if event["pid"] else ""
            yield Evidence(
                f"Xid {event['code']} of {event['address']}, {event['count']} times, last"
                f"{by}: {known['means'] if known else 'not in our table'}"
            )


def meaning(event: Document) -> dict[str, Any] | None:
    """What the table says of an Xid."""
    found: dict[str, Any] | None = facts.document("xids.yml")["xids"].get(event["code"])
    if found and found.get("unless", "\n") in event["text"]:
        return {**found, "kind": "record"}
    return found
