"""The nightly's files besides the history: lock, heartbeat, and delivered notifications."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpufleet.errors import ConfigurationError
from gpufleet.files import open_lock, write_file

# File names in `state_dir`; earlier releases wrote them as well.
HISTORY, HEARTBEAT, DELIVERED = "history.sqlite", "heartbeat.json", "told.json"
# Key in DELIVERED: by channel, the runs of which no notification was delivered yet.
OWED = "owed"
# Priorities of the systemd journal.
ERROR, WARNING, NOTICE = 3, 4, 5


def log(text: str, priority: int = NOTICE) -> None:
    """Write to standard error; with the priority where that is the journal."""
    mark = f"<{priority}>" if "JOURNAL_STREAM" in os.environ else ""
    print("\n".join(f"{mark}{line}" for line in text.splitlines()), file=sys.stderr, flush=True)


@contextmanager
def exclusive(state_dir: Path) -> Iterator[None]:
    """Hold the lock of `state_dir`; raise `ConfigurationError` while another run holds it."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        lock = open_lock(state_dir / "lock")
    except OSError as error:
        raise ConfigurationError(
            f"The directory cannot be used: {error.strerror}.", f"state_dir: {state_dir}",
            "Create it, owned by the user of the nightly.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(
                "Another nightly run is in progress.", str(state_dir / "lock"),
                "Wait until it ends.") from error
        yield


def read(path: Path) -> dict[str, Any]:
    """Read a state file; empty if it is missing. A damaged one is logged, and counts as empty."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log(f"{path} cannot be read ({error}) and is ignored.", ERROR)
        return {}


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a state file by rename; the directory is the nightly's own, and may be a link."""
    write_file(path.parent.resolve() / path.name, json.dumps(document, indent=1) + "\n", 0o640)
