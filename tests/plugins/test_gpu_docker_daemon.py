"""Docker's daemon.json: ours merged in, theirs untouched, what cannot be read refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.ansible_modules import Run, load

MODULE = load("gpu_docker_daemon")
THEIRS = """{
  "log-driver": "journald",
  "exec-opts": ["native.cgroupdriver=cgroupfs"],
  "runtimes": {"kata": {"path": "/opt/kata/bin/kata-runtime"}},
  "insecure-registries": ["registry.site:5000"],
  "zzz": {"unknown to us": [1, 2.5, null]}
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "docker" / "daemon.json"
    path.parent.mkdir()
    path.write_text(THEIRS)
    path.chmod(0o640)
    return path


def merge(run: Run, file: Path, check: bool = False, **more: Any) -> dict[str, Any]:
    wanted = {"runtimes": {"nvidia": "nvidia-container-runtime"}, "values": {"live-restore": True}}
    return run(MODULE, check, path=file, **{**wanted, **more})


def test_theirs_stays_in_its_order_and_ours_comes_behind(run: Run, file: Path) -> None:
    answer = merge(run, file)
    assert answer["changed"]
    after, before = json.loads(file.read_text()), json.loads(THEIRS)
    assert list(after) == [*before, "live-restore"]
    assert after.pop("live-restore") is True
    assert after["runtimes"].pop("nvidia") == {"path": "nvidia-container-runtime"}
    assert after == before
    assert file.stat().st_mode & 0o777 == 0o640


def test_the_file_as_it_was_is_kept(run: Run, file: Path) -> None:
    answer = merge(run, file)
    assert Path(answer["backup_file"]).read_text() == THEIRS


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_with_a_byte_order_mark_is_read_as_docker_reads_it(
    run: Run, file: Path, encoding: str
) -> None:
    mark = "\ufeff" if encoding.endswith("e") else ""
    file.write_bytes((mark + THEIRS).encode(encoding))
    assert merge(run, file)["changed"]
    # Each release of Docker reads what has no mark.
    after = json.loads(file.read_bytes().decode("utf-8"))
    assert (after["live-restore"], after["log-driver"]) == (True, "journald")
    assert not merge(run, file)["changed"]


def test_a_marked_file_that_has_everything_is_not_changed(run: Run, file: Path) -> None:
    merge(run, file)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    before = file.read_bytes()
    assert not merge(run, file)["changed"]
    assert file.read_bytes() == before


def test_a_second_run_changes_nothing(run: Run, file: Path) -> None:
    merge(run, file)
    before = file.stat()
    answer = merge(run, file)
    assert not answer["changed"]
    assert "backup_file" not in answer
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert len(list(file.parent.iterdir())) == 2


def test_check_mode_shows_it_and_writes_nothing(run: Run, file: Path) -> None:
    answer = merge(run, file, check=True)
    assert answer["changed"]
    assert '"live-restore": true' in answer["diff"]["after"]
    assert list(file.parent.iterdir()) == [file]
    assert file.read_text() == THEIRS


def test_where_there_is_none_one_is_made(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "docker" / "daemon.json"
    answer = merge(run, path)
    assert "backup_file" not in answer
    assert json.loads(path.read_text()) == {
        "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}},
        "live-restore": True,
    }


def test_a_registration_by_hand_is_left_as_it_is(run: Run, file: Path) -> None:
    theirs = {"path": "/usr/bin/nvidia-container-runtime", "args": ["--debug"]}
    file.write_text(json.dumps({"runtimes": {"nvidia": theirs}, "live-restore": True}))
    assert not merge(run, file)["changed"]


def test_another_program_under_that_name_is_corrected_with_its_arguments_kept(
    run: Run, file: Path
) -> None:
    file.write_text(json.dumps({"runtimes": {"nvidia": {"path": "runc", "args": ["-x"]}}}))
    merge(run, file)
    assert json.loads(file.read_text())["runtimes"]["nvidia"] == {
        "path": "nvidia-container-runtime",
        "args": ["-x"],
    }


@pytest.mark.parametrize(
    ("values", "restart"),
    [
        ({"live-restore": True}, False),
        ({"features": {"cdi": True}}, True),
        ({"data-root": "/srv/docker"}, True),
    ],
)
def test_it_says_whether_a_reload_is_enough(
    run: Run, file: Path, values: dict[str, Any], restart: bool
) -> None:
    assert merge(run, file, values=values)["restart"] is restart


def test_a_feature_of_theirs_stays_beside_ours(run: Run, file: Path) -> None:
    file.write_text('{"features": {"buildkit": false}}')
    merge(run, file, values={"features": {"cdi": True}})
    assert json.loads(file.read_text())["features"] == {"buildkit": False, "cdi": True}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1,}', "line 1 column 9"),
        ("# a comment\n{}", "line 1 column 1"),
        ('{"a": 1, "a": 2}', "has a twice"),
        ("[]", "the file is not a mapping"),
        ('{"runtimes": []}', "runtimes is not a mapping"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(
    run: Run, file: Path, text: str, words: str
) -> None:
    file.write_text(text)
    answer = merge(run, file)
    assert answer["failed"]
    assert words in answer["msg"]
    assert str(file) in answer["msg"]
    assert file.read_text() == text
    assert list(file.parent.iterdir()) == [file]


def test_a_runtime_is_taken_out_and_the_others_stay(run: Run, file: Path) -> None:
    merge(run, file)
    answer = run(MODULE, path=file, without_runtimes=["nvidia"])
    assert answer["changed"]
    assert json.loads(file.read_text())["runtimes"] == json.loads(THEIRS)["runtimes"]


def test_the_default_runtime_is_not_taken_away(run: Run, file: Path) -> None:
    file.write_text('{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "x"}}}')
    answer = run(MODULE, path=file, without_runtimes=["nvidia"])
    assert answer["failed"]
    assert "default-runtime" in answer["msg"]
