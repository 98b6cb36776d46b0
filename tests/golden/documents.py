"""Keep documents as {place: value}, in a file of compressed JSON for each area.

A file has the whole content of a document, or the differences from a document that is like it.
Compression hides the texts from `git grep`, which finds a message where the code has it.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
SUFFIX = ".json.gz"

# Where in the program an error arose changes with every edit of it.
FRAMES = re.compile(r"\n\S+\.py:\d+ in \w+")

Values = dict[str, Any]
Document = Mapping[str, Any]


@dataclass(frozen=True)
class Golden:
    """A document by its places; `like` is the name of one that it resembles."""

    values: Values
    like: str = ""


# By "AREA: NAME".
Goldens = dict[str, Golden]


def flat(value: object, place: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of a document with its place; a list without mappings and lists is one value."""
    parts: Iterator[tuple[object, object]]
    if isinstance(value, Mapping) and value:
        parts = iter(value.items())
    elif isinstance(value, list | tuple) and any(
        isinstance(each, Mapping | list | tuple) for each in value
    ):
        parts = iter(enumerate(value))
    else:
        if isinstance(value, str):
            value = FRAMES.sub("", value)
        yield place, [*value] if isinstance(value, tuple) else value
        return
    for key, part in parts:
        yield from flat(part, f"{place} / {key}" if place else str(key))


def kept(goldens: Goldens) -> dict[str, dict[str, Document]]:
    """The content of each area's file: differences where they are fewer than the values."""
    areas: dict[str, dict[str, Document]] = defaultdict(dict)
    for key, golden in goldens.items():
        area, name = key.split(": ", 1)
        row: dict[str, Any] = {"values": golden.values}
        if golden.like:
            base, absent = goldens[golden.like].values, object()
            differ = {
                place: value
                for place, value in golden.values.items()
                if base.get(place, absent) != value
            }
            without = sorted(base.keys() - golden.values.keys())
            if len(differ) + len(without) < len(golden.values):
                row = {"like": golden.like, "values": differ, "without": without}
        areas[area][name] = row
    return areas


def read_area(area: str) -> dict[str, Any]:
    """The content of an area's file."""
    found: dict[str, Any] = json.loads(gzip.decompress((DATA / f"{area}{SUFFIX}").read_bytes()))
    return found


def read() -> dict[str, Values]:
    """All kept documents, whole."""
    rows = {f"{area}: {name}": row for area in written() for name, row in read_area(area).items()}
    found: dict[str, Values] = {}

    def whole(key: str) -> Values:
        if key not in found:
            row = rows[key]
            base = whole(row["like"]) if "like" in row else {}
            without = {*row.get("without", ())}
            found[key] = {
                **{place: value for place, value in base.items() if place not in without},
                **row["values"],
            }
        return found[key]

    return {key: whole(key) for key in rows}


def written() -> list[str]:
    """The areas that have a file."""
    return sorted(
        path.relative_to(DATA).as_posix().removesuffix(SUFFIX) for path in DATA.rglob(f"*{SUFFIX}")
    )


def write(goldens: Goldens) -> list[str]:
    """Write the files whose content differs; returns their areas.

    The bytes decide nothing: another version of the compressor may pack the same content otherwise.
    """
    areas = kept(goldens)
    changed = []
    for area in sorted({*areas, *written()}):
        path = DATA / f"{area}{SUFFIX}"
        if area not in areas:
            path.unlink()
        elif not path.exists() or read_area(area) != areas[area]:
            text = json.dumps(areas[area], indent=1, sort_keys=True, ensure_ascii=False)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(f"{text}\n".encode(), mtime=0))
        else:
            continue
        changed.append(area)
    return changed
