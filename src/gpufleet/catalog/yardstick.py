"""Which measures and error counters are compared between cards (catalog/data/yardstick.yml)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gpufleet.documents.types import Row
from gpufleet.yardstick.values import ERRORS, Kind

from . import facts


@dataclass(frozen=True)
class Counter:
    """Errors that a card has corrected, as nvidia-smi counts them.

    `shapes`: elements of its document that are added up, as one generation or another prints them.
    """

    name: str
    shapes: tuple[tuple[str, ...], ...]
    remedy: str


@cache
def kinds() -> dict[str, Kind]:
    """The kinds of values by the pattern of their measures' names."""
    return {
        row["measures"]: Kind(
            row["name"], row["worse"], row["relative"], row["least"], row["resolution"]
        )
        for row in facts.document("yardstick.yml")["kinds"]
    }


@cache
def counters() -> tuple[Counter, ...]:
    """The error counters of each card."""
    known = facts.document("yardstick.yml")
    return tuple(
        Counter(
            row["name"],
            tuple(tuple(shape) for shape in row["shapes"]),
            " ".join(known["remedies"][row["remedy"]].split()),
        )
        for row in known["counters"]
    )


@cache
def _rows() -> dict[str, Row]:
    return {row["name"]: row for row in facts.document("yardstick.yml")["kinds"]}


def is_speed(kind: str) -> bool:
    """Return whether a card that is worse in this kind of values is slow."""
    return bool(_rows().get(kind, {}).get("speed"))


def is_relative(kind: str) -> bool:
    """Return whether changes in this kind of values are shares."""
    return bool(_rows()[kind]["relative"])


def amount(kind: str, change: float, sign: str = "") -> str:
    """A change as text, such as `4.2%`, `6.1 °C` or `12 errors`; `sign`: `+` shows it always."""
    if kind == ERRORS:
        return f"{change:{sign}.4g} errors"
    row = _rows()[kind]
    return f"{change:{sign}.1%}" if row["relative"] else f"{change:{sign}.1f} {row['unit']}"
