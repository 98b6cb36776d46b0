"""`gpufleet history`: the nightly verdicts of a host, a check, a measure, or of all hosts.

Only reads, except for --record, which adds a report to the history that was not recorded when it
was written.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpufleet.documents.nightly import Offenders
from gpufleet.documents.text import quantity
from gpufleet.documents.verdict import HEALTHY
from gpufleet.errors import ConfigurationError
from gpufleet.paths import host_file_name
from gpufleet.report import terminal
from gpufleet.watch import drift, flapping, host_states, offenders
from gpufleet.watch.baselines import LEAST_SPREAD
from gpufleet.watch.drift import NOT_THERE
from gpufleet.watch.fabric_past import hosts_past, tests_past
from gpufleet.watch.history import NIGHTLY, SCHEMA, WINDOW, History, split_measure
from gpufleet.watch.retention import future_note

from . import distributions, history_fabric, offender_tables, state_rows
from .options import NIGHTLYS, add_database, add_json, database_path, is_there
from .parser import Parser

KINDS = (NIGHTLY, "verify", "rollout", "commission")

GOOD = {"P", "-", NOT_THERE}
_STYLE = {
    "P": "green",
    "F": "bold red",
    "H": "bold red",
    "U": "bold red",
    "?": "yellow",
    "-": "dim",
    NOT_THERE: "dim",
}
# So many nights stand in a row where there is room.
MOST_WIDE = 60
# So many hosts are named in an error.
MOST_NAMED = 5
_BARS = "▁▂▃▄▅▆▇█"

Document = dict[str, Any]


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "history",
        (
            "history --host gpu07",
            "history --measure '*.tflops' --last 90 --json",
            "history --fabric --host gpu07",
            "history --offenders",
        ),
        exit_status="A letter per night: P pass, F fail, H hung, U unreachable, ? could not be"
        " judged,\n- not declared, . absent. Of a port: u up, d down, s slower than its best,"
        " e errors beyond\na limit, ? not read, . absent.\n\n"
        "Exit status: 0, or 4 usage or configuration.",
    )
    group = verb.add_argument_group("Selection")
    group.add_argument("--host", metavar="NAME", help="Show the checks and measures of this host")
    group.add_argument("--check", metavar="ID", help="Show this check on every host")
    group.add_argument(
        "--measure", metavar="NAME", help="Show this measure; * matches anything: '*.tflops'"
    )
    group.add_argument(
        "--fabric",
        action="store_true",
        help="Show the network ports, the NVLinks and the fabric tests, of all hosts or of --host",
    )
    group.add_argument(
        "--offenders",
        action="store_true",
        help="Show the hosts and cards that lost most nights, and what was done each time",
    )
    group.add_argument(
        "--distributions",
        action="store_true",
        help="Show how cards are distributed in the newest run, and which ones are outliers",
    )
    group.add_argument(
        "--alerts-per-month",
        type=float,
        metavar="N",
        help="Budget of false alarms for --distributions (default: that of the nightly run)",
    )
    group.add_argument(
        "--last",
        type=int,
        metavar="N",
        help=f"Show this many nights (default: {WINDOW}; with --offenders all)",
    )
    group.add_argument("--kind", choices=KINDS, help=f"Show runs of this kind (default: {NIGHTLY})")
    group = verb.add_argument_group("Database")
    add_database(group, "Read this history")
    group.add_argument(
        "--record",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="First record this report as a run of --kind; may be repeated",
    )
    add_json(verb.add_argument_group("Output"))
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Print the selection; the exit status."""
    path = database_path(options)
    named, options.kind = options.kind is not None, options.kind or NIGHTLY
    with History(path) as history:
        for directory in options.record:
            _record(history, directory, options.kind, any_hosts=named)
        found = (offending if options.offenders else document)(history, options)
        future = history.future_nights()
    if future:
        Console(stderr=True).print(
            future_note([run.started for run in future]), markup=False, soft_wrap=True
        )
    if options.json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    elif options.offenders:
        offender_tables.show(terminal.output(), cast(Offenders, found))
    elif options.distributions:
        distributions.show(terminal.output(), found)
    else:
        shown = history_fabric.show if options.fabric else show
        shown(terminal.output(), found, path)
    return HEALTHY


