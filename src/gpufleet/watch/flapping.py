"""Which change of a verdict is news: strikes in a row, flapping, and what is newly unknown. Pure.

A night is a letter: `BAD` ones are failures, the others of `JUDGED` are not. What could not be
judged is neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

BAD, JUDGED = "FHU", "PFH-"
# A check flaps that changed this often in so many judged nights, until so many are the same.
FLAP_NIGHTS, FLAP_TURNS, SETTLED = 10, 4, 3


def judged(letters: str) -> list[bool]:
    """For each night that judged it, whether it was bad. An unreachable host is bad."""
    return [letter in BAD for letter in letters if letter in JUDGED + BAD]


def strikes(letters: str) -> int:
    """Count the judged nights in a row that were bad, up to the last one."""
    count = 0
    for bad in reversed(judged(letters)):
        if not bad:
            break
        count += 1
    return count


def unjudged_nights(letters: str) -> int:
    """Count the nights in a row that could not judge it, up to the last one."""
    return len(letters) - len(letters.rstrip("?"))


def is_flapping(nights: Sequence[bool]) -> bool:
    """Return whether a check changes too often for a failure or a recovery to mean anything."""
    recent = nights[-FLAP_NIGHTS:]
    turns = sum(one != other for one, other in pairwise(recent))
    return turns >= FLAP_TURNS and len(set(recent[-SETTLED:])) > 1


def transition(nights: Sequence[bool]) -> str | None:
    """Return what changed in the last of these nights: failure, recovery, flapping, or None."""
    before, now = nights[:-1], nights[-1]
    if is_flapping(nights):
        return None if is_flapping(before) else "flapping"
    if is_flapping(before) or now != (before[-1] if before else False):
        return "failure" if now else "recovery"
    return None


def newly_unknown(line: Iterable[bool | None]) -> bool:
    """Return whether tonight is the first recent night that could not judge a check.

    `line`: for each night whether it could not, None where that says nothing. What was unknown now
    and then and stays so is reported once it has settled.
    """
    nights = list(line)
    recent = [bool(unknown) for unknown in nights[-FLAP_NIGHTS:]]
    if not recent or not recent[-1]:
        return False
    if not any(recent[:-1]):
        return True
    known = [unknown for unknown in nights if unknown is not None]
    settled = known[-SETTLED - 1 :] == [False, *[True] * SETTLED]
    # The first of these nights was no news: it was unknown shortly before.
    return settled and any(known[-SETTLED - FLAP_NIGHTS : -SETTLED])
