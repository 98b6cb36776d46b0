"""The clocks of a GPU under load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import nan
from statistics import median

from gpufleet.checks.base.registry import Finding
from gpufleet.model.sections.compute import ComputeDevice, Sample
from gpufleet.model.verdict import Verdict

# A GPU under load that reports no limit, in most of the samples, runs at its highest clock or near
# it. Locked clocks are a limit that no reason reports.
LEAST_CLOCK, MOST = 0.75, 0.5


def sm_clock(samples: Sequence[Sample]) -> float:
    """The median SM clock of these samples in MHz; NaN, which is less than nothing, if unknown."""
    known = [each["clock_sm_mhz"] for each in samples if each["clock_sm_mhz"] is not None]
    return median(known) if known else nan


def low_clocks(device: ComputeDevice, samples: Sequence[Sample]) -> Iterator[Finding]:
    """Clocks that stay far below the highest one while the GPU reports no limit."""
    clock, highest, gpu = sm_clock(samples), device["clock_mhz"] or 0, device["index"]
    free = sum(each["throttle"] == [] for each in samples)
    if clock < LEAST_CLOCK * highest and free > MOST * len(samples):
        yield Finding(
            f"GPU {gpu} runs at {clock:g} of {highest} MHz under load, and reports no reason",
            f"on the host: nvidia-smi -i {gpu} -rgc removes a lock of its clocks (nvidia-smi -i"
            f" {gpu} -q -d CLOCK shows them); if they are meant to be lower, declare"
            " gpu_expect: {tflops: T}",
            verdict=Verdict.INCONCLUSIVE,
        )
