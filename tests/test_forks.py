"""The parts of a fork: a workflow, hooks for pre-commit, templates of issues."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tools.cli.lint import LINTERS

ROOT = Path(__file__).resolve().parents[1]


def test_the_workflow_runs_the_checkouts_own_script() -> None:
    (job,) = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"].values()
    assert job["steps"][-1]["run"] == ".ci/run"
    assert (ROOT / ".ci/run").stat().st_mode & 0o100


def test_every_hook_is_local_and_one_of_the_linters() -> None:
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [each["repo"] for each in repositories] == ["local"]
    known = {tuple(word for word in linter if not word.startswith("-")) for linter in LINTERS}
    for hook in repositories[0]["hooks"]:
        program, *args = hook["entry"].removeprefix(".venv/bin/").split()
        words = (program, *(word for word in args if not word.startswith("-")))
        assert any(linter[: len(words)] == words for linter in known), hook


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_a_template_of_issues_has_what_a_form_needs(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"]
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert all(part["attributes"]["label"] for part in asked)
    assert len({part["id"] for part in asked}) == len(asked)
