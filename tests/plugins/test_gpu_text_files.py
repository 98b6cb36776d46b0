"""Small text files: exactly the declared ones, nobody else's touched, and killed runs finished."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.ansible_modules import Run, load, tree

CUDA, STACK, HOOK = "modules/cuda/11.8", "modules/tensorflow/2.13.1", "profile.d/zz.sh"
FOR = {CUDA: "toolkit 11.8", STACK: "stack tensorflow-2.13.1", HOOK: None}


class Desk:
    """A host's root, and the module."""

    def __init__(self, root: Path, module: ModuleType, run: Run) -> None:
        self.root, self.module, self.run = root / "host", module, run
        self.state = root / "state"
        (self.root / "profile.d").mkdir(parents=True)

    def hold(self, *names: str, check: bool = False, text: str = "text\n") -> dict[str, Any]:
        """Declare these files."""
        files = [
            {"path": str(self.root / name), "text": f"{name} {text}", "for": FOR[name]}
            for name in names
        ]
        return self.run(self.module, check, files=files, state_dir=self.state)

    def without(self, *what: str) -> dict[str, Any]:
        """Say that these are gone."""
        return self.run(self.module, without=list(what), state_dir=self.state)

    def there(self) -> list[str]:
        """The files that stand there."""
        return sorted(tree(self.root))

    def record(self, kind: str) -> Path:
        """The file of the receipt, or of the journal entry."""
        return self.state / kind / "environment-files.json"

    def receipt(self) -> dict[str, Any]:
        """The receipt."""
        document: dict[str, Any] = json.loads(self.record("receipts").read_text())
        return document


@pytest.fixture
def desk(tmp_path: Path, run: Run) -> Desk:
    return Desk(tmp_path, load("gpu_text_files"), run)


def written(path: Path) -> tuple[int, ...]:
    """The values that writing a file changes; reading it changes its time of access as well."""
    seen = path.stat()
    return seen.st_ino, seen.st_mode, seen.st_size, seen.st_mtime_ns


def test_writes_what_is_declared_and_a_receipt(desk: Desk) -> None:
    answer = desk.hold(CUDA, STACK, HOOK)
    assert answer["changed"]
    assert desk.there() == [CUDA, STACK, HOOK]
    assert (desk.root / CUDA).read_text() == f"{CUDA} text\n"
    assert (desk.root / CUDA).stat().st_mode & 0o777 == 0o644
    assert {row["for"] for row in desk.receipt()["texts"].values()} == set(FOR.values())
    assert all(entry["sha256"] for entry in desk.receipt()["manifest"])
    assert not desk.record("journal").exists()


def test_a_second_run_changes_nothing(desk: Desk) -> None:
    desk.hold(CUDA, HOOK)
    before = written(desk.record("receipts"))
    answer = desk.hold(CUDA, HOOK)
    assert (answer["changed"], answer["diff"]) == (False, [])
    assert written(desk.record("receipts")) == before


def test_check_mode_shows_the_text_and_writes_nothing(desk: Desk) -> None:
    answer = desk.hold(CUDA, check=True)
    assert answer["changed"]
    assert answer["diff"][0]["after"] == f"{CUDA} text\n"
    assert desk.there() == []
    assert not desk.state.exists()


@pytest.mark.parametrize("harm", ["edit", "remove", "mode", "touch"])
def test_what_changed_since_is_written_again(desk: Desk, harm: str) -> None:
    desk.hold(CUDA, HOOK)
    path = desk.root / CUDA
    if harm == "edit":
        path.write_text("broken")
    elif harm == "remove":
        path.unlink()
    elif harm == "mode":
        path.chmod(0o600)
    else:
        os.utime(path, (1, 1))
    assert desk.hold(CUDA, HOOK)["written"] == [str(path)]
    assert path.read_text() == f"{CUDA} text\n"
    assert not desk.hold(CUDA, HOOK)["changed"]


def test_what_is_no_longer_declared_goes_with_the_directories_made_for_it(desk: Desk) -> None:
    desk.hold(CUDA, STACK, HOOK)
    assert desk.hold(STACK, HOOK)["removed"] == [str(desk.root / CUDA)]
    assert not (desk.root / "modules" / "cuda").exists()
    desk.hold()
    assert list(desk.root.iterdir()) == [desk.root / "profile.d"]
    assert not desk.record("receipts").exists()
    assert not desk.record("journal").exists()
    assert not desk.hold()["changed"]


def test_what_people_added_stays(desk: Desk) -> None:
    desk.hold(CUDA)
    theirs = desk.root / "modules" / "cuda" / "theirs"
    theirs.write_text("theirs")
    desk.hold()
    assert desk.there() == ["modules/cuda/theirs"]


