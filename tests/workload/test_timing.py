"""The rate of a product, whatever the processor."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpufleet.workload import timing


def test_a_product_of_half_a_minute_has_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=30)
    monkeypatch.setattr(timing, "now", lambda: float(next(clock)))
    found = timing.entry("/CPU:0", timing.SIZE_CPU)
    timing.timed(found, lambda: "product")
    assert found["steady_s"] == 30
    assert 8e-6 < found["tflops"] < 9e-6


def test_a_calendar_that_is_put_back_changes_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that took less than no time had a rate of a billion GiB/s."""
    calendar = itertools.count(1e9, step=-3600)
    monkeypatch.setattr(time, "time", lambda: float(next(calendar)))
    still = SimpleNamespace(wait=lambda: None)
    assert timing.best_rate(still, lambda: time.sleep(0.001), 2**20, 0) < 1


def test_only_the_day_s_seed_is_read_from_the_calendar() -> None:
    places = [
        (path.name, line.strip())
        for path in sorted(Path(timing.__file__).parent.glob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\btime\.time\b", line)
    ]
    assert places == [("consensus.py", "seed = int(time.time()) // 86400")]
