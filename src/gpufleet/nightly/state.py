"""What the nightly keeps beside its history: lock, heartbeat, and whom it has told up to when."""

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

HISTORY, HEARTBEAT, TOLD = "history.sqlite", "heartbeat.json", "told.json"
# In what is kept of the telling: by channel, the nights that it has not heard.
OWED = "owed"
# The journal's priorities.
ERROR, NOTICE = 3, 5


def say(text: str, priority: int = NOTICE) -> None:
    """Into the journal with its priority, or to the person."""
    mark = f"<{priority}>" if "JOURNAL_STREAM" in os.environ else ""
    print("\n".join(f"{mark}{line}" for line in text.splitlines()), file=sys.stderr, flush=True)


@contextmanager
def alone(state_dir: Path) -> Iterator[None]:
    """Hold the lock of this state; whoever holds it already is left alone."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        lock = (state_dir / "lock").open("a")
    except OSError as error:
        raise ConfigurationError(
            f"Nothing can be kept there: {error.strerror}.", f"state_dir: {state_dir}",
            "Have the directory made for the user of the nightly.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(
                "Another nightly is running.", lock.name, "Wait until it has ended.") from error
        yield


def read(path: Path) -> dict[str, Any]:
    """A state file; nothing where there is none. One that is damaged is said, and begun anew."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        say(f"{path} cannot be read ({error}), and is begun anew.", ERROR)
        return {}


def write(path: Path, document: dict[str, Any]) -> None:
    """A state file, by rename."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
