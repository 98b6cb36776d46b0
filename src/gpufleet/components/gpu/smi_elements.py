"""Judge the elements that nvidia-smi prints of each GPU by a table, catalog/data/smi_rules.yml.

What the table demands of this driver for such a GPU and is absent, what is an error's text, and
what is neither a number nor a known word was not read: INCONCLUSIVE. `N/A` says that the GPU has
no such thing, which the table does not believe of each (`needs`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from gpufleet.catalog import fabric, model_names, pci, smi
from gpufleet.catalog.smi import Rule
from gpufleet.components.base import subjects
from gpufleet.components.base.registry import Evidence, Finding, shortened
from gpufleet.components.base.sections import Sections
from gpufleet.documents.sections.gpu import SmiDevice
from gpufleet.documents.text import quoted
from gpufleet.documents.types import Row
from gpufleet.documents.verdict import Verdict
from gpufleet.on_host.smi_document import NUMBER, SENTINEL, SENTINEL_32
from gpufleet.on_host.smi_elements import NO_ANSWER, PROCESSES

from .hidden import SHOW, denied

READ_AGAIN = "on the host: nvidia-smi -q; then ./gpufleet verify"
# The guest's side of a GPU that is shared with other virtual machines.
VIRTUAL = re.compile(r"^vgpu$", re.IGNORECASE)
# Texts of nvidia-smi for MIG's mode, or in the place of its instances, without MIG.
NO_MIG = ("Disabled", "None", "N/A")


def label(card: SmiDevice) -> str:
    """A GPU by its number and PCI address."""
    return f"GPU {card['index']} ({card['address']})"


@dataclass(frozen=True)
class _Reader:
    """The judged elements of one card, or of one MIG instance of it."""

    card: SmiDevice
    driver: str
    dtd: int | None
    label: str
    base: str = ""

    @cached_property
    def elements(self) -> Mapping[str, str]:
        return self.card.get("elements") or {}

    @cached_property
    def virtual(self) -> bool:
        return virtual(self.card)

    @cached_property
    def generation(self) -> str | None:
        """None where no table has it."""
        return smi.generation(self.elements, self.card["compute_capability"])

    def is_model(self, group: str) -> bool:
        device = self.elements.get("pci/pci_device_id", "")
        return smi.is_model(self.card["name"], device, self.generation, group)

    def text(self, path: str) -> str | None:
        """The text of an element, or of a block around it that is a text; None without one."""
        own = self.base + path
        found = self.elements.get(own)
        return _text(self.elements, own) if found is None else found


def _text(elements: Mapping[str, str], path: str) -> str | None:
    if path in elements:
        return elements[path]
    return next((text for around in _around(path) if (text := elements.get(around))), None)


@lru_cache(maxsize=1024)
def _around(path: str) -> tuple[str, ...]:
    """The blocks around an element, the innermost first."""
    parts = path.split("/")
    return tuple("/".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))


def fields(
    check_id: str, observed: Sections, known: Mapping[str | None, str] | None = None
) -> Iterator[Finding | Evidence]:
    """The results of the table's rules for each GPU, for one check.

    `known`: how the keys begin whose values were read elsewhere as well, of the GPUs by address.
    """
    report = observed.data["smi"]
    driver, dtd = report["driver_version"] or "", report.get("dtd")
    missing: dict[tuple[str, ...], list[SmiDevice]] = {}
    for card in report["devices"]:
        elsewhere = (known or {}).get(card["address"])
        if card.get("elements") is None:
            if not elsewhere:
                yield Finding(
                    f"What nvidia-smi prints of {label(card)} was read by an earlier probe:"
                    " not all of it",
                    "./gpufleet verify again",
                    verdict=Verdict.INCONCLUSIVE,
                    about=subjects.card(card["address"]),
                )
            continue
        absent: list[str] = []
        whole = _Reader(card, driver, dtd, label(card))
        for rule in smi.rules(check_id):
            if elsewhere and (rule.key or "").startswith(elsewhere):
                continue
            for reader in _readers(rule, whole):
                yield from _judge(rule, reader, absent)
        yield from _newer(check_id, whole)
        if absent and card.get("broken"):
            yield Finding(
                f"What nvidia-smi printed of {label(card)} could be read in part only",
                "see gpu.smi",
                "\n".join(absent),
                Verdict.INCONCLUSIVE,
                about=subjects.card(card["address"]),
            )
        elif absent:
            missing.setdefault(tuple(dict.fromkeys(absent)), []).append(card)
    for names, lacking in missing.items():
        yield Finding(
            f"nvidia-smi {driver} does not print of {shortened([*map(label, lacking)], 8)} what it"
            f" prints of such GPUs: {shortened(list(names), 6)}",
            f"install the nvidia-smi of driver {quoted(driver)}: this one is older"
            if smi.written_earlier(driver, dtd)
            else "on the host: nvidia-smi -q -x; if the driver is newer than this release of"
            " gpufleet,"
            " install a newer gpufleet",
            "\n".join(names),
            Verdict.INCONCLUSIVE,
            about=tuple(
                each
                for card in lacking
                for name in names
                for each in subjects.card(card["address"], name)
            ),
        )


def card_faults(card: SmiDevice) -> Iterator[Finding]:
    """Error texts that say of the card itself that it is at fault, wherever they stand."""
    found: dict[str, list[str]] = {}
    for path, text in (card.get("elements") or {}).items():
        if smi.fault(text):
            found.setdefault(text, []).append(path)
    for text, paths in found.items():
        row = smi.fault(text) or {}
        yield Finding(
            f"{label(card)} {row['says']} ({shortened(paths, 2)}: {text})",
            smi.remedy(row["remedy"]).format(gpu=card["index"]),
            "\n".join(paths),
            about=subjects.card(card["address"]),
        )


def silent_of_host(cards: Sequence[SmiDevice]) -> frozenset[str]:
    """The elements of the host's side that have one error's text on all cards."""
    return frozenset(
        path
        for path in smi.of_the_host()
        if len({(card.get("elements") or {}).get(path) for card in cards}) == 1
    )


def unjudged_errors(card: SmiDevice, silent: Collection[str] = ()) -> Iterator[Finding]:
    """Errors in the place of elements that no rule reads, but for `silent` ones of the host.

    The driver failed at them.
    """
    elements = card.get("elements") or {}
    # The elements in a block follow its path in this order.
    ordered = sorted(elements)
    failed = {
        path: text
        for path, text in elements.items()
        if _no_answer(text)
        and not smi.fault(text)
        and not smi.excused(text)
        and path not in silent
        # A gap in a list of processes says nothing of the card.
        and re.split(r"[\[/]", path)[0] not in PROCESSES
        # Rules read what is in a block, not what else is said there.
        and (not smi.judged(re.sub(r"\[\d+\]", "", path)) or _is_block(path, ordered))
    }
    if failed:
        yield Finding(
            f"{label(card)} does not answer for {shortened([*failed], 4)}"
            f" ({shortened([*dict.fromkeys(failed.values())], 2)})",
            f"see kernel.log; {READ_AGAIN}",
            "\n".join(f"{path}: {text}" for path, text in failed.items()),
            Verdict.INCONCLUSIVE,
            about=subjects.card(card["address"]),
        )


def _is_block(path: str, ordered: Sequence[str]) -> bool:
    """Return whether one of the sorted paths is in the block of this path."""
    place = bisect_left(ordered, f"{path}/")
    return place < len(ordered) and ordered[place].startswith(f"{path}/")


# Most cards print the same few hundred texts, and a host may send any.
@lru_cache(maxsize=1024)
def _no_answer(text: str) -> bool:
    return NO_ANSWER.search(text) is not None


def virtual(card: SmiDevice) -> bool:
    """Return whether the card is a guest's share of a GPU."""
    mode = (card.get("elements") or {}).get("gpu_virtualization_mode/virtualization_mode", "")
    return bool(VIRTUAL.match(mode)) or model_names.is_virtual(card["name"] or "")


