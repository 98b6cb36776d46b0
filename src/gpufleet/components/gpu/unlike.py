"""Properties and settings of a GPU that differ from the others of its model in this host.

What is declared is compared with the declaration instead. Nothing says which of two settings is
meant, so a difference leaves the host unjudged until it is declared or set right. What CUDA reports
of a chip does not depend on slots or settings: cards of one model have it alike.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpufleet.catalog import model_names, smi
from gpufleet.components.base import subjects
from gpufleet.components.base.registry import Finding, shortened
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.compute import ComputeDevice
from gpufleet.documents.sections.gpu import SmiDevice
from gpufleet.documents.verdict import Verdict

from .smi_elements import label, virtual

T = TypeVar("T")
# By how much a GPU's memory may differ: ECC and drivers reserve a part of it.
MEMORY_TOLERANCE = 0.07
# The model in a name, such as H100: libraries of older drivers omit or add other words.
_MODEL = re.compile(r"(?<![\w.-])(?=[\w.-]{0,40}\d)(?!\d+gb\b)[\w.-]{1,40}")
SERVICE = (
    "power the host off and on; then compare nvidia-smi -q of these GPUs; one that stays different"
    " is another product than its siblings, or has a part switched off: have it serviced"
)
SEAT = (
    "reseat the GPU, check its riser, and the firmware's settings of its slot; one that stays"
    " different: have it serviced"
)


@dataclass(frozen=True)
class Trait(Generic[T]):
    """Something that GPUs of one model have alike; `shown` is a format of its value.

    `alone`: a difference is reported, too, where no value is that of most of them.
    """

    what: str
    value: Callable[[T], Hashable]
    shown: str = "{}"
    tolerance: float = 0.0
    alone: bool = True
    verdict: Verdict = Verdict.INCONCLUSIVE
    remedy: str = SERVICE


@dataclass(frozen=True)
class _Setting:
    """A setting that can be declared; `shown` and `command` take its value."""

    key: str
    what: str
    value: Callable[[SmiDevice], int | None]
    shown: Callable[[int], str]
    command: Callable[[int], str]


@dataclass(frozen=True)
class _Difference(Generic[T]):
    """The GPUs by their value, without those that have the usual one, if most have it."""

    others: Mapping[Hashable, Sequence[T]]
    usual: Hashable
    most: bool

    def shown(self, name: Callable[[T], str], value: Callable[[Hashable], str]) -> str:
        parts = (
            f"{shortened([*map(name, cards)], 8)}: {value(each)}"
            for each, cards in self.others.items()
        )
        siblings = f"; most others of the model: {value(self.usual)}" if self.most else ""
        return "; ".join(parts) + siblings


def _differing(
    members: Sequence[T], value: Callable[[T], Hashable], tolerance: float = 0.0
) -> _Difference[T] | None:
    """How GPUs of one model differ; None where they are alike. One without a value is left out."""
    values: dict[Hashable, list[T]] = defaultdict(list)
    known = [(own, card) for card in members if (own := value(card)) is not None]
    first = _within(tolerance, (own for own, _ in known))
    for own, card in known:
        values[first.get(own, own)].append(card)
    if len(values) < 2:
        return None
    usual = max(values, key=lambda each: len(values[each]))
    most = 2 * len(values[usual]) > sum(map(len, values.values()))
    others = {each: cards for each, cards in values.items() if not most or each != usual}
    return _Difference(others, usual, most)


def _within(tolerance: float, values: Iterable[Hashable]) -> dict[Hashable, Hashable]:
    """The smallest number that counts as the same, by number, in one pass over sorted numbers."""
    found: dict[Hashable, Hashable] = {}
    least = 0.0
    numbers = {own for own in values if isinstance(own, int | float)} if tolerance else set()
    for each in sorted(numbers):
        if not found or each > least * (1 + tolerance):
            least = each
        found[each] = least
    return found


def _watts(card: SmiDevice) -> int | None:
    limit = card["power_limit_w"]
    return None if limit is None else round(limit)


def _ecc(card: SmiDevice) -> int | None:
    return None if card["ecc"] is None else int(card["ecc"])


_SETTINGS = (
    _Setting(
        "power_limit_w", "power limit", _watts, "{} W".format, "-pl {}, and again at boot".format
    ),
    _Setting(
        "ecc", "ECC mode", _ecc, lambda on: ("off", "on")[on], "-e {}, then reboot the host".format
    ),
)


def element(card: SmiDevice, path: str) -> str | None:
    """The text of an element that nvidia-smi prints of a GPU; None where it says nothing."""
    text = (card.get("elements") or {}).get(path)
    return None if text is None or smi.no_value(text) or text == "None" else text


def _text(path: str) -> Callable[[SmiDevice], str | None]:
    return lambda card: element(card, path)


# Values of nvidia-smi that do not depend on a GPU's work. The VBIOS of a replaced card may
# be a newer one: of two cards none is the odd one.
_FACTS: tuple[Trait[SmiDevice], ...] = (
    Trait("memory", lambda card: card["memory_total_mib"], "{} MiB", MEMORY_TOLERANCE),
    Trait("compute capability", lambda card: card["compute_capability"]),
    Trait("highest SM clock", lambda card: card["clock_sm_max_mhz"], "{} MHz"),
    Trait("highest memory clock", _text("max_clocks/mem_clock")),
    Trait("highest power limit", lambda card: card["power_max_w"], "{:g} W"),
    Trait(
        "VBIOS",
        _text("vbios_version"),
        alone=False,
        remedy="have the machine's maker say which VBIOS its board needs, and install it",
    ),
)
# Values of CUDA about a chip; its clocks may be a maker's own choice.
_CHIP: tuple[Trait[ComputeDevice], ...] = (
    Trait(
        "memory", lambda gpu: gpu["memory_mib"], "{} MiB", MEMORY_TOLERANCE, verdict=Verdict.FAIL
    ),
    Trait("compute capability", lambda gpu: gpu["compute_capability"], verdict=Verdict.FAIL),
    Trait("multiprocessors", lambda gpu: gpu["sm_count"], verdict=Verdict.FAIL),
    Trait("memory bus", lambda gpu: gpu["memory_bus_bits"], "{} bits", verdict=Verdict.FAIL),
    Trait("L2 cache", lambda gpu: gpu["l2_kib"], "{} KiB", verdict=Verdict.FAIL),
    Trait("warp size", lambda gpu: gpu["warp_size"], verdict=Verdict.FAIL),
    Trait("highest clock", lambda gpu: gpu["clock_mhz"], "{} MHz"),
    Trait("memory clock", lambda gpu: gpu["memory_clock_mhz"], "{} MHz"),
)


def compared(
    what: Sequence[Trait[T]],
    members: Sequence[T],
    name: Callable[[T], str],
    address: Callable[[T], str | None],
    where: str = "",
) -> Iterator[Finding]:
    """The traits in which GPUs of one model differ; `where`: who reports them."""
    for trait in what:
        # A fact of 0 was not read: others judge that.
        found = _differing(members, lambda each: trait.value(each) or None, trait.tolerance)  # noqa: B023
        if found is None or not (found.most or trait.alone):
            continue
        yield Finding(
            f"{where}GPUs of one model differ in their {trait.what}:"
            f" {found.shown(name, trait.shown.format)}",
            trait.remedy,
            verdict=trait.verdict,
            about=tuple(
                subject
                for cards in found.others.values()
                for card in cards
                for subject in subjects.card(address(card), trait.what)
            ),
        )


def unlike(plan: Plan, listed: Sequence[SmiDevice]) -> Iterator[Finding]:
    """Undeclared settings, and facts, in which GPUs of one model differ."""
    models: dict[tuple[str, float | None], list[SmiDevice]] = defaultdict(list)
    boards: dict[Hashable, list[SmiDevice]] = defaultdict(list)
    for card in listed:
        # A guest's share has the settings of the GPU below it, which the guest cannot change.
        if card["name"] and not virtual(card) and not card.get("broken"):
            models[card["name"], card["power_default_w"]].append(card)
            boards[board(card)].append(card)
    for setting in _SETTINGS:
        if plan["expect"].get(setting.key) is None:
            for own in models.values():
                yield from _as_set(setting, own)
    for own in boards.values():
        yield from compared(_FACTS, own, label, lambda card: card["address"])


def board(card: SmiDevice) -> Hashable:
    """The key that GPUs of one product share: those of another maker have other clocks."""
    ids = ("pci/pci_device_id", "pci/pci_sub_system_id")
    return (card["name"], *(element(card, path) for path in ids))


def unlike_chips(
    where: str, devices: Sequence[ComputeDevice], listed: Sequence[SmiDevice]
) -> Iterator[Finding]:
    """Findings about values of CUDA that differ between GPUs of one model."""
    cards: dict[str | None, Hashable] = {card["address"]: board(card) for card in listed}
    models: dict[Hashable, list[ComputeDevice]] = defaultdict(list)
    for device in devices:
        if device["name"] and not model_names.is_share(device["name"]):
            models[device["name"], cards.get(device["address"])].append(device)
    for own in models.values():
        yield from compared(
            _CHIP,
            own,
            lambda device: f"GPU {device['index']} ({device['address']})",
            lambda device: device["address"],
            f"{where}: ",
        )


def contradictions(
    where: str, devices: Sequence[ComputeDevice], listed: Sequence[SmiDevice]
) -> Iterator[Finding]:
    """Where CUDA and nvidia-smi say different things of the GPU at one address."""
    cards: dict[str | None, SmiDevice] = {card["address"]: card for card in listed}
    for device in devices:
        card = cards.get(device["address"]) if device["address"] else None
        if card is None or card.get("broken") or _split(card, device):
            continue
        pairs = [
            ("model", device["name"], card["name"]),
            ("compute capability", device["compute_capability"], card["compute_capability"]),
            ("MiB of memory", device["memory_mib"], card["memory_total_mib"]),
        ]
        differing = [
            f"{what}: {cuda} and {driver}"
            for what, cuda, driver in pairs
            if cuda and driver and not _same(cuda, driver)
        ]
        uuids = {str(each["uuid"]).lower() for each in (device, card) if each["uuid"]}
        differing += [f"UUID: {' and '.join(sorted(uuids))}"] if len(uuids) > 1 else []
        if differing:
            yield Finding(
                f"{where} and nvidia-smi disagree on {label(card)}: {'; '.join(differing)}",
                "see driver.loaded, and restart what was loaded before an upgrade of the driver;"
                " power the host off and on; then ./gpufleet verify",
                verdict=Verdict.INCONCLUSIVE,
                about=subjects.card(device["address"]),
            )


def _split(card: SmiDevice, device: ComputeDevice) -> bool:
    """Return whether CUDA shows an instance of the GPU, which has a part of its memory."""
    mode = (card.get("elements") or {}).get("mig_mode/current_mig")
    return mode == "Enabled" or model_names.is_share(device["name"] or "")


def _same(cuda: str | int, driver: str | int) -> bool:
    if isinstance(cuda, int) and isinstance(driver, int):
        return abs(cuda - driver) <= MEMORY_TOLERANCE * max(cuda, driver)
    if cuda == driver:
        return True
    own, other = _MODEL.findall(str(cuda).lower()), _MODEL.findall(str(driver).lower())
    return bool({*own} & {*other})


def _as_set(setting: _Setting, own: Sequence[SmiDevice]) -> Iterator[Finding]:
    found = _differing(own, setting.value)
    if found is None:
        return

    def shown(value: Hashable) -> str:
        return setting.shown(int(str(value)))

    if found.most:
        index, wanted = next(iter(found.others.values()))[0]["index"], shown(found.usual)
        command = setting.command(int(str(found.usual)))
        remedy = f"on the host: nvidia-smi -i {index} {command}; or declare"
    else:
        wanted, remedy = "...", "set it alike on all of them (on the host: nvidia-smi), and declare"
    yield Finding(
        f"GPUs of one model differ in their {setting.what}: {found.shown(label, shown)};"
        f" gpu_expect.{setting.key}: not set",
        f"{remedy} gpu_expect: {{{setting.key}: {wanted.removesuffix(' W')}}}",
        verdict=Verdict.INCONCLUSIVE,
    )
