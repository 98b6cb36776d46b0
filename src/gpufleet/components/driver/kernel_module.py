"""The driver's kernel modules, open or proprietary: by the GPUs, the branch and its source."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.catalog import gpus, pci, versions
from gpufleet.components.base.context import ResolveContext
from gpufleet.documents.problems import Code

from .sources import Offer

OPEN, PROPRIETARY = "open", "proprietary"


def needs_open(card: gpus.Gpu) -> bool:
    """Return whether a GPU has no proprietary modules: Blackwell, and Grace Hopper."""
    grace = pci.is_grace_hopper(card.device) if card.device else "gh200" in card.label.lower()
    return grace or versions.key(card.capability) >= versions.key(gpus.OPEN_MODULE_ONLY)


def needs_proprietary(card: gpus.Gpu) -> bool:
    """Return whether the open modules do not support a GPU: everything before Turing."""
    return versions.key(card.capability) < versions.key(gpus.OPEN_MODULE_MIN)


def clashes(context: ResolveContext) -> bool:
    """Refuse a host with GPUs that need the open modules and GPUs that they do not support."""
    newer = next(filter(needs_open, context.gpus), None)
    older = next(filter(needs_proprietary, context.gpus), None)
    if newer is None or older is None:
        return False
    context.refuse(
        Code.MODULE_CLASH,
        f"{newer.text} needs the open kernel modules, which do not support {older.text} "
        f"(but Turing, {gpus.OPEN_MODULE_MIN}, and newer); a host has one kind only",
        older.where,
        f"move {older.label} or {newer.label} ({newer.where}) to another host",
    )
    return True


def fitting(context: ResolveContext, offer: Offer) -> list[str]:
    """The modules of an offer that support every GPU of the host."""
    unfit = {PROPRIETARY for card in context.gpus if needs_open(card)}
    unfit |= {OPEN for card in context.gpus if needs_proprietary(card)}
    return [each for each in offer.modules if each not in unfit]


def violations(
    context: ResolveContext, offer: Offer, requested: str | None
) -> Iterator[tuple[Code, str, str]]:
    """Why an offer's kernel modules do not fit, as code, message and remedy."""
    number = offer.branch.number
    if requested and requested not in offer.modules:
        yield (
            Code.DRIVER_UNKNOWN,
            f"driver branch {number} has no {requested} kernel modules for this host",
            f"set module: {offer.modules[0]}, or use another branch",
        )
    offered = [requested] if requested else offer.modules
    for card in context.gpus:
        if needs_proprietary(card) and PROPRIETARY not in offered:
            yield (
                Code.GPU_TOO_OLD,
                f"{card.text} is too old for the open kernel modules, which support Turing "
                f"({gpus.OPEN_MODULE_MIN}) and newer",
                "set module: proprietary" if requested else "use an older branch",
            )
        if needs_open(card) and OPEN not in offered:
            yield (
                Code.GPU_TOO_NEW,
                f"{card.text} is too new for the proprietary kernel modules",
                "set module: open" if requested else "use a newer branch",
            )


def decide(context: ResolveContext, offer: Offer) -> tuple[str | None, str]:
    """The modules to install, and why; None where none fits."""
    spec, number = context.spec.driver, offer.branch.number
    if spec and spec.module:
        return spec.module, "declared in gpu_driver"
    left = fitting(context, offer)
    if not left:
        return None, "no kernel modules fit"
    if len(left) == 1:
        decisive = [card for card in context.gpus if needs_open(card) or needs_proprietary(card)]
        if decisive:
            return left[0], f"{decisive[0].text} supports no others"
        return left[0], f"branch {number} has no others"
    known = "both fit" if context.gpus else "no GPU is known, and both are offered"
    if offer.branch.prefers_open:
        return OPEN, f"{known}; NVIDIA's installer chooses the open ones from branch 560 on"
    return PROPRIETARY, f"{known}; NVIDIA's installer chooses the open ones only from branch 560 on"
