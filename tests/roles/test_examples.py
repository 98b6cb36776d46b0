"""The examples: one playbook for each role, which works without any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.paths import ROOT
from tests.support.warm_start import run_playbook

EXAMPLES = sorted((ROOT / "examples").glob("*.yml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_has_valid_syntax(path: Path) -> None:
    done = run_playbook(path, "--syntax-check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_role_has_an_example() -> None:
    roles = {path.name for path in (ROOT / "roles").iterdir() if path.is_dir()}
    assert {path.stem for path in EXAMPLES} == roles
