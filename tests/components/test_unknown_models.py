"""The results for a model of GPU that nobody knows."""

from __future__ import annotations

import pytest

from gpufleet.components.resolver import resolve
from tests.support.host_documents import declaration


@pytest.mark.parametrize(
    ("model", "near"),
    [
        ("NVIDIA H1000", "H100"),
        ("NVIDIA A100O", "A100"),
        ("Tesla V10", "V100"),
        ("RTX 409O", "4090"),
        ("L400", "L40"),
        ("Turbo Encabulator", None),
    ],
)
def test_an_unknown_model_is_told_what_it_is_like(model: str, near: str | None) -> None:
    notes = resolve(declaration("2.13.1", gpu_expect={"model": model}))["notes"]
    (note,) = [note for note in notes if "is not known" in note and "capability" in note]
    assert ("did you mean" in note) == (near is not None)
    assert near is None or near in note
    # It is declared, though unknown.
    assert not any("No GPU is declared" in note for note in notes)
