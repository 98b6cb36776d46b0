"""One difference from the nights before: an entry of the CHANGES document."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.model.nightly import ChangeEntry, Weight

# The order in which changes are listed.
WEIGHTS: tuple[Weight, ...] = ("bad", "good", "note")


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
    weight: Weight
    strikes: int = 0
    # The check that explains it, and those that it explains.
    explained_by: str = ""
    explains: tuple[str, ...] = ()

    def entry(self) -> ChangeEntry:
        """The change as the document has it."""
        entry: ChangeEntry = {
            "kind": self.kind,
            "host": self.host,
            "check": self.check,
            "before": self.before,
            "after": self.after,
            "text": self.text,
            "remedy": self.remedy,
            "weight": self.weight,
            "strikes": self.strikes,
        }
        if self.explained_by:
            entry["explained_by"] = self.explained_by
        if self.explains:
            entry["explains"] = list(self.explains)
        return entry


def count_nights(count: int) -> str:
    """The number of nights as text."""
    return "one night" if count == 1 else f"{count} nights"
