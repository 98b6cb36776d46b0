"""Moments at which tests kill a run: one of them each time, the others with the slow tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import pytest

from tests.support.machine import deadline


def all_but_one_slow(names: Collection[str], usual: str) -> list[Any]:
    """The names as parameters; all but the usual one are marked slow.

    Raises AssertionError where the usual one is none of them.
    """
    assert usual in names, usual
    return [pytest.param(name, marks=[pytest.mark.slow] * (name != usual)) for name in names]


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for a moment, on a slow machine longer. Raises AssertionError where it does not come."""
    end = time.monotonic() + deadline(seconds)
    while not holds():
        assert time.monotonic() < end, "never seen"
        time.sleep(0.02)
