"""`gpufleet silence`: a known fault of a host notifies nobody until a day; also list and end.

Writes the history of the nightly run, and nothing else.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import pwd
import sys
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpufleet.documents.clock import utc_now
from gpufleet.documents.nightly import ListedSilence, Silence, SilencedCause, SilenceList
from gpufleet.documents.text import one_line
from gpufleet.documents.verdict import HEALTHY, HEALTHY_VERDICTS, LETTERS, silence_text
from gpufleet.errors import ConfigurationError
from gpufleet.report import terminal
from gpufleet.watch import outliers, silences
from gpufleet.watch.history import NIGHTLY, History

from .history import unknown_name
from .options import add_database, add_json, database_path, default_database, is_there
from .parser import Parser

SCHEMA = 1
# A silence is renewed after this many days: a mistyped year would hide a fault for good.
MOST_DAYS = 366
# Characters of a reason and of a name.
MOST_WHY, MOST_WHO = 200, 60
_VERDICTS = {letter: verdict for verdict, letter in LETTERS.items()}
_STYLES = {"holds": "", "expired": "dim", "sounds": "bold red", "passes": "green"}


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "silence",
        (
            "silence gpu07 gpu.memory --until 2026-12-15 --why RMA-4711",
            "silence --list",
            "silence gpu07 gpu.memory --end",
        ),
        usage="[HOST CHECK] [options]",
        exit_status="Only what the newest nightly run found is silenced. Another cause or a worse"
        " verdict is\nnotified. Verdicts stay.\n\nExit status: 0, or 4 usage or configuration.",
    )
    group = verb.add_argument_group("Silence")
    group.add_argument("host", nargs="?", metavar="HOST", help="Silence a check of this host")
    group.add_argument("check", nargs="?", metavar="CHECK", help="Silence this check")
    group.add_argument(
        "--until", metavar="DATE", help="Silence it up to the end of this day in UTC: 2026-12-15"
    )
    group.add_argument("--why", metavar="TEXT", help="Give the reason, shown wherever it is silent")
    group.add_argument(
        "--who",
        metavar="NAME",
        default="",
        help="Name who silences it (default: the account, before sudo)",
    )
    group = verb.add_argument_group("Instead of setting one").add_mutually_exclusive_group()
    group.add_argument("--list", action="store_true", help="List the silences, and what they do")
    group.add_argument("--end", action="store_true", help="End the silence of HOST and CHECK now")
    group = verb.add_argument_group("Database")
    add_database(group, "Use this history")
    add_json(verb.add_argument_group("Output"))
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Set, end or list; the exit status."""
    path = database_path(options)
    if not is_there(path):
        raise ConfigurationError(
            "There is no history yet: a silence is for what a nightly run found.",
            str(path),
            "Run the nightly first, or name its history with --database FILE.",
        )
    _check_usage(options)
    with History(path) as history:
        if options.list:
            listed = listed_silences(history)
            _show_list(listed, as_json=options.json)
        elif options.end:
            _end(history, options.host, options.check)
        else:
            _set(history, options)
    return HEALTHY


def _check_usage(options: argparse.Namespace) -> None:
    remedy = "gpufleet silence HOST CHECK --until DATE --why TEXT"
    if options.list and (options.host or options.until or options.why):
        raise ConfigurationError("It lists all silences.", "--list", "Leave out the rest.")
    if options.list:
        return
    if options.json:
        raise ConfigurationError("Only the list is a document.", "--json", "Add --list.")
    if not options.host or not options.check:
        raise ConfigurationError("A host and a check are missing.", "", remedy)
    if options.end:
        return
    missing = [
        f"--{name}" for name in ("until", "why") if not (getattr(options, name) or "").strip()
    ]
    if missing:
        raise ConfigurationError(f"{' and '.join(missing)} is missing.", "", remedy)
    for name, most in (("why", MOST_WHY), ("who", MOST_WHO)):
        if len(getattr(options, name)) > most:
            raise ConfigurationError(
                f"It is longer than {most} characters.", f"--{name}", "Shorten it."
            )


# -- set and end -----------------------------------------------------------------------------------


def _set(history: History, options: argparse.Namespace) -> None:
    host, check, until = options.host, options.check, last_day(options.until, utc_now())
    causes = standing_causes(history, host, check)
    before = _recorded(history).get((host, check))
    silence: Silence = {
        "host": host,
        "check": check,
        "causes": causes,
        "until": until,
        "who": one_line(options.who.strip()) or account(),
        "why": one_line(options.why.strip()),
        "since": utc_now(),
    }
    silences.store(history, silence)
    was = f" It was silenced until {before['until']}." if before else ""
    print(f"{check} of {host} is silenced until {until}, for this and no other cause:{was}")
    for cause in causes:
        print(f"  {cause['verdict']}: {cause['cause']}")


def _end(history: History, host: str, check: str) -> None:
    known = _recorded(history)
    if (host, check) not in known:
        near = [f"{name} {other}" for name, other in known if host == name or check == other]
        raise ConfigurationError(
            f"{check} of {host} is not silenced.",
            "",
            f"Silenced are: {', '.join(near)}." if near else "gpufleet silence --list shows which.",
        )
    silences.end(history, known[host, check], utc_now())
    print(f"{check} of {host} is no longer silenced.")


