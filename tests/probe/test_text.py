"""Small helpers for text."""

from __future__ import annotations

from gpufleet.probe.text import last_lines


def test_of_many_words_the_last_lines_are_kept_whole() -> None:
    output = "first line\nsecond line\nthird line\n"
    assert last_lines(output, 100) == output.strip()
    assert last_lines(output, 15) == "third line"
    assert last_lines("one endless line", 4) == "line"
