"""A measured speed against the host's own past: robust statistics, and two strikes. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .change import Change, nights_of

THROUGHPUT = "gpu.throughput"

# A past of fewer nights tells nothing. Low is what lies so many deviations below the median, which
# is taken to spread by this part of it at least: the clocks of two healthy nights do.
LEAST_NIGHTS, DEVIATIONS, LEAST_SPREAD = 7, 3.5, 0.02
# What is above this part of the best of its past cannot be low.
NEVER_LOW = 1 - DEVIATIONS * LEAST_SPREAD
# From the median deviation to the standard deviation of what is spread normally.
MAD_TO_SIGMA = 1.4826
STRIKES = 2
# After more low nights in a row than this, low is what is usual; told then, once more.
LASTING = 21


def low(value: float, past: Sequence[float]) -> bool:
    """Whether it lies below what its own past makes likely."""
    if len(past) < LEAST_NIGHTS:
        return False
    usual = statistics.median(past)
    if value >= NEVER_LOW * usual:
        return False
    spread = MAD_TO_SIGMA * statistics.median(abs(each - usual) for each in past)
    return value < usual - DEVIATIONS * max(spread, LEAST_SPREAD * usual)


@dataclass(frozen=True)
class Slow:
    """How many measured nights in a row were low, up to tonight and to the night before; usual.

    `settled`: tonight they have become what is usual, and `usual` is what was before.
    """

    row: int
    before: int
    usual: float
    now: float
    settled: bool = False

    @property
    def drop(self) -> float:
        """By which part of the usual it is lower."""
        return 1 - self.now / self.usual


def slowness(speeds: Sequence[float | None]) -> Slow | None:
    """Of one measure, where it may be low or was. A low night is no part of what is usual."""
    known = [value for value in speeds if value is not None]
    if speeds[-1] is None or min(known[-2:]) >= NEVER_LOW * max(known):
        return None
    usual: list[float] = []
    lows: list[float] = []
    before, past = 0, usual
    for value in known:
        before, past = len(lows), list(usual)
        if not low(value, usual):
            lows = []
            usual.append(value)
        elif len(lows) < LASTING:
            lows.append(value)
        else:
            usual, lows = [*lows, value], []
    settled = before == LASTING and low(speeds[-1], past)
    # Tonight's is no part of the past that it is compared with.
    return Slow(len(lows), before, statistics.median(past) if past else speeds[-1], speeds[-1],
                settled)


def slow_nights(speeds: Mapping[tuple[str, str], Sequence[float | None]]
                ) -> dict[tuple[str, str], int]:
    """By host and card, how many measured nights in a row it was low, up to its last one."""
    found: dict[tuple[str, str], int] = {}
    for (host, name), line in speeds.items():
        known = [value for value in line if value is not None]
        slow = slowness(known) if known and name.startswith("gpu.") else None
        if slow and slow.row:
            place = host, _device(name)[0]
            found[place] = max(found.get(place, 0), slow.row)
    return found


def _device(name: str) -> tuple[str, str]:
    """(card or `cpu`, in which environment) of a measure's name."""
    device, kind, where = name.removesuffix(".tflops").partition(
        ".toolkit." if ".toolkit." in name else ".stack.")
    return device.removeprefix("gpu."), f"CUDA {where}" if "toolkit" in kind else where


REMEDY = ("see gpu.throttle, gpu.settings and gpu.pcie; look who else computes on it;"
          " ./gpufleet verify --deep shows temperatures and clocks under load")


def of_speeds(speeds: Mapping[tuple[str, str], Sequence[float | None]]) -> Iterator[Change]:
    """Once for each card (or processor), by its largest loss, in the second low night."""
    for (host, title), each in _slow(speeds).items():
        worst, how = max(each, key=lambda it: (it[0].row, it[0].settled, it[0].drop))
        if worst.row == STRIKES:
            yield Change(
                "throughput", host, THROUGHPUT, f"{worst.usual:.4g} TFLOP/s",
                f"{worst.now:.4g} TFLOP/s", _lower(title, worst, how), REMEDY, "bad", worst.row)
        elif worst.settled and not worst.row:
            yield Change(
                "throughput", host, THROUGHPUT, f"{worst.usual:.4g} TFLOP/s",
                f"{worst.now:.4g} TFLOP/s",
                f"{title} has been slow for {nights_of(LASTING + 1)} {how}: {worst.now:.4g} TFLOP/s"
                f" is taken as usual from now on, in place of {worst.usual:.4g}.", REMEDY, "bad")
        elif not worst.row and any(slow.before >= STRIKES for slow, _ in each):
            slow, how = max(each, key=lambda it: it[0].before)
            yield Change(
                "throughput", host, THROUGHPUT, None, f"{slow.now:.4g} TFLOP/s",
                f"{title} multiplies as fast as before again {how}, after"
                f" {nights_of(slow.before)}.", "", "good")


def standing(speeds: Mapping[tuple[str, str], Sequence[float | None]]) -> Iterator[dict[str, Any]]:
    """Each card that is slow tonight, since when ever: a row of the document's `standing`."""
    for (host, title), each in _slow(speeds).items():
        worst, how = max(each, key=lambda it: (it[0].row, it[0].drop))
        if worst.row >= STRIKES:
            yield {"host": host, "check": THROUGHPUT, "verdict": "SLOW",
                   "cause": _lower(title, worst, how), "remedy": REMEDY, "strikes": worst.row}


def _lower(title: str, slow: Slow, how: str) -> str:
    return (f"{title} multiplies at {slow.now:.4g} TFLOP/s {how}, {slow.drop:.0%} below the"
            f" {slow.usual:.4g} of its own past.")


def _slow(speeds: Mapping[tuple[str, str], Sequence[float | None]]
          ) -> dict[tuple[str, str], list[tuple[Slow, str]]]:
    """By host and device in words: what may be slow or was, and in which environment."""
    found: dict[tuple[str, str], list[tuple[Slow, str]]] = defaultdict(list)
    for (host, name), line in speeds.items():
        slow = slowness(line)
        if slow:
            device, where = _device(name)
            # Without a UUID a card has its number.
            title = {"cpu": "The processor"}.get(device, device if "-" in device else
                                                 f"GPU {device}")
            found[host, title].append((slow, f"in {where}"))
    return found