def _recorded(history: History) -> dict[tuple[str, str], Silence]:
    """The silences that nobody has ended."""
    return {
        key: silence
        for key, silence in silences.read(history).items()
        if not silences.ended(silence)
    }


def last_day(text: str, now: str) -> str:
    """The date of --until; raise `ConfigurationError` for none, the past and the far future."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"'{text}' is no date.", "--until", "Write it as 2026-12-15."
        ) from None
    today = datetime.fromisoformat(now).astimezone(UTC).date()
    if day < today:
        raise ConfigurationError(
            f"{day} is in the past: it is {today} in UTC.", "--until", "Name a later day."
        )
    if day - today > timedelta(days=MOST_DAYS):
        raise ConfigurationError(
            f"{day} is more than {MOST_DAYS} days away.",
            "--until",
            "Name an earlier day, and renew the silence where it is still needed.",
        )
    return str(day)


def account() -> str:
    """The account that calls, before sudo."""
    if name := os.environ.get("SUDO_USER"):
        return name[:MOST_WHO]
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def standing_causes(history: History, host: str, check: str) -> list[SilencedCause]:
    """The causes that the newest nightly run found by a check; a `ConfigurationError` if none."""
    nights = history.nights(1, NIGHTLY)
    if not nights:
        raise ConfigurationError("No nightly run is recorded yet.", str(history.path))
    changes = history.changes(nights[0].id)
    # Outliers are no results of checks, and a group of cards is no host.
    for given, table, others in (
        (host, "hosts", {row["host"] for row in changes["standing"]}),
        (check, "checks", {outliers.CARD, outliers.GROUP}),
    ):
        if given not in (known := {*history.names(table), *others}):
            raise unknown_name(given, table, sorted(known), str(history.path))
    rows = found_rows(history, host)
    causes = silences.found_causes(changes, rows, host, check)
    if host not in history.letters(nights) and not causes:
        raise ConfigurationError(
            f"{host} is not in the newest nightly run ({nights[0].started}).", str(history.path)
        )
    bad = {name for name, row in rows.items() if row[0] not in HEALTHY_VERDICTS}
    explained_by = rows.get(check, ("", "", ""))[2]
    if causes and explained_by:
        raise ConfigurationError(
            f"On {host} {check} is a consequence of {explained_by}.",
            "",
            f"Silence {explained_by}: its consequences are silenced with it.",
        )
    if not causes:
        raise ConfigurationError(
            f"The newest nightly run ({nights[0].started}) found nothing wrong by {check} on"
            f" {host}: there is nothing to silence.",
            "",
            _nearest(check, bad, f"Not healthy on {host}: "),
        )
    return causes


def found_rows(history: History, host: str) -> dict[str, silences.Row]:
    """By check, what the newest nightly run found on a host."""
    return {
        check: (_VERDICTS[now.letter].value, now.cause, now.explained_by)
        for (_, check), line in history.check_results(history.nights(1, NIGHTLY), host=host).items()
        if (now := line[-1])
    }


def _nearest(name: str, known: Collection[str], title: str) -> str:
    near = difflib.get_close_matches(name, sorted(known), 3) or sorted(known)[:3]
    more = f" and {len(known) - len(near)} more" if len(known) > len(near) else ""
    return f"{title}{', '.join(near)}{more}." if known else "All of its checks pass."


# -- the list --------------------------------------------------------------------------------------


def listed_silences(history: History) -> SilenceList:
    """The document of `silence --list --json`."""
    known, now = _recorded(history), utc_now()
    changes = history.changes() if known and history.latest(NIGHTLY) else None
    rows: list[ListedSilence] = []
    for (host, check), silence in sorted(known.items()):
        found = (
            silences.found_causes(changes, found_rows(history, host), host, check)
            if changes
            else []
        )
        rows.append({**silence, "state": _state(silence, found, now)})
    return {"schema": SCHEMA, "silences": rows}


def _state(silence: Silence, found: list[SilencedCause], now: str) -> str:
    if not silences.in_force(silence, now):
        return "expired"
    if not found:
        return "passes"
    covered = all(silences.matches(silence, row["verdict"], row["cause"]) for row in found)
    return "holds" if covered else "sounds"


def _show_list(listed: SilenceList, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(listed, indent=1) + "\n")
        return
    console: Console = terminal.output()
    if not listed["silences"]:
        console.print("No check is silenced.")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("host", "check", "state"):
        table.add_column(title, no_wrap=True)
    table.add_column("silenced", overflow="fold")
    for row in listed["silences"]:
        table.add_row(
            Text(row["host"]),
            row["check"],
            row["state"],
            Text(silence_text(row)),
            style=_STYLES[row["state"]],
        )
    console.print(table)


# -- for verify and provision ----------------------------------------------------------------------


def of_default_history() -> tuple[Mapping[tuple[str, str], Silence], list[str]]:
    """The silences of the nightly run, and a note where they cannot be read."""
    try:
        path = default_database()
        if not is_there(path):
            return {}, []
        with History(path) as history:
            return silences.read(history), []
    except ConfigurationError as error:
        return {}, [f"Silences of the nightly run are not shown: {error}"]
