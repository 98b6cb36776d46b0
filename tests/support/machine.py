"""How slow this machine is now, so that what tests wait for can take so much longer.

A fixed load is measured when a run starts, by as many processes as the run has workers. On a
machine that is three times slower, or that shares its processors with other programs, it takes
longer; each deadline of the tests is multiplied by that factor. The factor reaches the workers and
all that tests start in an environment variable.
"""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ProcessPoolExecutor

FACTOR = "GPUFLEET_TEST_FACTOR"
# The load takes one second on the machine that the deadlines were written for, alone.
ROUNDS = 240
BLOCK = bytes(1 << 20)
WORKERS = 2
# What is measured once may be a quiet moment of a busy machine.
MARGIN = 1.5


def load(_: int) -> float:
    """The seconds that a fixed load takes now: half of it in Python, half in a library."""
    begin = time.monotonic()
    for number in range(ROUNDS):
        hashlib.sha256(BLOCK).digest()
        sum(each * each % 7 for each in range(number, number + 70_000))
    return time.monotonic() - begin


def measure() -> float:
    """Measure the factor, at least 1, and set it for this process and all that it starts."""
    with ProcessPoolExecutor(WORKERS) as pool:
        slowest = max(pool.map(load, range(WORKERS)))
    factor = max(1.0, round(slowest * MARGIN, 1))
    os.environ[FACTOR] = str(factor)
    return factor


def factor() -> float:
    """The factor of this run; 1 where nothing was measured."""
    return float(os.environ.get(FACTOR) or 1)


def deadline(seconds: float) -> float:
    """A time that something may take on the machine that it was written for, for this machine."""
    return seconds * factor()
