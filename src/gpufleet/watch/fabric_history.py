"""Fabric tests in the history: record one, and read the bandwidths of earlier ones.

    record_fabric_test(history, found)
    past_bandwidth(history, "gpu07", "all_reduce", "pairs", size=512 << 20, algorithm="Ring")

Of each test the history keeps the groups that can be measured again: all hosts together, each host
alone, each pair. The other groups of a search for a culprit differ from search to search.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpufleet.documents.clock import utc_now
from gpufleet.documents.collectives import FabricTest, Operation, Scope
from gpufleet.documents.verdict import Verdict
from gpufleet.fabric.rounds import Outcome

from .recording import CODES, ids
from .retention import latest_time

if TYPE_CHECKING:
    from .history import History

# How many earlier tests a bandwidth is compared with.
WINDOW = 30
# Bandwidths of these outcomes show what a group can reach. A slow one does not: a link that is slow
# for a month would make slow what is usual.
USUAL = (Outcome.PASSED.value, Outcome.NOT_JUDGED.value)
# The number of a test's first group: all hosts together, unless the scope is another one.
FIRST = 1
# The groups of each scope, by the columns of `fabric_groups` and `fabric_tests`.
_GROUPS: Mapping[str, str] = {
    "all": f"r.number = {FIRST} AND t.scope = 'all'",
    "hosts": "g.size = 1",
    "pairs": "g.size = 2",
    "rails": "0",  # none is kept
}


@dataclass(frozen=True)
class RecordedTest:
    """A recorded fabric test; times as in the documents. `ranks`: how many GPUs took part."""

    id: int
    started: str
    finished: str
    verdict: Verdict
    scope: Scope
    algorithm: str
    ranks: int
    culprits: tuple[str, ...]


@dataclass(frozen=True)
class RecordedBandwidth:
    """The result of one group in a test. `gb_per_s`: bus bandwidth, None where it is not known.

    `number`: that of the group's test; `FIRST` is all hosts together where that is the scope.
    """

    test: int
    number: int
    hosts: tuple[str, ...]
    collective: Operation
    bytes: int
    outcome: str
    gb_per_s: float | None


def record_fabric_test(history: History, found: FabricTest) -> int:
    """Record a fabric test in one transaction; return its id. Raises `HistoryError`."""
    rows = list(_bandwidths(found))
    culprits = [
        *(culprit["statement"] for culprit in found["culprits"]),
        *(f"{each['host']} took no part: {each['cause']}" for each in found["excluded"]),
    ]
    compared = found["compared"]
    with history.transaction() as base:
        added = base.execute(
            "INSERT INTO fabric_tests (started, finished, verdict, scope, algorithm, ranks,"
            " culprits) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                found["started"],
                found["finished"],
                CODES.index(Verdict(found["verdict"])),
                compared["scope"],
                compared["algorithm"],
                found["ranks"],
                json.dumps(culprits),
            ),
        )
        test = int(added.lastrowid or 0)
        groups = _group_ids(base, {row.hosts for row in rows})
        base.executemany(
            "INSERT OR REPLACE INTO fabric_results VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    test,
                    row.number,
                    row.collective,
                    row.bytes,
                    groups[row.hosts],
                    row.outcome,
                    row.gb_per_s,
                )
                for row in rows
            ),
        )
    return test


def _bandwidths(found: FabricTest) -> Iterator[RecordedBandwidth]:
    """The result of each group in its test: a later row replaces an earlier one."""
    compared = found["compared"]
    if compared["scope"] == "rails":
        # Rates of some of the hosts' ports are not comparable with rates of all.
        return
    for test in found["tests"]:
        hosts, number = tuple(sorted(test["hosts"])), test["number"]
        rates = [(compared["operation"], compared["bytes"], test["gb_per_s"])]
        if number == FIRST:
            # A slow rate at the judged size may be usual at another size.
            rates = [
                *((row["operation"], row["bytes"], row["gb_per_s"]) for row in found["results"]),
                *rates,
            ]
        elif len(hosts) > 2:
            continue
        for collective, size, rate in rates:
            yield RecordedBandwidth(0, number, hosts, collective, size, test["outcome"], rate)


def _group_ids(
    base: sqlite3.Connection, groups: set[tuple[str, ...]]
) -> dict[tuple[str, ...], int]:
    """The ids of groups, by the hosts of each; each group is stored once."""
    hosts = ids(base, "hosts", {name for group in groups for name in group})
    found = {}
    for group in sorted(groups):
        members = sorted(hosts[name] for name in group)
        name = " ".join(map(str, members))
        new = base.execute(
            "INSERT OR IGNORE INTO fabric_groups (name, size) VALUES (?, ?)", (name, len(members))
        ).rowcount
        [found[group]] = base.execute(
            "SELECT id FROM fabric_groups WHERE name = ?", (name,)
        ).fetchone()
        if new:
            base.executemany(
                "INSERT INTO fabric_members VALUES (?, ?)",
                ((host, found[group]) for host in members),
            )
    return found


def past_bandwidth(
    history: History,
    host: str,
    collective: Operation,
    scope: Scope,
    *,
    size: int,
    algorithm: str,
    partners: Sequence[str] | None = None,
    last: int = WINDOW,
) -> list[tuple[str, float]]:
    """Return (start, GB/s) of what a host's groups reached in earlier tests, oldest first.

    `size`: bytes of each rank's result; `algorithm`: NCCL's, empty for its own choice: other sizes
    and algorithms are not comparable. `scope`: the host alone, pairs with it, or all hosts of a
    test together. `partners`: the other hosts of the group, None for any. What was slow or wrong is
    left out.
    """
    group = "1" if partners is None else "g.name = ?"
    rows = history.rows(
        "SELECT t.started, r.gb_per_s FROM hosts h JOIN fabric_members m ON m.host = h.id"
        ' JOIN fabric_groups g ON g.id = m."group" JOIN fabric_results r ON r."group" = g.id'
        " JOIN fabric_tests t ON t.id = r.test"
        " WHERE h.name = ? AND (r.collective, r.bytes, t.algorithm) = (?, ?, ?)"
        f" AND r.outcome IN {USUAL} AND r.gb_per_s IS NOT NULL AND {_GROUPS[scope]} AND {group}"
        " AND t.started <= ? ORDER BY t.started DESC, t.id DESC, r.number DESC LIMIT ?",
        host,
        collective,
        size,
        algorithm,
        *([] if partners is None else [_group_name(history, [host, *partners])]),
        latest_time(utc_now()),
        last,
    )
    return [(started, rate) for started, rate in reversed(rows)]


def _group_name(history: History, hosts: Sequence[str]) -> str:
    """The name of a group; none has it where one of its hosts is not known."""
    known = history.rows(
        "SELECT id FROM hosts WHERE name IN (SELECT value FROM json_each(?)) ORDER BY id",
        json.dumps(hosts),
    )
    return " ".join(str(number) for (number,) in known) if len(known) == len(set(hosts)) else ""


def recorded_tests(history: History, last: int | None = None) -> list[RecordedTest]:
    """Return the recorded tests, oldest first, all or the last ones; none dated in the future."""
    rows = history.rows(
        "SELECT id, started, finished, verdict, scope, algorithm, ranks, culprits FROM fabric_tests"
        " WHERE started <= ? ORDER BY started DESC, id DESC LIMIT ?",
        latest_time(utc_now()),
        -1 if last is None else last,
    )
    return [
        RecordedTest(
            number,
            started,
            finished,
            CODES[verdict],
            scope,
            algorithm,
            ranks,
            tuple(json.loads(culprits)),
        )
        for number, started, finished, verdict, scope, algorithm, ranks, culprits in reversed(rows)
    ]


def recorded_bandwidths(
    history: History, tests: Sequence[RecordedTest], host: str | None = None
) -> list[RecordedBandwidth]:
    """Return what the groups of these tests reached, in their order; with one host, or all."""
    one = (
        " AND EXISTS (SELECT 1 FROM fabric_members m JOIN hosts h ON h.id = m.host"
        ' WHERE m."group" = r."group" AND h.name = ?)'
        if host
        else ""
    )
    members: dict[int, tuple[str, ...]] = {}
    found = []
    for test, number, group, *values in history.rows(
        'SELECT test, number, "group", collective, bytes, outcome, gb_per_s FROM fabric_results r'
        f" WHERE test IN (SELECT value FROM json_each(?)){one}"
        " ORDER BY test, number, collective, bytes",
        json.dumps([each.id for each in tests]),
        *([host] if host else []),
    ):
        if group not in members:
            members[group] = tuple(
                name
                for (name,) in history.rows(
                    "SELECT h.name FROM fabric_members m JOIN hosts h ON h.id = m.host"
                    ' WHERE m."group" = ? ORDER BY h.name',
                    group,
                )
            )
        found.append(RecordedBandwidth(test, number, members[group], *values))
    return found


def latest_tests(history: History) -> dict[RecordedTest, list[RecordedBandwidth]]:
    """Return the newest test of each scope, and what its groups reached."""
    newest = {test.scope: test for test in recorded_tests(history)}
    return {test: recorded_bandwidths(history, [test]) for test in newest.values()}


def remove(base: sqlite3.Connection, tests: Sequence[int]) -> int:
    """Delete these tests, except for the newest one, and groups that only they use; how many."""
    old = json.dumps(list(tests))
    chosen = (
        "IN (SELECT value FROM json_each(?)) AND {} <> (SELECT id FROM fabric_tests"
        " ORDER BY started DESC, id DESC LIMIT 1)"
    )
    base.execute(f"DELETE FROM fabric_results WHERE test {chosen.format('test')}", (old,))
    removed = base.execute(
        f"DELETE FROM fabric_tests WHERE id {chosen.format('id')}", (old,)
    ).rowcount
    if removed:
        unused = 'NOT IN (SELECT "group" FROM fabric_results)'
        base.execute(f'DELETE FROM fabric_members WHERE "group" {unused}')
        base.execute(f"DELETE FROM fabric_groups WHERE id {unused}")
    return removed
