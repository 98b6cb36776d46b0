"""One difference from the nights before: an entry of the CHANGES document."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpufleet.documents.nightly import ChangeEntry, Weight
from gpufleet.documents.text import gpufleet
from gpufleet.documents.verdict import Silenced

# Findings of the history, which are no verdicts: a GPU slower than its own past, and a card, host
# or group that is worse than its siblings or than before.
SLOW, OUTLIER = "SLOW", "OUTLIER"
_DEEP = "./gpufleet verify --deep"
# The order in which changes are listed.
WEIGHTS: tuple[Weight, ...] = ("bad", "good", "note")


def limited(remedy: str, host: str) -> str:
    """The remedy with its deep verification limited to the host: it loads all cards for minutes."""
    return remedy.replace(_DEEP, gpufleet("verify", "--limit", host, "--deep"))


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
    # The text that a silence compares, where the cause differs from night to night.
    known_as: str = ""
    # The silence that covers it.
    silenced: Silenced | None = None

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
        if self.known_as:
            entry["known_as"] = self.known_as
        if self.silenced:
            entry["silenced"] = self.silenced
        return entry


def count_nights(count: int) -> str:
    """The number of nights as text."""
    return "one night" if count == 1 else f"{count} nights"


# A number differs from night to night and is no other cause, but a count of parts is one. How many
# hosts, or GPUs of other hosts, were compared is none: it depends on who was reached.
_UNITS = r"samples|TFLOP|MiB|GiB|hosts|GPUs, each"
_COUNTS = re.compile(rf"(?<![\d.])\d+ of \d+(?!\d|\.\d| (?:{_UNITS}))|(?<=and )\d+(?= more)")
# Numbers that count parts or name them, of which a capitalised word before them names the first.
_PARTS = "|".join(
    (
        r"\d+(?= x | NVLinks )",
        r"(?<=inactive: )\d+(?:, \d+)*",
        r"(?<![^\s(])[A-Z]\S* \d+(?:(?:,|;| and|, and) \d+(?=$|[,;:.)](?!\d)| (?:and|of|have) ))+",
    )
)
_NUMBER = r"(?<![\w./:-])\d+(\.\d+)?(?![\w/:-]|\.\d)"
_NUMBERS = re.compile(rf"(?<![\w./:-])(?P<parts>{_PARTS})|{_NUMBER}")


def comparable(cause: str) -> tuple[str, ...]:
    """The parts that two causes have in common if they are the same cause.

    Both sides of a comparison come from here: what is stored is the cause as the check gave it.
    """
    return without_numbers(cause), *_COUNTS.findall(cause)


def without_numbers(cause: str) -> str:
    """Replace the numbers in a cause that differ from night to night; numbers in names stay.

    `GPU 3`, `GPUs 0 and 5`, `CUDA 11.8`, `Xid 79` and the count in `31 x 64GiB` are names,
    `at 9.13 TFLOP/s` and `pid 4711` are not.
    """

    def number(found: re.Match[str]) -> str:
        if found["parts"]:
            return found[0]
        word = cause[: found.start()].split()[-1:]
        return found[0] if word and word[0][0].isupper() else "#"

    return _NUMBERS.sub(number, cause)
