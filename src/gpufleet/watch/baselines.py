"""Compare a measured throughput with the card's own past: robust statistics, two strikes. Pure."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpufleet.documents.nightly import Standing

from .change import SLOW, Change, count_nights

THROUGHPUT = "gpu.throughput"
PROCESSOR = "The processor"

# A baseline needs this many nights. A value is low if it is this many deviations below the median;
# the deviation counts as at least this part of the median, since clocks vary between nights.
LEAST_NIGHTS, DEVIATIONS, LEAST_SPREAD = 7, 3.5, 0.02
# A value above this part of the best past value cannot be low.
NEVER_LOW = 1 - DEVIATIONS * LEAST_SPREAD
# Factor from the median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826
STRIKES = 2
# After more low nights in a row than this, the low value becomes the baseline; reported once.
LASTING = 21


def low(value: float, past: Sequence[float]) -> bool:
    """Return whether the value is significantly below its own past."""
    if len(past) < LEAST_NIGHTS:
        return False
    usual = statistics.median(past)
    if value >= NEVER_LOW * usual:
        return False
    spread = MAD_TO_SIGMA * statistics.median(abs(each - usual) for each in past)
    return value < usual - DEVIATIONS * max(spread, LEAST_SPREAD * usual)


@dataclass(frozen=True)
class Slowdown:
    """A measure that is low, or was: values in TFLOP/s.

    `row` and `before`: how many measured nights in a row were low, up to tonight and up to the
    night before. `usual`: the baseline. `settled`: tonight the low value becomes the baseline, and
    `usual` is the former one.
    """

    row: int
    before: int
    usual: float
    now: float
    settled: bool = False

    @property
    def drop(self) -> float:
        """The loss as a part of the baseline."""
        return 1 - self.now / self.usual


def slowdown(speeds: Sequence[float | None]) -> Slowdown | None:
    """Return the slowdown of one measure, None if it is neither low nor was.

    `speeds`: a value for each night, oldest first. A low night does not count for the baseline.
    """
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
    # Tonight's value is not part of the baseline that it is compared with.
    return Slowdown(
        len(lows), before, statistics.median(past) if past else speeds[-1], speeds[-1], settled
    )


def _device(name: str) -> tuple[str, str]:
    """The card or `cpu`, and the environment (toolkit or stack), of a measure's name."""
    device, kind, where = name.removesuffix(".tflops").partition(
        ".toolkit." if ".toolkit." in name else ".stack."
    )
    return device.removeprefix("gpu."), f"CUDA {where}" if "toolkit" in kind else where


REMEDY = (
    "see gpu.throttle, gpu.settings and gpu.pcie; check which other processes use the card;"
    " ./gpufleet verify --deep (temperatures and clocks under load)"
)


def throughput_changes(
    speeds: Mapping[tuple[str, str], Sequence[float | None]],
) -> Iterator[Change]:
    """Yield one change for each slow card (or processor), in the second low night.

    The environment with the largest loss represents the card. A further change is reported when
    the low value becomes the baseline, or the card is as fast as before.
    """
    for (host, title), each in _slow(speeds).items():
        worst, how = max(each, key=lambda it: (it[0].row, it[0].settled, it[0].drop))
        if worst.row == STRIKES:
            yield Change(
                "throughput",
                host,
                THROUGHPUT,
                f"{worst.usual:.4g} TFLOP/s",
                f"{worst.now:.4g} TFLOP/s",
                _lower(title, worst, how),
                REMEDY,
                "bad",
                worst.row,
                known_as=known_as(_lower(title, worst, how)),
            )
        elif worst.settled and not worst.row:
            yield Change(
                "throughput",
                host,
                THROUGHPUT,
                f"{worst.usual:.4g} TFLOP/s",
                f"{worst.now:.4g} TFLOP/s",
                f"{title} has been slow for {count_nights(LASTING + 1)} {how}:"
                f" {worst.now:.4g} TFLOP/s is the baseline from now on, instead of"
                f" {worst.usual:.4g}.",
                REMEDY,
                "bad",
            )
        elif not worst.row and any(slow.before >= STRIKES for slow, _ in each):
            slow, how = max(each, key=lambda it: it[0].before)
            yield Change(
                "throughput",
                host,
                THROUGHPUT,
                None,
                f"{slow.now:.4g} TFLOP/s",
                f"{title} is as fast as before again {how}, after {count_nights(slow.before)}.",
                "",
                "good",
            )


def standing(speeds: Mapping[tuple[str, str], Sequence[float | None]]) -> Iterator[Standing]:
    """Yield a row of the document's `standing` for each card that is slow tonight."""
    for (host, title), each in _slow(speeds).items():
        worst, how = max(each, key=lambda it: (it[0].row, it[0].drop))
        if worst.row >= STRIKES:
            row: Standing = {
                "host": host,
                "check": THROUGHPUT,
                "verdict": SLOW,
                "cause": _lower(title, worst, how),
                "remedy": REMEDY,
                "strikes": worst.row,
                "known_as": known_as(_lower(title, worst, how)),
            }
            if title != PROCESSOR:
                row["slow_card"] = {"gpu": title.removeprefix("GPU "), "nights": worst.row}
            yield row


def known_as(cause: str) -> str:
    """A slow card's cause as silences compare it, also of a silence that has the whole cause.

    Which environment has the largest loss, and is named, differs from night to night by noise.
    """
    return re.sub(r"(?<= reaches ).*", "less than its baseline", cause)


def _lower(title: str, slow: Slowdown, how: str) -> str:
    return (
        f"{title} reaches {slow.now:.4g} TFLOP/s {how}, {slow.drop:.0%} below its baseline of"
        f" {slow.usual:.4g}."
    )


def _slow(
    speeds: Mapping[tuple[str, str], Sequence[float | None]],
) -> dict[tuple[str, str], list[tuple[Slowdown, str]]]:
    """By host and device title: slowdowns, each with its environment."""
    found: dict[tuple[str, str], list[tuple[Slowdown, str]]] = defaultdict(list)
    for (host, name), line in speeds.items():
        slow = slowdown(line)
        if slow:
            device, where = _device(name)
            # Without a UUID a card has its number.
            title = {"cpu": PROCESSOR}.get(device, device if "-" in device else f"GPU {device}")
            found[host, title].append((slow, f"in {where}"))
    return found
