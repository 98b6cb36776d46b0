"""Elements of `nvidia-smi -q -x`: how each is judged, and which drivers print it for which GPUs.

`smi_rules.yml` has the judgement, `smi_fields.yml` what real documents print. Pure, but for reading
these two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from gpufleet.documents.types import Row

from . import facts, pci, resets, versions

# Generations without a sample, each with the generation whose elements it prints.
LIKE = {"Fermi": "Kepler", "Maxwell": "Pascal"}


# A rule is made once and compared by identity: comparing all fields takes longer than applying it.
@dataclass(frozen=True, eq=False)
class Rule:
    """How one element, or several that are read together, is judged."""

    name: str
    check: str
    read: str
    shapes: tuple[tuple[str, ...], ...]
    row: Row

    @property
    def key(self) -> str | None:
        """The key of the snapshot that has its value, if one has."""
        return self.row.get("key")


@cache
def rules(check: str) -> tuple[Rule, ...]:
    """The rules of one check."""
    return tuple(rule for rule in all_rules() if rule.check == check)


@cache
def all_rules() -> tuple[Rule, ...]:
    """All rules, in the order of the file."""
    found = []
    for row in facts.document("smi_rules.yml")["rules"]:
        shapes = row.get("shapes") or [[path] for path in row["paths"]]
        found.append(
            Rule(
                row["name"], row["check"], row["read"], tuple(tuple(shape) for shape in shapes), row
            )
        )
    return tuple(found)


def remedy(name: str) -> str:
    """The text of a remedy; `{gpu}` stands for the card's number."""
    return resets.with_steps(str(facts.document("smi_rules.yml")["remedies"][name]))


@cache
def _patterns() -> tuple[re.Pattern[str], dict[re.Pattern[str], Row]]:
    texts = facts.document("smi_rules.yml")["texts"]
    return re.compile(texts["no_value"], re.IGNORECASE), {
        re.compile(pattern, re.IGNORECASE): row for pattern, row in texts["faults"].items()
    }


@lru_cache(maxsize=1024)
def no_value(text: str) -> bool:
    """Return whether the text says that the card has no such value."""
    return _patterns()[0].match(text) is not None


def excused(text: str) -> bool:
    """Return whether an error says that an action is not allowed, or not known to the library."""
    return re.search(facts.document("smi_rules.yml")["texts"]["excused"], text, re.I) is not None


def of_the_host() -> list[str]:
    """The elements that describe the host's side of a card, and not the card."""
    found: list[str] = facts.document("smi_rules.yml")["texts"]["of_the_host"]
    return found


def judged(path: str) -> bool:
    """Return whether a rule reads this element of every card, or one in it."""
    return path in _judged()


@cache
def _judged() -> frozenset[str]:
    """The elements that rules read, with each block that they are in."""
    found = (
        f"{rule.row['each']}/{path}" if rule.row.get("each") else path
        for rule in all_rules()
        if "only" not in rule.row
        for shape in rule.shapes
        for path in shape
    )
    return frozenset(
        "/".join(steps[:count])
        for steps in (path.split("/") for path in found)
        for count in range(1, len(steps) + 1)
    )


@lru_cache(maxsize=1024)
def is_model(name: str | None, device: str, generation: str | None, group: str) -> bool:
    """Return whether a GPU is of a model group of `smi_rules.yml`; `device`: its `pci_device_id`.

    A GPU that no table has counts as a member of a group with a row `unlike`, unless its name has
    one of the words there, if its generation is one of the last two, or is not known.
    """
    row, found = facts.document("smi_rules.yml")["models"][group], _device(device)
    if found and (found.chip in row.get("chips", ()) or found.number in row.get("devices", ())):
        return True
    if re.search(row["names"], name or ""):
        return True
    return (
        found is None
        and generation in {None, "Hopper", "Blackwell"}
        and "unlike" in row
        and not re.search(row["unlike"], name or "")
    )


def _device(text: str) -> pci.Device | None:
    match = re.match(r"(?:0x)?([0-9a-f]{4})10de$", text, re.I)
    return pci.device(match[1]) if match else None


@cache
def has_health(check: str) -> bool:
    """Return whether a check is about elements of health that no driver is known to print."""
    table = facts.document("smi_rules.yml")["newer"]
    return check in {*table["blocks"], table["otherwise"]}


