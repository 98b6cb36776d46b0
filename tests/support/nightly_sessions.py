"""Nightly sessions with given verdicts, to be recorded in a history."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge import judge

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


def group_test(number: int, outcome: str, rate: float | None, *hosts: str) -> Any:
    """A group's row of a fabric test."""
    return {
        "number": number,
        "round": 1,
        "hosts": list(hosts),
        "outcome": outcome,
        "gb_per_s": rate,
        "least_gb_per_s": None,
    }


def fabric_test(night: int, scope: str, *tests: Any, **more: Any) -> Any:
    """The document of a fabric test whose groups ended so."""
    names = sorted({name for test in tests for name in test["hosts"]})
    return {
        "schema": 1,
        "started": at(night),
        "finished": at(night),
        "verdict": "PASS",
        "hosts": names,
        "nccl": dict.fromkeys(names, "2.21.5"),
        "ranks": 8 * len(names),
        "compared": {
            "scope": scope,
            "operation": "all_reduce",
            "bytes": 512 << 20,
            "algorithm": "Ring",
        },
        "slow": "more than 10% below the declared 380 GB/s",
        "results": [],
        "tests": list(tests),
        "culprits": [],
        "excluded": [],
        "unknown": [],
        **more,
    }
