"""How the cards of each group are distributed tonight, in few numbers, for the report's page. Pure.

Eight thousand cards are counted in columns, so that a page stays small; those that are worse than
a bound are listed.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.catalog import yardstick as facts
from gpufleet.documents.nightly import Strip, StripOutlier
from gpufleet.yardstick.values import Analysis, Finding, Spread

COLUMNS = 60
# The most outliers that are listed of one strip.
MOST_OUTLIERS = 20


def strips(tonight: Analysis) -> list[Strip]:
    """A strip for each group and measure; those with faults first, then those with notes."""
    found = [
        _strip(spread, [each for each in tonight.of(spread) if each.host])
        for spread in tonight.spreads
    ]
    return sorted(found, key=lambda each: (*_rank(each), each["group"], each["measure"]))


def columns(offsets: Sequence[float], least: float, most: float, number: int) -> list[int]:
    """How many offsets are in each of so many equal steps from the least to the most."""
    counts, span = [0] * number, most - least
    for offset in offsets:
        counts[round((offset - least) / span * (number - 1)) if span else number // 2] += 1
    return counts


def _rank(strip: Strip) -> tuple[bool, bool]:
    return not any(each["fails"] for each in strip["outliers"]), not strip["outliers"]


def _strip(spread: Spread, findings: Sequence[Finding]) -> Strip:
    outliers = [_outlier(spread, each) for each in findings]
    outliers.sort(key=lambda each: (not each["fails"], -abs(each["offset"]), each["host"]))
    offsets = list(spread.offsets.values())
    ends = [*offsets, *(each["offset"] for each in outliers)]
    least, most = min(ends), max(ends)
    return {
        "group": spread.group,
        "measure": spread.measure,
        "kind": spread.kind,
        "centre": spread.centre,
        "cards": len(offsets),
        "least": round(least, 5),
        "most": round(most, 5),
        "counts": columns(offsets, least, most, COLUMNS),
        "outliers": outliers[:MOST_OUTLIERS],
        "more_outliers": len(outliers[MOST_OUTLIERS:]),
    }


def _outlier(spread: Spread, finding: Finding) -> StripOutlier:
    """The card's place tonight: its usual offset, and the change since."""
    offset = spread.offsets.get((finding.host, finding.card), 0.0)
    if finding.method == "shift":
        relative = facts.is_relative(finding.kind)
        offset = (1 + offset) * (1 + finding.change) - 1 if relative else offset + finding.change
    return {
        "host": finding.host,
        "card": finding.card,
        "offset": round(offset, 5),
        "fails": finding.fails,
    }
