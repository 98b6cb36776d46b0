"""NVLink between the GPUs of a host: that the links are active which a model must have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpufleet.catalog import fabric, model_names
from gpufleet.components.base import subjects
from gpufleet.components.base.registry import HARDWARE, Evidence, Finding, check, no_gpus_declared
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.gpu import GpuNvlinks, SmiDevice
from gpufleet.documents.verdict import Verdict

from .identity import cards, unknown_without_cards
from .smi_elements import label, virtual
from .unlike import Trait, board, compared

_BOARD = (
    "see kernel.log for Xid 74 and SXids, and driver.fabric; drain the host and reboot it; if it"
    " stays so, have the board serviced"
)


@check("gpu.nvlink", reads=("smi", "gpus"), repair=HARDWARE, skip_reason=no_gpus_declared)
def nvlink(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every NVLink that a GPU's model and bridges must have is active."""
    yield from unknown_without_cards(observed, "The NVLinks of the GPUs")
    by_address, listed = by_card(observed), cards(observed)
    ids = {device["address"]: device["device"] for device in observed.data["gpus"]["pci"]}
    most: dict[tuple[str, str | None], int] = {}
    for card in listed:
        if row := by_address.get(card["address"]):
            model = _model(card, ids)
            most[model] = max(most.get(model, 0), _active(row))
    yield from _other_ends(listed, by_address)
    for card in listed:
        row, model = by_address.get(card["address"]), _model(card, ids)
        known, declared = fabric.nvlinks(*model), plan["expect"].get("nvlinks")
        if row is None or row["links"] is None:
            yield from _unread(card, declared, known, len(listed), by_address.values())
            continue
        yield from _nvlinks(
            _Nvlinks(
                card,
                row,
                known,
                declared=declared,
                siblings=most[model],
                alone=len(listed) < 2,
                hypervisor=bool(observed.data["gpus"].get("hypervisor")),
            )
        )
        yield from _wrong_bits(card, row)
        found = [f"{name} {number}" for name, number in row["errors"].items() if number]
        unread = _active(row) and not row["errors"] and row.get("effective_ber") is None
        counters = "not read" if unread else ", ".join(found)
        yield Evidence(
            f"{label(card)}: {_active(row)} of {len(row['links'])} NVLinks are active"
            f"{f', error counters: {counters}' if counters else ''}"
        )


def _versions(row: GpuNvlinks) -> str | None:
    """The versions of a GPU's active links, as NVML numbers them."""
    found = {link["version"] for link in row["links"] or [] if link["active"] and link["version"]}
    return " and ".join(map(str, sorted(found))) or None


def _switches(row: GpuNvlinks) -> int | None:
    """To how many NVSwitches its links lead; None where one's address was not read."""
    links = [link for link in row["links"] or [] if link["active"] and link["remote"] == "switch"]
    found = {link["remote_address"] for link in links}
    return None if None in found or not found else len(found)


_ENDS: tuple[Trait[tuple[SmiDevice, GpuNvlinks]], ...] = (
    Trait("versions of NVLinks", lambda pair: _versions(pair[1]), remedy=_BOARD),
    Trait("number of NVSwitches", lambda pair: _switches(pair[1]), remedy=_BOARD),
)


def _other_ends(
    listed: Sequence[SmiDevice], by_address: Mapping[str | None, GpuNvlinks]
) -> Iterator[Finding]:
    """Findings about the other ends of NVLinks, on GPUs of one model with as many active links."""
    models: dict[Hashable, list[tuple[SmiDevice, GpuNvlinks]]] = defaultdict(list)
    for card in listed:
        row = by_address.get(card["address"])
        if row is None or row["mig"] or virtual(card) or not card["name"]:
            continue
        models[board(card), _active(row)].append((card, row))
        if " and " in (versions := _versions(row) or ""):
            yield Finding(
                f"{label(card)} has NVLinks of versions {versions}: those of one GPU are alike",
                _BOARD,
                verdict=Verdict.INCONCLUSIVE,
                about=subjects.card(card["address"], "nvlink"),
            )
    for own in models.values():
        yield from compared(
            _ENDS, own, lambda pair: label(pair[0]), lambda pair: pair[0]["address"]
        )


def by_card(observed: Sections) -> dict[str | None, GpuNvlinks]:
    """NVML's report on the NVLinks of each GPU, by PCI address."""
    rows, listed = observed.data["smi"].get("nvlink") or [], cards(observed)
    found: dict[str | None, GpuNvlinks] = {row["address"]: row for row in rows if row["address"]}
    if not found and len(rows) == len(listed):  # an NVML that reports no addresses
        found = {listed[row["index"]]["address"]: row for row in rows}
    return found


def _unread(
    card: SmiDevice,
    declared: int | None,
    known: fabric.Nvlinks | None,
    count: int,
    rows: Collection[GpuNvlinks],
) -> Iterator[Finding]:
    """A GPU of which NVML reported no NVLinks, and may have some."""
    if declared is None and count < 2 and not (known and known.wired):
        return
    if declared or (known and known.wired):
        has = f"it has {declared or (known.links if known else 0)}"
    elif declared is None and known:
        has = f"bridges can connect {known.links}"
    elif declared is None and any(row["links"] is not None for row in rows):
        has = "and it reported those of other GPUs"
    else:
        return
    yield Finding(
        f"{label(card)}: NVML did not report its NVLinks, {has}",
        "see gpu.smi; then ./gpufleet verify",
        verdict=Verdict.INCONCLUSIVE,
        entails=subjects.nvlinks(card["address"]),
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
    """The key of a GPU's model: its name and its PCI device id."""
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
        """The declaration for a virtual machine, whose host may turn off all of its NVLinks."""
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
    """Findings about NVLink bridges; only the declaration says if somebody plugged one in."""
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
