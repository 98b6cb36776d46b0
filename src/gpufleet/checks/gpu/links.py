"""Links of the GPUs: PCIe to the host, NVLink between them.

An idle link may be slow and narrow by design: where it was read under load (section `compute`),
that is judged. Without a declaration, card and slot decide what a PCIe link can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gpufleet.catalog import fabric, model_names
from gpufleet.checks.base.holders import used_by_others
from gpufleet.checks.base.registry import HARDWARE, Evidence, Finding, check, no_gpus_declared
from gpufleet.checks.base.sections import Sections
from gpufleet.model.plan import Plan
from gpufleet.model.sections.compute import HostCopies
from gpufleet.model.sections.gpu import GpuNvlinks, PciDevice, PcieLink, SmiDevice
from gpufleet.model.text import is_number
from gpufleet.model.verdict import Verdict

from .confidential import BECAUSE, is_confidential
from .identity import cards, missing_value, unknown_without_cards
from .smi_elements import fields, label

# From this utilization on a GPU's link must have its full speed, in percent.
LOADED = 50


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
        return self.loaded or self.card["pcie"]

    @property
    def idle(self) -> bool:
        """Whether the reading excuses a slow or narrow link."""
        if self.loaded:
            return False
        idle = "idle" in (self.card["throttle"] or [])
        return idle or (self.card["utilization_percent"] or 0) < LOADED

    def least_copies(self) -> tuple[float | None, str]:
        """What copies with the host reach at least in GiB/s, and where that comes from."""
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
        """Whether it is a module of a board, which has no slot: all its lanes are wired."""
        found = fabric.nvlinks(self.card["name"] or "")
        return found is not None and found.wired

    @property
    def slot_generation(self) -> int | None:
        """The fastest generation of that port."""
        return fabric.pcie_generation(self._port("max_link_speed"))

    def _port(self, key: Literal["max_link_width", "max_link_speed"]) -> str | None:
        """What the port above says; that of a virtual machine says nothing of the real one."""
        port = self.device.get("port") if self.device and not self.virtual else None
        return port[key] if port else None

    def remedy(self, what: str) -> str:
        """Who can repair it: an instance of a cloud has no card to reseat."""
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
    """Whether the driver says that it runs in a virtual machine."""
    elements = card.get("elements") or {}
    mode = elements.get("gpu_virtualization_mode/virtualization_mode", "")
    return mode.lower() in {"pass-through", "vgpu"}


@check("gpu.pcie", reads=("smi", "gpus"), repair=HARDWARE, skip_reason=no_gpus_declared)
def pcie(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each GPU's PCIe link is as declared, or as wide and fast as card and slot allow."""
    yield from unknown_without_cards(observed, "The PCIe links of the GPUs")
    declared = plan["expect"].get("pcie")
    wanted_width = declared.get("width") if declared else None
    wanted = declared.get("generation") if declared else None
    links = list(pcie_links(observed))
    # What was read under load does not have to be in nvidia-smi's document as well.
    loaded: dict[str | None, str] = {link.card["address"]: "pcie." for link in links if link.loaded}
    yield from fields("gpu.pcie", observed, loaded)
    for link in links:
        card, read = link.card, link.read
        yield from _width(link, wanted_width)
        yield from _generation(link, wanted)
        yield from _copies(link, observed)
        for field, needed, value in (
            ("width", wanted_width, read["width"]),
            ("width_max", None, read["width_max"]),
            ("generation", wanted, read["generation"]),
            ("generation_max", wanted, read["generation_max"]),
        ):
            if needed and value is None:
                yield Finding(
                    f"{label(card)} does not report its PCIe {field.replace('_', ' ')}",
                    "remove gpu_expect.pcie, if it is a virtual GPU",
                    verdict=Verdict.INCONCLUSIVE,
                )
            elif not link.loaded:
                yield from missing_value(card, f"pcie.{field}", value)
        slot = f" in a slot of x{link.slot_width}" if link.slot_width else ""
        yield Evidence(
            f"{label(card)}: x{read['width']} of x{read['width_max']}{slot}, generation"
            f" {read['generation']} of {read['generation_max']}"
            f"{', idle' if link.idle else ''}"
        )


