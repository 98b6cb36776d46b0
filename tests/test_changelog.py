"""The changelog and its fragments, as changelogs/README.md describes them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TYPES = "|".join(PROJECT["tool"]["towncrier"]["fragment"])
FRAGMENTS = sorted(
    path
    for path in (ROOT / "changelogs").iterdir()
    if path.name not in {"README.md", "template.md.j2"}
)


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: str(path.name))
def test_each_fragment_has_a_known_type_and_is_a_short_sentence(path: Path) -> None:
    assert fault_of(path.name, path.read_text(encoding="utf-8")) is None


def fault_of(name: str, text: str) -> str | None:
    """What is wrong with a fragment."""
    if not re.fullmatch(rf"\+[a-z0-9-]+\.({TYPES})\.md", name):
        return "its name"
    if not text.endswith((".\n", "`\n")):
        return "its end"
    return "its length" if len(text) > 300 else None


def test_a_fragment_of_another_form_is_noticed() -> None:
    """Also after a release, when there are no fragments."""
    assert fault_of("+a.fixed.md", "It works.\n") is None
    assert fault_of("+a.bug.md", "It works.\n") == "its name"
    assert fault_of("+a.fixed.md", "It works\n") == "its end"
    assert fault_of("+a.fixed.md", "x" * 300 + ".\n") == "its length"


def test_the_draft_of_the_next_release_contains_every_fragment() -> None:
    done = subprocess.run(
        [ROOT / ".venv/bin/towncrier", "build", "--draft", "--version", "next"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("## next (")
    draft = " ".join(done.stdout.split())
    for path in FRAGMENTS:
        assert f"- {' '.join(path.read_text(encoding='utf-8').split())}" in draft


def test_each_release_has_a_section_of_at_most_a_page() -> None:
    first, *sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert "<!-- towncrier release notes start -->" in first
    assert [section.split()[0] for section in sections][-2:] == ["1.1.0", "1.0.0"]
    for section in sections:
        assert len(section.splitlines()) <= 60, section.splitlines()[0]
