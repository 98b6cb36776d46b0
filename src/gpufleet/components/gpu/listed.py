"""GPUs on the bus that the driver does not list, and the reasons."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base import subjects
from gpufleet.components.base.registry import HARDWARE, Evidence, Finding, check, no_gpus_declared
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.text import quantity
from gpufleet.documents.verdict import Verdict
from gpufleet.on_host.pci_drivers import other_holder

from .hidden import hidden, not_shown
from .identity import broken_off, cards, not_counted, off_the_bus, own_cards, unknown_without_cards
from .lost import taken, unlisted


@check("gpu.visible", reads=("smi", "gpus"), repair=HARDWARE, skip_reason=no_gpus_declared)
def visible(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """NVML and nvidia-smi list every NVIDIA GPU on the PCI bus."""
    yield from unknown_without_cards(observed, "The GPUs of the driver")
    if unsupported := list(off_the_bus(observed)):
        yield from unsupported
        return
    bus = {card["address"]: card for card in own_cards(observed)}
    reported = [card["address"] for card in cards(observed)]
    counted = observed.data["smi"]["nvml"]["count"]
    unlisted_here = sorted(set(bus) - set(reported)) if reported else []
    closed = hidden(observed, unlisted_here)
    for address in unlisted_here:
        if broken_off(observed.data["smi"]):
            yield Finding(
                f"nvidia-smi broke off before the GPU at {address}",
                "see gpu.smi",
                verdict=Verdict.INCONCLUSIVE,
                about=(f"{subjects.SMI}/rest",),
            )
            continue
        if other_holder(bus[address]["driver"]):
            yield taken(bus[address], len(reported), plan["expect"]["count"])
            continue
        if closed:
            missing = subjects.missing_gpus(len(reported), plan["expect"]["count"])
            yield not_shown(observed, address, closed, missing)
            continue
        yield Finding(
            f"The GPU at {address} is on the PCI bus, but nvidia-smi does not list it (bound to"
            f" {bus[address]['driver'] or 'no driver'})",
            "see kernel.log for Xid 79 and errors of the driver; power the host off and on, then"
            " reseat or replace the GPU",
            about=subjects.card(address),
            entails=subjects.missing_gpus(len(reported), plan["expect"]["count"]),
        )
    gone = sorted(set(map(str, reported)) - set(bus))
    for address in gone:
        yield Finding(
            f"nvidia-smi lists a GPU at {address} that is not on the PCI bus",
            "power the host off and on; then take a new snapshot",
            about=subjects.gone_since(len(gone), len(bus), plan["expect"]["count"]),
        )
    if reported and counted is None and observed.data["smi"]["nvml"]["status"] == 0:
        yield Finding(
            "The number of GPUs that NVML lists is unknown",
            "see gpu.smi",
            verdict=Verdict.INCONCLUSIVE,
        )
    elif (
        reported
        and counted not in {None, len(reported)}
        and not (broken_off(observed.data["smi"]) or closed)
    ):
        yield Finding(
            f"NVML lists {quantity(counted, 'GPU')}, nvidia-smi lists {len(reported)}",
            "see kernel.log; power the host off and on, then replace the GPU that fails",
            about=unlisted(observed, counted),
        )
    listed = f"PCI {len(bus)}, nvidia-smi {len(reported)}, NVML {counted}"
    yield Evidence("; ".join([listed, *not_counted(observed)]))
