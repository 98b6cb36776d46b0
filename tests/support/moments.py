"""Moments at which tests kill a run: a few of them each time, the others with the slow tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_slow(names: Iterable[str], usual: Collection[str]) -> list[Any]:
    """The names as parameters; those that are not usual are marked slow.

    Raises AssertionError for a usual name that does not exist.
    """
    listed = list(names)
    assert set(usual) <= set(listed), sorted(set(usual) - set(listed))
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in usual)) for name in listed]
