"""Sizes of the products, and how long a product or a copy takes."""

import time

SIZE_CPU, SIZE_FORMATS, SIZE_GPU, SIZE_DEEP = 512, 1024, 2048, 4096
REPEATS = 5
# The memory that a run may take of a GPU: where less is free, somebody else computes there.
BUDGET_MIB = 1024


def now():
    """Seconds of a clock that nobody sets; the calendar may be set while something is measured."""
    return time.monotonic()


def entry(requested, n):
    return {
        "requested": requested,
        "device": None,
        "n": n,
        "wrong": None,
        "first_s": None,
        "steady_s": None,
        "tflops": None,
        "error": None,
    }


def timed(found, product, first=None):
    """Run it once, then often; the first run pays for initialisation and compilation."""
    begin = now()
    result = (first or product)()
    found["first_s"] = round(now() - begin, 4)
    times = []
    for _ in range(REPEATS):
        begin = now()
        product()
        times.append(now() - begin)
    found["steady_s"] = round(sorted(times)[REPEATS // 2], 6)
    # A product of half a minute, as on an emulated processor, has a rate as well.
    found["tflops"] = round(2.0 * found["n"] ** 3 / max(found["steady_s"], 1e-9) / 1e12, 9)
    return result


def best_rate(runtime, move, length, least_s):
    """GiB/s of the fastest of some moves of `length` bytes, read and written ones counted.

    It goes on for so long because the clocks of a GPU that was idle rise only then.
    """
    started, times = now(), []
    while len(times) < 2 * REPEATS or now() - started < least_s:
        begin = now()
        move()
        runtime.wait()
        times.append(now() - begin)
    return round(length / max(min(times), 1e-9) / 2**30, 2)
