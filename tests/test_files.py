"""Files in directories that belong to somebody else: no link of his is followed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpufleet.files import write_file
from gpufleet.fleet import pull
from gpufleet.watch import metrics, state

NAME = "gpufleet.prom"
RUN = metrics.Run(1.0, 1.0, 1.0)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file to which the owner of the directory has no access."""
    path = tmp_path / "shadow"
    path.write_text("precious")
    return path


@pytest.fixture
def directory(tmp_path: Path, precious: Path) -> Path:
    """The exporter's, with links under the names that a writer could use."""
    path = tmp_path / "exporter"
    path.mkdir()
    for name in (NAME, f".{NAME}.partial", f".{NAME}", f"{NAME}.tmp"):
        (path / name).symlink_to(precious)
    return path


def test_a_planted_link_is_replaced_and_not_followed(directory: Path, precious: Path) -> None:
    for write in (
        lambda: write_file(directory / NAME, "up 1\n", 0o644),
        lambda: metrics.write(directory, RUN),
    ):
        write()
        assert precious.read_text() == "precious"
        assert not (directory / NAME).is_symlink()
        assert (directory / NAME).stat().st_mode & 0o777 == 0o644
    assert "gpufleet_last_run" in (directory / NAME).read_text()
    assert len(list(directory.iterdir())) == 4


def test_pull_mode_writes_by_the_same_function(
    directory: Path, precious: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    document = {"host": "gpu01", "result": {"verdict": "PASS", "checks": []}}
    monkeypatch.setattr(pull, "probe_and_judge", lambda plan, config: (document, 1.0))
    settings = tmp_path / "pull.json"
    settings.write_text(
        json.dumps(
            {
                "plan": {},
                "config": {},
                "result": f"{tmp_path}/gpu01.json",
                "metrics": str(directory / NAME),
            }
        )
    )
    assert pull.main([str(settings)]) == 0
    assert precious.read_text() == "precious"
    assert 'gpufleet_host_healthy{host="gpu01"} 1' in (directory / NAME).read_text()
    assert (tmp_path / "gpu01.json").stat().st_mode & 0o777 == 0o640


def test_a_directory_that_became_a_link_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "exporter").symlink_to("etc")
    with pytest.raises(NotADirectoryError, match="name the directory"):
        write_file(tmp_path / "exporter" / NAME, "up 1\n", 0o644)
    assert not list((tmp_path / "etc").iterdir())


def test_a_write_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path / NAME, "up 1\n", 0o644)
    assert not list(tmp_path.iterdir())


def test_the_nightlys_own_directory_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "srv").mkdir()
    (tmp_path / "state").symlink_to("srv")
    state.write(tmp_path / "state" / "heartbeat.json", {"schema": 1})
    assert json.loads((tmp_path / "srv" / "heartbeat.json").read_text()) == {"schema": 1}
