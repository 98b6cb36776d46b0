"""The nightly's files besides the history: lock, heartbeat, and delivered notifications."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import Any

from gpufleet.documents.clock import utc_now
from gpufleet.documents.nightly import Heartbeat
from gpufleet.documents.shape import ANY, ListOf, MappingOf, Plain
from gpufleet.documents.validator import faults, faults_of
from gpufleet.errors import ConfigurationError
from gpufleet.files import open_lock, write_file

# File names in `state_dir`; earlier releases wrote them as well, the last by its former name.
HISTORY, HEARTBEAT, DELIVERED = "history.sqlite", "heartbeat.json", "delivered.json"
FORMERLY_DELIVERED = "told.json"
# Key in DELIVERED: by channel, the runs of which no notification was delivered yet.
OWED = "owed"
# Key in DELIVERED: by run, as text, what was done after it and is still owed to a channel. Nothing
# else knows these sentences.
DONE = "done"
# Priorities of the systemd journal.
ERROR, WARNING, NOTICE = 3, 4, 5


def log(text: str, priority: int = NOTICE) -> None:
    """Write to standard error; with the priority where that is the journal."""
    mark = f"<{priority}>" if "JOURNAL_STREAM" in os.environ else ""
    print("\n".join(f"{mark}{line}" for line in text.splitlines()), file=sys.stderr, flush=True)


class LockedError(ConfigurationError):
    """Another run holds the lock of the state directory."""


@contextmanager
def exclusive(state_dir: Path) -> Iterator[None]:
    """Hold the lock of `state_dir`; raise `LockedError` while another run holds it.

    Raises `ConfigurationError` where the directory cannot be used.
    """
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        if (state_dir / "lock").is_dir():
            log(set_aside(state_dir / "lock", "it is a directory"), ERROR)
        lock = open_lock(state_dir / "lock")
    except OSError as error:
        raise ConfigurationError(
            f"The directory cannot be used: {error.strerror}.",
            f"state_dir: {state_dir}",
            "Create it, owned by the user of the nightly.",
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockedError(
                "Another nightly run is in progress.",
                str(state_dir / "lock"),
                "Wait until it ends.",
            ) from error
        _rename_formerly_delivered(state_dir)
        yield


def _rename_formerly_delivered(state_dir: Path) -> None:
    former, now = state_dir / FORMERLY_DELIVERED, state_dir / DELIVERED
    if former.exists() and not now.exists():
        try:
            former.rename(now)
        except OSError as error:
            log(
                f"{former} could not be renamed ({error.strerror}): rename it to {DELIVERED}, or a"
                " notification may be sent twice.",
                ERROR,
            )


def read(path: Path) -> tuple[dict[str, Any], str]:
    """A state file and its fault: empty if it is missing, and if it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"it cannot be read: {error}"
    wrong = _FAULTS[path.name](found)
    return ({}, wrong[0]) if wrong else (found, "")


def _heartbeat_faults(found: Any) -> list[str]:
    wrong = faults(Heartbeat, found, "heartbeat")
    return wrong or [
        f"heartbeat.{name} is no time"
        for name in ("last_run", "last_success")
        if not isfinite(found[name])
    ]


def _delivered_faults(found: Any) -> list[str]:
    """For each channel the last run that it was notified of; under OWED those that it was not.

    Under DONE, which earlier releases did not write, sentences by run.
    """
    if not isinstance(found, dict):
        return faults_of(MappingOf(ANY), found, "delivered")
    runs = {key: value for key, value in found.items() if key not in {OWED, DONE}}
    return [
        *faults_of(MappingOf(Plain("integer")), runs, "delivered"),
        *faults_of(MappingOf(ListOf(Plain("integer"))), found.get(OWED, {}), f"delivered.{OWED}"),
        *faults_of(MappingOf(ListOf(Plain("text"))), found.get(DONE, {}), f"delivered.{DONE}"),
    ]


_FAULTS = {HEARTBEAT: _heartbeat_faults, DELIVERED: _delivered_faults}


def set_aside(path: Path, why: str) -> str:
    """Rename a damaged file, so that a new one begins; a sentence on what was done.

    What SQLite keeps beside a history belongs to the damaged file, and goes with it.
    """
    stamp = utc_now().replace(":", "-")
    sentence = f"{path} is damaged ({why})."
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    try:
        for ending in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                path.with_name(path.name + ending).rename(f"{aside}{ending}")
    except OSError as error:
        return f"{sentence} It could not be renamed ({error.strerror}): move it away."
    return f"{sentence} It is kept as {aside.name}, and a new one begins."


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a state file by rename; the directory is the nightly's own, and may be a link."""
    try:
        write_file(path.parent.resolve() / path.name, json.dumps(document, indent=1) + "\n", 0o640)
    except OSError as error:
        # A full disk names no file.
        raise OSError(error.errno, error.strerror, str(path)) from error
