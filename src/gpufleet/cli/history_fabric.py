"""The tables of `gpufleet history --fabric`: ports, NVLinks and fabric tests. Prints only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpufleet.documents.text import quantity
from gpufleet.documents.verdict import SYMBOLS, Verdict
from gpufleet.watch.drift import NOT_THERE
from gpufleet.watch.fabric_past import DOWN, ERRORS, SLOWER, UNREAD, UP

Document = Mapping[str, Any]

_STYLE = {
    UP: "green",
    DOWN: "bold red",
    ERRORS: "bold red",
    SLOWER: "bold red",
    UNREAD: "yellow",
    NOT_THERE: "dim",
}
_NOW = {UP: "up", DOWN: "down", ERRORS: "errors", SLOWER: "slower", UNREAD: "not read"}
_VERDICT_STYLE = {"PASS": "green", "FAIL": "bold red"}
NIGHTS = "nights, oldest first"


def show(console: Console, found: Document, path: Path) -> None:
    """Ports and links that changed, how many always held, then the fabric tests."""
    nights, hosts, tests = found["nights"], found["hosts"], found["fabric_tests"]
    if not hosts and not tests:
        console.print(
            f"No port, NVLink or fabric test was recorded yet ({path}).",
            markup=False,
            soft_wrap=True,
        )
        return
    if hosts:
        span = nights[0] if len(nights) == 1 else f"{nights[0]} to {nights[-1]}"
        console.print(
            Text(f"{quantity(len(nights), 'night')}, {span}", style="bold"), soft_wrap=True
        )
        _ports(console, hosts)
        _links(console, hosts)
        _link_errors(console, hosts)
    if tests:
        _tests(console, tests)


def _ports(console: Console, hosts: Document) -> None:
    rows = [(host, port) for host, it in hosts.items() for port in it.get("ports", {}).values()]
    odd = [
        (host, port)
        for host, port in rows
        # A port that never had a link is no news.
        if set(port["nights"]) - {UP, NOT_THERE} and set(port["nights"]) - {DOWN, NOT_THERE}
    ]
    table = _table("host", "port", "role", NIGHTS, "now", "errors")
    for host, port in odd:
        table.add_row(
            host,
            port["name"],
            port["role"] or "",
            Text.assemble(*((letter, _STYLE[letter]) for letter in port["nights"])),
            _now(port),
            _errors(port["errors"]),
        )
    if odd:
        console.print(table)
    up = sum(not set(port["nights"]) - {UP, NOT_THERE} for _, port in rows)
    if up:
        console.print(Text(f"✓ {quantity(up, 'port')} up in every night", style="green"))
    if never := len(rows) - len(odd) - up:
        console.print(Text(f"– {quantity(never, 'port')} up in no night", style="dim"))


def _now(port: Document) -> Text:
    letter = port["nights"][-1]
    rates = [rate for rate in port["gb_s"] if rate]
    text = Text(_NOW.get(letter, "not there"), style=_STYLE[letter])
    if letter in (UP, ERRORS, SLOWER) and port["gb_s"][-1]:
        best = f" of {max(rates):g}" if letter == SLOWER else ""
        text.append(f", {port['gb_s'][-1]:g}{best} Gb/s", style="")
    return text


def _errors(errors: Document) -> str:
    """`symbol_error +4000 in 2 nights`."""
    return ", ".join(
        f"{counter} +{sum(grown):g} in {quantity(len(grown), 'night')}"
        for counter, line in errors.items()
        if (grown := [growth for growth in line if growth])
    )


def _links(console: Console, hosts: Document) -> None:
    rows = [
        (host, address, line)
        for host, it in hosts.items()
        for address, line in it.get("nvlinks", {}).items()
    ]
    # A GPU without a bridge has none in any night.
    most = {row[:2]: max(count or 0 for count in row[2]) for row in rows}
    odd = [row for row in rows if set(row[2]) - {None, most[row[:2]]}]
    table = _table("host", "GPU", NIGHTS, "NVLinks now")
    for host, address, line in odd:
        table.add_row(
            host,
            address,
            Text.assemble(*(_link(count, most[host, address]) for count in line)),
            f"{'not read' if line[-1] is None else line[-1]} of {most[host, address]}",
        )
    if odd:
        console.print(table)
    if held := sum(bool(most[row[:2]]) for row in rows) - len(odd):
        text = f"✓ {quantity(held, 'GPU')} with the same active NVLinks in every night"
        console.print(Text(text, style="green"))


def _link_errors(console: Console, hosts: Document) -> None:
    table = _table("host", "GPU", "NVLink errors")
    for host, it in hosts.items():
        for uuid, errors in it.get("nvlink_errors", {}).items():
            table.add_row(host, uuid, _errors(errors))
    if table.rows:
        console.print(table)


def _link(count: int | None, most: int) -> tuple[str, str]:
    letter = NOT_THERE if count is None else UP if count == most else DOWN
    return letter, _STYLE[letter]


def _tests(console: Console, tests: Sequence[Document]) -> None:
    table = _table("fabric test", "scope", "verdict", "collective", "bytes", "GB/s", "slowest")
    for test in tests:
        verdict = Verdict(test["verdict"])
        cells = [
            test["started"],
            test["scope"],
            Text(
                f"{SYMBOLS[verdict]} {verdict.value}",
                style=_VERDICT_STYLE.get(verdict.value, "yellow"),
            ),
        ]
        for row in test["bandwidths"] or [None]:
            table.add_row(*cells, *(_bandwidth(row) if row else []))
            cells = ["", "", ""]
        for culprit in test["culprits"]:
            table.add_row("", "", "", Text(culprit, style="red"))
    console.print(table)


def _bandwidth(row: Document) -> list[str]:
    least, most = row["least_gb_per_s"], row["most_gb_per_s"]
    if least is None:
        rate = "not known"
    else:
        rate = f"{least:.4g}" if least == most else f"{least:.4g} to {most:.4g}"
    slowest = " ".join(row["slowest"] or ()) if least != most else ""
    return [row["collective"], str(row["bytes"]), rate, slowest]


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, overflow="fold", min_width=10 if title == NIGHTS else None)
    return table
