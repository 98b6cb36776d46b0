"""The page of a fabric test: culprits, bandwidths, and those of the pairs of hosts as a heat map.

Pure, apart from the templates that are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.model.collectives import FabricTest, GroupResult
from gpufleet.model.verdict import SYMBOLS, Verdict

from .rendering import source, template

# The widest heat map that a screen shows; more hosts have the list of tests alone.
MOST_HOSTS = 64
MOST_TESTS = 2000
MARKS = {"passed": "pass", "slow": "fail", "wrong": "fail", "hung": "hung"}


@dataclass(frozen=True)
class Cell:
    """The test of two hosts. `share`: how much of the best pair's bandwidth it has, in percent."""

    text: str
    title: str
    mark: str
    share: int


def matrix(found: FabricTest) -> dict[str, dict[str, Cell]]:
    """{host: {host: cell}} of the last test of each pair; empty where none or too many have one."""
    pairs = {frozenset(test["hosts"]): test for test in found["tests"] if len(test["hosts"]) == 2}
    tested = {name for pair in pairs for name in pair}
    names = [name for name in found["hosts"] if name in tested]
    names += sorted(tested - set(names))
    if not pairs or len(names) > MOST_HOSTS:
        return {}
    best = max((test["gb_per_s"] or 0 for test in pairs.values()), default=0)
    return {
        one: {
            other: _cell(pairs[pair], best)
            for other in names
            if (pair := frozenset((one, other))) in pairs
        }
        for one in names
    }


def _cell(test: GroupResult, best: float) -> Cell:
    rate = test["gb_per_s"]
    text = test["outcome"] if rate is None else f"{rate:.3g}"
    return Cell(
        text,
        f"{' and '.join(test['hosts'])}: {test['outcome']}"
        + ("" if rate is None else f", {rate:.4g} GB/s"),
        MARKS.get(test["outcome"], "inconclusive"),
        round(100 * (rate or 0) / best) if best else 0,
    )


def render(found: FabricTest) -> str:
    """The self-contained HTML page; it loads nothing."""
    verdict = Verdict(found["verdict"])
    cells: Mapping[str, Mapping[str, Cell]] = matrix(found)
    return template("fabric.html.j2").render(
        found=found,
        style=source("report.css"),
        verdict=verdict,
        mark=verdict.value.lower(),
        symbol=SYMBOLS[verdict],
        symbols={"fail": SYMBOLS[Verdict.FAIL], "unknown": SYMBOLS[Verdict.INCONCLUSIVE]},
        releases=sorted({release for release in found["nccl"].values() if release}),
        matrix=cells,
        tests=found["tests"][:MOST_TESTS],
        left_out=max(0, len(found["tests"]) - MOST_TESTS),
        marks=MARKS,
    )
