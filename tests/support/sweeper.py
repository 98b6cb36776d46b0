"""Remove what test runs leave on this machine, before a run and after its end, however it ends.

A run that is killed leaves labs, and the directory of its temporary files, which pytest would keep
for three days.
"""

from __future__ import annotations

import getpass
import os
import select
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from lab import hosts, runs
from lab.progress import Progress
from lab.settings import RUN, Lab


def sweep() -> None:
    """Remove the labs and the temporary files of runs that have ended."""
    hosts.sweep(Lab.from_environment(os.environ), Progress())
    remove_temporary_files(Path(tempfile.gettempdir(), f"pytest-of-{getpass.getuser()}"))


def remove_temporary_files(place: Path) -> None:
    """Remove the directories of pytest whose process is gone, and has not unlocked them."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    for lock in place.glob("pytest-[0-9]*/.lock"):
        # What is mounted there belongs to somebody else. Another sweeper may be faster.
        with suppress(FileNotFoundError):
            if f" {lock.parent}/" in mounts or not (pid := lock.read_text(encoding="ascii")):
                continue
            if not Path("/proc", pid).exists():
                shutil.rmtree(lock.parent)


def await_end(run: str) -> None:
    """Wait for the end of a run's process."""
    with suppress(ProcessLookupError):
        process = os.pidfd_open(int(run.partition(":")[0]))
        if not runs.has_ended(run):
            select.select([process], [], [])


def main() -> None:
    """Sweep before and after the run that the environment names."""
    try:
        sweep()
    finally:
        await_end(os.environ[RUN])
        sweep()


if __name__ == "__main__":
    main()
