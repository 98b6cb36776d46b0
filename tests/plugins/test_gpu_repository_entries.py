"""Entries of package repositories: those of an address are disabled, all else is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ansible_modules import Run, load

MODULE = load("gpu_repository_entries")
NVIDIA = "https://x.example/compute/cuda/repos/debian12/x86_64"
PATTERN = "/compute/cuda/repos/"
NOTE = "# Disabled by gpufleet: "


def entries(run: Run, file: Path, check: bool = False, **more: object) -> dict[str, object]:
    return run(MODULE, check, **{"paths": [str(file)], "pattern": PATTERN, **more})


@pytest.mark.parametrize(
    ("line", "foreign"),
    [
        (f"deb {NVIDIA} /", True),
        (f" deb [arch=amd64] {NVIDIA} /", True),
        (f"deb [arch=amd64 signed-by=/k.gpg]{NVIDIA} /", True),
        (f"\tdeb-src\t{NVIDIA} /", True),
        (f"# deb {NVIDIA} /", False),
        ("deb https://site.example/debian bookworm main", False),
        (f"deb [signed-by={PATTERN}key.gpg] https://site.example/debian bookworm main", False),
    ],
)
def test_a_line_becomes_a_comment_however_it_begins(
    run: Run, tmp_path: Path, line: str, foreign: bool
) -> None:
    file = tmp_path / "sources.list"
    file.write_text(f"deb http://site/debian bookworm main\n{line}\n# ours\n")
    file.chmod(0o640)
    assert entries(run, file)["changed"] is foreign
    after = NOTE + line.lstrip() if foreign else line
    assert file.read_text() == f"deb http://site/debian bookworm main\n{after}\n# ours\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert entries(run, file)["changed"] is False


OTHER = "Types: deb\nURIs: http://archive.example/ubuntu\nSuites: noble\n"
STANZA = f"# CUDA\nTypes: deb\nURIs: {NVIDIA}\nSuites: /\n"


@pytest.mark.parametrize(
    ("stanza", "after"),
    [
        (STANZA, STANZA.replace("Types", "Enabled: no\nTypes")),
        (f"Enabled: yes\n{STANZA}", f"Enabled: no\n{STANZA}"),
        (f"enabled:no\n{STANZA}", f"enabled:no\n{STANZA}"),
        (STANZA.replace(" http", "\n http"), f"# CUDA\nEnabled: no\nTypes: deb\nURIs:\n {NVIDIA}\n"
         "Suites: /\n"),
    ],
)  # fmt: skip
def test_a_stanza_is_disabled_and_the_others_of_its_file_stay(
    run: Run, tmp_path: Path, stanza: str, after: str
) -> None:
    file = tmp_path / "site.sources"
    file.write_text(f"{OTHER}\n\n{stanza}\n{OTHER}")
    assert entries(run, file)["changed"] is (after != stanza)
    assert file.read_text() == f"{OTHER}\n\n{after}\n{OTHER}"
    assert entries(run, file)["changed"] is False


def test_a_stanza_with_another_repository_is_refused(run: Run, tmp_path: Path) -> None:
    first, second = tmp_path / "a.list", tmp_path / "b.sources"
    first.write_text(f"deb {NVIDIA} /\n")
    stanza = f"Types: deb\nURIs: {NVIDIA} http://archive.example/\nSuites: /\n"
    second.write_text(f"{stanza}Enabled: no\n")
    assert entries(run, second)["changed"] is False
    second.write_text(stanza)
    before = first.read_text(), second.read_text()
    answer = entries(run, first, paths=[str(first), str(second)])
    assert answer["failed"]
    assert f"{second}: one entry has the addresses {NVIDIA} and http://archive" in answer["msg"]
    assert (first.read_text(), second.read_text()) == before


def test_a_section_is_disabled_and_the_others_of_its_file_stay(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "site.repo"
    base = "# The site's.\n[baseos]\nbaseurl=http://archive.example/\nenabled=1\n"
    cuda = f"[cuda]\nname=cuda\nbaseurl = http://x.example/other/\n  {NVIDIA}\n"
    off = f"[off]\nbaseurl={NVIDIA}\nenabled = 0\n"
    on = f"[on]\nbaseurl={NVIDIA}\nEnabled = True\n"
    file.write_text(base + cuda + off + on)
    assert entries(run, file)["changed"]
    assert file.read_text() == (
        base
        + cuda.replace("name=cuda", "enabled=0\nname=cuda")
        + off
        + on.replace("Enabled = True", "enabled=0")
    )
    assert entries(run, file)["changed"] is False


def test_check_mode_says_all_of_it_and_changes_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cuda.list").write_text(f"deb {NVIDIA} /\n")
    (tmp_path / "gpufleet-nvidia.list").write_text(f"deb {NVIDIA} /\n")
    (tmp_path / "cuda.list.save").write_text(f"deb {NVIDIA} /\n")
    answer = entries(run, tmp_path, check=True, excludes=["gpufleet-*"])
    assert answer["changed"]
    assert answer["files"] == [str(tmp_path / "cuda.list")]
    assert answer["diff"][0]["after"] == f"{NOTE}deb {NVIDIA} /\n"
    assert (tmp_path / "cuda.list").read_text() == f"deb {NVIDIA} /\n"


def test_a_file_behind_a_link_is_changed_and_the_link_stays(run: Run, tmp_path: Path) -> None:
    real = tmp_path / "real.list"
    real.write_bytes(f"deb {NVIDIA} /\n# \xe9 \xff\n".encode("latin-1"))
    link = tmp_path / "cuda.list"
    link.symlink_to("real.list")
    assert entries(run, link)["changed"]
    assert link.is_symlink()
    assert real.read_bytes() == f"{NOTE}deb {NVIDIA} /\n# \xe9 \xff\n".encode("latin-1")
