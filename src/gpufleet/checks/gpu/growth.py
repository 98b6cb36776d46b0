"""What grew on a GPU, or shrank, between the two readings of a verification.

What was counted before the verification may be of any time. What its own load adds is judged by its
rate, and only on GPUs of data centres: others slow down and retrain their links by design.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gpufleet.catalog import network, smi
from gpufleet.checks.base import subjects
from gpufleet.checks.base.registry import Finding
from gpufleet.model.sections.gpu import Smi, SmiDevice
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.verdict import Verdict
from gpufleet.probe.smi_document import NUMBER, SENTINEL

from .smi_elements import label, virtual

NVLINKS = (
    "see kernel.log for Xid 74 and SXids (on the host: nvidia-smi nvlink -e shows the link); drain"
    " the host and reset its GPUs; if they grow again, have the board serviced"
)
FEWER_LANES = (
    "see kernel.log for PCIe errors; drain the host, reseat the GPU and check its riser and slot"
    " (in a cloud, move to another machine)"
)


def between(before: Smi, after: Smi, snapshot: Snapshot) -> Iterator[Finding]:
    """What the second reading says of the time since the first one."""
    first = {card["address"]: card for card in before["devices"]}
    seconds = _seconds(snapshot)
    for card in after["devices"]:
        earlier = first.get(card["address"])
        if earlier and _of_a_data_centre(card):
            yield from _counters(earlier, card, seconds)
            yield from _lanes(earlier, card)
            yield from _nvlinks(before, after, card, seconds)


def _seconds(snapshot: Snapshot) -> float:
    """How long the probe took, which is no less than the time between the readings."""
    started, finished = (datetime.fromisoformat(snapshot[key]) for key in ("started", "finished"))
    return max(1.0, (finished - started).total_seconds())


def _of_a_data_centre(card: SmiDevice) -> bool:
    elements = card.get("elements") or {}
    generation = smi.generation(elements, card["compute_capability"])
    device = elements.get("pci/pci_device_id", "")
    return smi.is_model(card["name"], device, generation, "data-centre") and not virtual(card)


def _counters(before: SmiDevice, after: SmiDevice, seconds: float) -> Iterator[Finding]:
    for rule in smi.all_rules():
        limit = rule.row.get("grows")
        values = [_number(card, rule.shapes[0][0]) for card in (before, after)] if limit else []
        if limit and None not in values:
            growth = float(values[1] or 0) - float(values[0] or 0)
            if growth * limit["seconds"] > limit["more"] * max(seconds, limit["seconds"]):
                value, time = f"{growth / limit['unit']:.10g}", f"{seconds:.0f}"
                yield Finding(
                    f"{label(after)} {limit['says'].format(value=value, time=time)}",
                    smi.remedy(limit["remedy"]).format(gpu=after["index"]),
                    verdict=Verdict.INCONCLUSIVE,
                )


def _number(card: SmiDevice, path: str) -> float | None:
    found = NUMBER.match((card.get("elements") or {}).get(path, ""))
    return float(found[1]) if found and abs(float(found[1])) < SENTINEL else None


def _lanes(before: SmiDevice, after: SmiDevice) -> Iterator[Finding]:
    """A link that became idle is slower. Only GPUs for displays also give up lanes for that."""
    had, has = before["pcie"]["width"], after["pcie"]["width"]
    if had and has and has < had:
        yield Finding(
            f"{label(after)} uses {has} PCIe lanes, and used {had} before",
            FEWER_LANES,
            verdict=Verdict.INCONCLUSIVE,
        )


def _nvlinks(before: Smi, after: Smi, card: SmiDevice, seconds: float) -> Iterator[Finding]:
    had, has = (
        next(
            (
                row["errors"]
                for row in each.get("nvlink") or []
                if row["address"] == card["address"]
            ),
            {},
        )
        for each in (before, after)
    )
    grown = []
    for name, value in has.items():
        limit, growth = network.rate_limit(name), value - had.get(name, value)
        if limit and limit.alone is not None and growth > limit.alone * seconds:
            grown.append(f"{name} by {growth}")
    if grown:
        yield Finding(
            f"Error counters of the NVLinks of {label(card)} grew in {seconds:.0f} s:"
            f" {', '.join(grown)}",
            NVLINKS,
            verdict=Verdict.INCONCLUSIVE,
            about=subjects.card(card["address"], "nvlink"),
        )
