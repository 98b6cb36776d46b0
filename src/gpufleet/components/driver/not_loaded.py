"""Why NVIDIA's kernel module is not loaded: what keeps it out, or the kernel's own line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpufleet.catalog import kernel_messages
from gpufleet.components.base import cards, subjects
from gpufleet.components.base.driver_state import managed, part, provision
from gpufleet.components.base.host import Host, mapping, mappings
from gpufleet.documents.plan import Plan
from gpufleet.documents.types import Row
from gpufleet.on_host.pci_drivers import OWN_DRIVER

from . import kernels, secure_boot

MODULE = "nvidia"
# A card that the driver refused, after which it unloads itself where it has no other.
REFUSED_CARD = (
    "needs-open-module",
    "needs-proprietary-module",
    "open-module-unready",
    "unsupported-card",
    "no-memory-region",
)


class Reason(NamedTuple):
    """Why the module is not loaded, what repairs that, and the findings that say the same."""

    cause: str
    remedy: str
    entails: subjects.Subjects = ()


def reason(plan: Plan, host: Host) -> Reason | None:
    """The reason that the host shows; None where it shows none, or the driver is loaded."""
    return next(_reasons(plan, host), None) if host.driver is None else None


def _reasons(plan: Plan, host: Host) -> Iterator[Reason]:
    for fault in kernels.blocked_modules(host):
        yield Reason(fault.cause, fault.remedy)
    events = mappings(host.evidence("kernel_log").get("events"))
    for event in events:
        name, text = str(event.get("process") or ""), _line(event)
        if event.get("kind") == "module-refused" and name == MODULE:
            found = kernel_messages.refusal(name, text)
            yield Reason(
                f"the kernel refuses it, as {found.reason} ({text})",
                _first_provision(plan, found.remedy),
                (f"{subjects.MODULE}/{name}",),
            )
    # Cards for the display that the driver ignores keep it from no other.
    display = cards.unsupported(host.gpus, str(part(host, "driver").get("on_disk") or ""))
    for event in events:
        kind, text = str(event.get("kind")), _line(event)
        if kind == "key-rejected" and not any(
            card.get("driver") == OWN_DRIVER for card in host.gpus
        ):
            yield Reason(
                f"the kernel refuses it, since the key of its signature is not enrolled ({text})",
                f"on {plan['host']}, {secure_boot.problem(host)[1]}",
                ("key",),
            )
        elif kind == "needs-older-branch" and event.get("code") and not display:
            last = str(event["code"])
            yield Reason(
                f"it ignores a card whose last branch is {last} ({text})",
                other_branch(plan, last),
            )
        elif (
            kind in REFUSED_CARD
            and event.get("address") not in display
            and (row := kernel_messages.meaning(kind, text))
        ):
            yield _refused_card(host, event, row)


def _line(event: Row) -> str:
    """The kernel's line, with single blanks, as a part of a sentence."""
    return " ".join(str(event.get("text")).split())


def _refused_card(host: Host, event: Row, row: Row) -> Reason:
    address = str(event.get("address") or "")
    says = str(row["says"]).format(times="", card=address or "a card")
    guest = bool(part(host, "gpus").get("hypervisor"))
    remedy = (guest and row.get("in_a_guest")) or row["remedy"]
    return Reason(f"{says[:1].lower()}{says[1:]}", str(remedy), subjects.card(address))


def _first_provision(plan: Plan, by_hand: str) -> str:
    return (
        f"{provision(plan)} (on the host: {by_hand})"
        if managed(plan)
        else f"on the host: {by_hand}"
    )


def other_branch(plan: Plan, last: str) -> str:
    """The remedy for a driver whose branch supports none of the host's GPUs."""
    planned = str(mapping(plan["driver"]).get("branch") or "")
    if managed(plan) and planned.isdigit() and int(planned) <= int(last):
        return provision(plan)
    return (
        f"install driver branch {last} in its place, or let gpufleet install it: gpu_driver:"
        f' {{branch: "{last}"}}; a reboot or another slot changes nothing'
    )
