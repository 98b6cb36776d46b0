"""The standards for a GPU's measured rate: a minimum, and the other GPUs of the host.

Work of others on a GPU excuses its rate: a low one is then INCONCLUSIVE. A power limit below the
default lowers the minimum, which evidence and findings state.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpufleet.catalog import model_names, performance
from gpufleet.components.base import subjects
from gpufleet.components.base.holders import used_by_others
from gpufleet.components.base.registry import Finding, shortened
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.compute import ComputeDevice
from gpufleet.documents.sections.gpu import SmiDevice
from gpufleet.documents.verdict import Verdict

# A GPU with less than this share of the median of its siblings is slower than they are: healthy
# ones of a host differ by 2 % in public reports, and in minutes of load by their heat as well.
SIBLINGS = 0.88


@dataclass(frozen=True)
class Measured:
    """A rate of one GPU; `others`: who else used the GPU."""

    gpu: int
    name: str | None
    address: str | None
    card: SmiDevice | None
    others: str | None
    rate: float

    @property
    def conditions(self) -> tuple[object, ...]:
        """GPUs with the same ones are equally fast, unless the clocks of some are limited."""
        card = self.card
        return (self.name, card and (card["power_limit_w"], card["ecc"]))

    @property
    def limited(self) -> bool:
        """True if somebody has set a limit of the GPU's clocks that holds it back."""
        return bool(self.card and "application-clocks" in (self.card["throttle"] or []))

    def floors(self) -> performance.Floors | None:
        """The minimums of its model, at its power limit."""
        found = performance.floors(self.name or "")
        if found is None or self.card is None:
            return found
        return found.at_power(self.card["power_limit_w"], self.card["power_default_w"])

    def least_tflops(self, plan: Plan) -> tuple[float | None, str]:
        """The declared minimum, or that of its model, and where it comes from."""
        declared, because = plan["expect"].get("tflops"), plan["expect"].get("tflops_because")
        is_declared = because in {None, "gpu_expect.tflops"}
        # The minimum of the declared model is for a GPU that does not report its own: the declared
        # name does not distinguish a MIG instance or a laptop GPU.
        if declared is not None and (is_declared or not self.name):
            return declared, because or "gpu_expect.tflops"
        found = self.floors()
        return (found.tflops, found.tflops_because) if found else (None, "")


def measured(observed: Sections, gpu: int, device: ComputeDevice | None, rate: float) -> Measured:
    """A rate with what nvidia-smi reports of its GPU."""
    data = observed.read_elsewhere()
    address = device["address"] if device else None
    cards = data["smi"].get("devices") or [] if "smi" in data else []
    card = next((each for each in cards if address and each["address"] == address), None)
    return Measured(
        gpu,
        device["name"] if device else None,
        address,
        card,
        used_by_others(card, observed) if card else None,
        rate,
    )


def usual(each: Measured, siblings: Sequence[Measured], *, limited: bool) -> float | None:
    """The median rate of the other GPUs of the same model, under the same conditions.

    `limited`: of those whose clocks are limited, or of the others.
    """
    if each.others or not each.name or model_names.is_share(each.name):
        return None
    rates = [
        other.rate
        for other in siblings
        if other.gpu != each.gpu
        and other.rate > 0
        and not other.others
        and other.conditions == each.conditions
        and other.limited == limited
    ]
    return statistics.median(rates) if rates else None


def too_slow(
    each: Measured,
    siblings: Sequence[Measured],
    what: str,
    unit: str,
    *,
    least: float | None,
    because: str,
    remedy: str,
) -> Iterator[Finding]:
    """A finding for a rate below the minimum, or clearly below that of the siblings."""
    others = usual(each, siblings, limited=each.limited)
    if least is not None and each.rate < least:
        reason = f"the minimum is {least} ({because})"
    elif others is not None and each.rate < SIBLINGS * others:
        reason = (
            f"GPUs of the same model and settings in this host reach {others:g}"
            f" (less than {SIBLINGS:.0%} of it is a finding)"
        )
    else:
        yield from _held_back(each, siblings, what, unit)
        return
    cause = f"GPU {each.gpu} {what} {each.rate} {unit}, {reason}"
    if each.others:
        yield Finding(
            f"{cause}, beside {each.others}",
            "./gpufleet verify when nobody else uses the GPU",
            verdict=Verdict.INCONCLUSIVE,
            about=subjects.slow(each.address),
        )
    else:
        yield Finding(
            cause,
            remedy,
            f"GPU {each.gpu} ({each.name or 'without a name'}): {each.rate} {unit}",
            about=subjects.slow(each.address),
        )


def unjudged(
    rates: Sequence[Measured], least: Mapping[int, float | None], what: str, unit: str, remedy: str
) -> Iterator[Finding]:
    """The GPUs whose rate nothing says anything about: no minimum, and no GPU like them here.

    `least`: {GPU: its minimum, None where none is known}.
    """
    found = [
        each
        for each in rates
        if each.rate > 0
        and each.name
        and least[each.gpu] is None
        and not each.others
        and usual(each, rates, limited=True) is None
        and usual(each, rates, limited=False) is None
    ]
    if found:
        names = [f"GPU {each.gpu} ({each.name})" for each in found]
        yield Finding(
            f"How fast {shortened(names)} should be is unknown: no minimum of the model, and no"
            " other GPU like it in this host",
            remedy,
            "\n".join(f"GPU {each.gpu} {what} {each.rate} {unit}" for each in found),
            Verdict.NOT_DECLARED,
        )


def _held_back(
    each: Measured, siblings: Sequence[Measured], what: str, unit: str
) -> Iterator[Finding]:
    """A GPU that is slower than its siblings because its clocks are limited, and theirs are not.

    Nothing says whether that is meant so.
    """
    others = usual(each, siblings, limited=False) if each.limited else None
    if each.card and others is not None and each.rate < SIBLINGS * others:
        index = each.card["index"]
        yield Finding(
            f"GPU {each.gpu} {what} {each.rate} {unit}, since its clocks are limited (throttle"
            f" reason application-clocks); GPUs of the same model in this host reach {others:g}",
            f"on the host: nvidia-smi -i {index} -rac, and nvidia-smi -i {index} -rgc; or limit the"
            " clocks of all GPUs alike",
            verdict=Verdict.INCONCLUSIVE,
            about=subjects.slow(each.address),
        )