def unknown_name(name: str, table: str, known: Sequence[str], where: str) -> ConfigurationError:
    """The error for a name that no run recorded; `table`: `hosts` or `checks`."""
    near = difflib.get_close_matches(name, known, 3)
    return ConfigurationError(
        f"No night knew of the {table.removesuffix('s')} {name}.",
        where,
        f"Did you mean {' or '.join(near)}?" if near else "./gpufleet history shows the names.",
    )


def require_nights(history: History, options: argparse.Namespace) -> None:
    """Refuse what selects no night, and a history that does not exist."""
    budget = options.alerts_per_month
    if budget is not None and not 0 < budget < math.inf:
        raise ConfigurationError("--alerts-per-month is more than 0.")
    if options.last is not None and options.last < 1:
        raise ConfigurationError("--last is more than 0.")
    if not options.record and not is_there(history.path):
        raise ConfigurationError(
            "There is no history yet.",
            str(history.path),
            "A nightly run writes history.sqlite into its state_dir"
            f" ({NIGHTLYS.parent} by default): name another one with --database FILE.",
        )


def offending(history: History, options: argparse.Namespace) -> Document:
    """The OFFENDERS document."""
    if options.host or options.check or options.measure or options.kind != NIGHTLY:
        raise ConfigurationError(
            "It ranks all hosts and cards by the nightly runs.",
            "--offenders",
            "Leave out --host, --check, --measure and --kind.",
        )
    require_nights(history, options)
    return cast(Document, offenders.document(history, options.last))


def document(history: History, options: argparse.Namespace) -> Document:
    """The PAST document of what was asked for, each host with its checks as well."""
    require_nights(history, options)
    if options.distributions:
        return distributions.document(
            history, options.host, options.measure, options.alerts_per_month
        )
    nights = history.nights(options.last or WINDOW, options.kind)
    states = host_states.former(history, options.host) if options.host else []
    for given, table in ((options.host, "hosts"), (options.check, "checks")):
        if table == "hosts" and states:
            # A host that was refused has a state, and no run of it is recorded.
            continue
        if given and given not in (known := history.names(table)):
            raise unknown_name(given, table, known, str(history.path))
    letters = history.letters(nights)
    if options.fabric:
        if options.check or options.measure:
            raise ConfigurationError(
                "--fabric shows no checks and no measures.", "", "Leave out --check and --measure."
            )
        return {
            "schema": SCHEMA,
            "nights": [night.started for night in nights],
            "hosts": hosts_past(history, nights, options.host),
            "fabric_tests": tests_past(history, options.last or WINDOW, options.host),
        }
    hosts: dict[str, Document] = {
        name: {"verdicts": line, "checks": {}, "measures": {}}
        for name, line in letters.items()
        if options.host in {None, name}
    }
    if options.check or (options.host and not options.measure):
        for (host, check), results in sorted(
            history.check_results(nights, host=options.host, check=options.check).items()
        ):
            hosts[host]["checks"][check] = _check(results)
    if options.measure or (options.host and not options.check):
        named = [options.host] if options.host else None
        for (host, name), numbers in sorted(
            history.numbers(nights, options.measure or "*", named).items()
        ):
            hosts[host]["measures"][name] = numbers
    if options.measure or options.check:
        hosts = {name: host for name, host in hosts.items() if host["checks"] or host["measures"]}
    elif options.host:
        for state in history.contents_read().get(options.host, ()):
            hosts.get(options.host, {}).setdefault("contents_read", {})[state["component"]] = (
                None if state["read"] is None else _moment(state["read"])
            )
        if states:
            unseen = {"verdicts": NOT_THERE * len(nights), "checks": {}, "measures": {}}
            hosts.setdefault(options.host, unseen)["states"] = states
    return {"schema": SCHEMA, "nights": [night.started for night in nights], "hosts": hosts}


