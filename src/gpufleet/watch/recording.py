"""Write a run into the file of the history: results, measured values, and the texts of both."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gpufleet.documents.sections.cuda import ContentsRead
from gpufleet.documents.verdict import CheckResult, Verdict

from . import database, series

if TYPE_CHECKING:
    from gpufleet.fleet.session import HostRun, Session

# The flag of a host that holds how far its contents were read.
SCRUB = "scrub"

# The numbers in the file: never reorder. Verdicts below 4 are unhealthy.
CODES = (
    Verdict.FAIL,
    Verdict.HUNG,
    Verdict.UNREACHABLE,
    Verdict.INCONCLUSIVE,
    Verdict.PASS,
    Verdict.NOT_DECLARED,
)
_CODE = {verdict.value: code for code, verdict in enumerate(CODES)}
# The owners of measures, other than their host.
_OWNERS = {"gpu", "nvlink", "port"}


def write_run(
    base: sqlite3.Connection,
    session: Session,
    kind: str,
    measured: Mapping[str, Mapping[str, float | str]],
    contents: Mapping[str, list[ContentsRead]],
) -> int:
    """Write a session's results and measured values in one transaction; return the run's id."""
    with database.transaction(base):
        row = base.execute(
            "INSERT INTO nights (started, finished, kind) VALUES (?, ?, ?)",
            (session.started, session.finished, kind),
        )
        night = int(row.lastrowid or 0)
        hosts = ids(base, "hosts", (host.name for host in session.hosts))
        checks = ids(base, "checks", (check["id"] for _, check in _checks(session.hosts)))
        rows = [
            (name, measure, value)
            for name, values in measured.items()
            for measure, value in values.items()
        ]
        split = {measure: split_measure(measure) for _, measure, _ in rows}
        names = ids(base, "measures", (name for _, name in split.values()))
        devices = ids(base, "devices", (device for device, _ in split.values()))
        texts = ids(
            base,
            "texts",
            (
                *(
                    check[part]
                    for _, check in _checks(session.hosts)
                    for part in ("cause", "remedy")
                    if check[part]
                ),
                *(value for *_, value in rows if isinstance(value, str)),
            ),
        )
        base.executemany(
            "INSERT INTO looks VALUES (?, ?, ?)",
            ((night, hosts[host.name], _CODE[host.result["verdict"]]) for host in session.hosts),
        )
        base.executemany(
            "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    night,
                    checks[check["id"]],
                    hosts[name],
                    _CODE[check["verdict"]],
                    texts.get(check["cause"]),
                    texts.get(check["remedy"]),
                    checks.get(check.get("explained_by", "")),
                    check.get("held") or None,
                )
                for name, check in _checks(session.hosts)
            ),
        )
        numbers: dict[int, dict[int, float]] = defaultdict(dict)
        for name, measure, value in rows:
            if not isinstance(value, str):
                device, end = split[measure]
                numbers[names[end]][series.card(hosts[name], devices[device])] = value
        base.executemany(
            "INSERT INTO series VALUES (?, ?, ?, ?)",
            (
                (night, measure, block, value)
                for measure, values in numbers.items()
                for block, value in series.packed(values)
            ),
        )
        base.executemany(
            "UPDATE devices SET night = ? WHERE id = ?",
            ((night, device) for device in devices.values()),
        )
        base.executemany(
            "INSERT INTO words VALUES (?, ?, ?, ?)",
            (
                (night, hosts[name], names[split[measure][1]], texts[value])
                for name, measure, value in rows
                if isinstance(value, str)
            ),
        )
        base.executemany(
            "INSERT OR REPLACE INTO flags VALUES (?, ?, ?)",
            ((name, SCRUB, json.dumps(states)) for name, states in contents.items()),
        )
    return night


def ids(base: sqlite3.Connection, table: str, texts: Iterable[str]) -> dict[str, int]:
    """Return {text: id} in a table of names or texts; each is stored once."""
    column = "text" if table == "texts" else "name"
    # Text from a host may not be valid Unicode.
    stored = {text: (text.encode("utf-8", "backslashreplace").decode(),) for text in set(texts)}
    base.executemany(
        f"INSERT OR IGNORE INTO {table} ({column}) VALUES (?)", sorted(stored.values())
    )
    query = f"SELECT id FROM {table} WHERE {column} = ?"
    return {text: base.execute(query, clean).fetchone()[0] for text, clean in stored.items()}


def split_measure(measure: str) -> tuple[str, str]:
    """Split a measure's name into device (`gpu.GPU-<uuid>`, `port.<guid>`, none) and the rest."""
    kind, _, rest = measure.partition(".")
    owner, _, name = rest.partition(".")
    return (f"{kind}.{owner}", name) if kind in _OWNERS and owner and name else ("", measure)


def _checks(hosts: Iterable[HostRun]) -> Iterator[tuple[str, CheckResult]]:
    return ((host.name, check) for host in hosts for check in host.result["checks"])
