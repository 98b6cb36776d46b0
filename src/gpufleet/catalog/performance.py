"""Floors: how fast a GPU of a known model multiplies and copies at the very least."""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import itemgetter

from . import facts
from .records import Row

_GB_PER_GIB = 1e9 / 2**30


@dataclass(frozen=True)
class Floors:
    """The least of a healthy GPU, and of which published figures that is a share."""

    tflops: float
    gib_s: float
    because: str


def floors(name: str) -> Floors | None:
    """Of a GPU by its name, as nvidia-smi shows it; None where none is known of it."""
    table = facts.document("performance.yml")
    words = _words(name)
    if any(_within(words, other) for other in table["not"]):
        return None
    best: tuple[int, Row] = (0, {})
    for row in table["models"]:
        for model in row["names"]:
            if _within(words, model):
                best = max(best, (len(_words(model)), row), key=itemgetter(0))
    if not best[0]:
        return None
    row, share = best[1], table["share"]
    return Floors(
        tflops=round(row["tflops"] * share["tflops"], 2),
        gib_s=round(row["gb_s"] * _GB_PER_GIB * share["gib_s"]),
        because=f"{share['tflops']:.0%} of {row['tflops']} TFLOP/s and {share['gib_s']:.0%} of"
        f" {row['gb_s']} GB/s, data sheet: {row['sheet']}",
    )


def _within(words: list[str], name: str) -> bool:
    wanted = _words(name)
    return any(words[at : at + len(wanted)] == wanted for at in range(len(words)))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
