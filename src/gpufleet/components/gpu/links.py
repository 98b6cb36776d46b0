"""The PCIe links of the GPUs to the host.

An idle link may be slow and narrow by design: where it was read under load (section `compute`),
that is judged. Without a declaration, card and slot decide what a PCIe link can be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gpufleet.catalog import fabric, model_names
from gpufleet.components.base.holders import used_by_others
from gpufleet.components.base.registry import HARDWARE, Evidence, Finding, check, no_gpus_declared
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.compute import HostCopies
from gpufleet.documents.sections.gpu import PciDevice, PcieLink, SmiDevice
from gpufleet.documents.text import is_number
from gpufleet.documents.verdict import Verdict

from .confidential import BECAUSE, is_confidential
from .identity import cards, missing_value, unknown_without_cards
from .smi_elements import fields, label, virtual
from .unlike import SEAT, Trait, board, compared

# From this utilization on a GPU's link must have its full speed, in percent.
LOADED = 50

Field = Literal["width", "width_max", "generation", "generation_max"]
FIELDS: tuple[Field, ...] = ("width", "width_max", "generation", "generation_max")


@dataclass(frozen=True)
class Link:
    """The PCIe link of a GPU, with what was read under load, if anything was."""

    card: SmiDevice
    device: PciDevice | None
    loaded: PcieLink | None
    copies: HostCopies | None
    virtual: bool
    confidential: bool

    @property
    def read(self) -> PcieLink:
        """Each value under load; what was not read so as nvidia-smi prints it."""
        idle, loaded = self.card["pcie"], self.loaded
        if loaded is None:
            return idle
        return {
            "generation": loaded["generation"] or idle["generation"],
            "generation_max": loaded["generation_max"] or idle["generation_max"],
            "width": loaded["width"] or idle["width"],
            "width_max": loaded["width_max"] or idle["width_max"],
        }

    def under_load(self, key: Field) -> bool:
        """Return whether this value was read under load."""
        return self.loaded is not None and self.loaded[key] is not None

    def excuses(self, key: Field) -> bool:
        """Return whether the reading excuses a slow or narrow link."""
        if self.under_load(key):
            return False
        idle = "idle" in (self.card["throttle"] or [])
        return idle or (self.card["utilization_percent"] or 0) < LOADED

    def least_copies(self) -> tuple[float | None, str]:
        """The least rate of copies with the host in GiB/s, and the source of that number."""
        generation, width = self.read["generation"], self.read["width"]
        carried = fabric.pcie_gib_s(generation, width)
        if self.confidential:
            return None, BECAUSE
        if not carried or not self.loaded:
            return None, ""
        share = fabric.share("virtual_host" if self.virtual else "host")
        because = f"{share:.0%} of a link of generation {generation}, x{width}"
        return round(share * carried, 1), because

    @property
    def slot_width(self) -> int | None:
        """The lanes of the port above the card; None where no port of the machine is visible."""
        text = self._port("max_link_width") or ""
        # 255 stands for unknown.
        return int(text) if is_number(text) and 0 < int(text) <= 32 else None

    @property
    def on_board(self) -> bool:
        """True if the GPU is a module of a board, which has no slot: all its lanes are wired."""
        found = fabric.nvlinks(self.card["name"] or "")
        return found is not None and found.wired

    @property
    def slot_generation(self) -> int | None:
        """The fastest generation of that port."""
        return fabric.pcie_generation(self._port("max_link_speed"))

    def _port(self, key: Literal["max_link_width", "max_link_speed"]) -> str | None:
        """The value of the port above; that of a virtual machine says nothing of the real one."""
        port = self.device.get("port") if self.device and not self.virtual else None
        return port[key] if port else None

    def remedy(self, what: str) -> str:
        """The remedy of a link's fault: an instance of a cloud has no card to reseat."""
        if self.virtual:
            return (
                "stop the instance and start it on another machine, and report this one to its"
                f" provider; if it is by design, declare gpu_expect: {{pcie: {{{what}}}}}"
            )
        return (
            "reseat the GPU, check its riser and the firmware's settings of the slot; if it is"
            f" by design, declare gpu_expect: {{pcie: {{{what}}}}}"
        )


