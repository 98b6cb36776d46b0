"""The examples: one playbook for each role, which works without any other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpufleet.paths import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.yml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_has_valid_syntax(path: Path) -> None:
    command = [ROOT / ".venv/bin/ansible-playbook", "--syntax-check", "-i", "localhost,", path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_role_has_an_example() -> None:
    roles = {path.name for path in (ROOT / "roles").iterdir() if path.is_dir()}
    assert {path.stem for path in EXAMPLES} == roles
