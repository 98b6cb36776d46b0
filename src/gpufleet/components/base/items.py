"""A check of one item (a stack's run, a toolkit's run) as a check of all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TypeVar

from gpufleet.documents.plan import Plan

from .registry import Evidence, Finding, Function
from .sections import Sections

T = TypeVar("T")


def for_each(
    items: Callable[[Plan, Sections], Iterator[T | Finding]],
) -> Callable[[Callable[[Plan, Sections, T], Iterator[Finding | Evidence]]], Function]:
    """Make a check of one item a check of all `items`; a finding in place of an item is yielded.

    Write it between `@check` and the function.
    """

    def of_all(function: Callable[[Plan, Sections, T], Iterator[Finding | Evidence]]) -> Function:
        @functools.wraps(function)
        def each(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
            for item in items(plan, observed):
                if isinstance(item, Finding):
                    yield item
                else:
                    yield from function(plan, observed, item)

        return each

    return of_all
