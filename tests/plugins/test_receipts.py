"""The journal and the receipts: what was begun is known after a loss of power."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import Installation


def test_names_in_the_journal_are_flushed_before_the_first_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[str, bool]] = []
    journal = tmp_path / "state" / "journal" / "toolkit-12.4.json"

    def fsync(descriptor: int) -> None:
        flushed.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), journal.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    state = str(tmp_path / "state")
    Installation("toolkit", "12.4", "/usr/local/cuda-12.4", "12.4.1", state).begin(fresh=True)
    # The new directories, the file, and at last the name that the file has now.
    assert (str(tmp_path), False) in flushed
    assert (str(tmp_path / "state"), False) in flushed
    assert flushed[-1] == (str(journal.parent), True)
