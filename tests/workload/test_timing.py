"""The rate of a product, whatever the processor."""

from __future__ import annotations

import itertools

import pytest

from gpufleet.workload import timing


def test_a_product_of_half_a_minute_has_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=30)
    monkeypatch.setattr(timing.time, "time", lambda: float(next(clock)))
    found = timing.entry("/CPU:0", timing.SIZE_CPU)
    timing.timed(found, lambda: "product")
    assert found["steady_s"] == 30
    assert 8e-6 < found["tflops"] < 9e-6
