"""Small helpers for text."""

from __future__ import annotations

import pytest

from gpufleet.documents import text as text_of_model
from gpufleet.on_host import text as text_of_probe
from gpufleet.on_host.text import last_lines


def test_of_many_words_the_last_lines_are_kept_whole() -> None:
    output = "first line\nsecond line\nthird line\n"
    assert last_lines(output, 100) == output.strip()
    assert last_lines(output, 15) == "third line"
    assert last_lines("one endless line", 4) == "line"


@pytest.mark.parametrize("text", ["", "²", "٣", "-1", " 1", "1\n", "9" * 5000])
def test_digits_that_are_no_number_neither_count_nor_stop_a_sort(text: str) -> None:
    """One such name ended the section that it was found in."""
    for module in (text_of_probe, text_of_model):
        assert not module.is_number(text) and module.is_number("042")
        names = [f"gpu{text}", text, f"2{text}", "gpu10", "gpu2"]
        assert sorted(names, key=module.natural)
