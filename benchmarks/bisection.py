# Apache-2.0, see LICENSE
"""Rounds and simulated time until a culprit is found, against tests of all pairs.

Groups of 64, 1,000 and 4,096 members with 8 rails, and one fault or two. All pairs: each member
with every other one, in rounds of disjoint pairs: one less than there are members. Times are
those of the simulated fabric (`simulated_fabric.py`), in which the test of a pair takes five
seconds. Only their proportion says something about a real fabric. Needs no lab. Writes the picture
of docs/explanation/causes.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.table import Table

from gpufleet.fabric.conclusion import Kind
from gpufleet.fabric.rounds import GroupTest, Outcome
from gpufleet.fabric.schedule import schedule

from .common import ROOT, timed
from .simulated_fabric import Fabric, Fault, deadline_s, duration_s, key, names

SIZES, RAILS = (64, 1000, 4096), 8
PICTURE = ROOT / "docs" / "explanation" / "bisection.svg"
ALL_PAIRS, LIMIT = "all pairs", "limit of the schedule"


@dataclass(frozen=True)
class Row:
    """One group with one case of faults."""

    members: int
    case: str
    rounds: int
    seconds: float
    all_pairs_s: float
    found: bool
    control_s: float


def cases(members: Sequence[str]) -> Mapping[str, list[Fault]]:
    """The faults of each case; the members of a link are far from each other."""
    first, other, third = members[7], members[-9], members[21]
    link = Fault(Kind.PAIR, (first, other))
    return {
        "one slow host": [Fault(Kind.MEMBER, (third,))],
        "one slow link": [link],
        "one slow rail": [Fault(Kind.RAIL, (), 3)],
        "a host and a link": [Fault(Kind.MEMBER, (third,), effect=Outcome.WRONG), link],
        "one hung host": [Fault(Kind.MEMBER, (third,), effect=Outcome.HUNG)],
    }


def partner(number: int, turn: int, members: int) -> int:
    """The other member of a round of the round-robin; the members are even in number."""
    last = members - 1
    if number == last:
        # The member whose double is the turn, modulo an odd number.
        return turn * (last + 1) // 2 % last
    other = (turn - number) % last
    return last if other == number else other


def all_pairs_s(fabric: Fabric) -> float:
    """The seconds of all rounds of pairs; only pairs that a fault can touch are simulated."""
    count = len(fabric.members)
    faulty = {member for fault in fabric.faults for member in fault.members}
    tried = sorted({0, *(fabric.members.index(member) for member in faulty)})
    seconds = 0.0
    for turn in range(count - 1):
        slowest = 0.0
        for number in tried:
            pair = fabric.members[number], fabric.members[partner(number, turn, count)]
            test = GroupTest(pair, fabric.rails)
            result = fabric.test(test)
            hung = result.outcome is Outcome.HUNG
            took = deadline_s(2) if hung else duration_s(test, result.bus_bandwidth_gb_s)
            slowest = max(slowest, took)
        seconds += slowest
    return seconds


def rows() -> list[Row]:
    """Every case in every group."""
    found = []
    for size in SIZES:
        for case, faults in cases(names(size)).items():
            fabric = Fabric(size, RAILS, faults)
            conclusions = []
            took = timed(lambda: conclusions.append(fabric.bisect()))  # noqa: B023 (called at once)
            culprits = {key(culprit) for culprit in conclusions[0].culprits}
            found.append(
                Row(
                    size,
                    case,
                    fabric.rounds,
                    fabric.seconds,
                    all_pairs_s(Fabric(size, RAILS, faults)),
                    culprits == {key(fault) for fault in faults},
                    took,
                )
            )
    return found


def table(found: Sequence[Row]) -> Table:
    """The comparison."""
    shown = Table(title=f"{RAILS} rails, simulated", min_width=60)
    headings = ("members", "fault", "rounds", "of all pairs", "wall", "of all pairs", "found")
    for heading in headings:
        shown.add_column(heading, justify="left" if heading in {"fault", "found"} else "right")
    for row in found:
        shown.add_row(
            f"{row.members:,}",
            row.case,
            str(row.rounds),
            f"{row.members - 1:,}",
            minutes(row.seconds),
            minutes(row.all_pairs_s),
            "yes" if row.found else "NO",
        )
    most = max(row.control_s for row in found)
    shown.caption = (
        "All pairs show that a rail is slow by every pair, and do not name it."
        f" The search itself, with the simulation, takes at most {most:.1f} s of this machine."
    )
    return shown


def limits() -> Table:
    """The schedules that are printed beforehand."""
    shown = Table(title="limits of the schedule", min_width=60)
    for heading in ("members", "rounds", "wall"):
        shown.add_column(heading, justify="right")
    for size in SIZES:
        limit = schedule(size, RAILS, deadline_s)
        shown.add_row(f"{size:,}", str(limit.rounds), minutes(limit.seconds))
    return shown


def minutes(seconds: float) -> str:
    """A duration as minutes and seconds, or hours and minutes."""
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def curves(found: Sequence[Row]) -> dict[str, list[int]]:
    """The rounds by group of each line of the picture; cases with the same rounds share a line."""
    lines: dict[tuple[int, ...], list[str]] = {tuple(size - 1 for size in SIZES): [ALL_PAIRS]}
    lines[tuple(schedule(size, RAILS, deadline_s).rounds for size in SIZES)] = [LIMIT]
    for case in dict.fromkeys(row.case for row in found):
        rounds = tuple(row.rounds for row in found if row.case == case)
        lines.setdefault(rounds, []).append(case)
    return {", ".join(labels): list(rounds) for rounds, labels in lines.items()}


COLOURS = ("#b71c1c", "#616161", "#00695c", "#5e35b1", "#a15c00", "#01579b", "#33691e")


def picture(lines: Mapping[str, Sequence[int]]) -> str:
    """Rounds by members, both logarithmic, as an SVG; each line is named at its right end."""
    left, top, width, height, highest = 60, 20, 470, 300, 4

    def x(members: int) -> float:
        return left + width * math.log2(members / SIZES[0]) / math.log2(SIZES[-1] / SIZES[0])

    def y(rounds: float) -> float:
        return top + height * (1 - math.log10(rounds) / highest)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 370"'
        ' font-family="system-ui, sans-serif" font-size="13" role="img"'
        ' aria-label="Rounds until the culprit is found, by members of the group">',
        '<rect width="760" height="370" fill="#fff"/>',
    ]
    for power in range(highest + 1):
        at = y(10**power)
        parts += [
            f'<path d="M{left} {at:.1f}H{left + width}" stroke="#ddd"/>',
            f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{10**power:,}</text>',
        ]
    parts += [
        f'<text x="{x(size):.1f}" y="{top + height + 20}" text-anchor="middle">{size:,}</text>'
        for size in SIZES
    ]
    parts.append(
        f'<text x="{left + width / 2}" y="{top + height + 40}" text-anchor="middle">'
        "members of the group; rounds upwards, both scales logarithmic</text>"
    )
    lowest = -math.inf
    ordered = sorted(lines.items(), key=lambda line: -line[1][-1])
    for (label, rounds), colour in zip(ordered, COLOURS, strict=False):
        points = [f"{x(size):.1f} {y(each):.1f}" for size, each in zip(SIZES, rounds, strict=True)]
        dashes = ' stroke-dasharray="5 4"' if label in {ALL_PAIRS, LIMIT} else ""
        # A label keeps a line's height from the one above it.
        lowest = max(y(rounds[-1]) + 4, lowest + 15)
        parts += [
            f'<path d="M{"L".join(points)}" fill="none" stroke="{colour}"'
            f' stroke-width="2"{dashes}/>',
            f'<text x="{left + width + 8}" y="{lowest:.1f}" fill="{colour}">'
            f"{rounds[-1]:,} {label}</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def measure(rounds: int, console: Console) -> Group:
    """Both tables, and the picture; the simulation is seeded, so that one round is enough."""
    del rounds
    with console.status("simulated groups"):
        found = rows()
    PICTURE.write_text(picture(curves(found)), encoding="utf-8")
    return Group(table(found), limits())
