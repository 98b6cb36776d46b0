"""The terminal's output: progress while hosts are probed, then the verdicts."""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gpufleet.documents.verdict import (
    SYMBOLS,
    CheckResult,
    HostResult,
    Verdict,
    consequences,
    silence_text,
)
from gpufleet.fleet.session import Session
from gpufleet.fleet.transport.fanout import Outcome, Report

from . import guard, summary

STYLES = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.HUNG: "bold magenta",
    Verdict.UNREACHABLE: "bold magenta",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NOT_DECLARED: "dim",
}
# The most hosts that are shown one by one; of more, the healthy ones share a line.
MOST_IN_FULL = 8
# The longest line of output that is not wrapped because it is piped, and of the list of checks.
LONGEST_LINE, LIST_WIDTH = 10_000, 100
# Hosts that are named one by one.
MOST_NAMED = 4
DETAILED = (Verdict.FAIL, Verdict.HUNG, Verdict.UNREACHABLE, Verdict.INCONCLUSIVE)


class _Unpadded:
    """Writes to a file without the blanks with which rich fills lines."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write the text; the blanks at the ends of its lines are left out."""
        return self._file.write(re.sub(r"(?<! ) +(?=\n)", "", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def output() -> Console:
    """Standard output. Where it is no terminal, lines are neither wrapped nor padded."""
    if sys.stdout.isatty():
        return Console()
    return Console(file=cast(IO[str], _Unpadded(sys.stdout)), width=LONGEST_LINE)


@contextmanager
def progress(console: Console, action: str, total: int) -> Iterator[Report]:
    """A bar on a terminal; elsewhere a line per host, or for many hosts a count and failures.

    `action` is a word such as `Probing`.
    """
    begin, ended = time.monotonic(), itertools.count(1)
    if not console.is_terminal:
        console.print(f"{action} {total} host{'' if total == 1 else 's'}", markup=False)

        def line(name: str, outcome: Outcome) -> None:
            count, seconds = next(ended), f"{time.monotonic() - begin:.1f} s"
            if outcome.cause:
                message = f"{name}: {outcome.cause} ({seconds})"
            elif total <= MOST_IN_FULL:
                message = f"{name}: probed in {seconds}"
            elif count * 10 // total != (count - 1) * 10 // total:
                message = f"{count} of {total} hosts probed in {seconds}"
            else:
                return
            console.print(f"  {message}", markup=False, soft_wrap=True)

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(action, total=total)

        def advance(name: str, outcome: Outcome) -> None:
            bar.advance(task)

        yield advance


def show(console: Console, session: Session, report: Path | None, verbose: bool = False) -> Session:
    """Print the hosts, failures in full, then what passed and what was skipped.

    A healthy host is one line, and healthy ones of many hosts share one. `verbose` adds the name
    and verdict of each check. A host that cannot be shown is shown as not judged, as it is in the
    session that is returned.
    """

    def text(shown: Session) -> str:
        # Nothing is printed before all of it can be.
        with console.capture() as capture:
            _show(console, shown.for_display(), report, verbose)
        return capture.get()

    shown = guard.without_defects(session, text, text)
    console.file.write(shown.value)
    return shown.session


def _show(console: Console, session: Session, report: Path | None, verbose: bool) -> None:
    brief = len(session.hosts) > MOST_IN_FULL and not verbose
    healthy = [host.name for host in session.hosts if host.result["verdict"] == Verdict.PASS]
    if brief and healthy:
        console.print()
        console.print(_bullet(SYMBOLS[Verdict.PASS], STYLES[Verdict.PASS], fold_names(healthy)))
    for host in session.hosts:
        if not brief or host.result["verdict"] != Verdict.PASS:
            _host(console, host.name, host.result, verbose)
    console.print()
    console.print(Text(summary.headline(session), style="bold"))
    for sentence in summary.verified_statements(session):
        console.print(_bullet(SYMBOLS[Verdict.PASS], "green", sentence))
    for line in _skipped(session, verbose):
        console.print(_bullet(SYMBOLS[Verdict.NOT_DECLARED], "dim", line))
    if session.taken:
        console.print(_bullet("i", "dim", f"Saved snapshots, taken {session.taken}"))
    for note in session.notes:
        console.print(_bullet("i", "dim", note))
    if report:
        directory = Path.cwd()
        shown = report.relative_to(directory) if report.is_relative_to(directory) else report
        console.print(Text(f"Report: {shown}"), soft_wrap=True)


def fold_names(names: list[str]) -> str:
    """Host names as ClusterShell folds them: gpu[001-040,042]."""
    try:
        return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        # ClusterShell cannot parse every name that ssh and Ansible accept.
        return ", ".join(names)


def named(names: Sequence[str]) -> str:
    """Host names in a sentence: all of few, the number and the folded names of many."""
    if len(names) <= MOST_NAMED:
        return ", ".join(names)
    return f"{len(names)} hosts ({fold_names([*names])})"


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} hosts"


def _skipped(session: Session, verbose: bool) -> Iterator[Text]:
    """Lines on skipped checks: those with a remedy of their own, the rest in one line.

    With `verbose` there is a line for each, with its checks.
    """
    rest = Text()
    for group in summary.skipped_checks(session):
        text = Text(group.declaration, style="italic")
        if verbose:
            text.append(f": {', '.join(group.check_ids)} ({_some(group.hosts)})", "not italic")
        elif len(group.hosts) < len(session.hosts):
            text.append(f" ({_some(group.hosts)})", "not italic")
        if group.remedy:
            yield Text("Not verified: ").append_text(text).append(f"; {group.remedy}")
        elif verbose:
            yield Text("Skipped by declaration ").append_text(text)
        else:
            rest = Text("; ").join([rest, text]) if rest else text
    if rest:
        yield Text("Skipped by declaration (the report names the checks): ").append_text(rest)


def _bullet(symbol: str, style: str, text: str | Text) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column()
    # A path that is longer than a line is wrapped, not cut.
    table.add_column(overflow="fold")
    table.add_row(Text(symbol, style=style), text)
    return table


def _host(console: Console, name: str, result: HostResult, verbose: bool) -> None:
    verdict = Verdict(result["verdict"])
    head = Text()
    head.append(f"{SYMBOLS[verdict]} {name}", style=STYLES[verdict])
    counts = ", ".join(f"{count} {kind}" for kind, count in summary.counts(result).items())
    head.append(f"  {summary.TITLES[verdict]}  ", style="bold")
    head.append(counts, style="dim")
    console.print()
    console.print(head)
    for line in _compact(result["checks"], min(console.width, LIST_WIDTH) - 2) if verbose else ():
        console.print(Padding(line, (0, 0, 0, 2)))
    folded = consequences(result["checks"])
    for check in summary.causes(result):
        kind = Verdict(check["verdict"])
        if kind in DETAILED:
            console.print(Padding(_details(check, kind, folded.get(check["id"], [])), (1, 0, 0, 2)))


def _compact(checks: list[CheckResult], width: int) -> Iterator[Text]:
    """All checks by name; lines break only between checks, not after a symbol."""
    line = Text()
    for check in checks:
        kind = Verdict(check["verdict"])
        entry = Text(f"{SYMBOLS[kind]} {check['id']}", style=STYLES[kind])
        if line and len(line) + 2 + len(entry) > width:
            yield line
            line = Text()
        line = Text("  ").join([line, entry]) if line else entry
    yield line


def _details(check: CheckResult, kind: Verdict, explains: list[CheckResult]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(
        Text(kind.value, style=STYLES[kind]),
        Text(f"{check['id']}: {check['statement']}", style="bold"),
    )
    table.add_row("cause", Text(check["cause"]))
    table.add_row("remedy", Text(check["remedy"], style="cyan"))
    if "silenced" in check:
        table.add_row("silenced", Text(silence_text(check["silenced"])))
    if explains:
        text = Text(f"{summary.count_consequences(len(explains))}: ")
        text.append(", ".join(each["id"] for each in explains))
        table.add_row("explains", text)
    return table
