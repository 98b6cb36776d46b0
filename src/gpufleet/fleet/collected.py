"""Judge the results that hosts wrote themselves (`pull`) and that were collected in a directory.

The site transfers the files. The declaration comes from the inventory, never from a file. A host
without a result, or with one that is too old, is not healthy.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpufleet.documents import clock, received
from gpufleet.documents.clock import utc_now
from gpufleet.documents.snapshot import SNAPSHOT_SCHEMA, Snapshot
from gpufleet.documents.text import brief
from gpufleet.documents.verdict import HostResult
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import InventoryHost
from gpufleet.judge import judge
from gpufleet.paths import host_file_name

from . import siblings
from .judging import judged
from .saved import read_bounded
from .session import Session

EARLIEST = datetime.min.replace(tzinfo=UTC)
# The longest time in which a host judges its snapshot and writes the result.
WRITTEN_WITHIN = timedelta(hours=1)
TIMER = (
    "on the host: systemctl list-timers gpufleet-pull.timer; journalctl -u gpufleet-pull;"
    " then check what transfers its file to this machine"
)
# The timer ran, and its probe did not.
REFUSED = "on the host: journalctl -u gpufleet-pull shows why it was not probed"
# gpufleet's own archive writes both at the same time.
MIXED = (
    "run the playbook pull.yml again, which installs this release's program on the host, then on"
    " the host: systemctl start gpufleet-pull; if its result is the same again, see who writes it"
)


def judge_results(directory: Path, hosts: Iterable[InventoryHost], max_age: timedelta) -> Session:
    """Judge each host by its file DIRECTORY/NAME.json, which may be `max_age` old."""
    if not directory.is_dir():
        raise ConfigurationError(
            "The directory does not exist.",
            str(directory),
            "Give the directory of the collected results.",
        )
    session, begin = Session(), time.monotonic()
    for host in hosts:
        path = directory / f"{host_file_name(host.name)}.json"
        snapshot, rejected = _read(path, host.name, max_age)
        session.hosts.append(judged(host, snapshot, rejected))
    session.hosts = siblings.compared(session.hosts)
    session.finished, session.seconds = utc_now(), time.monotonic() - begin
    return session


def _read(path: Path, name: str, max_age: timedelta) -> tuple[Snapshot | None, HostResult]:
    """The file's snapshot, or None, and the result if there is no snapshot."""
    snapshot: Snapshot | None = None
    try:
        document = received.parsed(read_bounded(path), "the file")
        sent = document.pop("snapshot")
        received.checked(document, "the file")
        probed = clock.read(document["looked"])
        file_host = document["host"]
        result = judge.unreachable("", "")
        if sent is None:
            # Only the reason is used, never a verdict: the result must not be healthy. What to do
            # is never a host's own word.
            reason = document["result"]["checks"][0]
            result = judge.unreachable(str(reason["cause"]), REFUSED, str(reason["evidence"]))
        else:
            own_host = sent.get("host")
            snapshot = received.snapshot_in(sent, name)
            if snapshot is None:
                raise ValueError("its snapshot has no sections")
    except FileNotFoundError:
        return _rejected(f"{name} has delivered no result: {path} does not exist", TIMER)
    except received.UnfitError as error:
        return None, judge.not_judged(f"The result of {name} is not read: {error}", received.REMEDY)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        return _rejected(f"The result of {name} cannot be read: {brief(error)}", TIMER)
    if file_host != name:
        shown = file_host if isinstance(file_host, str) else brief(file_host)
        return _rejected(
            f"{path} is the result of {shown}, not of {name}",
            "check what collects the results: it mixes up hosts",
        )
    now = datetime.now(UTC)
    age = now - probed
    if age > max_age:
        return _rejected(
            f"{name} was last probed {document['looked']}, {_hours(age)} ago;"
            f" the maximum age is {_hours(max_age)}",
            TIMER,
        )
    if ahead := clock.offset([probed], EARLIEST, now):
        # How old it is, nobody knows: a clock that is behind makes a result look older.
        wrong = f"The result of {name} is not read: {clock.described(ahead.total_seconds())}"
        return None, judge.not_judged(wrong, clock.REMEDY, f"probed {document['looked']}")
    if snapshot and (cause := _other_snapshot(snapshot, own_host, name, probed)):
        return None, judge.not_judged(f"The result of {name} is not of one probe: {cause}", MIXED)
    return snapshot, result


def _other_snapshot(snapshot: Snapshot, host: object, name: str, written: datetime) -> str | None:
    """Why the snapshot in a result is not of the probe that the result was written after."""
    if host != name:
        return f"its snapshot is of {brief(host)}"
    if snapshot["schema"] != SNAPSHOT_SCHEMA:
        return f"its snapshot has schema {snapshot['schema']}, this release reads {SNAPSHOT_SCHEMA}"
    taken = snapshot.get("finished", "")
    try:
        apart = clock.offset([clock.read(taken)], written - WRITTEN_WITHIN, written)
    except ValueError:
        return f"its snapshot has no time ({brief(taken)})"
    if apart:
        return f"its snapshot was taken {taken}, the result was written {written:{clock.FORM}}"
    return None


def _rejected(cause: str, remedy: str) -> tuple[None, HostResult]:
    return None, judge.unreachable(cause, remedy)


def _hours(span: timedelta) -> str:
    return f"{span.total_seconds() / 3600:.3g} h"