def in_fabric(card: SmiDevice, *, switches: bool) -> bool:
    """Return whether the card registers with NVSwitches, seen ones or hidden ones by its id."""
    elements = card.get("elements") or {}
    device = elements.get("pci/pci_device_id", "")[:4]
    links = fabric.nvlinks(card["name"] or "", device or None)
    generation = smi.generation(elements, card["compute_capability"]) or smi.NEWEST
    split = elements.get("mig_mode/current_mig", "N/A") not in NO_MIG
    return (
        (switches or pci.behind_nvswitch(pci.digits(device)))
        and generation in {"Hopper", "Blackwell"}
        and not (links and links.bridge)
        and not virtual(card)
        and not split
    )


def portable(card: SmiDevice) -> bool:
    """Return whether the card is a GPU of a laptop."""
    return model_names.is_portable(card["name"] or "")


def _readers(rule: Rule, whole: _Reader) -> Iterator[_Reader]:
    """The whole card, or each of its MIG instances where the rule is of instances."""
    each, only, elements = rule.row.get("each"), rule.row.get("only"), whole.elements
    if only and not (whole.virtual if only == "virtual" else whole.is_model(only)):
        return
    if not each:
        yield whole
        return
    found = {
        match[0]
        for path in elements
        if path.startswith(each) and (match := re.match(rf"{re.escape(each)}(\[\d+\])?/", path))
    }
    for base in sorted(found):
        number = "/".join(
            elements.get(f"{base}{part}_instance_id", "?") for part in ("gpu", "compute")
        )
        yield replace(whole, label=f"{whole.label}, MIG instance {number},", base=base)
    if not found and (_text(elements, each) or "None") not in NO_MIG:
        # The list of instances is an error's text.
        yield replace(whole, base=f"{each}/")


