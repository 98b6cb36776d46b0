"""The six verdicts, their order, and the exit status that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Verdict(StrEnum):
    """Worst first. Only PASS is healthy; NOT-DECLARED quotes the declaration that excuses it."""

    FAIL = "FAIL"
    HUNG = "HUNG"
    UNREACHABLE = "UNREACHABLE"
    INCONCLUSIVE = "INCONCLUSIVE"
    PASS = "PASS"
    NOT_DECLARED = "NOT-DECLARED"


HEALTHY, FAILED, NOT_JUDGED, USAGE = 0, 1, 3, 4

SYMBOLS = {
    Verdict.PASS: "✓",
    Verdict.FAIL: "✗",
    Verdict.HUNG: "∞",
    Verdict.UNREACHABLE: "⊘",
    Verdict.INCONCLUSIVE: "?",
    Verdict.NOT_DECLARED: "–",
}

_ORDER = list(Verdict)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict that speaks for all of them; nothing judged at all is INCONCLUSIVE."""
    return min(verdicts, key=_ORDER.index, default=Verdict.INCONCLUSIVE)


def exit_status(verdicts: Iterable[Verdict]) -> int:
    """From the hosts' verdicts: 0 all healthy, 1 something failed, 3 something was not judged."""
    found = set(verdicts)
    if found & {Verdict.FAIL, Verdict.HUNG, Verdict.UNREACHABLE}:
        return FAILED
    return HEALTHY if found == {Verdict.PASS} else NOT_JUDGED
