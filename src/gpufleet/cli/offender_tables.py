"""The tables of `history --offenders` for people. Prints; reads nothing."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from gpufleet.documents.nightly import Failure, Offender, Offenders
from gpufleet.watch.change import count_nights

# Hosts and cards that are listed; `--json` has all of them.
MOST_LISTED = 20
# Failures of each that are listed, the newest ones.
MOST_FAILURES = 5


def show(console: Console, found: Offenders) -> None:
    """A heading for each host and card, and a line for each of its failures."""
    nights, rows = found["nights"], found["offenders"]
    if not nights:
        console.print("No nightly run is recorded yet.")
        return
    console.print(
        Text(f"{count_nights(len(nights))}, {nights[0][:10]} to {nights[-1][:10]}", style="bold")
    )
    if not rows:
        console.print(Text("✓ no host and no card lost a night", style="green"))
    for row in rows[:MOST_LISTED]:
        console.print(_heading(row), soft_wrap=True)
        hidden = len(row["failures"]) - MOST_FAILURES
        if hidden > 0:
            console.print(Text(f"  {hidden} earlier failures: see --json", style="dim"))
        for failure in row["failures"][-MOST_FAILURES:]:
            _failure(console, failure)
    if len(rows) > MOST_LISTED:
        console.print(f"{len(rows) - MOST_LISTED} more: see --json", markup=False)


def _heading(row: Offender) -> Text:
    where = f" in {row['place']}" if row["kind"] == "gpu" else ""
    what = "before in" if row["kind"] == "gpu" else "before named"
    before = f", {what} {', '.join(row['before'])}" if row["before"] else ""
    text = Text()
    text.append(f"{row['name']}", style="bold")
    text.append(f"{where}{before}: {count_nights(row['nights_lost'])} lost of {row['nights']}")
    if row["replace"]:
        recoveries = len(row["failures"]) - 1
        text.append(
            f"; for replacement: it failed again after {recoveries} recoveries", style="bold red"
        )
    return text


def _failure(console: Console, failure: Failure) -> None:
    first, last = failure["first"][:10], failure["last"][:10]
    span = first if first == last else f"{first} to {last}"
    checks = ", ".join(failure["checks"])
    text = Text(f"  {span}, {count_nights(failure['nights'])}: ", style="")
    text.append(f"{checks}: " if checks else "", style="bold")
    text.append(failure["cause"])
    console.print(text, soft_wrap=True)
    for sentence in failure["done"]:
        console.print(Text(f"    {sentence}", style="cyan"), soft_wrap=True)
    if not failure["done"]:
        ended = "it ended by itself" if failure["over"] else "nothing was done yet"
        console.print(Text(f"    as far as is recorded, {ended}", style="dim"), soft_wrap=True)
