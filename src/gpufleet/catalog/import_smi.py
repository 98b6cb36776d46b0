"""Reshape the gathered elements of `nvidia-smi -q -x`; part of import_facts, run by hand.

Of each element the gathered samples (real documents of 45 cards and drivers) say on which it was
printed. From them follows `demanded`: {generation of GPUs: "FIRST-LAST"}, the drivers that print
it for such a card, and without it in a document it was not read. It is demanded

- from the oldest driver in the samples on since which no sample of that generation lacks it;
- only where a sample of the generation has it, or it has no newer samples and all others have it;
- to the last driver that has it (open, if the generation's newest sample has it).

Where a block is a text (`remapped_rows: N/A`), samples of that card say nothing of what is in it.
"""

from __future__ import annotations

import re
from typing import Any

Row = dict[str, Any]
Driver = tuple[int, ...]

# The generation of a sample's card by its name, for names that are not of data centers' cards.
GENERATIONS = {
    "Kepler": r"GT 730|K80", "Pascal": r"GTX 10\d\d|P\d+\b|P400", "Volta": r"V100",
    "Turing": r"RTX 20|Tesla T4|Graphics Device", "Ampere": r"A100|A10G|RTX 30|RTX A5000",
    "Ada": r"RTX 4090|Ada Generation|L40S", "Hopper": r"H100", "Blackwell": r"B[23]00|Blackwell",
}
# A document without much of what its driver prints says nothing of what is absent.
STATES = {"value_on": "value", "na_on": "N/A", "deprecated_on": "deprecated",
          "no_permission_on": "no permission", "absent_on": "absent"}
DROPPED = ("declared", *STATES, "seen")


def driver(version: str) -> Driver:
    """A driver's version as numbers."""
    return tuple(int(part) for part in version.split("."))


def samples(facts: Row) -> list[Row]:
    """Each sample with the generation of its card."""
    return [{**row, "generation": next(name for name, pattern in GENERATIONS.items()
                                       if re.search(pattern, row["gpu"]))}
            for row in facts["samples"]]


def states(field: Row, known: list[Row]) -> dict[str, str]:
    """{id of a sample: what the element was there}; of samples that are not whole, what is said."""
    found = {sample: state for key, state in STATES.items()
             if field.get(key) != "others" for sample in field.get(key) or ()}
    if not isinstance(field["seen"], dict):
        return {}
    first, last = driver(field["seen"]["first"]), driver(field["seen"]["last"])
    for row in known:
        within = first <= driver(row["driver"]) <= last
        if row["id"] in found or row.get("partial"):
            continue
        found[row["id"]] = "value" if within and field.get("value_on") == "others" else "absent"
    return found


def demanded(path: str, states_of: dict[str, dict[str, str]], known: list[Row]) -> dict[str, str]:
    """{generation: "FIRST-LAST" driver} of an element."""
    around = [states_of[other] for other in states_of if path.startswith(f"{other}/")]
    rows = sorted(
        (driver(row["driver"]), row["driver"], row["generation"],
         states_of[path].get(row["id"]) != "absent")
        for row in known if row["id"] in states_of[path] and not row.get("partial")
        and not any(block.get(row["id"]) == "N/A" for block in around))
    first = next((row[0] for row in rows if row[3]), ())
    found = {}
    for generation in GENERATIONS:
        own = [row for row in rows if row[2] == generation]
        last = next((row for row in reversed(own) if row[3]), None)
        for version, text, _, there in rows:
            if there and last and version <= last[0] and all(
                    row[3] for row in own if version <= row[0] <= last[0]):
                found[generation] = f"{text}-{'' if last is own[-1] else last[1]}"
                break
            later = [row for row in rows if row[0] >= version]
            since = [*later, *(row for row in own if row[0] >= first)]
            if not around and not any(row[2] == generation for row in later) and all(
                    row[3] for row in since) and len({row[2] for row in later}) > 1:
                # No sample of the generation is that new, and the drivers print it for all others.
                found[generation] = f"{text}-"
                break
    return found


def table(facts: Row) -> tuple[list[Row], Row]:
    """The elements with what demands them, and the samples with the state of each element."""
    known = samples(facts)
    states_of = {field["path"]: states(field, known) for field in facts["fields"]}
    fields = [
        {**{key: value for key, value in field.items() if key not in DROPPED},
         "demanded": {} if field.get("of") == "document" or field["group"] == "mig"
         else demanded(field["path"], states_of, known)}
        for field in facts["fields"]]
    seen = {path: {state: [one for one, what in found.items() if what == state]
                   for state in sorted(set(found.values()) - {"value", "absent"})}
            | {"value": [one for one, what in found.items() if what == "value"]}
            for path, found in states_of.items() if found}
    return fields, {"samples": known, "elements": seen}
