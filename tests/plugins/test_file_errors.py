"""The reason behind an error of a file system, and what a person does about it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpufleet.gpu.plugins.module_utils import file_errors
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError, remove_tree
from ansible_collections.gpufleet.gpu.plugins.module_utils.recreation import Recreation

from tests.support.file_attributes import attribute

ROOT_MOUNT = {"path": "/", "type": "ext4", "source": "/dev/vda1", "readonly": False}


def error(number: int, path: str | None = None, other: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path, None, other)


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The mounts of the host."""
    found = [ROOT_MOUNT]
    monkeypatch.setattr(file_errors, "_mounts", lambda: found)
    return found


def test_an_immutable_file_is_named_with_its_command(tmp_path: Path) -> None:
    file = tmp_path / "with blank"
    file.write_text("x")
    with attribute(file):
        for act in (
            file.unlink,
            lambda: file.write_text("y"),
            lambda: file.rename(tmp_path / "other"),
        ):
            with pytest.raises(PermissionError) as caught:
                act()
            text = file_errors.explained(caught.value)
            assert f"{file} has the attribute immutable" in text
            assert f"on the host: chattr -i '{file}'; then run gpufleet provision again" in text
        # It names the file without its directory.
        with pytest.raises(PermissionError) as caught:
            shutil.rmtree(tmp_path)
        assert f"chattr -i '{file}'" in file_errors.explained(caught.value, [str(tmp_path)])


def test_an_immutable_directory_is_named_where_a_new_file_cannot_be_made(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    with attribute(folder):
        with pytest.raises(PermissionError) as caught:
            (folder / "new").write_text("x")
        assert f"chattr -i {folder};" in file_errors.explained(caught.value)


def test_a_read_only_mount_is_named(mounts: list[dict[str, Any]], tmp_path: Path) -> None:
    mounts.append({**ROOT_MOUNT, "path": str(tmp_path), "source": "/dev/sdb1", "readonly": True})
    text = file_errors.explained(error(errno.EROFS, f"{tmp_path}/a/b"))
    assert f"/dev/sdb1 is mounted read-only at {tmp_path}" in text
    assert f"umount {tmp_path}" in text


@pytest.mark.parametrize("failed", [error(errno.ENOSPC), StateError("uv: os error 28")])
def test_a_full_file_system_is_named_though_the_error_names_no_file(
    mounts: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failed: Exception,
) -> None:
    mounts.append({**ROOT_MOUNT, "path": str(tmp_path)})
    monkeypatch.setattr(file_errors, "is_full", lambda path: path == str(tmp_path))
    text = file_errors.explained(failed, [f"{tmp_path}/cache/artifacts"])
    assert text.startswith(str(failed))
    assert f"the file system at {tmp_path} is full" in text
    assert file_errors.explained(failed, ["/elsewhere"]) == str(failed)


def test_a_mount_point_is_named_that_cannot_be_replaced(
    mounts: list[dict[str, Any]], tmp_path: Path
) -> None:
    mounts.append({**ROOT_MOUNT, "path": str(tmp_path), "source": "tmpfs"})
    text = file_errors.explained(error(errno.EBUSY, str(tmp_path)))
    assert f"tmpfs is mounted at {tmp_path}: on the host: umount {tmp_path}" in text


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EIO])
def test_other_conditions_of_the_disk_have_a_remedy(number: int, tmp_path: Path) -> None:
    assert ": on the host: see " in file_errors.explained(error(number, str(tmp_path)))


def test_an_error_without_such_a_reason_stays_as_it_is(tmp_path: Path) -> None:
    for found in (
        error(errno.ENOENT, "/absent"),
        error(errno.EPERM, str(tmp_path)),
        StateError("The checksum differs."),
        OSError("no number"),
    ):
        assert file_errors.explained(found, [str(tmp_path)]) == str(found)


def test_both_names_of_a_rename_are_considered(
    mounts: list[dict[str, Any]], tmp_path: Path
) -> None:
    mounts.append({**ROOT_MOUNT, "path": str(tmp_path), "source": "tmpfs"})
    found = error(errno.EBUSY, "/usr/partial", str(tmp_path))
    assert f"umount {tmp_path}" in file_errors.explained(found)


def test_a_tree_with_an_immutable_file_stays_whole(tmp_path: Path) -> None:
    tree = tmp_path / "cuda-11.8"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin/ptxas").write_text("x")
    (tree / "version.json").write_text("x")
    with attribute(tree / "bin/ptxas"):
        for act in (lambda: remove_tree(str(tree)), Recreation(str(tree)).start):
            with pytest.raises(StateError) as caught:
                act()
            assert f"{tree} cannot be removed: {tree}/bin/ptxas has the attribute immutable" in str(
                caught.value
            )
            assert f"chattr -R -i {tree};" in str(caught.value)
            assert sorted(each.name for each in tmp_path.rglob("*")) == [
                "bin",
                "cuda-11.8",
                "ptxas",
                "version.json",
            ]
    remove_tree(str(tree))
    assert not tree.exists()


def test_what_is_mounted_in_a_tree_is_not_emptied(
    mounts: list[dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "tree/data").mkdir(parents=True)
    (tmp_path / "tree/data/theirs").write_text("x")
    mounts.append({**ROOT_MOUNT, "path": f"{tmp_path}/tree/data", "source": "nas:/data"})
    with pytest.raises(StateError, match=f"nas:/data is mounted at {tmp_path}/tree/data"):
        remove_tree(str(tmp_path / "tree"))
    assert (tmp_path / "tree/data/theirs").exists()


def test_the_paths_of_a_module_are_found_in_all_its_parameters() -> None:
    params = {"state_dir": "/var", "item": {"path": "/a", "files": ["/b", 1]}, "none": None}
    failed: list[str] = []
    module = SimpleNamespace(params=params, fail_json=lambda **answer: failed.append(answer["msg"]))
    assert file_errors._paths_in(params) == ["/var", "/a", "/b"]
    file_errors.fail(module, StateError("other"))
    assert failed == ["other"]
