"""One difference from the nights before: an entry of the CHANGES document."""

from __future__ import annotations

from dataclasses import dataclass

# The order in which changes are listed.
WEIGHTS = ("bad", "good", "note")


@dataclass(frozen=True)
class Change:
    """One difference; `text` is a sentence without the host's name, `strikes` counts nights."""

    kind: str
    host: str
    check: str | None
    before: str | None
    after: str | None
    text: str
    remedy: str
    weight: str
    strikes: int = 0


def count_nights(count: int) -> str:
    """The number of nights as text."""
    return "one night" if count == 1 else f"{count} nights"
