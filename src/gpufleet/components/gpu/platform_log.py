"""Lines of the platform in the kernel log that only together, or by their number, are a fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpufleet.catalog import facts
from gpufleet.components.base.registry import Finding
from gpufleet.components.base.sections import Sections
from gpufleet.documents.sections.host import Event
from gpufleet.documents.verdict import Verdict

STUCK = ("lockup", "driver-lockup", "stall")
DAY_S = 86400.0


def findings(events: Sequence[Event]) -> Iterator[Finding]:
    """Processors that were stuck beside errors of the hardware, and links that flap."""
    yield from _stuck(events)
    yield from _flapping(events)


def adapters(observed: Sections) -> Mapping[str, str | None]:
    """The driver of each network adapter by its PCI address, where they were read."""
    network = observed.read_elsewhere().get("network")
    return {row["address"]: row["driver"] for row in (network["adapters"] if network else [])}


def _stuck(events: Sequence[Event]) -> Iterator[Finding]:
    """A lockup alone may be anybody's; one beside errors of memory or processor is the hardware's.

    Errors that were not corrected are findings of their own.
    """
    stuck = [event for event in events if event["kind"] in STUCK]
    errors = [event for event in events if event["kind"] == "corrected-error"]
    if stuck and errors:
        yield Finding(
            "A processor was stuck (a lockup), and the machine logged errors of its hardware: its"
            " memory or a processor may be failing",
            "find the memory module or processor in the management controller's log (ipmitool sel"
            " list), have the firmware repair it (post package repair), or replace it",
            f"{stuck[-1]['text']}\n{errors[-1]['text']}",
            Verdict.INCONCLUSIVE,
        )


def _flapping(events: Sequence[Event]) -> Iterator[Finding]:
    limits = facts.document("kernel_log.yml")["flaps"]
    most: dict[str, Event] = {}
    for event in events:
        address = event["address"]
        days = (event["uptime_s"] or 0) / DAY_S
        if (
            event["kind"] == "port-down"
            and address
            and event["count"] >= max(limits["least"], limits["per_day"] * days)
            and event["count"] > (most[address]["count"] if address in most else 0)
        ):
            most[address] = event
    for address, event in most.items():
        yield Finding(
            f"The link of the network adapter at {address} went down {event['count']} times since"
            " boot",
            "look at its cable, at both transceivers and at the switch's port and log (on the host:"
            " ibstat or ethtool -m, mlxlink); reseat, then replace the cable; of a cloud's"
            " instance: report it to the provider",
            event["text"],
            Verdict.INCONCLUSIVE,
        )
