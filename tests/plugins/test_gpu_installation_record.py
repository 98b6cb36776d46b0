"""Journal and receipt around a role's tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.ansible_modules import Run, load

MODULE = load("gpu_installation_record")


def record(run: Run, tmp_path: Path, state: str, check: bool = False, **more: Any) -> Any:
    return run(
        MODULE, check, kind="containers", id="engine", state=state, state_dir=tmp_path, **more
    )


def entry(tmp_path: Path, place: str) -> Any:
    path = tmp_path / place / "containers-engine.json"
    return json.loads(path.read_text()) if path.exists() else None


def test_begun_then_finished(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "ours"
    file.write_text("x")
    record(run, tmp_path, "begun", facts={"engine": "docker"})
    assert entry(tmp_path, "journal")["state"] == "installing"
    record(run, tmp_path, "finished", version="1", files=[str(file)], facts={"engine": "docker"})
    assert entry(tmp_path, "journal") is None
    receipt = entry(tmp_path, "receipts")
    assert (receipt["version"], receipt["engine"]) == ("1", "docker")
    assert [row["path"] for row in receipt["manifest"]] == [str(file).lstrip("/")]


def test_a_receipt_says_from_where_it_came(run: Run, tmp_path: Path) -> None:
    record(run, tmp_path, "finished")
    assert entry(tmp_path, "receipts")["source"] == {"file": "plan"}
    record(run, tmp_path, "begun", facts={"source": "nvidia_repo"})
    record(run, tmp_path, "finished", facts={"source": "nvidia_repo"})
    assert entry(tmp_path, "receipts")["source"] == "nvidia_repo"


def test_what_was_found_at_first_is_kept_through_a_kill_and_a_repair(
    run: Run, tmp_path: Path
) -> None:
    keep = {"keep": ["ours"]}
    record(run, tmp_path, "begun", facts={"ours": ["docker.io"]}, **keep)
    # Killed; by now the engine is there, and would be taken for somebody else's.
    record(run, tmp_path, "begun", facts={"ours": []}, **keep)
    record(run, tmp_path, "finished", facts={"ours": []}, **keep)
    assert entry(tmp_path, "receipts")["ours"] == ["docker.io"]
    record(run, tmp_path, "begun", facts={"ours": []}, **keep)
    record(run, tmp_path, "finished", facts={"ours": []}, **keep)
    assert entry(tmp_path, "receipts")["ours"] == ["docker.io"]


def test_a_removal_keeps_the_receipt_until_it_is_done(run: Run, tmp_path: Path) -> None:
    record(run, tmp_path, "begun")
    record(run, tmp_path, "finished", facts={"ours": ["docker.io"]})
    assert record(run, tmp_path, "removing")["receipt"]["ours"] == ["docker.io"]
    assert entry(tmp_path, "journal")["state"] == "removing"
    assert record(run, tmp_path, "removed")["receipt"] == {}
    assert entry(tmp_path, "receipts") is None
    assert entry(tmp_path, "journal") is None


def test_check_mode_enters_nothing(run: Run, tmp_path: Path) -> None:
    assert not record(run, tmp_path, "begun", check=True)["changed"]
    assert list(tmp_path.iterdir()) == []
