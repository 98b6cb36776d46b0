"""Flavour: open or proprietary kernel modules, by the GPUs, the branch, and what its source has."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.catalog import gpus, pci, versions
from gpufleet.model.problems import Code

from .context import ResolveContext
from .driver_sources import Offer

OPEN, PROPRIETARY = "open", "proprietary"


def needs_open(card: gpus.Gpu) -> bool:
    """Whether there are no proprietary modules for a GPU: Blackwell, and Grace Hopper."""
    grace = pci.with_grace(card.device) if card.device else "gh200" in card.label.lower()
    return grace or versions.key(card.capability) >= versions.key(gpus.OPEN_MODULE_ONLY)


def needs_proprietary(card: gpus.Gpu) -> bool:
    """Whether the open modules do not know a GPU: everything before Turing."""
    return versions.key(card.capability) < versions.key(gpus.OPEN_MODULE_MIN)


def clashes(context: ResolveContext) -> bool:
    """Refuse GPUs of which some need the open modules and others know none of them."""
    newer = next(filter(needs_open, context.gpus), None)
    older = next(filter(needs_proprietary, context.gpus), None)
    if newer is None or older is None:
        return False
    context.refuse(
        Code.MODULE_CLASH,
        f"{newer.text} needs the open kernel modules, and {older.text} is older than they know "
        f"(from Turing, {gpus.OPEN_MODULE_MIN}); a host has one or the other",
        older.where,
        f"move {older.label} or {newer.label} ({newer.where}) to another host",
    )
    return True


def fitting(context: ResolveContext, offer: Offer) -> list[str]:
    """The modules of an offer that every GPU of the host can do with."""
    unfit = {PROPRIETARY for card in context.gpus if needs_open(card)}
    unfit |= {OPEN for card in context.gpus if needs_proprietary(card)}
    return [each for each in offer.modules if each not in unfit]


def objections(
    context: ResolveContext, offer: Offer, wished: str | None
) -> Iterator[tuple[Code, str, str]]:
    """Why an offer's kernel modules will not do, as code, message and remedy."""
    number = offer.branch.number
    if wished and wished not in offer.modules:
        yield (
            Code.DRIVER_UNKNOWN,
            f"driver branch {number} has no {wished} kernel modules here",
            f"say module: {offer.modules[0]}, or use another branch",
        )
    offered = [wished] if wished else offer.modules
    for card in context.gpus:
        if needs_proprietary(card) and PROPRIETARY not in offered:
            yield (
                Code.GPU_TOO_OLD,
                f"{card.text} is older than the open kernel modules know (from Turing, "
                f"{gpus.OPEN_MODULE_MIN})",
                "say module: proprietary" if wished else "use an older branch",
            )
        if needs_open(card) and OPEN not in offered:
            yield (
                Code.GPU_TOO_NEW,
                f"{card.text} is newer than the proprietary kernel modules know",
                "say module: open" if wished else "use a newer branch",
            )


def decide(context: ResolveContext, offer: Offer) -> tuple[str | None, str]:
    """The modules to install, and why; None where none will do."""
    wish, number = context.spec.driver, offer.branch.number
    if wish and wish.module:
        return wish.module, "declared in gpu_driver"
    left = fitting(context, offer)
    if not left:
        return None, "no kernel modules will do"
    if len(left) == 1:
        decisive = [card for card in context.gpus if needs_open(card) or needs_proprietary(card)]
        if decisive:
            return left[0], f"{decisive[0].text} knows no others"
        return left[0], f"branch {number} is offered with no others"
    known = "both would do" if context.gpus else "no GPU is known, and both are offered"
    if offer.branch.prefers_open:
        return OPEN, f"{known}; NVIDIA's installer takes the open ones from branch 560 on"
    return PROPRIETARY, f"{known}; NVIDIA's installer takes the open ones only from branch 560 on"
