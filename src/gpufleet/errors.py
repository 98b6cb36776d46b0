"""The error that stops a run before it starts: exit status 4. And the guards around each host.

A defect of gpufleet itself, met on one host, must cost that host its verdict and nobody else
anything: what is done for one host is done by `guarded`. What a host sends must not keep the
control machine busy either: what is done with its documents alone is done by `bounded`, which ends
it after a time of the processor.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpufleet.on_host.addresses import public_addresses

T = TypeVar("T")
# How many characters of an exception's text are shown, and how many frames before it.
MOST_TEXT, MOST_FRAMES = 500, 6
# The processor time that one step of a host's judgement may take, in seconds. A host with 16 GPUs
# takes about one, and the first host of a run also reads the catalog.
MOST_CPU_S = 10.0
# Where something keeps the exception from passing, it is raised again after this time.
AGAIN_S = 0.5


class ConfigurationError(Exception):
    """A fault of the configuration: the fault, its place, and its remedy.

    It often quotes another program, which prints the addresses that it was given, or a value of the
    inventory: it repeats no secret of an address.
    """

    def __init__(self, message: str, where: str = "", remedy: str = "") -> None:
        self.message, self.where, self.remedy = map(public_addresses, (message, where, remedy))
        super().__init__(self.message)

    def __str__(self) -> str:
        prefix = f"{self.where}: " if self.where else ""
        if not self.remedy:
            return f"{prefix}{self.message}"
        ended = self.message.endswith((".", "!", "?", ":", ")"))
        return f"{prefix}{self.message}{'' if ended else '.'} {self.remedy}"


class CpuLimitError(BaseException):
    """The processor time of a host is spent; no `except Exception` on the way may keep it."""

    step = ""


@dataclass(frozen=True)
class Defect:
    """An exception that nobody expected: in which step, what it is, and where it was raised."""

    step: str
    error: str
    trace: str
    # It is no exception: the step was ended after so many seconds of processor time.
    ended_after_s: float = 0

    @property
    def evidence(self) -> str:
        """The part of the defect that a bug report needs."""
        return f"{self.error}\n{self.trace}"


def guarded(step: str, work: Callable[[], T], otherwise: Callable[[Defect], T]) -> T:
    """`work()`, or `otherwise(defect)` where it ends by an exception that nobody expected.

    `step` completes "gpufleet failed while it ...". A `ConfigurationError` is expected, and passes.
    """
    try:
        return work()
    except ConfigurationError:
        raise
    except CpuLimitError as limit:
        # The innermost step says most.
        limit.step = limit.step or step
        raise
    except Exception as error:
        return otherwise(_defect(step, f"{type(error).__name__}: {_printable(error)}", error))


def bounded(step: str, work: Callable[[], T], otherwise: Callable[[Defect], T]) -> T:
    """Like `guarded`; work that takes more processor time than `MOST_CPU_S` is ended likewise.

    The timer is one of the process, and its signal interrupts the main thread: in another thread,
    and inside of other bounded work, this is `guarded`.
    """
    if signal.getitimer(signal.ITIMER_VIRTUAL)[0]:
        return guarded(step, work, otherwise)
    try:
        before = signal.signal(signal.SIGVTALRM, _end)
    except ValueError:
        # Python refuses it in any other thread than the main one.
        return guarded(step, work, otherwise)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S, AGAIN_S)
        return guarded(step, work, otherwise)
    except CpuLimitError as limit:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        error = f"it took more than {MOST_CPU_S:g} s of processor time"
        defect = _defect(limit.step or step, error, limit, MOST_CPU_S)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return otherwise(defect)


def _end(*_: Any) -> None:
    # The signal may come when the work has just ended.
    if signal.getitimer(signal.ITIMER_VIRTUAL)[0]:
        raise CpuLimitError


def _defect(step: str, error: str, raised: BaseException, ended_after_s: float = 0) -> Defect:
    frames = traceback.extract_tb(raised.__traceback__)[-MOST_FRAMES:]
    return Defect(
        step,
        error,
        "\n".join(
            f"{Path(*Path(frame.filename).parts[-2:])}:{frame.lineno} in {frame.name}"
            for frame in frames
        ),
        ended_after_s,
    )


def _printable(error: Exception) -> str:
    # The text of an exception may itself be what fails, as of a number with too many digits.
    try:
        text = str(error)
    except Exception:
        text = "no text"
    return "".join(character if character.isprintable() else " " for character in text[:MOST_TEXT])
