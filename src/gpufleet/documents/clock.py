"""The time as documents have it, and how far a host's clock is from this machine's."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

FORM = "%Y-%m-%dT%H:%M:%SZ"
# A right clock may differ from another by this much. Clocks that NTP sets differ by milliseconds,
# and one that nothing sets loses or gains up to some minutes a month. From five minutes on Kerberos
# refuses tickets, so a host of a site is set better than this.
TOLERANCE = timedelta(minutes=5)
REMEDY = (
    "on the host: see the time and what sets it (timedatectl; chronyc tracking), and set it"
    " (chronyc makestep); where many hosts are off by the same, set the control machine's clock"
)


def utc_now() -> str:
    """The current time in the documents' format."""
    return datetime.now(UTC).strftime(FORM)


def read(text: str) -> datetime:
    """A time of a document. Raises `ValueError`."""
    return datetime.strptime(text, FORM).replace(tzinfo=UTC)


def offset(times: Iterable[datetime], earliest: datetime, latest: datetime) -> timedelta:
    """How far a clock is off at least, by times of it that lie between two of this machine's.

    Negative: it is behind. Zero: it is off by no more than the tolerance.
    """
    found = max((min(each - earliest, max(each - latest, timedelta(0))) for each in times), key=abs)
    return found if abs(found) > TOLERANCE else timedelta(0)


def described(off_s: float) -> str:
    """The sentence about a host's clock that is ahead by so many seconds, or behind."""
    seconds = abs(off_s)
    size, unit = next(
        (size, unit)
        for size, unit in ((86400, "days"), (3600, "h"), (60, "min"))
        if seconds >= 2 * size or size == 60
    )
    side = "behind" if off_s < 0 else "ahead of"
    return f"The host's clock is {round(seconds / size, 1):g} {unit} {side} the control machine's"


@dataclass(frozen=True)
class Moment:
    """A moment on this machine, by its clock and by the seconds since its boot."""

    clock: datetime = field(default_factory=lambda: datetime.now(UTC))
    uptime_s: float = field(default_factory=time.monotonic)

    def until_now(self) -> tuple[datetime, datetime]:
        """The times of the moment and of now; where the clock was set meanwhile, by both settings.

        A host that is right by one of them is not blamed for this machine's clock.
        """
        now, passed = datetime.now(UTC), timedelta(seconds=time.monotonic() - self.uptime_s)
        return min(self.clock, now - passed), max(now, self.clock + passed)
