"""Parts of all tests that run one at a time, and the record of those that passed on a commit.

A shard is a set of test files. Which files are in it depends on their names and markers alone, so
that shards of one commit that run on several machines are all tests together. A record is written
only where the whole shard passed on a commit without changes.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpufleet.errors import ConfigurationError
from gpufleet.files import write_file
from gpufleet.paths import ROOT

RECORDS = ROOT / ".gpufleet" / "shards"
COSTLY = re.compile(r"mark\.(lab|slow|exhaustive|costly)\b")


def parse(text: str) -> tuple[int, int]:
    """`2/6` as numbers; raises `ConfigurationError`."""
    found = re.fullmatch(r"([1-9]\d{0,2})/([1-9]\d{0,2})", text)
    if not found or int(found[1]) > int(found[2]):
        raise ConfigurationError(
            f"'{text}' is not a shard.", "--shard", "Write NUMBER/COUNT, such as --shard 2/6."
        )
    return int(found[1]), int(found[2])


def files(number: int, count: int, tests: Path = ROOT / "tests") -> list[str]:
    """The test files of a shard; each shard gets its part of those that take long."""

    def order(path: Path) -> tuple[bool, str]:
        name = path.relative_to(tests).as_posix()
        quick = not COSTLY.search(path.read_text(encoding="utf-8"))
        return quick, hashlib.sha256(name.encode()).hexdigest()

    dealt = sorted(tests.rglob("test_*.py"), key=order)[number - 1 :: count]
    return sorted(map(str, dealt))


def clean_commit() -> str:
    """The current commit; nothing where git does not tell one, or files differ from it."""

    def git(*args: str) -> str | None:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    return "" if git("status", "--porcelain") != "" else git("rev-parse", "HEAD") or ""


def record_file(commit: str, number: int, count: int) -> Path:
    """The path of the record of a shard."""
    return RECORDS / commit / f"{number}-of-{count}.json"


def save(commit: str, number: int, count: int, junit: Path) -> None:
    """Record that a shard passed, with the counts of pytest's own report."""
    (suite,) = ET.parse(junit).getroot().iter("testsuite")
    skipped = int(suite.attrib["skipped"])
    row = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "passed": int(suite.attrib["tests"]) - skipped,
        "skipped": skipped,
    }
    path = record_file(commit, number, count)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(row) + "\n", 0o644)


def saved(commit: str) -> dict[int, dict[int, dict[str, Any]]]:
    """The records of a commit: {count: {number: record}}."""
    found: dict[int, dict[int, dict[str, Any]]] = {}
    for path in sorted((RECORDS / commit).glob("*-of-*.json")):
        number, count = map(int, path.stem.split("-of-"))
        found.setdefault(count, {})[number] = json.loads(path.read_text(encoding="utf-8"))
    return found


def full_passes(commit: str) -> list[tuple[str, str]]:
    """Date and line of each complete set of shards that passed on a commit."""
    lines = []
    for count, rows in saved(commit).items():
        if len(rows) == count:
            date = max(row["date"] for row in rows.values())
            passed = sum(row["passed"] for row in rows.values())
            skipped = sum(row["skipped"] for row in rows.values())
            lines.append((date, f"{commit[:12]}, {date[:10]}: {passed} passed, {skipped} skipped"))
    return lines


def status() -> tuple[bool, list[str]]:
    """Return whether all tests passed on the current commit, and the lines that tell it."""
    commit = clean_commit()
    lines = [f"Commit {commit[:12]}" if commit else "The checkout has changes: no record applies."]
    for count, rows in sorted(saved(commit).items()) if commit else ():
        left = [f"{number}/{count}" for number in range(1, count + 1) if number not in rows]
        lines.append(f"{len(rows)} of {count} shards passed; left: {', '.join(left) or 'none'}")
    passes = [each for path in RECORDS.glob("*") for each in full_passes(path.name)]
    lines.append(f"Last full pass: {max(passes)[1] if passes else 'none is recorded'}")
    return bool(commit and full_passes(commit)), lines
