"""The processes that a test has started, found by the environment that it left in `/proc`."""

from __future__ import annotations

from pathlib import Path

from tests.support.moments import wait_until


def started_with(text: str) -> dict[int, str]:
    """The command lines of the processes with this text in their environment."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode()
        except OSError:
            continue  # It has ended, or is another account's.
    return found


def await_ended(text: str, seconds: float) -> None:
    """Wait until none is left. Raises AssertionError, with those that are, where some stay."""
    try:
        wait_until(lambda: not started_with(text), seconds)
    except AssertionError:
        assert not started_with(text)
