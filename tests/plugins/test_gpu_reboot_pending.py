"""The marker of a pending restart: written before, kept through what was tried, and removed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.ansible_modules import Run, load, tree


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    loaded = load("gpu_reboot_pending")
    boot(tmp_path, "boot-1")
    receipts = sys.modules[loaded.pending.boot_id.__module__]
    monkeypatch.setattr(receipts, "BOOT_ID", str(tmp_path / "boot_id"))
    return loaded


def boot(root: Path, name: str) -> None:
    (root / "boot_id").write_text(f"{name}\n")


def test_a_marker_goes_its_way(module: ModuleType, run: Run, tmp_path: Path) -> None:
    state = tmp_path / "state"
    noted = run(module, because="550 over 535", state_dir=state)
    assert noted["changed"]
    assert json.loads((state / "reboot-pending.json").read_text()) == noted["marker"]
    assert (noted["marker"]["boot_id"], noted["marker"]["tried"]) == ("boot-1", False)

    tried = run(module, state="tried", because="the GPU is held", state_dir=state)
    assert tried["marker"] == {**noted["marker"], "tried": True}
    assert not run(module, state="tried", because="again", state_dir=state)["changed"]

    # A killed run had not come to the reboot; what is changed later begins again.
    boot(tmp_path, "boot-2")
    assert run(module, state="tried", because="x", state_dir=state)["marker"]["boot_id"] == "boot-2"
    second = run(module, because="535 over 550", state_dir=state)["marker"]
    assert (second["because"], second["tried"]) == ("535 over 550", False)

    assert run(module, state="absent", state_dir=state)["marker"] is None
    assert not (state / "reboot-pending.json").exists()
    assert not run(module, state="absent", state_dir=state)["changed"]


@pytest.mark.parametrize(("name", "kept"), [("boot-1", True), ("boot-2", False)])
def test_a_killed_reload_of_this_boot_outlasts_the_next_change_of_the_driver(
    module: ModuleType, run: Run, tmp_path: Path, name: str, kept: bool
) -> None:
    reload = {"boot_id": "boot-1", "modules": ["nvidia_peermem", "nvidia"], "services": ["dcgm"]}
    noted = run(module, because="550 over 535", state_dir=tmp_path)["marker"]
    (tmp_path / "reboot-pending.json").write_text(json.dumps({**noted, "reload": reload}))
    boot(tmp_path, name)
    marker = run(module, because="560 over 550", state_dir=tmp_path)["marker"]
    assert marker.get("reload") == (reload if kept else None)


def test_a_reboot_that_nobody_had_noted_before_is_noted(
    module: ModuleType, run: Run, tmp_path: Path
) -> None:
    marker = run(module, state="tried", because="held", state_dir=tmp_path)["marker"]
    assert (marker["because"], marker["tried"]) == ("held", True)


def test_check_mode_shows_it_and_writes_nothing(
    module: ModuleType, run: Run, tmp_path: Path
) -> None:
    before = tree(tmp_path)
    answer = run(module, check=True, because="550 over 535", state_dir=tmp_path)
    assert answer["changed"]
    assert "550 over 535" in answer["diff"]["after"]
    assert tree(tmp_path) == before


def test_a_marker_that_cannot_be_read_is_named(
    module: ModuleType, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "reboot-pending.json").write_text("{")
    answer = run(module, state="absent", state_dir=tmp_path)
    assert answer["failed"]
    assert str(tmp_path / "reboot-pending.json") in answer["msg"]