def _judge(rule: Rule, reader: _Reader, absent: list[str]) -> Iterator[Finding | Evidence]:
    texts = {path: reader.text(path) for path in _shape(rule, reader)}
    if None in texts.values() and _demanded(rule, reader):
        absent.extend(f"{reader.base}{path}" for path, text in texts.items() if text is None)
    values: list[float] = []
    good = rule.row.get("good", ())
    for text in texts.values():
        if text is None:
            continue
        if (text == "None" or smi.no_value(text)) and text not in good:
            if _needed(rule, reader):
                yield _unread(rule, reader, text or "nothing")
        elif rule.read == "number":
            match = NUMBER.match(text)
            if match and rule.check == "gpu.memory-errors" and float(match[1]) < 0:
                yield _unread(rule, reader, text)  # a count that no driver means
            elif match and abs(float(match[1])) < SENTINEL and float(match[1]) != SENTINEL_32:
                values.append(float(match[1]))
            elif not match or _needed(rule, reader):
                yield _unread(rule, reader, text)
        elif rule.read == "word":
            yield from _word(rule, reader, text.partition(rule.row.get("until") or "\n")[0])
    if values:
        yield from _number(rule, reader, sum(values))


def _shape(rule: Rule, reader: _Reader) -> tuple[str, ...]:
    """The elements of the rule, or those of its shapes of which the largest part is printed."""
    if len(rule.shapes) == 1:
        return rule.shapes[0]

    def printed(paths: tuple[str, ...]) -> tuple[float, int]:
        absent = [reader.text(path) for path in paths].count(None)
        return (len(paths) - absent) / len(paths), len(paths)

    return max(rule.shapes, key=printed)


def _demanded(rule: Rule, reader: _Reader) -> bool:
    if reader.virtual and rule.check != "gpu.smi":
        return False
    return smi.demanded(rule, reader.generation, reader.driver, reader.dtd)


def _needed(rule: Rule, reader: _Reader) -> bool:
    """Return whether N/A is no answer for such a card, as it is set now."""
    needs = rule.row.get("needs")
    if (
        not needs
        or reader.virtual
        or (reader.elements.get("mig_mode/current_mig", "N/A") not in NO_MIG)
    ):
        return False
    ecc = reader.elements.get("ecc_mode/current_ecc") == "Enabled"
    generation = reader.generation or smi.NEWEST
    return (
        (ecc or not needs.get("ecc"))
        and ("generations" not in needs or generation in needs["generations"])
        and ("models" not in needs or reader.is_model(needs["models"]))
        and not ("but" in needs and reader.is_model(needs["but"]))
        and not (needs.get("desktop") and portable(reader.card))
        and ("from" not in needs or smi.is_since(reader.driver, needs["from"]))
        and not ("unless" in needs and _has_number(reader, needs["unless"]))
    )


