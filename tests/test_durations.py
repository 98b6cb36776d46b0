"""The record of durations by which the files of a run are sorted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import durations
from tests.support.durations import Durations, longest_first, record_file, recorded


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUFLEET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run_of(*reports: tuple[str, float]) -> None:
    """A run in which tests took so long."""
    plugin: Any = Durations()
    for name, seconds in reports:
        plugin.pytest_runtest_logreport(SimpleNamespace(nodeid=name, duration=seconds))
    plugin.pytest_sessionfinish()


def test_set_up_counts_and_what_is_short_does_not(cache: Path) -> None:
    run_of(("a.py::one", 3.0), ("a.py::one", 1.25), ("b.py::two", 0.01))
    assert recorded() == {"a.py::one": 4.2}


def test_a_run_of_a_part_keeps_what_others_took() -> None:
    run_of(("a.py::one", 3.0))
    run_of(("b.py::two", 2.0), ("a.py::one", 5.0))
    assert recorded() == {"a.py::one": 5.0, "b.py::two": 2.0}


def test_a_damaged_record_is_written_again(cache: Path) -> None:
    cache.mkdir()
    record_file().write_text("{")
    run_of(("a.py::one", 3.0))
    assert recorded() == {"a.py::one": 3.0}


def test_the_longest_file_comes_first_and_its_tests_keep_their_order() -> None:
    names = ("a.py::one", "b.py::two", "b.py::one", "c.py::one", "d.py::one")
    items: Any = [SimpleNamespace(nodeid=name, path=Path(name[:4])) for name in names]
    seconds = {"a.py::one": 3.0, "b.py::one": 2.0, "b.py::two": 2.0}
    longest_first(items, seconds, [Path("d.py"), Path("a.py")])
    assert [item.nodeid for item in items] == [
        "d.py::one",
        "b.py::two",
        "b.py::one",
        "a.py::one",
        "c.py::one",
    ]


def test_what_was_not_run_here_takes_as_long_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "usual", lambda: {"b.py": 300.0, "c.py": 3.0, "d.py": 30.0})
    names = ("a.py::one", "b.py::one", "c.py::one", "d.py::one")
    items: Any = [SimpleNamespace(nodeid=name, path=Path(name[:4])) for name in names]
    longest_first(items, {"a.py::one": 20.0, "c.py::one": 40.0}, [])
    assert [item.nodeid[0] for item in items] == ["b", "c", "d", "a"]


def test_the_usual_durations_are_of_files_that_there_are() -> None:
    root = Path(__file__).parents[1]
    assert [name for name in durations.usual() if not (root / name).is_file()] == []
