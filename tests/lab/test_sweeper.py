"""The remains of a killed run of the tests, and the process that waits for the run's end."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

from lab import runs
from tests.support.sweeper import await_end, remove_temporary_files


def test_only_temporary_files_of_killed_runs_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    locks = {"pytest-1": str(process.pid), "pytest-2": str(os.getpid()), "pytest-3": ""}
    for name, pid in locks.items():
        (tmp_path / name / "test0").mkdir(parents=True)
        (tmp_path / name / ".lock").write_text(pid)
    # One that pytest has unlocked, and the link to the newest.
    (tmp_path / "pytest-4").mkdir()
    (tmp_path / "pytest-current").symlink_to("pytest-1")
    remove_temporary_files(tmp_path)
    left = {path.name for path in tmp_path.glob("*/") if not path.is_symlink()}
    assert left == {"pytest-2", "pytest-3", "pytest-4"}


def test_the_end_of_a_run_is_waited_for() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        name = runs.name_of(process.pid)
        waiting = threading.Thread(target=await_end, args=[name])
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        process.kill()
        waiting.join(60)
        assert not waiting.is_alive()
    # It has ended already.
    await_end(name)
