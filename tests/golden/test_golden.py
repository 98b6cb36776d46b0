"""The code's documents for the tests' hosts equal those that are kept in data/."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import documents
from tests.golden.areas import goldens
from tests.golden.compare import MOST, differences
from tests.golden.documents import Golden

NEXT = "Is each change intended? Then run '.venv/bin/python -m tests.golden', and commit its files."


def test_documents_are_as_kept() -> None:
    found = {key: golden.values for key, golden in goldens().items()}
    if lines := differences(documents.read(), found):
        pytest.fail("\n".join([*lines, NEXT]), pytrace=False)


def test_a_word_that_changed_is_three_lines_however_many_documents_have_it() -> None:
    place = "gpu.pcie / remedy"
    before = {
        f"faults/{area}: {n}": {place: f"reseat GPU {n} in its slot", "gpu.pcie / verdict": "FAIL"}
        for area in ("gpu", "links")
        for n in range(20)
    }
    after = {
        name: {**values, place: values[place].replace("reseat", "replace")}
        for name, values in before.items()
    }
    assert differences(before, before) == []
    assert differences(before, after) == [
        "faults/gpu: 0 / gpu.pcie / remedy (and 39 more: 20 of faults/links, 19 of faults/gpu)",
        "-reseat GPU 0 in its slot",
        "+replace GPU 0 in its slot",
    ]
    verdict = {**before, "faults/gpu: 7": {place: "reseat GPU 7 in its slot"}}
    assert differences(before, verdict) == [
        "faults/gpu: 7 / gpu.pcie / verdict",
        "-FAIL",
        "+(absent)",
    ]


def test_a_difference_is_short() -> None:
    before = {"area: name": {str(number): "x " * 1000 for number in range(100)}}
    after = {"area: name": {str(number): f"{number} " * 1000 for number in range(100)}}
    lines = differences(before, after)
    assert len(lines) == 3 * MOST + 1
    assert max(map(len, lines)) < 300


def test_what_is_as_kept_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "DATA", tmp_path)
    healthy = {"a / b": 1, "c": ["x"], "d": None, "e": "y"}
    made = {
        "a: healthy": Golden(healthy),
        "b/c: broken": Golden({"a / b": 2, "c": ["x"], "d": None}, "a: healthy"),
    }
    assert documents.write(made) == ["a", "b/c"]
    assert documents.read() == {key: golden.values for key, golden in made.items()}
    assert documents.read_area("b/c")["broken"]["values"] == {"a / b": 2}
    assert documents.write(made) == []
    assert documents.write({"a: healthy": Golden(healthy)}) == ["b/c"]
    assert documents.written() == ["a"]
