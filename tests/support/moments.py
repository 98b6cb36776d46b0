"""Moments at which tests kill a run: a few of them each time, the others with the slow tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def some_slow(names: Iterable[str], usual: Collection[str]) -> list[Any]:
    """The names as parameters; those that are not usual are marked slow.

    Raises AssertionError for a usual name that does not exist.
    """
    listed = list(names)
    assert set(usual) <= set(listed), sorted(set(usual) - set(listed))
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in usual)) for name in listed]


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for a moment. Raises AssertionError where it does not come."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "never seen"
        time.sleep(0.02)
