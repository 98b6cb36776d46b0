"""The links of an installation are restored from its receipt, and nothing else is changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host.manifest import compare_manifest, manifest_of
from tests.support.ansible_modules import Run, load, tree

LINK = "lib/libcudnn.so.8"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A toolkit with cuDNN: a library, two links, a header, and their receipt."""
    top = tmp_path / "cuda-11.8"
    (top / "lib").mkdir(parents=True)
    (top / "include").mkdir()
    (top / "lib/libcudnn.so.8.6.0").write_text("library")
    (top / "include/cudnn.h").write_text("header")
    (top / LINK).symlink_to("libcudnn.so.8.6.0")
    (top / "lib/libcudnn.so").symlink_to("libcudnn.so.8")
    names = ["lib/libcudnn.so.8.6.0", LINK, "lib/libcudnn.so", "include/cudnn.h"]
    receipt = {
        "schema": 1,
        "kind": "cudnn",
        "id": "11.8-8",
        "path": str(top),
        "version": "8.6.0.163",
        "installed": "2026-11-20T12:00:00Z",
        "source": {"file": "cudnn.tar.xz", "sha256": "a" * 64},
        "default": True,
        "manifest": manifest_of(str(top), names),
    }
    record = tmp_path / "state/receipts/cudnn-11.8-8.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(receipt))
    return tmp_path


def recorded(place: Path) -> dict[str, Any]:
    """The receipt."""
    document: dict[str, Any] = json.loads((place / "state/receipts/cudnn-11.8-8.json").read_text())
    return document


def restore(run: Run, place: Path, check: bool = False, **more: Any) -> dict[str, Any]:
    """Run the module."""
    arguments = {
        "kind": "cudnn",
        "id": "11.8-8",
        "path": place / "cuda-11.8",
        "version": "8.6.0.163",
        "state_dir": place / "state",
    }
    return run(load("gpu_links"), check, **{**arguments, **more})


def test_a_missing_link_and_one_with_another_target_are_restored(run: Run, place: Path) -> None:
    before, receipt = tree(place / "cuda-11.8"), recorded(place)
    (place / "cuda-11.8" / LINK).unlink()
    bare = place / "cuda-11.8/lib/libcudnn.so"
    bare.unlink()
    bare.symlink_to("elsewhere")
    answer = restore(run, place)
    assert answer["changed"]
    assert sorted(answer["links"]) == ["lib/libcudnn.so", LINK]
    assert tree(place / "cuda-11.8") == before
    assert {**recorded(place), "installed": ""} == {**receipt, "installed": ""}
    assert not list((place / "state/journal").iterdir())


def test_a_second_run_and_check_mode_change_nothing(run: Run, place: Path) -> None:
    assert not restore(run, place)["changed"]
    (place / "cuda-11.8" / LINK).unlink()
    before = tree(place)
    assert restore(run, place, check=True)["links"] == [LINK]
    assert tree(place) == before


def test_a_run_that_is_killed_is_finished_by_an_installation(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has the entry from before the first link until after the last one."""
    (place / "cuda-11.8" / LINK).unlink()
    module = load("gpu_links")
    entries: list[bool] = []
    real = module.make_link

    def watched(target: str, path: str) -> None:
        entries.append((place / "state/journal/cudnn-11.8-8.json").exists())
        real(target, path)

    monkeypatch.setattr(module, "make_link", watched)
    arguments = {"kind": "cudnn", "id": "11.8-8", "version": "8.6.0.163"}
    paths = {"path": place / "cuda-11.8", "state_dir": place / "state"}
    assert run(module, False, **arguments, **paths)["changed"]
    assert entries == [True]


@pytest.mark.parametrize("case", ["file in place", "no receipt", "journal", "version", "folder"])
def test_what_links_alone_do_not_repair_is_refused(run: Run, place: Path, case: str) -> None:
    top, more = place / "cuda-11.8", {}
    (top / LINK).unlink()
    if case == "file in place":
        (top / LINK).write_text("theirs")
    elif case == "no receipt":
        (place / "state/receipts/cudnn-11.8-8.json").unlink()
    elif case == "journal":
        entry = {"schema": 1, "kind": "cudnn", "id": "11.8-8", "path": str(top)}
        (place / "state/journal").mkdir()
        (place / "state/journal/cudnn-11.8-8.json").write_text(
            json.dumps({**entry, "state": "installing"})
        )
    elif case == "version":
        more = {"version": "8.9.7.29"}
    else:
        (top / "lib").rename(top / "lib-elsewhere")
        (top / "lib").symlink_to("lib-elsewhere")
    before = tree(place)
    answer = restore(run, place, **more)
    assert answer["failed"]
    assert "cannot be restored" in answer["msg"]
    assert tree(place) == before


def test_the_probe_marks_links_that_the_receipt_can_restore(place: Path) -> None:
    top, manifest = place / "cuda-11.8", recorded(place)["manifest"]
    (top / LINK).unlink()
    (top / "include/cudnn.h").unlink()
    assert sorted(compare_manifest(str(top), manifest), key=lambda row: row["path"]) == [
        {"path": "include/cudnn.h", "what": "missing"},
        {"path": LINK, "what": "missing", "link": True},
    ]
    (top / LINK).write_text("a copy")
    assert {"path": LINK, "what": "type"} in compare_manifest(str(top), manifest)