def pcie_links(observed: Sections) -> Iterator[Link]:
    """The link of each GPU that nvidia-smi lists."""
    devices = {device["address"]: device for device in observed.data["gpus"]["pci"]}
    data = observed.read_elsewhere()
    runs = data["compute"].get("runs") or [] if "compute" in data else []
    shown = [device for run in runs for device in run["devices"]]
    hypervisor = observed.data["gpus"].get("hypervisor")
    for card in cards(observed):
        device = devices.get(str(card["address"]))
        own = [each for each in shown if each["address"] == card["address"]]
        port = device.get("port") if device else None
        # A GPU on a root bus of its own is passed through.
        virtual = bool(
            hypervisor or (port and fabric.is_virtual_port(port["vendor"])) or _guest(card)
        )
        # Each run of a toolkit has a reading: the fastest is what the link can do.
        loaded = max(
            (link for each in own if (link := each.get("link")) and link["generation"]),
            key=lambda link: (link["generation"] or 0, link["width"] or 0),
            default=None,
        )
        copies = [copy for each in own if (copy := each.get("copies"))]
        yield Link(
            card,
            device,
            PcieLink(**loaded) if loaded else None,
            copies[-1] if copies else None,
            virtual,
            is_confidential(observed),
        )


def _guest(card: SmiDevice) -> bool:
    """Return whether the driver says that it runs in a virtual machine."""
    elements = card.get("elements") or {}
    mode = elements.get("gpu_virtualization_mode/virtualization_mode", "")
    return mode.lower() in {"pass-through", "vgpu"}


def _compared(card: SmiDevice) -> bool:
    """Return whether a GPU is compared with its model: no share of one, and read as a whole."""
    return bool(card["name"]) and not virtual(card) and not card.get("broken")


def _limits(links: Sequence[Link], *, lanes: bool, speed: bool) -> Iterator[Trait[Link]]:
    """The possible widths and speeds of links of one model; a slot may limit a link below them."""
    widest = max((link.read["width_max"] or 0 for link in links), default=0)
    fastest = max((link.read["generation_max"] or 0 for link in links), default=0)

    def most_lanes(link: Link) -> int | None:
        most, slot = link.read["width_max"], link.slot_width
        return widest if most and slot and slot <= most else most

    def newest(link: Link) -> int | None:
        most, slot = link.read["generation_max"], link.slot_generation
        return fastest if most and slot and slot <= most else most

    if lanes:
        yield Trait("most PCIe lanes", most_lanes, remedy=SEAT)
    if speed:
        yield Trait("fastest PCIe generation", newest, remedy=SEAT)


