"""The clocks of a GPU under load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import nan
from statistics import median

from gpufleet.catalog import model_names
from gpufleet.components.base.registry import Finding
from gpufleet.documents.sections.compute import ComputeDevice, Sample
from gpufleet.documents.verdict import Verdict

# A GPU under load that reports no limit runs at its highest clock, or near it. Locked clocks are a
# limit that no reason reports; of one that comes and goes a tenth of the samples have the reason.
LEAST_CLOCK, FREE = 0.75, 0.9


def sm_clock(samples: Sequence[Sample]) -> float:
    """The median SM clock of these samples in MHz; NaN, which is less than nothing, if unknown."""
    known = [each["clock_sm_mhz"] for each in samples if each["clock_sm_mhz"] is not None]
    return median(known) if known else nan


def low_clocks(device: ComputeDevice, samples: Sequence[Sample]) -> Iterator[Finding]:
    """Clocks that stay far below the highest one while the GPU reports no limit."""
    clock, highest, gpu = sm_clock(samples), device["clock_mhz"] or 0, device["index"]
    free = sum(each["throttle"] == [] for each in samples)
    # The clocks of portable computers are low by design.
    portable = model_names.is_portable(device["name"] or "")
    if clock < LEAST_CLOCK * highest and free > FREE * len(samples) and not portable:
        yield Finding(
            f"GPU {gpu} runs at {clock:g} of {highest} MHz under load, and reports no reason",
            f"on the host: nvidia-smi -i {gpu} -rgc removes a lock of its clocks (nvidia-smi -i"
            f" {gpu} -q -d CLOCK shows them); if they are meant to be lower, declare"
            " gpu_expect: {tflops: T}",
            verdict=Verdict.INCONCLUSIVE,
        )
