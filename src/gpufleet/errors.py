"""The error that stops a run before it starts: exit status 4. And the guard around each host.

A defect of gpufleet itself, met on one host, must cost that host its verdict and nobody else
anything: what is done for one host is done by `guarded`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
# How many characters of an exception's text are shown, and how many frames before it.
MOST_TEXT, MOST_FRAMES = 500, 6


class ConfigurationError(Exception):
    """What is wrong with the configuration, where it is, and how to fix it."""

    def __init__(self, message: str, where: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message, self.where, self.remedy = message, where, remedy

    def __str__(self) -> str:
        prefix = f"{self.where}: " if self.where else ""
        return f"{prefix}{self.message}" + (f" {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class Defect:
    """An exception that nobody expected: in which step, what it is, and where it was raised."""

    step: str
    error: str
    trace: str

    @property
    def evidence(self) -> str:
        """What a bug report needs of it."""
        return f"{self.error}\n{self.trace}"


def guarded(step: str, work: Callable[[], T], otherwise: Callable[[Defect], T]) -> T:
    """`work()`, or `otherwise(defect)` where it ends by an exception that nobody expected.

    `step` completes "gpufleet failed while it ...". A `ConfigurationError` is expected, and passes.
    """
    try:
        return work()
    except ConfigurationError:
        raise
    except Exception as error:
        return otherwise(_defect(step, error))


def _defect(step: str, error: Exception) -> Defect:
    text = "".join(
        character if character.isprintable() else " " for character in _text(error)[:MOST_TEXT]
    )
    frames = traceback.extract_tb(error.__traceback__)[-MOST_FRAMES:]
    return Defect(
        step,
        f"{type(error).__name__}: {text}",
        "\n".join(
            f"{Path(*Path(frame.filename).parts[-2:])}:{frame.lineno} in {frame.name}"
            for frame in frames
        ),
    )


def _text(error: Exception) -> str:
    # The text of an exception may itself be what fails, as of a number with too many digits.
    try:
        return str(error)
    except Exception:
        return "no text"
