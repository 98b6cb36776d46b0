"""Artifacts come into the cache whole and checked, or not at all, each once."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from ansible_collections.gpufleet.gpu.plugins.module_utils import download

from tests.support.ansible_modules import Run, load, sha256

CONTENT = b"a runfile's content " * 5000
NAME = "cuda_11.8.0_linux.run"


class Mirror(BaseHTTPRequestHandler):
    """Serves CONTENT, continues where asked, and notes what was asked of it."""

    breaks_off_at: ClassVar[int | None] = None
    content: ClassVar[bytes] = CONTENT
    encoding: ClassVar[str] = "identity"
    asked: ClassVar[list[str | None]] = []
    paths: ClassVar[list[str]] = []
    endless: ClassVar[bool] = False
    sent: ClassVar[int] = 0

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        type(self).asked.append(wanted)
        type(self).paths.append(self.path)
        start = int(wanted.split("=")[1].rstrip("-")) if wanted else 0
        if wanted and start >= len(self.content):
            self.send_error(416)
            return
        self.send_response(206 if wanted else 200)
        if self.endless:
            self.end_headers()
            with contextlib.suppress(OSError):
                while type(self).sent < 1 << 30:
                    type(self).sent += self.wfile.write(self.content)
            return
        self.send_header("Content-Length", str(len(self.content) - start))
        self.send_header("Content-Encoding", self.encoding)
        self.end_headers()
        self.wfile.write(self.content[start : self.breaks_off_at])

    def log_message(self, *_: Any) -> None:
        """Stay silent."""


@pytest.fixture
def mirror() -> Iterator[str]:
    Mirror.paths = []
    Mirror.asked, Mirror.breaks_off_at, Mirror.endless, Mirror.sent = [], None, False, 0
    Mirror.content, Mirror.encoding = CONTENT, "identity"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/{NAME}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def declared(tmp_path: Path) -> dict[str, Any]:
    """The parameters of every call: the file, its checksum, the cache."""
    original = tmp_path / "original"
    original.write_bytes(CONTENT)
    return {"file": NAME, "checksum": sha256(original), "cache": tmp_path / "cache"}


def test_a_download_lands_in_the_cache_under_its_name(
    run: Run, declared: dict[str, Any], mirror: str
) -> None:
    answer = run(load("gpu_artifact"), url=mirror, **declared)
    assert answer["changed"]
    assert Path(answer["path"]).read_bytes() == CONTENT
    assert not list(declared["cache"].glob("*.partial"))


def test_what_is_cached_is_not_asked_for_again(
    run: Run, declared: dict[str, Any], mirror: str
) -> None:
    run(load("gpu_artifact"), url=mirror, **declared)
    assert not run(load("gpu_artifact"), url=mirror, **declared)["changed"]
    assert len(Mirror.asked) == 1


def test_a_download_that_was_cut_off_is_continued(
    run: Run, declared: dict[str, Any], mirror: str
) -> None:
    declared["cache"].mkdir()
    (declared["cache"] / f"{NAME}.partial").write_bytes(CONTENT[:1234])
    answer = run(load("gpu_artifact"), url=mirror, **declared)
    assert Path(answer["path"]).read_bytes() == CONTENT
    assert Mirror.asked == ["bytes=1234-"]


def test_a_download_that_was_whole_but_not_renamed_is_taken(
    run: Run, declared: dict[str, Any], mirror: str
) -> None:
    declared["cache"].mkdir()
    (declared["cache"] / f"{NAME}.partial").write_bytes(CONTENT)
    assert Path(run(load("gpu_artifact"), url=mirror, **declared)["path"]).read_bytes() == CONTENT


def test_a_connection_that_breaks_off_is_reported_as_such_and_continued(
    run: Run, declared: dict[str, Any], mirror: str
) -> None:
    Mirror.breaks_off_at = 5000
    answer = run(load("gpu_artifact"), url=mirror, **declared)
    assert answer["failed"]
    assert "broke off" in answer["msg"]
    Mirror.breaks_off_at = None
    answer = run(load("gpu_artifact"), url=mirror, **declared)
    assert Path(answer["path"]).read_bytes() == CONTENT
    assert Mirror.asked == [None, "bytes=5000-"]


@pytest.mark.parametrize("size", [len(CONTENT), 1, None])
def test_a_server_that_sends_without_end_is_left(
    run: Run,
    declared: dict[str, Any],
    mirror: str,
    monkeypatch: pytest.MonkeyPatch,
    size: int | None,
) -> None:
    Mirror.endless = True
    monkeypatch.setattr(download, "MOST_BYTES", 3 << 20)
    more, beyond = ({}, "may have") if size is None else ({"size": size}, "has")
    answer = run(load("gpu_artifact"), **declared, url=mirror, **more)
    assert f"more than the {size or 3 << 20} bytes that {NAME} {beyond}" in answer["msg"]
    # A few buffers of the system beyond, and no file.
    assert Mirror.sent < 64 << 20
    assert not list(Path(declared["cache"]).glob(f"{NAME}*"))


def test_a_full_disk_ends_a_download_and_gets_its_space_back(
    run: Run, declared: dict[str, Any], mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Mirror.endless = True
    left = iter([10**9] * 3 + [10**6] * 99)
    monkeypatch.setattr(
        download.shutil, "disk_usage", lambda path: SimpleNamespace(free=next(left))
    )
    answer = run(load("gpu_artifact"), **declared, url=mirror)
    assert "Free some space in" in answer["msg"]
    assert not list(Path(declared["cache"]).glob(f"{NAME}*"))


def test_a_file_of_the_known_size_is_taken(run: Run, declared: dict[str, Any], mirror: str) -> None:
    assert run(load("gpu_artifact"), **declared, url=mirror, size=len(CONTENT))["changed"]


def test_an_archive_that_a_server_calls_encoded_stays_as_it_is(
    run: Run, declared: dict[str, Any], mirror: str, tmp_path: Path
) -> None:
    Mirror.content, Mirror.encoding = gzip.compress(CONTENT), "gzip"
    (tmp_path / "archive").write_bytes(Mirror.content)
    declared["checksum"] = sha256(tmp_path / "archive")
    answer = run(load("gpu_artifact"), url=mirror, **declared)
    assert Path(answer["path"]).read_bytes() == Mirror.content


def test_a_relative_directory_is_refused(run: Run, declared: dict[str, Any]) -> None:
    answer = run(load("gpu_artifact"), source="here", **declared)
    assert answer["failed"]
    assert "absolute path" in answer["msg"]


def test_a_wrong_checksum_names_both_sides_and_keeps_nothing(
    run: Run, declared: dict[str, Any], mirror: str
) -> None:
    declared["checksum"] = "sha256:" + "0" * 64
    answer = run(load("gpu_artifact"), url=mirror, **declared)
    assert answer["failed"]
    assert "0" * 64 in answer["msg"]
    assert "gpu_artifacts" in answer["msg"]
    assert not [path for path in declared["cache"].glob("cuda*") if path.is_file()]


def test_an_unreachable_site_names_the_way_out(run: Run, declared: dict[str, Any]) -> None:
    answer = run(load("gpu_artifact"), url="http://127.0.0.1:9/nothing", **declared)
    assert answer["failed"]
    assert "cannot be reached" in answer["msg"]
    assert "gpu_artifacts_source" in answer["msg"]


def test_a_file_behind_a_login_is_not_tried(
    run: Run, declared: dict[str, Any], mirror: str
) -> None:
    answer = run(load("gpu_artifact"), url=mirror, login_required=True, **declared)
    assert answer["failed"]
    assert "login" in answer["msg"]
    assert Mirror.asked == []


def test_a_directory_is_used_in_place(run: Run, declared: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / NAME).write_bytes(CONTENT)
    answer = run(load("gpu_artifact"), source=source, **declared)
    assert (answer["changed"], answer["path"]) == (False, str(source / NAME))


def test_a_directory_that_lacks_the_file_says_where_to_get_it(
    run: Run, declared: dict[str, Any], tmp_path: Path
) -> None:
    answer = run(load("gpu_artifact"), source=tmp_path, url="https://example.org/x", **declared)
    assert answer["failed"]
    assert "https://example.org/x" in answer["msg"]


def test_a_file_that_changed_after_it_was_checked_is_checked_again(
    run: Run, declared: dict[str, Any], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / NAME).write_bytes(CONTENT)
    run(load("gpu_artifact"), source=source, **declared)
    (source / NAME).write_bytes(CONTENT[:-1] + b"?")
    assert run(load("gpu_artifact"), source=source, **declared)["failed"]


def test_check_mode_downloads_nothing(run: Run, declared: dict[str, Any], mirror: str) -> None:
    assert run(load("gpu_artifact"), check=True, url=mirror, **declared)["changed"]
    assert Mirror.asked == []


def test_a_playbook_fetches_without_asking_the_host(
    mirror: str, declared: dict[str, Any], tmp_path: Path
) -> None:
    wrong = {**declared, "checksum": "sha256:" + "0" * 64, "file": "other.run"}
    tasks = [
        {"gpufleet.gpu.gpu_artifact": {**each, "cache": str(each["cache"]), "url": mirror}}
        for each in (declared, declared, wrong)
    ]
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [root / ".venv" / "bin" / "ansible-playbook", "-i", "no-such-host.invalid,", playbook],
        env={**os.environ, "ANSIBLE_CONFIG": str(root / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    words = [line.split(":")[0] for line in done.stdout.splitlines() if ": [no-such" in line]
    assert words == ["changed", "ok", "fatal"]
    assert "has sha256" in done.stdout


def test_the_query_of_an_address_is_in_no_message(run: Run, declared: dict[str, Any]) -> None:
    for address in ("http://127.0.0.1:9/x?signature=secret", "http://127.0.0.1:9/x y?a=secret b"):
        answer = run(load("gpu_artifact"), url=address, **declared)
        assert answer["failed"]
        assert "http://127.0.0.1:9/x" in answer["msg"]
        assert "secret" not in answer["msg"]
    login = {**declared, "login_required": True}
    answer = run(load("gpu_artifact"), url="https://me:secret@x/y?signature=secret", **login)
    assert "https://***@x/y?***" in answer["msg"]


def test_a_playbook_uses_the_query_that_a_plan_does_not_show(
    mirror: str, declared: dict[str, Any], tmp_path: Path
) -> None:
    task = {**declared, "cache": str(declared["cache"]), "url": f"{mirror}?***"}
    play = {
        "hosts": "all",
        "gather_facts": False,
        "vars": {
            "gpu_artifacts": {NAME: {"url": "{{ signed }}"}},
            "signed": f"{mirror}?sign=secret",
        },
        "tasks": [{"gpufleet.gpu.gpu_artifact": task}],
    }
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(json.dumps([play]))
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [root / ".venv/bin/ansible-playbook", "-v", "-i", "no-such-host.invalid,", playbook],
        env={**os.environ, "ANSIBLE_CONFIG": str(root / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert Mirror.paths == [f"/{NAME}?sign=secret"]
    assert "secret" not in done.stdout + done.stderr
