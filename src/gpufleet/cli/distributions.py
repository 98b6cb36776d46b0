"""`gpufleet history --distributions`: how the cards of each group are distributed tonight."""

from __future__ import annotations

from collections import defaultdict
from fnmatch import fnmatchcase
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpufleet.catalog import yardstick as facts
from gpufleet.watch import siblings, strips
from gpufleet.watch.history import NIGHTLY, History
from gpufleet.yardstick.values import WINDOW, Analysis, Finding, Spread

SCHEMA = 1
# A strip has so many columns, from the worst card to the best one.
COLUMNS = 40
_BARS = " ▁▂▃▄▅▆▇█"

Document = dict[str, Any]


def document(
    history: History, host: str | None, measure: str | None, alerts: float | None = None
) -> Document:
    """The distribution of each group and measure in the newest nightly run, and its outliers.

    Only those of a host's cards, or of a measure, if one is given. Offsets are shares of the
    group's centre, or in the unit of their kind. `alerts`: the budget of false alarms a month, by
    default that of the nightly run.
    """
    nights = history.nights(WINDOW, NIGHTLY)
    alerts = history.alerts_per_month if alerts is None else alerts
    tonight = siblings.compare(history, nights, alerts)[1] if nights else Analysis()
    return {
        "schema": SCHEMA,
        "night": nights[-1].started if nights else None,
        "alerts_per_month": alerts,
        "distributions": [
            _distribution(spread, tonight.of(spread))
            for spread in sorted(tonight.spreads, key=lambda each: (each.group, each.measure))
            if fnmatchcase(spread.measure, measure or "*")
            and (host is None or any(host == name for name, _ in spread.offsets))
        ],
    }


def _distribution(spread: Spread, findings: list[Finding]) -> Document:
    return {
        "group": spread.group,
        "measure": spread.measure,
        "kind": spread.kind,
        "centre": spread.centre,
        "cards": [
            {"host": host, "card": card, "offset": round(offset, 5)}
            for (host, card), offset in sorted(spread.offsets.items(), key=lambda each: each[1])
        ],
        "findings": [
            {
                "method": each.method,
                "measure": each.measure,
                "host": each.host or None,
                "card": each.card or None,
                "hosts": list(each.hosts),
                "change": round(each.change, 5),
                "bound": round(each.bound, 5),
                "nights": each.nights,
                "fails": each.fails,
            }
            for each in findings
        ],
    }


def show(console: Console, found: Document) -> None:
    """A strip for each group and measure, with the outliers below it."""
    if not found["distributions"]:
        console.print(
            "No group has enough cards: a card is compared with eight siblings or more of the same"
            " model, SKU and driver.",
            soft_wrap=True,
        )
        return
    groups: dict[str, list[Document]] = defaultdict(list)
    for each in found["distributions"]:
        groups[each["group"]].append(each)
    for group, members in groups.items():
        console.print(Text(group, style="bold"), soft_wrap=True)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("measure", "cards", "usual", "least", "cards from least to most", "most"):
            right = title in {"cards", "usual", "least"}
            table.add_column(title, justify="right" if right else "left", no_wrap=True)
        for each in members:
            offsets = [card["offset"] for card in each["cards"]]
            table.add_row(
                each["measure"],
                str(len(offsets)),
                f"{each['centre']:.4g}",
                facts.amount(each["kind"], offsets[0], "+"),
                strip(offsets),
                facts.amount(each["kind"], offsets[-1], "+"),
            )
        console.print(table)
        for each in members:
            for finding in each["findings"]:
                console.print(_outlier(each, finding), soft_wrap=True)


def strip(offsets: list[float]) -> str:
    """How many cards have each offset, from the least to the most."""
    counts = strips.columns(offsets, min(offsets), max(offsets), COLUMNS)
    most = max(counts)
    # A column with a single card is seen, too.
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in counts)


def _outlier(distribution: Document, finding: Document) -> Text:
    who = " ".join(filter(None, (finding["host"], finding["card"]))) or "the group"
    if finding["hosts"]:
        who = f"{len(finding['hosts'])} hosts together"
    since = f" for {finding['nights']} nights" if finding["nights"] else ""
    change, bound = (
        facts.amount(distribution["kind"], finding[each], "+") for each in ("change", "bound")
    )
    return Text(
        f"  {'✗' if finding['fails'] else '!'} {who}: {finding['measure']} {change}{since},"
        f" bound {bound}",
        style="bold red" if finding["fails"] else "yellow",
    )
