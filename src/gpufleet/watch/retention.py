"""How old a recorded run or a report is, where this machine's clock may have jumped.

Age is counted along the recorded nightly runs: between two of them at most `MOST_GAP` passes. So
a clock that jumps years ahead makes nothing older than a week, and what is kept is not deleted.
Works on times alone; deletes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

FORM = "%Y-%m-%dT%H:%M:%SZ"
MOST_GAP = timedelta(days=7)
# A run that is dated later than this from now was recorded with a wrong clock.
TOLERANCE_S = 3600


def read_time(text: str) -> datetime:
    """A time as the documents write it; what is none is before all others."""
    try:
        return datetime.strptime(text, FORM).replace(tzinfo=UTC)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def latest_time(now: str) -> str:
    """The latest time of a run that was recorded by a right clock; `now`: as documents write it."""
    return f"{read_time(now) + timedelta(seconds=TOLERANCE_S):{FORM}}"


class RecordedTime:
    """The time that passed, by the starts of the recorded nightly runs."""

    def __init__(self, starts: Iterable[str]) -> None:
        self._nights = sorted(map(read_time, starts))
        # From each night to the newest one.
        self._ages = [timedelta(0)]
        for later, earlier in pairwise(reversed(self._nights)):
            self._ages.append(self._ages[-1] + min(later - earlier, MOST_GAP))
        self._ages.reverse()

    def age(self, start: datetime) -> timedelta:
        """The time from `start` to the newest run; none without a later one."""
        number = bisect_right(self._nights, start)
        if number == len(self._nights):
            return timedelta(0)
        gap = self._nights[number] - start
        # Before the first recorded run there is none that the clock could have jumped from.
        return (min(gap, MOST_GAP) if number else gap) + self._ages[number]

    def jump(self) -> str:
        """A sentence on the newest run's time, if it is far from the one before; or nothing."""
        if len(self._nights) < 2 or self._nights[-1] - self._nights[-2] <= MOST_GAP:
            return ""
        earlier, latest = (f"{night:{FORM}}" for night in self._nights[-2:])
        return (
            f"The newest recorded run is of {latest}, the one before of {earlier}: either the"
            " nightly did not run in between, or this machine's clock jumped (timedatectl)."
            f" For what is kept, {MOST_GAP.days} days have passed."
        )


def future_note(starts: Sequence[str]) -> str:
    """A sentence on runs that are dated in the future."""
    listed = ", ".join(starts[:3]) + (", ..." if starts[3:] else "")
    return (
        f"Not counted, as dated in the future: {len(starts)} of the recorded runs ({listed})."
        " This machine's clock was wrong then, or is wrong now (timedatectl)."
    )