def _width(link: Link, wanted: int | None) -> Iterator[Finding]:
    width, most = link.read["width"], link.read["width_max"]
    if not width:
        return
    slot = link.slot_width or (most if link.on_board else None)
    usable = wanted or (min(most, slot) if most and slot else None)
    lanes = f"{label(link.card)} uses {width} of"
    if usable is not None and width < usable:
        if link.idle:
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
    if not link.idle:
        yield Finding(
            f"{speed} {present} under load, it can be {usable}",
            link.remedy(f"generation: {present}"),
        )
    elif wanted:
        yield _idle(f"{speed} {present} while it is idle, declared is {wanted}")


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
            figures = (
                f"Copies {direction} {label(link.card)} reach {rate} GiB/s, the minimum is {floor}"
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


# -- NVLink ----------------------------------------------------------------------------------------


@check("gpu.nvlink", reads=("smi", "gpus"), repair=HARDWARE, skip_reason=no_gpus_declared)
def nvlink(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every NVLink that a GPU's model and bridges must have is active."""
    yield from unknown_without_cards(observed, "The NVLinks of the GPUs")
    rows, listed = observed.data["smi"].get("nvlink") or [], cards(observed)
    by_address = {row["address"]: row for row in rows if row["address"]}
    if not by_address and len(rows) == len(listed):  # an NVML that reports no addresses
        by_address = {listed[row["index"]]["address"]: row for row in rows}
    ids = {device["address"]: device["device"] for device in observed.data["gpus"]["pci"]}
    most: dict[tuple[str, str | None], int] = {}
    for card in listed:
        if row := by_address.get(card["address"]):
            model = _model(card, ids)
            most[model] = max(most.get(model, 0), _active(row))
    for card in listed:
        row, model = by_address.get(card["address"]), _model(card, ids)
        known, declared = fabric.nvlinks(*model), plan["expect"].get("nvlinks")
        if row is None or row["links"] is None:
            if wanted := declared or (known.links if known and known.wired else 0):
                yield Finding(
                    f"{label(card)}: NVML did not report its NVLinks, it has {wanted}",
                    "see gpu.smi; then ./gpufleet verify",
                    verdict=Verdict.INCONCLUSIVE,
                )
            continue
        yield from _nvlinks(
            _Nvlinks(
                card,
                row,
                known,
                declared=declared,
                siblings=most[model],
                alone=len(rows) < 2,
                hypervisor=bool(observed.data["gpus"].get("hypervisor")),
            )
        )
        yield from _wrong_bits(card, row)
        found = [f"{name} {number}" for name, number in row["errors"].items() if number]
        yield Evidence(
            f"{label(card)}: {_active(row)} of {len(row['links'])} NVLinks are active"
            f"{', error counters: ' + ', '.join(found) if found else ''}"
        )


def _wrong_bits(card: SmiDevice, row: GpuNvlinks) -> Iterator[Finding]:
    """An NVLink 5 whose errors are more than it can correct."""
    rate, most = row.get("effective_ber") or 0.0, fabric.most_wrong_bits()
    if rate > most:
        yield Finding(
            f"{label(card)} has an NVLink with a rate of wrong bits of {rate:.1g} after correction,"
            f" at most {most:g} are healthy",
            "see kernel.log (on the host: nvidia-smi nvlink -e shows the link, Effective BER);"
            " drain the host and reset its GPUs; if it stays so, have the board serviced",
        )


def _model(card: SmiDevice, ids: Mapping[str, str]) -> tuple[str, str | None]:
    """What tells a GPU's model: its name and its PCI device id."""
    return card["name"] or "", ids.get(str(card["address"]))


def _active(row: GpuNvlinks) -> int:
    return sum(link["active"] is True for link in row["links"] or [])


@dataclass(frozen=True)
class _Nvlinks:
    """The NVLinks of a GPU, and what says how many of them must be active.

    `siblings`: the most that GPUs of this model in this host have active.
    """

    card: SmiDevice
    row: GpuNvlinks
    model: fabric.Nvlinks | None
    declared: int | None
    siblings: int
    alone: bool
    hypervisor: bool

    def have(self, number: int | str) -> str:
        down = [str(link["link"]) for link in self.row["links"] or [] if link["active"] is False]
        which = f" (inactive: {', '.join(down)})" if down else ""
        return f"{label(self.card)} has {number} NVLinks active{which}"

    @property
    def by_design(self) -> str:
        """What to declare in a virtual machine, whose host may turn off all of its NVLinks."""
        return f"; {self.declare}" if self.hypervisor and not _active(self.row) else ""

    @property
    def declare(self) -> str:
        active = _active(self.row)
        return f"if {active} are right for this host, declare gpu_expect: {{nvlinks: {active}}}"


def _nvlinks(found: _Nvlinks) -> Iterator[Finding | Evidence]:
    """By the declaration, else by the model, else as unknown."""
    card, links, model = found.card, found.row["links"] or [], found.model
    active = _active(found.row)
    if found.row["mig"] or model_names.is_share(card["name"] or ""):
        yield Evidence(f"{label(card)} is split: its NVLinks are not judged")
        return
    silent = [
        f"{link['link']} (NVML status {link['status']})" for link in links if link["active"] is None
    ]
    if silent:
        yield Finding(
            f"{label(card)} does not report the state of NVLinks {', '.join(silent)}",
            "see kernel.log and gpu.smi; on the host: nvidia-smi nvlink -s",
            verdict=Verdict.INCONCLUSIVE,
        )
    elif found.declared is not None:
        if active < found.declared:
            yield Finding(
                f"{found.have(active)}, declared is gpu_expect: {{nvlinks: {found.declared}}}",
                f"{'reseat the NVLink bridges; ' if model and model.bridge else ''}"
                f"{_repair(found.hypervisor)}",
            )
    elif found.alone and not (active and model and model.wired):
        yield Evidence(f"{label(card)} has no other GPU to link with")
    elif model and model.wired:
        yield from _on_a_board(found, model)
    elif model and model.bridge:
        yield from _by_bridges(found, model)
    elif active < max(model.links if model else len(links), found.siblings):
        known = "" if model else ", and this release of gpufleet does not know its model's NVLinks"
        yield Finding(
            f"{found.have(f'{active} of {model.links if model else len(links)}')}{known}",
            f"{found.declare}; else compare with nvidia-smi topo -m of a healthy host of this"
            " model, and see kernel.log for Xid 74",
            # Virtual machines that share a board have a part of its links each.
            verdict=Verdict.NOT_DECLARED if model and found.hypervisor else Verdict.INCONCLUSIVE,
        )


def _on_a_board(found: _Nvlinks, model: fabric.Nvlinks) -> Iterator[Finding]:
    if not found.row["links"]:
        yield Finding(
            f"{label(found.card)} reports no NVLink, its model has {model.links}",
            f"check whether the driver disables NVLink (NVreg_NvLinkDisable){found.by_design}",
            verdict=Verdict.INCONCLUSIVE,
        )
    elif _active(found.row) < model.links:
        yield Finding(
            found.have(f"{_active(found.row)} of {model.links}"),
            f"{_repair(found.hypervisor)}{found.by_design}",
        )


def _by_bridges(found: _Nvlinks, model: fabric.Nvlinks) -> Iterator[Finding]:
    """Whether somebody plugged in a bridge, only the declaration says."""
    active, bridge = _active(found.row), model.bridge or 1
    if active == model.bridged or not found.row["links"]:
        return
    if active % bridge:
        yield Finding(
            f"{found.have(active)}; a bridge connects {bridge}",
            "reseat the NVLink bridge; on the host: nvidia-smi nvlink -s",
            verdict=Verdict.INCONCLUSIVE,
        )
    elif active or found.siblings:
        yield Finding(
            f"{found.have(active)}; all of its bridges connect {model.bridged}"
            f"{f', and another GPU here has {found.siblings}' if found.siblings > active else ''}",
            f"reseat the NVLink bridges; {found.declare}",
            verdict=Verdict.INCONCLUSIVE,
        )
    else:
        yield Finding(
            f"{label(found.card)} has no NVLink active; gpu_expect.nvlinks: not set",
            f"declare gpu_expect: {{nvlinks: {model.bridged}}} if it has its NVLink bridges, or"
            " {nvlinks: 0} if it has none",
            verdict=Verdict.NOT_DECLARED,
        )


def _repair(hypervisor: bool) -> str:
    if hypervisor:
        return (
            "see driver.fabric and kernel.log (Xid 74, SXids); stop the instance and start it"
            " on another machine, and report this one to its provider"
        )
    return (
        "see driver.fabric and kernel.log (Xid 74, SXids); drain the host and reboot it; if"
        " the links stay inactive, have the board serviced"
    )
