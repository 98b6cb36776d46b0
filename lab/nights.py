"""Nights of the lab's hosts: a nightly run each time, as if a day had passed since the last one.

What the lab has recorded is dated a day back before each run, so that faults of several nights can
be seen within minutes. The nightly run itself is the product's own.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from lab import files
from lab.command import environment
from lab.gpus import cards
from lab.settings import Lab

ROOT = Path(__file__).resolve().parents[1]
# A run and its end are dated in UTC, as in 2026-11-21T03:00:00Z.
A_DAY_BACK = """
UPDATE nights SET started = strftime('%Y-%m-%dT%H:%M:%SZ', started, '-1 day'),
                  finished = strftime('%Y-%m-%dT%H:%M:%SZ', finished, '-1 day')
"""


def directory(lab: Lab) -> Path:
    """The state of the lab's nights: settings, history and reports."""
    return lab.directory / "nights"


def history(lab: Lab) -> Path:
    """The history of the lab's nights."""
    return directory(lab) / "history.sqlite"


def settings(lab: Lab) -> dict[str, object]:
    """The settings of a nightly run of the lab's hosts, which may all be drained.

    Only hosts with stand-in GPUs have a scheduler.
    """
    place, hook = directory(lab), "slurm" if cards.load(lab) else "none"
    return {
        "inventory": [str(ROOT / "inventory/lab")],
        "state_dir": str(place),
        "reports_dir": str(place / "reports"),
        "scrub_days": 0,
        "drain": {"hook": hook, "after_strikes": 2, "most_percent": 100},
    }


def run(lab: Lab) -> int:
    """Let a day pass, and verify the hosts; the exit status of the nightly run."""
    if history(lab).exists():
        with closing(sqlite3.connect(history(lab))) as connection, connection:
            connection.execute(A_DAY_BACK)
    path = directory(lab) / "nightly.yml"
    # JSON is YAML.
    files.write(path, json.dumps(settings(lab), indent=2) + "\n")
    command = [str(ROOT / "gpufleet"), "nightly", "--config", str(path)]
    return subprocess.run(command, env=environment(), check=False).returncode
