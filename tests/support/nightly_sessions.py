"""Nightly sessions with given verdicts, to be recorded in a history."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpufleet.judge import judge
from gpufleet.verification.session import HostRun, Session

NIGHT = datetime(2026, 11, 1, 3, tzinfo=UTC)


def at(night: int) -> str:
    """When a night began."""
    return (NIGHT + timedelta(days=night)).strftime("%Y-%m-%dT%H:%M:%SZ")


def host(name: str, **verdicts: str) -> HostRun:
    """A host with these checks: `cudnn__links="FAIL: because"`. None at all: unreachable."""
    checks = [
        {
            "id": check.replace("__", "."),
            "verdict": output.partition(": ")[0],
            "statement": "Holds.",
            "cause": output.partition(": ")[2],
            "remedy": "fix it" if ": " in output else "",
            "evidence": "",
        }
        for check, output in verdicts.items()
    ]
    result = judge._host(checks) if checks else judge.unreachable("No route", "see the cable")
    return HostRun(name, None, {"host": name}, result)


def session(night: int, *hosts: HostRun) -> Session:
    """A night's session."""
    return Session(list(hosts), started=at(night), finished=at(night))


def files(directory: Path) -> dict[str, str]:
    """All that lies there, by contents."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()
    }


def measured(**values: float | str) -> Any:
    """A stand-in for `fleet.measures`: each host measured this."""
    return lambda snapshot, plan: {name.replace("__", "."): it for name, it in values.items()}
