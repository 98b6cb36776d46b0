"""One thing that is different tonight: an entry of the CHANGES document."""

from __future__ import annotations

from dataclasses import dataclass

# In this order they are told.
WEIGHTS = ("bad", "good", "note")


@dataclass(frozen=True)
class Change:
    """One thing that is different; `text` is a sentence that does without the host's name."""

    kind: str
    host: str
    check: str | None
    before: str | None
    after: str | None
    text: str
    remedy: str
    weight: str
    strikes: int = 0


def nights_of(count: int) -> str:
    """So many nights, in words."""
    return "one night" if count == 1 else f"{count} nights"