def _has_number(reader: _Reader, path: str) -> bool:
    """Return whether another element has the value, and the card prints its own temperature."""
    texts = (reader.text(path), reader.text("temperature/gpu_temp"))
    return all(NUMBER.match(text or "") for text in texts)


def _word(rule: Rule, reader: _Reader, text: str) -> Iterator[Finding]:
    row = rule.row
    if text in row.get("good", ()):
        if (
            (same := row.get("same_as"))
            and (now := reader.text(same["path"])) in row["good"]
            and (now != text)
        ):
            yield _finding(same, reader, text, str(now))
        return
    if bad := row.get("bad", {}).get(text) or row.get("other"):
        address = reader.card["address"]
        yield replace(
            _finding(bad, reader, text),
            about=_subjects(bad.get("about") or row.get("about"), address),
            entails=(
                *subjects.reported(address, rule.name),
                *_subjects(row.get("entails"), address),
            ),
        )
    elif _no_answer(text):
        yield _unread(rule, reader, text)
    else:
        yield Finding(
            f"{reader.label} reports the {rule.name} {text!r}, which this release of"
            " gpufleet does not know",
            smi.remedy("ask"),
            verdict=Verdict.INCONCLUSIVE,
        )


def _subjects(pattern: str | None, address: str | None) -> subjects.Subjects:
    """The subjects that the table's finding is about, or entails, on this card."""
    return (pattern.format(address=address),) if pattern and address else ()


def _number(rule: Rule, reader: _Reader, value: float) -> Iterator[Finding | Evidence]:
    row = rule.row
    if (most := row.get("at_least")) and value >= most["limit"]:
        yield _finding(most, reader, f"{value:g}")
    if (least := row.get("at_most")) and value <= least["limit"] and not reader.virtual:
        yield _finding(least, reader, f"{value:g}")
    if (least := row.get("falls_to")) and not portable(reader.card):
        match = NUMBER.match(reader.text(least["against"]) or "")
        limit = float(match[1]) if match else least["otherwise"]
        if value <= limit:
            yield replace(
                _finding(least, reader, f"{value:g}", f"{limit:g}"),
                entails=subjects.slow(reader.card["address"]),
            )
    if most := row.get("rises_to"):
        match = NUMBER.match(reader.text(most["against"]) or "")
        limit = float(match[1]) if match and float(match[1]) > 0 else most["otherwise"]
        if value >= limit:
            yield _finding(most, reader, f"{value:g}", f"{limit:g}")
    if value and row.get("note"):
        yield Evidence(f"{reader.label}: {value:g} {row['note']}")


def _newer(check_id: str, reader: _Reader) -> Iterator[Finding]:
    """Findings about health elements that only a driver newer than this release prints."""
    if not smi.has_health(check_id):
        return
    found = [
        f"{path}: {text}"
        for path, text in reader.elements.items()
        if smi.owner(path) == check_id and not smi.is_neutral(text) and not _no_answer(text)
    ]
    if found:
        yield Finding(
            f"{reader.label} reports what is newer than this release of gpufleet:"
            f" {shortened(found, 4)}",
            f"{smi.remedy('ask')}; or install a newer gpufleet",
            "\n".join(found),
            Verdict.INCONCLUSIVE,
            about=subjects.card(reader.card["address"]),
        )


def _finding(row: Row, reader: _Reader, value: str, limit: str = "") -> Finding:
    milder = "milder" in row and reader.is_model(row["milder"])
    return Finding(
        f"{reader.label} {row['says'].format(value=value, limit=limit)}",
        smi.remedy(row["remedy"]).format(gpu=reader.card["index"]),
        verdict=Verdict.INCONCLUSIVE if milder else Verdict(row.get("verdict", "FAIL")),
    )


def _unread(rule: Rule, reader: _Reader, text: str) -> Finding:
    name = rule.key.replace("_", " ") if rule.key else rule.name
    said = f"{rule.key}: {text}" if rule.key else text
    return Finding(
        f"{reader.label} does not report its {name} ({said})",
        SHOW if denied(text) else READ_AGAIN,
        verdict=Verdict.INCONCLUSIVE,
        about=subjects.card(reader.card["address"], rule.key or rule.name),
    )
