"""The role artifacts: a mirror that does not answer is named, with what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.warm_start import run_playbook

ROOT = Path(__file__).resolve().parents[2]


def fetched(tmp_path: Path, directory: Path, mirror: str, *more: str) -> tuple[int, str]:
    """The exit status and the output, in one line, of a host that fetches a file from a mirror."""
    variables = {
        "gpu_artifacts_source": mirror,
        "artifacts_host_dir": str(directory),
        "ansible_python_interpreter": sys.executable,
        "__artifacts_mirror": True,
        "__artifacts_items": [{"file": "cuda.run", "checksum": f"sha256:{'a' * 64}"}],
    }
    tasks = ROOT / "roles/artifacts/tasks/fetch.yml"
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "vars": variables,
        "tasks": [{"ansible.builtin.include_tasks": str(tasks)}],
    }
    book = tmp_path / "book.yml"
    book.write_text(json.dumps([play]), encoding="utf-8")
    done = run_playbook(book, *more)
    return done.returncode, " ".join(done.stdout.replace("\\n", " ").split())


# Nothing listens on port 9.
MIRROR = "http://reader:hidden@127.0.0.1:9"


def test_a_mirror_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    status, output = fetched(tmp_path, tmp_path / "artifacts", MIRROR)
    assert status != 0
    report = output.partition("Report why the mirror is needed")[2]
    assert "localhost could not fetch cuda.run from the mirror http://***@127.0.0.1:9" in report
    assert "curl -fI http://***@127.0.0.1:9/cuda.run" in report
    assert "hidden" not in report


def test_check_mode_names_the_file_without_the_password(tmp_path: Path) -> None:
    status, output = fetched(tmp_path, tmp_path / "artifacts", MIRROR, "--check")
    assert status == 0
    assert "Would fetch http://***@127.0.0.1:9/cuda.run" in output
    assert "hidden" not in output


def test_a_directory_of_others_is_refused_and_a_link_to_one_of_root_is_not(tmp_path: Path) -> None:
    shared, own, link = tmp_path / "shared", tmp_path / "own", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o1777)
    own.mkdir(0o700)
    link.symlink_to(own)
    _, output = fetched(tmp_path, shared, MIRROR)
    assert f"{shared} (artifacts_host_dir) can be written by others than root" in output
    assert shared.stat().st_mode & 0o7777 == 0o1777
    _, output = fetched(tmp_path, link, MIRROR)
    assert "Report why the mirror is needed" in output
    assert own.stat().st_mode & 0o7777 == 0o700