def _moment(seconds: int) -> str:
    """A time as in documents; a host may send any number."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return "?"


def _check(line: Sequence[drift.CheckResult | None]) -> Document:
    letters = "".join(result.letter if result else NOT_THERE for result in line)
    # The last result that was not good.
    last = next((result for result in reversed(line) if result and result.letter not in GOOD), None)
    return {
        "verdicts": letters,
        "strikes": flapping.strikes(letters),
        "flapping": flapping.is_flapping(flapping.judged(letters)),
        "cause": last.cause if last else None,
        "remedy": last.remedy if last else None,
        **({"explained_by": last.explained_by} if last and last.explained_by else {}),
    }


# -- output on a terminal --------------------------------------------------------------------------


def show(console: Console, found: Document, path: Path) -> None:
    """Tables: nights and hosts, or checks, or measures; what always held in one line."""
    nights = found["nights"]
    for host in found["hosts"].values():
        if states := host.get("states"):
            state_rows.show_past(console, states)
    if not nights:
        console.print(f"No such run was recorded yet ({path}).", markup=False, soft_wrap=True)
        return
    span = nights[0] if len(nights) == 1 else f"{nights[0]} to {nights[-1]}"
    console.print(Text(f"{quantity(len(nights), 'night')}, {span}", style="bold"), soft_wrap=True)
    hosts = found["hosts"]
    checks = {
        (host, name): check for host, it in hosts.items() for name, check in it["checks"].items()
    }
    measures = {
        (host, name): line for host, it in hosts.items() for name, line in it["measures"].items()
    }
    if checks:
        _lines(console, checks, "held")
    if measures:
        _charts(console, measures)
    for host in hosts.values():
        if read := host.get("contents_read"):
            console.print(Text("contents last read whole", style="bold"))
            for component, moment in read.items():
                console.print(f"  {component}  {moment or 'not yet'}", markup=False, soft_wrap=True)
    if not checks and not measures:
        _lines(
            console, {(host, ""): _host(it["verdicts"]) for host, it in hosts.items()}, "healthy"
        )


def _host(letters: str) -> Document:
    return {
        "verdicts": letters,
        "strikes": flapping.strikes(letters),
        "cause": None,
        "remedy": None,
        "flapping": flapping.is_flapping(flapping.judged(letters)),
    }


def _lines(console: Console, rows: Mapping[tuple[str, str], Document], good: str) -> None:
    hosts, checks = ({key[position] for key in rows} for position in (0, 1))
    titles = [
        title
        for title, shown in (
            ("host", len(hosts) > 1 or len(checks) == 1),
            ("check", len(checks) > 1),
        )
        if shown
    ]
    odd = {key: row for key, row in rows.items() if set(row["verdicts"]) - GOOD}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, no_wrap=True)
    table.add_column(
        "nights, oldest first",
        min_width=min(MOST_WIDE, max(len(row["verdicts"]) for row in rows.values())),
        overflow="fold",
    )
    table.add_column("now", overflow="fold")
    # The worst first: what is bad now, the longest.
    for key, row in sorted(
        odd.items(), key=lambda it: (-it[1]["strikes"], "?" not in it[1]["verdicts"][-1:], it[0])
    ):
        names = [
            name for name, title in zip(key, ("host", "check"), strict=True) if title in titles
        ]
        table.add_row(*names, _strip(row["verdicts"]), _now(row))
    if odd:
        console.print(table)
    if held := len(rows) - len(odd):
        console.print(
            Text(f"✓ {quantity(held, titles[-1])} {good} in every night", style=_STYLE["P"])
        )


def _strip(letters: str) -> Text:
    return Text.assemble(*((letter, _STYLE[letter]) for letter in letters))


def _now(row: Document) -> Text:
    """The present state, and the last cause."""
    letter = row["verdicts"][-1]
    text = Text()
    if row["flapping"]:
        text.append("flapping", style="bold red")
    elif row["strikes"]:
        text.append(f"bad for {quantity(row['strikes'], 'night')}", style="bold red")
    elif letter == "?":
        text.append("not judged", style="yellow")
    else:
        text.append(
            "not there" if letter == NOT_THERE else "healthy",
            style="dim" if letter == NOT_THERE else "green",
        )
    if row["cause"]:
        over = not row["strikes"] and letter in GOOD
        text.append(f"{'; had been' if over else ''}: {row['cause']}", style="dim" if over else "")
        if cause := row.get("explained_by"):
            text.append(f" (a consequence of {cause})", style="dim")
    return text


def _charts(console: Console, rows: Mapping[tuple[str, str], Sequence[float | None]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("measure", overflow="fold")
    table.add_column(
        "nights, oldest first",
        overflow="fold",
        min_width=min(MOST_WIDE, max(map(len, rows.values()))),
    )
    for title in ("last", "usual", "least"):
        table.add_column(title, justify="right", no_wrap=True)
    above: tuple[str, str] | None = None
    for (host, name), line in rows.items():
        device, measure = split_measure(name)
        known = [value for value in line if value is not None]
        if not any(known):
            # No wrong result, no memory error in any night: there is nothing to show.
            continue
        if above != (host, device):
            above = (host, device)
            table.add_row(Text(f"{host} {device.removeprefix('gpu.')}", style="bold"))
        table.add_row(
            f"  {measure}",
            spark(line),
            *map(_number, (line[-1], statistics.median(known), min(known))),
        )
    console.print(table)


def spark(line: Sequence[float | None]) -> str:
    """Numbers as bars between the least and the most; what was not measured is a space."""
    known = [value for value in line if value is not None]
    least, span = min(known), max(known) - min(known)
    # Values that hardly change are drawn as a flat line.
    flat = span <= LEAST_SPREAD * abs(max(known, key=abs))
    top = len(_BARS) - 1
    return "".join(
        " " if value is None else _BARS[top // 2 if flat else round((value - least) / span * top)]
        for value in line
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


# -- a report that was not recorded ----------------------------------------------------------------


def _refuse_a_part(history: History, directory: Path, started: str, hosts: Collection[str]) -> None:
    """Refuse a run of some hosts as a nightly run: the others would vanish, and appear again."""
    before = [night for night in history.nights(kind=NIGHTLY) if night.started < started][-1:]
    missing = [name for name in history.letters(before) if name not in hosts]
    if missing:
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        raise ConfigurationError(
            f"It lacks {quantity(len(missing), 'host')} of the nightly run before it"
            f" ({before[0].started}): {', '.join(missing[:MOST_NAMED])}{more}. They would count as"
            " removed from the inventory.",
            str(directory),
            "Record a run of some hosts with --kind verify. If the nightly run wrote it, or they"
            " were removed on purpose, say so with --kind nightly.",
        )


def _record(history: History, directory: Path, kind: str, *, any_hosts: bool) -> None:
    """Take in what a report's directory holds: its verdicts, snapshots and plans.

    `any_hosts`: it may lack hosts of the run before, since a person named its kind.
    """
    from gpufleet.fleet.session import HostRun, Session  # noqa: PLC0415

    def read(name: str) -> Any:
        path = directory / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"It cannot be read: {error}",
                str(path),
                "Name the directory of a report, such as reports/latest.",
            ) from error

    report = read("report.json")
    if any(night.started == report["started"] for night in history.nights(kind=kind)):
        raise ConfigurationError(
            f"This run ({report['started']}) is in the history already.", str(directory)
        )
    if not any_hosts:
        _refuse_a_part(history, directory, report["started"], report["hosts"])
    hosts = []
    for name, result in report["hosts"].items():
        file = f"{host_file_name(name)}.json"
        probed = (directory / "snapshots" / file).exists()
        hosts.append(
            HostRun(
                name, read(f"snapshots/{file}") if probed else None, read(f"plans/{file}"), result
            )
        )
    history.record(Session(hosts, report["started"], report["finished"]), kind=kind)
