"""The GPUs on a host's PCI bus: which of them its driver has to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufleet.catalog import gpus, pci
from gpufleet.model.types import Row

from .host import Host

GIVEN_AWAY = "vfio-pci"  # the driver of a GPU that is passed to a virtual machine


def unsupported(cards: Sequence[Mapping[str, object]], version: str | None) -> dict[str, str]:
    """{PCI address: why} of the cards that are too old for the driver, and that no driver holds.

    Servers have such cards for their display. Where a host has no other GPU, none is meant for
    the display, and the driver is of the wrong branch.
    """
    branch = (version or "").partition(".")[0]
    if not branch.isdigit():
        return {}
    found = {
        str(card.get("address")): f"{model} is not supported by branch {branch}"
        for card in cards
        if card.get("driver") is None and (model := _too_old(card, branch))
    }
    others = [card for card in cards if card.get("driver") != GIVEN_AWAY]
    return found if len(others) > len(found) else {}


def of_driver(host: Host) -> list[Row]:
    """The GPUs that the host's driver has to run."""
    without = unsupported(host.gpus, host.driver or host.driver_library)
    return [
        row
        for row in host.gpus
        if row.get("driver") != GIVEN_AWAY and str(row.get("address")) not in without
    ]


def _too_old(row: Mapping[str, object], branch: str) -> str | None:
    """The name of a GPU that the branch no longer supports; None for others and unknown ones."""
    number = pci.digits(str(row.get("device")))
    card = pci.device(number)
    if card is None:
        return None
    gpu = gpus.Gpu(card.capability, card.label, str(row.get("address")), number)
    return card.label if gpus.older_than_branch(gpu, branch) else None