def test_a_file_of_somebody_else_is_refused_before_anything_is_written(desk: Desk) -> None:
    theirs = desk.root / HOOK
    theirs.write_text("theirs")
    answer = desk.hold(CUDA, HOOK)
    assert answer["failed"]
    assert f"mv {theirs} {theirs}.old" in answer["msg"]
    assert desk.there() == [HOOK]


def test_a_link_of_somebody_else_is_not_followed(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text(f"{HOOK} text\n")
    (desk.root / HOOK).symlink_to(tmp_path / "theirs")
    assert desk.hold(HOOK)["failed"]


def test_a_file_that_says_the_very_same_becomes_ours(desk: Desk) -> None:
    desk.hold(CUDA, HOOK)
    desk.record("receipts").unlink()
    answer = desk.hold(CUDA, HOOK)
    assert (answer["changed"], answer["written"]) == (True, [])
    assert not desk.hold(CUDA, HOOK)["changed"]


def test_without_a_toolkit_its_files_go_and_the_others_are_not_touched(desk: Desk) -> None:
    desk.hold(CUDA, STACK, HOOK)
    stayed = {name: written(desk.root / name) for name in (STACK, HOOK)}
    assert desk.without("toolkit 11.8")["removed"] == [str(desk.root / CUDA)]
    assert {name: written(desk.root / name) for name in stayed} == stayed
    assert not desk.hold(STACK, HOOK)["changed"]
    assert not desk.without("toolkit 12.3")["changed"]


def test_without_the_last_the_common_ones_go_too(desk: Desk) -> None:
    desk.hold(CUDA, STACK, HOOK)
    desk.without("toolkit 11.8", "stack tensorflow-2.13.1")
    assert desk.there() == []
    assert not desk.record("receipts").exists()


def test_what_changed_in_others_is_still_seen_after_a_removal(desk: Desk) -> None:
    desk.hold(CUDA, STACK, HOOK)
    (desk.root / STACK).write_text("broken")
    desk.without("toolkit 11.8")
    assert desk.hold(STACK, HOOK)["written"] == [str(desk.root / STACK)]


@pytest.mark.parametrize("moment", ["first file", "receipt"])
def test_a_killed_run_is_finished_even_by_another_declaration(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    desk.hold(HOOK)
    with monkeypatch.context() as killed:

        def die(*_: Any, **__: Any) -> None:
            raise OSError("killed")

        if moment == "receipt":
            killed.setattr(desk.module.Work, "manifest", die)
        else:
            killed.setattr(desk.module, "write_atomically", die)
        assert desk.hold(CUDA, HOOK)["failed"]
    assert desk.record("journal").exists()
    # What the killed run wrote is ours: other text goes over it, and it may go altogether.
    desk.hold(CUDA, STACK, HOOK, text="other\n")
    assert desk.there() == [CUDA, STACK, HOOK]
    assert (desk.root / CUDA).read_text() == f"{CUDA} other\n"
    assert not desk.record("journal").exists()
    assert not desk.hold(CUDA, STACK, HOOK, text="other\n")["changed"]
    desk.hold()
    assert list(desk.root.iterdir()) == [desk.root / "profile.d"]


def test_a_linked_parent_is_reported_in_the_manifest(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (desk.root / "modules").symlink_to(tmp_path / "elsewhere")
    desk.hold(CUDA)
    assert not desk.hold(CUDA)["changed"]
    desk.hold()
    assert (desk.root / "modules").is_symlink()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("journal", ""),
        ("journal", '{"kind":'),
        ("journal", "{}"),
        ("journal", '{"schema": 1, "kind": "environment", "id": "files", "path": "/", "version": "1"}'),
        ("receipts", '{"schema": 1, "kind": "environment", "id": "files", "path": "/",'
                     ' "version": "1", "manifest": []}'),
    ],
)  # fmt: skip
def test_a_damaged_record_blocks_nothing(desk: Desk, kind: str, text: str) -> None:
    desk.hold(CUDA, STACK, HOOK)
    desk.record(kind).parent.mkdir(exist_ok=True)
    desk.record(kind).write_text(text)
    assert desk.hold(CUDA, STACK, HOOK, check=True)["changed"]
    assert desk.hold(CUDA, STACK, HOOK)["changed"]
    assert not desk.hold(CUDA, STACK, HOOK)["changed"]
    assert set(desk.receipt()["texts"]) == {str(desk.root / each) for each in (CUDA, STACK, HOOK)}
