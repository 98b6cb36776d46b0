"""Values of a GPU that grew, shrank or stayed between the two readings of a verification.

What was counted before the verification may be of any time. What its own load adds is judged by its
rate, and only on GPUs of data centres: others slow down and retrain their links by design.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gpufleet.catalog import network, smi
from gpufleet.components.base import subjects
from gpufleet.components.base.registry import Finding
from gpufleet.components.base.sections import Sections
from gpufleet.documents.sections.gpu import Smi, SmiDevice
from gpufleet.documents.verdict import Verdict
from gpufleet.on_host.smi_document import NUMBER, SENTINEL, SENTINEL_32

from .rates import Measured, measured
from .smi_elements import label, virtual

NVLINKS = (
    "see kernel.log for Xid 74 and SXids (on the host: nvidia-smi nvlink -e shows the link); drain"
    " the host and reset its GPUs; if they grow again, have the board serviced"
)
# A minimum is low on purpose: an H100 and an H200 reach 1.9 times theirs. One that reports a
# slowdown whenever it is read, and reaches less than this many times its own, is slowed down.
SLOWED = 1.5
# Printed values of a counter that was not read: all bits of 16, or of 32.
NO_COUNT = (0xFFFF, SENTINEL_32)
# No probe takes longer: what a snapshot without its times is judged by.
LONGEST_S = 3600.0


def between(observed: Sections) -> Iterator[Finding]:
    """Findings about the time between the first reading and the second one."""
    data, seconds = observed.read_elsewhere(), _seconds(observed)
    for earlier, card in _pairs(observed):
        yield from _counters(earlier, card, seconds)
        yield from _lanes(earlier, card)
        yield from _nvlinks(data["smi"], data["smi_after"], card, seconds)


def slowdowns(observed: Sections) -> Iterator[Finding]:
    """A slowdown that is reported at rest and after the load, on a GPU that computes slowly.

    Either reading is excused by itself: GPUs that are idle, or change their clocks, report one too.
    """
    for earlier, card in _pairs(observed):
        reasons = [each["throttle"] or [] for each in (earlier, card)]
        # While it is idle in both, the low clocks of that may be what it reports.
        always = all("hw-slowdown" in each for each in reasons) and not all(
            "idle" in each for each in reasons
        )
        rate = _fastest(observed, card["address"]) if always else None
        floors = rate.floors() if rate and not rate.others else None
        if rate and floors and rate.rate < SLOWED * floors.tflops:
            yield Finding(
                f"{label(card)} reports a slowdown by its hardware before and after the load, and"
                f" multiplies float32 at {rate.rate} TFLOP/s: less than {SLOWED:g} times its"
                f" minimum, {floors.tflops} ({floors.tflops_because})",
                "./gpufleet verify --deep (clocks and reasons under load); check fans and air,"
                " then the power supplies and their cables",
                verdict=Verdict.INCONCLUSIVE,
                about=subjects.slow(card["address"]),
            )


def _pairs(observed: Sections) -> Iterator[tuple[SmiDevice, SmiDevice]]:
    """Both readings of each GPU of a data centre."""
    data = observed.read_elsewhere()
    first = {card["address"]: card for card in data["smi"]["devices"]}
    for card in data["smi_after"]["devices"]:
        earlier = first.get(card["address"])
        if earlier and _of_a_data_centre(card):
            yield earlier, card


def _seconds(observed: Sections) -> float:
    """How long the probe took, which is no less than the time between the readings."""
    try:
        started, finished = (
            datetime.fromisoformat(observed.snapshot[key]) for key in ("started", "finished")
        )
        return max(1.0, (finished - started).total_seconds())
    except (KeyError, TypeError, ValueError):
        return LONGEST_S


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
    value = float(found[1]) if found else SENTINEL
    return value if abs(value) < SENTINEL and value not in NO_COUNT else None


def _lanes(before: SmiDevice, after: SmiDevice) -> Iterator[Finding]:
    """A link that became idle is slower. Only GPUs for displays also give up lanes for that."""
    had, has = before["pcie"]["width"], after["pcie"]["width"]
    if had and has and has < had:
        yield Finding(
            f"{label(after)} uses {has} PCIe lanes, and used {had} before",
            smi.remedy("seat"),
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


def _fastest(observed: Sections, address: str | None) -> Measured | None:
    """The highest throughput of a GPU; None where none was measured."""
    data = observed.read_elsewhere()
    found = [
        measured(observed, entry["gpu"], device, entry["tflops"])
        for run in (data["compute"]["runs"] if "compute" in data else [])
        for device in run["devices"]
        for entry in run["cublas"]
        if device["address"] == address and entry["gpu"] == device["index"] and entry["tflops"]
    ]
    return max(found, key=lambda each: each.rate, default=None)
