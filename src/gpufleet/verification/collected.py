"""The results that hosts left of themselves (`pull`), collected and judged in one place.

How the files come here is the site's affair. What is declared is the inventory's word, and not that
of the file; and a host that says nothing, or said its last word too long ago, is not healthy.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpufleet.checks import judge
from gpufleet.errors import ConfigurationError
from gpufleet.inventory import InventoryHost
from gpufleet.paths import host_file_name

from .session import HostRun, Session, plan_of, utc_now

# What clocks of hosts may be ahead of this machine's.
AHEAD = timedelta(minutes=5)
TIMER = ("on the host: systemctl list-timers gpufleet-pull.timer; journalctl -u gpufleet-pull;"
         " then look at what brings its file here")


def judge_results(directory: Path, hosts: Iterable[InventoryHost], most: timedelta) -> Session:
    """Each declared host by its file DIRECTORY/NAME.json, none older than `most`."""
    if not directory.is_dir():
        raise ConfigurationError("There is no such directory.", str(directory),
                                 "Name the one into which the hosts' results are collected.")
    made, begin = Session(), time.monotonic()
    for host in hosts:
        found = _read(directory / f"{host_file_name(host.name)}.json", host.name, most)
        snapshot = found.get("snapshot")
        plan = plan_of(host, snapshot)
        result = judge.judge(plan, snapshot) if snapshot else found["result"]
        made.hosts.append(HostRun(host.name, snapshot, plan, result))
    made.finished, made.seconds = utc_now(), time.monotonic() - begin
    return made


def _read(path: Path, name: str, most: timedelta) -> dict[str, Any]:
    """What the file says, or a result in its place that says why it is not believed."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        looked = datetime.strptime(document["looked"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        whose, snapshot = document["host"], document["snapshot"]
        if snapshot is None:
            # Why there is none is all that is taken from it: no verdict, least of all a good one.
            reason = document["result"]["checks"][0]
            result = judge.unreachable(
                *(str(reason[part]) for part in ("cause", "remedy", "evidence")))
        elif not (snapshot["schema"] and snapshot["sections"].items()):
            raise ValueError("what should be a snapshot is none")
    except FileNotFoundError:
        return _unheard(f"{name} has left no result: there is no {path}", TIMER)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return _unheard(f"The result of {name} cannot be read: {error!r}", TIMER)
    if whose != name:
        return _unheard(f"{path} is the result of {whose}, not of {name}",
                        "look at what collects the results: it mixes hosts up")
    age = datetime.now(UTC) - looked
    if age > most:
        return _unheard(f"{name} was last looked at {document['looked']}, {_hours(age)} ago;"
                        f" it should have been within {_hours(most)}", TIMER)
    if age < -AHEAD:
        return _unheard(f"{name} was last looked at {document['looked']}, which is yet to come",
                        "set the clock there (timedatectl), or here")
    return {"snapshot": snapshot} if snapshot else {"result": result}


def _unheard(cause: str, remedy: str) -> dict[str, Any]:
    return {"result": judge.unreachable(cause, remedy)}


def _hours(span: timedelta) -> str:
    return f"{span.total_seconds() / 3600:.3g} h"