@check("gpu.pcie", reads=("smi", "gpus"), repair=HARDWARE, skip_reason=no_gpus_declared)
def pcie(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each GPU's PCIe link is as declared, or as wide and fast as card and slot allow."""
    yield from unknown_without_cards(observed, "The PCIe links of the GPUs")
    declared = plan["expect"].get("pcie")
    wanted_width = declared.get("width") if declared else None
    wanted = declared.get("generation") if declared else None
    needed = {"width": wanted_width, "generation": wanted, "generation_max": wanted}
    links = list(pcie_links(observed))
    # A value that was read under load may be absent from nvidia-smi's document.
    loaded: dict[str | None, str] = {
        link.card["address"]: "pcie."
        for link in links
        if link.loaded and None not in link.loaded.values()
    }
    yield from fields("gpu.pcie", observed, loaded)
    boards: dict[Hashable, list[Link]] = defaultdict(list)
    for link in links:
        # Cards for desktops are used in slots of any kind, behind risers that no port shows.
        if _compared(link.card) and not model_names.is_desktop(link.card["name"] or ""):
            boards[board(link.card)].append(link)
    for own in boards.values():
        limits = list(_limits(own, lanes=not wanted_width, speed=not wanted))
        yield from compared(
            limits, own, lambda link: label(link.card), lambda link: link.card["address"]
        )
    for link in links:
        card, read = link.card, link.read
        yield from _width(link, wanted_width)
        yield from _generation(link, wanted)
        yield from _copies(link, observed)
        for field in FIELDS:
            value = read[field]
            if value is None and needed.get(field):
                yield Finding(
                    f"{label(card)} does not report its PCIe {field.replace('_', ' ')}",
                    "remove gpu_expect.pcie, if it is a virtual GPU",
                    verdict=Verdict.INCONCLUSIVE,
                )
            elif not link.under_load(field):
                yield from missing_value(card, f"pcie.{field}", value)
        slot = f" in a slot of x{link.slot_width}" if link.slot_width else ""
        yield Evidence(
            f"{label(card)}: x{read['width']} of x{read['width_max']}{slot}, generation"
            f" {read['generation']} of {read['generation_max']}"
            f"{', idle' if link.excuses('generation') else ''}"
        )


def _width(link: Link, wanted: int | None) -> Iterator[Finding]:
    width, most = link.read["width"], link.read["width_max"]
    if not width:
        return
    slot = link.slot_width or (most if link.on_board else None)
    usable = wanted or (min(most, slot) if most and slot else None)
    lanes = f"{label(link.card)} uses {width} of"
    if usable is not None and width < usable:
        if link.excuses("width"):
            yield _idle(f"{lanes} {usable} PCIe lanes while it is idle")
        else:
            yield Finding(f"{lanes} {usable} PCIe lanes", link.remedy(f"width: {width}"))
    elif usable is None and most and width < most:
        yield Finding(
            f"{lanes} its {most} PCIe lanes; gpu_expect.pcie.width: not set, and the lanes of its"
            " slot are not known",
            f"if its slot has {width}, declare gpu_expect: {{pcie: {{width: {width}}}}}",
            verdict=Verdict.NOT_DECLARED,
        )


def _generation(link: Link, wanted: int | None) -> Iterator[Finding]:
    present, able, slot = link.read["generation"], link.read["generation_max"], link.slot_generation
    speed = f"{label(link.card)} has a link of PCIe generation"
    if wanted and able is not None and able < wanted:
        yield Finding(
            f"{speed} {able} at most, declared is {wanted}",
            "check slot and firmware settings, or correct gpu_expect.pcie",
        )
        return
    usable = wanted or (min(able, slot) if able and slot else able)
    if present is None or usable is None or present >= usable:
        return
    if not link.excuses("generation"):
        yield Finding(
            f"{speed} {present} under load, it can be {usable}",
            link.remedy(f"generation: {present}"),
        )
    elif wanted or link.copies:
        # Copies ran, so that the link could have been read under load.
        yield _idle(
            f"{speed} {present} while it is idle,"
            f" {f'declared is {wanted}' if wanted else f'it can be {usable}'}"
        )


def _idle(what: str) -> Finding:
    return Finding(
        f"{what}: its link under load was not read",
        "./gpufleet verify with a toolkit or stack on the host, which loads the GPU",
        verdict=Verdict.INCONCLUSIVE,
    )


def _copies(link: Link, observed: Sections) -> Iterator[Finding | Evidence]:
    """Copies between host and GPU have a part at least of what their link carries."""
    rates = link.copies
    if rates is None:
        return
    floor, because = link.least_copies()
    for direction, rate in (("to", rates["to_device_gib_s"]), ("from", rates["from_device_gib_s"])):
        if rate is not None and (rate <= 0 or (floor and rate < floor)):
            least = "and no minimum is known" if floor is None else f"the minimum is {floor}"
            figures = (
                f"Copies {direction} {label(link.card)} reach {rate} GiB/s, {least}"
                f" ({because or 'its link under load was not read'})"
            )
            if others := used_by_others(link.card, observed):
                yield Finding(
                    f"{figures}, beside {others}",
                    "./gpufleet verify when it is unused",
                    verdict=Verdict.INCONCLUSIVE,
                )
            else:
                yield Finding(
                    figures,
                    "see kernel.log for PCIe errors; check other transfers, the"
                    " host's memory and its IOMMU settings",
                    figures,
                )
    yield Evidence(
        f"{label(link.card)}: {rates['to_device_gib_s']} GiB/s from the host,"
        f" {rates['from_device_gib_s']} to it"
        f"{f', encrypted: {BECAUSE}' if link.confidential else ''}"
    )
