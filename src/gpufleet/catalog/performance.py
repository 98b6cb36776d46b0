"""Performance floors: the lowest rates of a healthy GPU (catalog/data/performance.yml)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from operator import itemgetter

from . import facts
from .records import Row

_GB_PER_GIB = 1e9 / 2**30


@dataclass(frozen=True)
class Floors:
    """The lowest rates of a healthy GPU, and the published figures they are derived from."""

    tflops: float
    gib_s: float
    because: str


@cache
def floors(name: str) -> Floors | None:
    """The floors of a GPU by its name in nvidia-smi; None if the model is not known."""
    table = facts.document("performance.yml")
    tokens = _tokens(name)
    if any(_within(tokens, other) for other in table["not"]):
        return None
    best: tuple[int, Row] = (0, {})
    for row in table["models"]:
        for model in row["names"]:
            if _within(tokens, model):
                best = max(best, (len(_tokens(model)), row), key=itemgetter(0))
    if not best[0]:
        return None
    row, share = best[1], table["share"]
    return Floors(
        tflops=round(row["tflops"] * share["tflops"], 2),
        gib_s=round(row["gb_s"] * _GB_PER_GIB * share["gib_s"]),
        because=f"{share['tflops']:.0%} of {row['tflops']} TFLOP/s and {share['gib_s']:.0%} of"
        f" {row['gb_s']} GB/s, data sheet: {row['sheet']}",
    )


def _within(tokens: list[str], name: str) -> bool:
    wanted = _tokens(name)
    return any(tokens[at : at + len(wanted)] == wanted for at in range(len(tokens)))


def _tokens(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
