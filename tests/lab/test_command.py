"""The lab's builds, and what a killed one leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.command import mmdebstrap
from lab.errors import LabError
from lab.files import scratch
from tests.support.processes import await_ended

# STAND-IN for mmdebstrap, which mounts the machine's /dev/shm in what it builds, and hangs.
HANGS = """#!/bin/sh
mkdir $TMPDIR/shm && mount --bind {shared} $TMPDIR/shm
sleep 600 &
: >{reached}
wait
"""


@pytest.mark.costly
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_build_that_is_killed_takes_its_mounts_and_processes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, reached, programs = (tmp_path / name for name in ("shared", "reached", "bin"))
    for folder in (shared, programs):
        folder.mkdir()
    (shared / "of-others").write_text("kept")
    (programs / "mmdebstrap").write_text(HANGS.format(shared=shared, reached=reached))
    (programs / "mmdebstrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with (
        pytest.raises(LabError, match="did not finish within 5 seconds"),
        scratch(tmp_path / "cache", "build") as work,
    ):
        mmdebstrap("bookworm", timeout=5, work=work)
    assert reached.exists()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert (shared / "of-others").read_text() == "kept"
    assert not work.exists()
    await_ended(f"TMPDIR={work}", 20)


def test_a_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="mmdebstrap is not installed on this machine"):
        mmdebstrap("bookworm", timeout=5, work=tmp_path)
