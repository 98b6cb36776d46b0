"""The role artifacts: a mirror that does not answer is named, with what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_mirror_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    # Nothing listens on port 9.
    variables = {
        "gpu_artifacts_source": "http://reader:hidden@127.0.0.1:9",
        "artifacts_host_dir": str(tmp_path / "artifacts"),
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
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-i", "localhost,", book],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    report = done.stdout[done.stdout.index("Report why the mirror is needed") :]
    report = " ".join(report.replace("\\n", " ").split())
    assert "localhost could not fetch cuda.run from the mirror http://***@127.0.0.1:9" in report
    assert "curl -fI http://***@127.0.0.1:9/cuda.run" in report
    assert "hidden" not in report
