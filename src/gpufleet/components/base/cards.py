"""The GPUs on a host's PCI bus: which of them its driver has to run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpufleet.catalog import gpus, pci
from gpufleet.documents.types import Row
from gpufleet.on_host.pci_drivers import given_away, other_holder

from .host import Host


def held_by_another(cards: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    """The addresses of the GPUs that another driver holds (nouveau, nvidiafb), by driver.

    NVIDIA's cannot have such a card: it is there, and is neither missing nor broken.
    """
    found: dict[str, list[str]] = {}
    for card in cards:
        if driver := other_holder(card.get("driver")):
            found.setdefault(driver, []).append(str(card.get("address")))
    return found


def release(driver: str) -> str:
    """How another driver is kept from GPUs, from the next boot on."""
    # A host's words are no part of a command.
    name = driver if re.fullmatch(r"\w[\w-]*", driver, re.ASCII) else "that driver"
    return (
        f"on the host: blacklist {name} in a file of /etc/modprobe.d, make the initramfs again"
        " (update-initramfs -u, or dracut -f), and reboot"
    )


def unsupported(cards: Sequence[Mapping[str, object]], version: str | None) -> dict[str, str]:
    """The reasons why cards that no driver holds are too old for the driver, by PCI address.

    Servers have such cards for their display. Where a host has no other GPU, none is meant for
    the display, and the driver is of the wrong branch.
    """
    branch = (version or "").partition(".")[0]
    if not branch.isdigit():
        return {}
    found = {
        str(card.get("address")): f"{model} is not supported by branch {branch}"
        for card in cards
        if card.get("driver") is None and (ends := _ends(card, branch)) and (model := ends[0])
    }
    others = [card for card in cards if not given_away(card.get("driver"))]
    return found if len(others) > len(found) else {}


def ended(host: Host, version: str | None) -> tuple[str, str] | None:
    """Why no GPU of the host runs with a driver of this version, and the last branch that does.

    None where one may run. The driver leaves such cards alone, and says so in the kernel log only.
    """
    branch = (version or "").partition(".")[0]
    rows = [row for row in host.gpus if not given_away(row.get("driver"))]
    found = [_ends(row, branch) for row in rows] if branch.isdigit() else []
    known = [each for each in found if each]
    if not known or len(known) < len(found) or any(row.get("driver") for row in rows):
        return None
    names = ", ".join(dict.fromkeys(name for name, _ in known))
    last = min((last for _, last in known), key=int)
    cause = f"driver branch {branch} does not support {names}: the last branch that does is {last}"
    return cause, last


def of_driver(host: Host) -> list[Row]:
    """The GPUs that the host's driver has to run."""
    without = unsupported(host.gpus, host.driver or host.driver_library)
    return [
        row
        for row in host.gpus
        if not given_away(row.get("driver")) and str(row.get("address")) not in without
    ]


def _ends(row: Mapping[str, object], branch: str) -> tuple[str, str] | None:
    """The name and the last branch of a GPU that the branch no longer supports; else None."""
    number = pci.digits(str(row.get("device")))
    card = pci.device(number)
    if card is None:
        return None
    gpu = gpus.Gpu(card.capability, card.label, str(row.get("address")), number)
    last = gpus.last_branch(gpu)
    return (card.label, last) if last and int(branch) > int(last) else None
