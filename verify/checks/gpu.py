"""Cards: as many as are declared, split as declared."""

from __future__ import annotations

from collections.abc import Iterator

from compat import driver_running

from ..verdict import Verdict
from .registry import (
    HARDWARE,
    Document,
    Finding,
    Sections,
    Seen,
    check,
    declared_none,
    findings,
)


def _count_not_set(plan: Document) -> str | None:
    excuse = declared_none(plan)
    # That there is none is a declaration too, and can be wrong.
    return None if excuse and "count: 0" in excuse else excuse


@check("gpu.count", reads=("gpus",), repair=HARDWARE, excuse=_count_not_set)
def count(plan: Document, seen: Sections) -> Iterator[Finding | Seen]:
    """The host has as many NVIDIA GPUs on its PCI bus as are declared."""
    wanted, cards = plan["expect"]["count"], seen["gpus"]["pci"]
    listed = ", ".join(f"{card['address']} ({card['device']})" for card in cards)
    if len(cards) > wanted:
        yield Finding(
            f"{len(cards)} NVIDIA GPUs are in the host, declared is gpu_expect:"
            f" {{count: {wanted}}}",
            f"declare them for {plan['host']} in the inventory: gpu_expect: {{count:"
            f" {len(cards)}}}",
            listed,
        )
    elif len(cards) < wanted:
        yield Finding(
            f"{wanted - len(cards)} of {wanted} declared GPUs are not on the PCI bus",
            "look in the kernel log for Xid 79 (fallen off the bus), power the host off and on;"
            " if it stays away: reseat or replace the card",
            listed or "no NVIDIA GPU on the PCI bus",
        )
    yield Seen(listed or "no NVIDIA GPU on the PCI bus")


def _no_layout(plan: Document) -> str | None:
    if not (plan["driver"] or {}).get("mig"):
        return "gpu_mig: not set"
    return _without_card(plan)


def _without_card(plan: Document) -> str | None:
    excuse = declared_none(plan)
    return excuse if excuse and "count: 0" in excuse else None


@check("gpu.mig", reads=("gpus", "driver"), excuse=_no_layout)
def mig(plan: Document, seen: Sections) -> Iterator[Finding | Seen]:
    """Each GPU is split into the MIG instances that are declared for it, and no others."""
    if seen["gpus"]["mig"] is None:
        yield Finding(
            "Whether the GPUs are split as declared is not known: no driver could be asked",
            "see driver.loaded; then ./gpufleet verify", verdict=Verdict.INCONCLUSIVE)
        return
    yield from findings(driver_running.mig, plan, seen)
    yield Seen("; ".join(f"GPU {row['gpu']}: MIG {row['mode'] or 'not known to it'}"
                         f" {' '.join(row['instances'])}".rstrip() for row in seen["gpus"]["mig"]))
