"""The page of a fabric test: culprits, bandwidths, those of pairs and of rails as heat maps.

Pure, apart from the templates that are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpufleet.documents.collectives import FabricTest, GroupResult
from gpufleet.documents.verdict import SYMBOLS, Verdict

from .rendering import source, template

# The widest heat map that a screen shows; more hosts have the list of tests alone.
MOST_HOSTS = 64
# The longest table of rails.
MOST_RAIL_HOSTS = 1024
MOST_TESTS = 2000
MARKS = {"passed": "pass", "slow": "fail", "wrong": "fail", "hung": "hung"}


@dataclass(frozen=True)
class Cell:
    """A test of two hosts, or of a port. `share`: its part of the best bandwidth, in percent."""

    text: str
    title: str
    mark: str
    share: int


def matrix(found: FabricTest) -> dict[str, dict[str, Cell]]:
    """The cells of pairs' last tests, by host and host; empty where none or too many have one."""
    pairs = {
        frozenset(test["hosts"]): test
        for test in found["tests"]
        # The rates of some of the rails are no rates of the pair.
        if len(test["hosts"]) == 2 and "rails" not in test
    }
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


def rail_matrix(found: FabricTest) -> dict[str, list[Cell | None]]:
    """A cell for each port of a host, by host: the best test in which it worked alone.

    A port that is fast once is not at fault where it is slow with others. None: not tested alone.
    """
    ports = found.get("ports", {})
    if len(ports) > MOST_RAIL_HOSTS:
        return {}
    tests: dict[tuple[str, int], list[GroupResult]] = {}
    for test in found["tests"]:
        if len(rails := test.get("rails", [])) == 1:
            for host in test["hosts"]:
                tests.setdefault((host, rails[0]), []).append(test)
    best = max((t["gb_per_s"] or 0 for each in tests.values() for t in each), default=0)
    return {
        host: [
            _port_cell(f"{name} of {host}, rail {rail}", own, best)
            if (own := tests.get((host, rail)))
            else None
            for rail, name in enumerate(names)
        ]
        for host, names in ports.items()
    }


def _port_cell(what: str, tests: Sequence[GroupResult], best: float) -> Cell:
    chosen = max(tests, key=lambda test: (test["outcome"] == "passed", test["gb_per_s"] or 0))
    numbers = ", ".join(str(test["number"]) for test in tests[:8])
    cell = _cell(chosen, best)
    return replace(cell, title=f"{what}: {chosen['outcome']} at best, tests {numbers}")


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
        rails=rail_matrix(found),
        tests=found["tests"][:MOST_TESTS],
        left_out=max(0, len(found["tests"]) - MOST_TESTS),
        marks=MARKS,
    )
