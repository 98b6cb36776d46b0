"""The strips of the CHANGES document as drawings: a dot for the cards of a column, and outliers.

Pure: numbers in, coordinates and texts out; the template has the SVG.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from gpufleet.catalog import yardstick as facts
from gpufleet.documents.nightly import Strip

# The drawing's size, the line of its dots, and the radius of the largest dot, in pixels.
WIDTH, HEIGHT, LINE, LARGEST, SMALLEST = 420, 34, 22, 8.0, 1.5
MARGIN = 10
# So many outliers are listed beside a strip.
MOST_LISTED = 5
# A page has so many strips: those with outliers come first.
MOST_STRIPS = 60


@dataclass(frozen=True)
class Dot:
    """Cards of about the same value; the area grows with their number."""

    x: float
    radius: float


@dataclass(frozen=True)
class Mark:
    """A card beyond a bound."""

    x: float
    host: str
    card: str
    amount: str
    fails: bool


@dataclass(frozen=True)
class Plot:
    """One strip."""

    measure: str
    cards: int
    centre: str
    least: str
    most: str
    dots: Sequence[Dot]
    marks: Sequence[Mark]
    more_marks: int
    # Where the centre is.
    x: float
    title: str
    description: str


def groups(strips: Sequence[Strip]) -> list[tuple[str, list[Plot]]]:
    """Pairs of a group and its plots; those with outliers first."""
    shown = strips[:MOST_STRIPS]
    order = list(dict.fromkeys(each["group"] for each in shown))
    by_group = sorted(shown, key=lambda each: order.index(each["group"]))
    return [
        (group, list(map(_plot, members)))
        for group, members in groupby(by_group, key=lambda each: each["group"])
    ]


def _plot(strip: Strip) -> Plot:
    kind, counts = strip["kind"], strip["counts"]
    least, most = (facts.amount(kind, strip["least"], "+"), facts.amount(kind, strip["most"], "+"))
    marks = list(_marks(strip))
    failing = sum(mark.fails for mark in marks)
    centre = f"{strip['centre']:.4g}"
    what = (
        f"{len(marks) + strip['more_outliers']} beyond a bound, {failing} of those shown as faults"
        if marks
        else "none beyond a bound"
    )
    return Plot(
        strip["measure"],
        strip["cards"],
        centre,
        least,
        most,
        list(_dots(counts)),
        marks,
        strip["more_outliers"],
        _x(strip, 0.0),
        f"{strip['measure']} of {strip['cards']} cards",
        f"From {least} to {most} of the usual {centre}; {what}.",
    )


def _dots(counts: Sequence[int]) -> Iterator[Dot]:
    largest = max(counts)
    step = (WIDTH - 2 * MARGIN) / (len(counts) - 1)
    for column, count in enumerate(counts):
        if count:
            radius = max(SMALLEST, LARGEST * (count / largest) ** 0.5)
            yield Dot(round(MARGIN + column * step, 1), round(radius, 1))


def _marks(strip: Strip) -> Iterable[Mark]:
    for each in strip["outliers"]:
        amount = facts.amount(strip["kind"], each["offset"], "+")
        yield Mark(_x(strip, each["offset"]), each["host"], each["card"], amount, each["fails"])


def _x(strip: Strip, offset: float) -> float:
    span = strip["most"] - strip["least"]
    part = (offset - strip["least"]) / span if span else 0.5
    return round(MARGIN + min(1.0, max(0.0, part)) * (WIDTH - 2 * MARGIN), 1)
