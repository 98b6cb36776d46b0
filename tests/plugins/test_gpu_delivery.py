"""Files that are copied to a host in one go: the module, and the action plugin around it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.ansible_modules import Run, load

ROOT = Path(__file__).resolve().parents[2]


def described(path: Path, content: bytes, staged: Path | None = None) -> dict[str, Any]:
    """A file as the action plugin describes it."""
    checksum = "sha256:" + hashlib.sha256(content).hexdigest()
    file = {"path": str(path), "mode": "0640", "size": len(content), "checksum": checksum}
    file["compare"] = True
    return dict(file, staged=str(staged)) if staged else file


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    path = tmp_path / "staged"
    path.write_bytes(b"new")
    return path


def test_a_file_gets_its_name_owner_and_mode(run: Run, tmp_path: Path, staged: Path) -> None:
    path = tmp_path / "deep" / "er" / "file"
    answer = run(load("gpu_delivery"), dest="/x", files=[described(path, b"new", staged)])
    assert (answer["changed"], answer["wanted"]) == (True, [str(path)])
    assert path.read_bytes() == b"new"
    status = path.stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o640, 0, 0)
    assert path.parent.stat().st_mode & 0o7777 == 0o755
    assert not staged.exists()


@pytest.mark.parametrize("content", [b"", b"old", b"older"])
def test_another_content_is_replaced(
    run: Run, tmp_path: Path, staged: Path, content: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert run(load("gpu_delivery"), dest="/x", files=[described(path, b"new")])["wanted"]
    assert path.read_bytes() == content
    run(load("gpu_delivery"), dest="/x", files=[described(path, b"new", staged)])
    assert path.read_bytes() == b"new"


def test_a_link_is_replaced_and_what_it_leads_to_is_left(
    run: Run, tmp_path: Path, staged: Path
) -> None:
    other, path = tmp_path / "other", tmp_path / "file"
    other.write_bytes(b"new")
    path.symlink_to(other)
    answer = run(load("gpu_delivery"), dest="/x", files=[described(path, b"new", staged)])
    assert answer["changed"]
    assert not path.is_symlink()
    assert other.stat().st_mode & 0o777 != 0o640


def test_a_directory_in_the_way_stays(run: Run, tmp_path: Path, staged: Path) -> None:
    path = tmp_path / "file"
    path.mkdir()
    answer = run(load("gpu_delivery"), dest="/x", files=[described(path, b"new", staged)])
    assert answer["failed"]
    assert f"mv {path} {path}.old" in answer["msg"]
    assert path.is_dir()


def test_a_file_that_its_user_compares_is_read_only_where_it_is_there_already(
    run: Run, tmp_path: Path, staged: Path
) -> None:
    path = tmp_path / "file"
    damaged = {**described(path, b"nex", staged), "compare": False}
    assert run(load("gpu_delivery"), dest="/x", files=[damaged])["changed"]
    assert path.read_bytes() == b"new"
    del damaged["staged"]
    assert run(load("gpu_delivery"), dest="/x", files=[damaged])["wanted"] == [str(path)]


def test_a_truncated_file_gets_no_name(run: Run, tmp_path: Path, staged: Path) -> None:
    path = tmp_path / "file"
    truncated = {**described(path, b"newer", staged), "compare": False}
    assert "did not arrive" in run(load("gpu_delivery"), dest="/x", files=[truncated])["msg"]
    assert not path.exists()


def test_what_arrives_damaged_gets_no_name(run: Run, tmp_path: Path, staged: Path) -> None:
    path = tmp_path / "file"
    answer = run(load("gpu_delivery"), dest="/x", files=[described(path, b"nex", staged)])
    assert answer["failed"]
    assert "did not arrive" in answer["msg"]
    assert not path.exists()


@pytest.mark.parametrize(
    ("mode", "owner", "refused"),
    [(0o1777, 0, True), (0o775, 0, True), (0o755, 65534, True), (0o700, 0, False)],
)
def test_a_directory_that_others_write_in_is_refused_and_stays_as_it_is(
    run: Run, tmp_path: Path, staged: Path, *, mode: int, owner: int, refused: bool
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    os.chown(folder, owner, -1)
    for check, more in ((True, None), (False, staged)):
        file = described(folder / "file", b"new", more)
        answer = run(load("gpu_delivery"), check=check, dest="/x", files=[file])
        assert answer.get("failed", False) is refused
        if refused:
            assert f"{folder} can be written by others than root" in answer["msg"]
            assert f"such as {folder}/gpufleet" in answer["msg"]
    status = folder.stat()
    assert (status.st_mode & 0o7777, status.st_uid) == (mode, owner)
    assert (folder / "file").exists() is not refused


def test_the_mode_alone_is_corrected(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"new")
    path.chmod(0o600)
    for check, mode in ((True, 0o600), (False, 0o640)):
        answer = run(load("gpu_delivery"), check=check, dest="/x", files=[described(path, b"new")])
        assert (answer["changed"], answer["wanted"]) == (True, [])
        assert path.stat().st_mode & 0o777 == mode
    assert not run(load("gpu_delivery"), dest="/x", files=[described(path, b"new")])["changed"]


def test_the_group_alone_is_corrected(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"new")
    path.chmod(0o640)
    os.chown(path, 0, 1234)
    for check, group in ((True, 1234), (False, 0)):
        answer = run(load("gpu_delivery"), check=check, dest="/x", files=[described(path, b"new")])
        assert (answer["changed"], path.stat().st_gid) == (True, group)


PLAYBOOK = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars: {{ansible_python_interpreter: "{{{{ ansible_playbook_python }}}}"}}
  tasks:
    - gpufleet.gpu.gpu_delivery: &files
        dest: {folder}/there
        files: ["{folder}/one", {{src: "{folder}/two", dest: "{folder}/tools", mode: "0755"}}]
      check_mode: true
    - gpufleet.gpu.gpu_delivery: *files
    - gpufleet.gpu.gpu_delivery: *files
    - gpufleet.gpu.gpu_delivery: {{dest: "{folder}/there", files: ["{folder}/absent"]}}
"""


def test_the_action_brings_what_the_host_lacks_and_leaves_nothing_behind(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(PLAYBOOK.format(folder=tmp_path))
    temporary = tmp_path / "temporary"
    done = subprocess.run(
        [ROOT / ".venv" / "bin" / "ansible-playbook", "-i", "localhost,", "--diff", playbook],
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_REMOTE_TMP": str(temporary),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    words = [line.split(":")[0] for line in done.stdout.splitlines() if ": [localhost]" in line]
    assert words == ["changed", "changed", "ok", "fatal"]
    assert f"{tmp_path}/absent on the control machine cannot be read" in done.stdout
    assert (tmp_path / "there" / "one").read_text() == "one"
    assert (tmp_path / "tools" / "two").stat().st_mode & 0o777 == 0o755
    assert list(temporary.iterdir()) == []
