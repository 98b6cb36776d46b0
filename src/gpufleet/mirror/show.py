"""Print what is needed, the progress, and what is missing; or build the JSON document."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from .fetch import FETCHED, Mirror, Report, Result, Row, lacking
from .needs import WHEELS, File

SCHEMA = 1
DIGITS = 16
GLANCE_S = 0.5


def needed(console: Console, mirror: Mirror, files: Sequence[File], hosts: int) -> None:
    """Print every file: its purpose, its size, and the beginning of its checksum."""
    known = sum(file.size_bytes or 0 for file in files)
    least = "at least " if any(file.size_bytes is None for file in files) else ""
    console.print(
        Text(
            f"{'1 host needs' if hosts == 1 else f'{hosts} hosts need'} {len(files)} files, {least}"
            f"{decimal(known)}; {decimal(lacking(mirror, files))} of it still to be fetched into "
            f"{mirror.directory}",
            style="bold",
        ),
        soft_wrap=True,
    )
    reasons = None
    for file in sorted(files, key=lambda file: file.reasons):
        if file.reasons != reasons:
            reasons = file.reasons
            console.print(f"  {', '.join(reasons)}", markup=False, soft_wrap=True)
        algorithm, _, value = file.checksum.partition(":")
        size = "unknown" if file.size_bytes is None else decimal(file.size_bytes)
        login = "  (needs a login)" if file.login_required else ""
        console.print(
            Text(f"    {size:>9}  {algorithm} {value[:DIGITS]}…  {file.path}{login}"),
            soft_wrap=True,
        )


@contextmanager
def progress(console: Console, mirror: Mirror, files: Sequence[File]) -> Iterator[Report]:
    """Show a progress bar on a terminal; elsewhere a line for each fetched or failed file."""
    if not console.is_terminal:

        def line(row: Row) -> None:
            if row.state == FETCHED or not row.right:
                state = "fetched" if row.right else f"{row.state}: {row.because}"
                console.print(f"  {row.file.path}: {state}", markup=False, soft_wrap=True)

        yield line
        return
    columns = (
        TextColumn("Fetching"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    done, total = threading.Event(), lacking(mirror, files)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("Fetching", total=total)

        def watch() -> None:
            while not done.wait(GLANCE_S):
                bar.update(task, completed=max(0, total - lacking(mirror, files)))

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield lambda row: None
        finally:
            done.set()


def end(console: Console, result: Result) -> None:
    """Print what is missing or wrong with its remedy, or that everything is present."""
    rows = result.rows
    for row in rows:
        if not row.right:
            _print_problem(console, f"{row.state}  {row.file.path}", row.because, row.remedy)
    for failure in result.failures:
        _print_problem(console, "unknown", failure.message, failure.remedy)
    for name in result.extra:
        console.print(
            Text(f"extra  {name}: this inventory does not need it", style="yellow"), soft_wrap=True
        )
    if result.whole:
        fetched = sum(row.state == FETCHED for row in rows)
        new = f", {fetched} of them fetched now" if fetched else ""
        console.print(
            Text(
                f"All {len(rows)} files are in {result.directory} and checked{new}.",
                style="bold green",
            ),
            soft_wrap=True,
        )
    else:
        bad = sum(not row.right for row in rows)
        more = "; what else is needed is unknown" if result.failures else ""
        console.print(
            Text(f"{bad} of {len(rows)} files are missing or wrong{more}.", style="bold red")
        )


def _print_problem(console: Console, what: str, cause: str, remedy: str) -> None:
    console.print(Text(what, style="bold red"), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    table.add_row("  cause", Text(cause))
    table.add_row("  remedy", Text(remedy, style="cyan"))
    console.print(table)


def document(result: Result) -> dict[str, Any]:
    """Return the result as `--json` prints it."""
    return {
        "schema": SCHEMA,
        "directory": str(result.directory),
        "complete": result.whole,
        "files": [
            {
                "path": row.file.path,
                "kind": row.file.kind,
                "checksum": row.file.checksum,
                "size_bytes": row.file.size_bytes,
                "url": row.file.url,
                "login_required": row.file.login_required,
                "for": list(row.file.reasons),
                "state": row.state,
                "because": row.because or None,
                "remedy": row.remedy or None,
            }
            for row in result.rows
        ],
        "extra": list(result.extra),
        "problems": [
            {
                "code": "not-known",
                "message": failure.message,
                "where": str(result.directory),
                "remedy": failure.remedy,
            }
            for failure in result.failures
        ],
    }


def inventory_lines(source: str) -> str:
    """The inventory lines that install from a mirror at this address or in this directory."""
    return f'gpu_artifacts_source: "{source}"\ngpu_wheelhouse: "{source}/{WHEELS}"\n'
