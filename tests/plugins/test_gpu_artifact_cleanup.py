"""Artifacts that were copied to a host are removed again, and nothing else."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.ansible_modules import Run, load


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory of artifacts, and a cache beside it."""
    for name in ("artifacts/run", "artifacts/tar", "cache/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def clear(
    run: Run, place: Path, check: bool = False, module: ModuleType | None = None
) -> dict[str, Any]:
    """Run the module."""
    return run(
        module or load("gpu_artifact_cleanup"),
        check,
        directory=place / "artifacts",
        files=["run", "tar"],
        caches=[str(place / "cache")],
        state_dir=place / "state",
    )


def test_files_caches_and_the_empty_directory_go(run: Run, place: Path) -> None:
    assert clear(run, place)["changed"]
    assert not (place / "artifacts").exists()
    assert not (place / "cache").exists()
    assert not clear(run, place)["changed"]


def test_what_else_lies_there_stays(run: Run, place: Path) -> None:
    (place / "artifacts" / "theirs").write_text("precious")
    clear(run, place)
    assert [path.name for path in (place / "artifacts").iterdir()] == ["theirs"]


def test_check_mode_removes_nothing(run: Run, place: Path) -> None:
    assert clear(run, place, check=True)["changed"]
    assert (place / "artifacts" / "run").exists()


def test_nothing_is_taken_from_an_installation_at_work(run: Run, place: Path) -> None:
    (place / "state").mkdir()
    with (place / "state" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not clear(run, place)["changed"]
    assert (place / "artifacts" / "run").exists()


def test_what_cannot_be_removed_is_named(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load("gpu_artifact_cleanup")

    def kept(path: str) -> None:
        raise module.StateError(f"nfs is mounted at {path}/x")

    monkeypatch.setattr(module, "remove_tree", kept)
    answer = clear(run, place, module=module)
    assert answer["failed"]
    assert "nfs is mounted at" in answer["msg"]


def test_what_killed_modules_left_goes_once_it_is_old_and_nothing_of_others(
    run: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names = (
        "gpufleet.gpu.gpu_stack_payload_a",
        "gpufleet.gpu.gpu_facts_payload_b",
        "apt_payload_c",
    )
    old, young, other = (tmp_path / f"ansible_{name}" for name in names)
    for path in (old, young, other):
        path.mkdir()
        if path != young:
            os.utime(path, (1, 1))
    assert str(old) in clear(run, place)["removed"]
    assert [path.exists() for path in (old, young, other)] == [False, True, True]