@lru_cache(maxsize=4096)
def owner(path: str) -> str | None:
    """The check of an element of health that no driver is known to print; None of any other."""
    table, plain = facts.document("smi_rules.yml")["newer"], re.sub(r"\[\d+\]", "", path)
    if plain in _demanded() or judged(plain) or re.search(table["known"], plain):
        return None
    named = re.search(table["names"], plain.rpartition("/")[2])
    return next(
        (
            check
            for check, blocks in table["blocks"].items()
            if any(plain.startswith(f"{block}/") for block in blocks)
        ),
        table["otherwise"] if named else None,
    )


@lru_cache(maxsize=1024)
def is_neutral(text: str) -> bool:
    """Return whether a text says that nothing is wrong, whatever its element is."""
    neutral = facts.document("smi_rules.yml")["newer"]["neutral"]
    return no_value(text) or re.search(neutral, text, re.I) is not None


@lru_cache(maxsize=1024)
def fault(text: str) -> Row | None:
    """The card's fault that an error text reports: `says` and `remedy`; None of other texts."""
    return next((row for pattern, row in _patterns()[1].items() if pattern.search(text)), None)


@cache
def _demanded() -> dict[str, dict[str, str]]:
    return {row["path"]: row["demanded"] for row in facts.document("smi_fields.yml")["elements"]}


def is_since(driver: str, first: str) -> bool:
    """Return whether a driver is this one or a later one."""
    return versions.is_dotted(driver) and versions.key(driver) >= versions.key(first)


# The first driver whose nvidia-smi writes a type of document, without the blocks that it dropped.
DROPPED = {13: "580"}


@cache
def demanded(rule: Rule, generation: str | None, driver: str, dtd: int | None = None) -> bool:
    """Return whether this driver prints a rule's element for a GPU of this generation.

    A GPU whose generation is not known counts as one of the newest; what is only evidence is not
    demanded. `dtd` is the version of the document's type: an nvidia-smi newer than the driver no
    longer prints what was dropped.
    """
    if rule.row.get("once") or "note" in rule.row or not versions.is_dotted(driver):
        return False
    if (since := rule.row.get("from")) and is_since(driver, since):
        return True
    return any(
        _prints(_demanded().get(path, {}), generation or NEWEST, driver, dtd)
        for shape in rule.shapes
        for path in shape
    )


def _prints(known: Mapping[str, str], generation: str, driver: str, dtd: int | None) -> bool:
    first, _, last = known.get(LIKE.get(generation, generation), "").partition("-")
    return (
        bool(first)
        and versions.key(first) <= versions.key(driver)
        and (
            not last
            or (versions.key(driver) <= versions.key(last) and not written_later(last, dtd))
        )
    )


def written_later(driver: str, dtd: int | None) -> bool:
    """Return whether a document of this type is of an nvidia-smi later than this driver's."""
    return versions.is_dotted(driver) and any(
        (dtd or 0) >= version and versions.key(driver) < versions.key(since)
        for version, since in DROPPED.items()
    )


def written_earlier(driver: str, dtd: int | None) -> bool:
    """Return whether a document of this type is of an nvidia-smi earlier than this driver's."""
    return (
        dtd is not None
        and versions.is_dotted(driver)
        and any(
            dtd < version and versions.key(driver) >= versions.key(since)
            for version, since in DROPPED.items()
        )
    )


GENERATIONS = ("Kepler", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell")
NEWEST = GENERATIONS[-1]
# By the first number of the compute capability; 7 and 8 have two generations each.
_CAPABILITIES = {
    "2": "Fermi",
    "3": "Kepler",
    "5": "Maxwell",
    "6": "Pascal",
    "7": "Volta",
    "7.5": "Turing",
    "8": "Ampere",
    "8.9": "Ada",
    "9": "Hopper",
    "10": "Blackwell",
    "11": "Blackwell",
    "12": "Blackwell",
}


def generation(elements: Mapping[str, str], capability: str | None) -> str | None:
    """The generation of a GPU, by its PCI id, its architecture's name or compute capability."""
    return _generation(
        elements.get("pci/pci_device_id", ""),
        elements.get("product_architecture") or "",
        capability,
    )


@lru_cache(maxsize=1024)
def _generation(device: str, architecture: str, capability: str | None) -> str | None:
    if found := _device(device):
        capability = found.capability
    name = architecture.partition(" ")[0]
    if capability:
        return _CAPABILITIES.get(capability) or _CAPABILITIES.get(capability.partition(".")[0])
    return name if name in {*GENERATIONS, *LIKE} else None
