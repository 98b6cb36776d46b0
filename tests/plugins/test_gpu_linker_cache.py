"""The linker's module: one file of ours, and a cache that is true to its directories."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.ansible_modules import Run, load
from tests.support.elf_file import shared_library


class Linker:
    """A directory of libraries, a file of ours, and a cache that a fake ldconfig fills."""

    def __init__(self, root: Path, module: ModuleType, run: Run) -> None:
        self.root, self.module, self.run = root, module, run
        self.file, self.lib = root / "ld.so.conf.d" / "ours.conf", root / "lib64"
        shared_library(self.lib / "libcudnn.so.8.6.0", "libcudnn.so.8")
        (self.lib / "libcudnn.so.8").symlink_to("libcudnn.so.8.6.0")
        self.cache: list[tuple[str, str]] = []
        self.runs = 0

    def ldconfig(self, *_: Any) -> tuple[int, str, str]:
        """Act in the place of ldconfig, as far as this test needs."""
        self.runs += 1
        folders = self.file.read_text().splitlines()[1:] if self.file.exists() else []
        self.cache = [
            ("libcudnn.so.8", f"{folder}/libcudnn.so.8")
            for folder in folders
            if Path(folder, "libcudnn.so.8").exists()
        ]
        return 0, "", ""

    def assert_directories(self, *folders: Path, check: bool = False) -> dict[str, Any]:
        """Run the module."""
        return self.run(
            self.module, check, file=self.file, directories=[str(folder) for folder in folders]
        )


@pytest.fixture
def linker(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Linker:
    module = load("gpu_linker_cache")
    made = Linker(tmp_path, module, run)
    monkeypatch.setattr(module, "cache_entries", lambda: made.cache)
    monkeypatch.setattr(
        module.AnsibleModule, "run_command", lambda _self, *words: made.ldconfig(*words)
    )
    return made


def test_registers_a_directory(linker: Linker) -> None:
    answer = linker.assert_directories(linker.lib)
    assert answer["changed"]
    assert linker.file.read_text().splitlines()[1:] == [str(linker.lib)]
    assert linker.cache == [("libcudnn.so.8", f"{linker.lib}/libcudnn.so.8")]


def test_a_second_run_does_not_run_ldconfig(linker: Linker) -> None:
    linker.assert_directories(linker.lib)
    assert not linker.assert_directories(linker.lib)["changed"]
    assert linker.runs == 1


def test_a_library_that_the_cache_does_not_know_is_noticed(linker: Linker) -> None:
    linker.assert_directories(linker.lib)
    linker.cache = []
    answer = linker.assert_directories(linker.lib)
    assert answer["because"] == [f"{linker.lib}/libcudnn.so.8 is not in the cache"]
    assert linker.cache


def test_an_entry_whose_library_is_gone_is_noticed(linker: Linker) -> None:
    linker.assert_directories(linker.lib)
    (linker.lib / "libcudnn.so.8").unlink()
    (linker.lib / "libcudnn.so.8.6.0").unlink()
    answer = linker.assert_directories(linker.lib)
    assert "no longer there" in answer["because"][0]
    assert linker.cache == []


def test_what_ldconfig_takes_for_no_library_is_not_asked_for(linker: Linker) -> None:
    shared_library(linker.lib / "plugin.so", "plugin.so.1")
    assert linker.assert_directories(linker.lib)["changed"]
    assert not linker.assert_directories(linker.lib)["changed"]


def test_a_directory_is_taken_out_and_the_others_stay(linker: Linker, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    linker.assert_directories(linker.lib, other)
    linker.run(linker.module, file=linker.file, without=[str(other)])
    assert linker.file.read_text().splitlines()[1:] == [str(linker.lib)]


def test_check_mode_shows_the_file_and_changes_nothing(linker: Linker) -> None:
    answer = linker.assert_directories(linker.lib, check=True)
    assert answer["changed"]
    assert str(linker.lib) in answer["diff"]["after"]
    assert not linker.file.exists()
    assert linker.runs == 0


def test_no_directories_means_no_file(linker: Linker) -> None:
    linker.assert_directories(linker.lib)
    assert linker.assert_directories()["changed"]
    assert not linker.file.exists()


def test_an_ldconfig_that_does_not_help_is_a_failure(
    linker: Linker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        linker.module.AnsibleModule, "run_command", lambda *_: (1, "", "Permission denied")
    )
    answer = linker.assert_directories(linker.lib)
    assert answer["failed"]
    assert "Permission denied" in answer["msg"]


def test_a_file_that_is_no_text_is_replaced(linker: Linker) -> None:
    linker.file.parent.mkdir(parents=True)
    linker.file.write_bytes(b"/usr/local/cuda\xff\n")
    assert linker.assert_directories(linker.lib)["changed"]
    assert linker.file.read_text().splitlines()[1:] == [str(linker.lib)]
