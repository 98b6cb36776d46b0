"""Memory or time of a GPU that no process has: what a program left that the driver did not end."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.catalog import smi
from gpufleet.catalog.smi import remedy
from gpufleet.components.base import subjects
from gpufleet.components.base.holders import DAEMONS
from gpufleet.components.base.registry import Finding
from gpufleet.components.base.sections import Sections
from gpufleet.documents.sections.gpu import SmiDevice
from gpufleet.documents.verdict import Verdict

from .smi_elements import label, virtual

# The greatest share of a GPU's memory that drivers and displays keep.
MOST_UNOWNED = 0.1
# A driver that is just starting reports a GPU as busy for a moment.
BUSY_PERCENT = 90
FREE_MODES = {None, "N/A", "None", "Disabled"}


def unowned(observed: Sections) -> Iterator[Finding]:
    """GPUs whose memory is used, or that are busy, before and after the work, for nobody."""
    every = observed.read_elsewhere()
    driver, after = every.get("driver"), every.get("smi_after")
    # Only root sees the processes of all accounts, and no container sees those outside it.
    if (
        driver is None
        or driver["holders"] is None
        or any(str(row["command"]) not in DAEMONS for row in driver["holders"])
        or ("kernel" in every and every["kernel"].get("container"))
        or driver.get("coherent_memory", {}).get("nodes")
    ):
        return
    again = {card["address"]: card for card in (after["devices"] if after else [])}
    for card in observed.data["smi"]["devices"]:
        readings = [card, *([again[card["address"]]] if card["address"] in again else [])]
        if any(each["processes"] or not _whole(each) for each in readings):
            continue
        used = min(each["memory_used_mib"] or 0 for each in readings)
        percent = min(each["utilization_percent"] or 0 for each in readings)
        total = card["memory_total_mib"]
        what = [f"{used} of {total} MiB used"] if total and used > MOST_UNOWNED * total else []
        what += [f"is {percent} % busy"] if percent >= BUSY_PERCENT and after else []
        if what:
            has = " and ".join(what)
            yield Finding(
                f"{label(card)} {has if has.startswith('is') else f'has {has}'}, and no process of"
                " the host uses it",
                f"on the host: end virtual machines and containers that may have it (fuser -v"
                f" /dev/nvidia*); then {remedy('reset').format(gpu=card['index'])}",
                verdict=Verdict.INCONCLUSIVE,
                about=subjects.card(card["address"], "unowned"),
            )


def _whole(card: SmiDevice) -> bool:
    """Return whether all of a GPU is the host's own: no instances, guests, or memory of the CPU."""
    elements = card.get("elements") or {}
    shared = elements.get("mig_mode/current_mig") not in FREE_MODES
    guests = "vgpu" in elements.get("gpu_virtualization_mode/virtualization_mode", "").lower()
    number = elements.get("pci/pci_device_id", "")
    coherent = any(
        smi.is_model(card["name"], number, None, group) for group in ("integrated", "superchip")
    )
    return not (shared or guests or coherent or virtual(card))
