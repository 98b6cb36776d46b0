"""Small helpers for text."""

from __future__ import annotations

from gpufleet.probe.text import last_lines


def test_of_many_words_the_last_lines_are_kept_whole() -> None:
    said = "first line\nsecond line\nthird line\n"
    assert last_lines(said, 100) == said.strip()
    assert last_lines(said, 15) == "third line"
    assert last_lines("one endless line", 4) == "line"
