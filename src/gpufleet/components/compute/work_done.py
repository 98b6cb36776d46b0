"""Work that was asked for and not done, and results that cannot be compared: INCONCLUSIVE.

The workload says what was asked for; one of an earlier release does not, and is not judged by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpufleet.components.base import subjects
from gpufleet.components.base.registry import Finding, required
from gpufleet.components.gpu.rates import Measured
from gpufleet.documents.sections.compute import (
    ComputeRun,
    ConsensusResult,
    CublasResult,
    FormatResult,
    Sample,
    SustainedResult,
)
from gpufleet.documents.verdict import Verdict

# Throttle reasons by which the hardware itself slows a GPU down.
FORCED = {"hw-slowdown", "hw-thermal", "hw-power-brake"}
# The driver slows a GPU down because it, or its memory, is hot.
THERMAL = "sw-thermal"
POWER, CLOCKS = "sw-power-cap", "application-clocks"
# A GPU that keeps less than this share of its best throughput cannot sustain load.
LEAST_KEPT = 0.6
# Most of the samples: more than this share of them.
MOSTLY = 0.5
# A load is done if it took this share of its time, and checked this share of the products that its
# time and rate give. The rate leaves out up to half of the time, in which products are compared,
# and nothing is computed while the slowest GPU ends its part.
DONE_TIME, DONE_PRODUCTS = 0.9, 0.25
# How many samples of an even load may be slow by chance; more are a fault of the card.
FEW_SAMPLES = 5


def too_few(where: str, entry: CublasResult | FormatResult) -> Iterator[Finding]:
    """A finding where fewer products were checked than were asked for."""
    wanted, done = entry.get("requested") or 0, entry.get("checked") or 0
    if not entry["error"] and not entry["busy"] and 0 < done < wanted:
        yield Finding(
            f"{where} on GPU {entry['gpu']}: {done} products were checked, asked for were {wanted}",
            "./gpufleet verify again; if it stays so, see kernel.log and what else runs on the"
            " host",
            verdict=Verdict.INCONCLUSIVE,
            about=(f"unchecked/{entry['gpu']}",),
        )


class Applicable:
    """The results that a run's libraries computed, by number format and compute capability.

    What a library computes on one GPU, it computes on each of that capability.
    """

    def __init__(
        self, run: ComputeRun, entries: Sequence[FormatResult] | Sequence[ConsensusResult]
    ) -> None:
        self._capabilities = {gpu["index"]: gpu["compute_capability"] for gpu in run["devices"]}
        self._computed = {
            (entry["format"], self._capabilities.get(entry["gpu"])): entry["gpu"]
            for entry in entries
            if not (entry["not_applicable"] or entry["error"] or entry["busy"])
        }

    def missing(self, on: str, entry: FormatResult | ConsensusResult) -> Finding | None:
        """A finding where a GPU is said not to have what another one of its capability has."""
        capability = self._capabilities.get(entry["gpu"])
        other = self._computed.get((entry["format"], capability))
        if not entry["not_applicable"] or not capability or other is None:
            return None
        return Finding(
            f"{on}: not applicable, {entry['not_applicable']}; but GPU {other}, of the same compute"
            f" capability {capability}, has it by the same library",
            "./gpufleet verify again; if it stays so, see toolkit.device-query and kernel.log for"
            " this GPU",
            verdict=Verdict.INCONCLUSIVE,
        )


def load_not_done(entry: SustainedResult) -> Iterator[Finding]:
    """A load that was shorter than asked for, or of which few products were checked."""
    done, asked, checked = entry["seconds"] or 0, entry.get("requested_s"), entry.get("checked")
    again = "./gpufleet verify --deep again; if it stays so, see kernel.log for this GPU"
    if asked and done < DONE_TIME * asked:
        yield Finding(
            f"GPU {entry['gpu']} was under load for {done} s, asked for were {asked:g} s",
            again,
            verdict=Verdict.INCONCLUSIVE,
        )
    if expected := unchecked_products(entry):
        yield Finding(
            f"GPU {entry['gpu']}: {checked} products were checked under load, in {done} s at its"
            f" rate it computed about {expected:.0f}",
            again,
            verdict=Verdict.INCONCLUSIVE,
        )


def unchecked_products(entry: SustainedResult) -> float | None:
    """The products that a load computed by its time and rate, where few of them were checked."""
    speeds = [sample["tflops"] for sample in entry["samples"] if sample["tflops"]]
    size, checked = entry["n"] or 0, entry.get("checked")
    if not (checked and speeds and size):
        return None
    computed = (entry["seconds"] or 0) * sum(speeds) / len(speeds) * 1e12 / (2.0 * size**3)
    return computed if checked < DONE_PRODUCTS * computed else None


def uneven_load(entry: SustainedResult, each: Measured, quick: float) -> Iterator[Finding]:
    """A rate under load that comes and goes, or is far below what the same GPU just reached."""
    speeds, samples = sorted(speeds_of(entry)), entry["samples"]
    if not speeds or each.others:
        return
    middle, again = speeds[len(speeds) // 2], "compare the power limit, the cables and the cooling"
    low = speeds[min(FEW_SAMPLES, len(speeds)) - 1]
    slow = [sample for sample in samples if (sample["tflops"] or 0) < LEAST_KEPT * middle]
    reasons = {POWER, CLOCKS, THERMAL, *FORCED}
    if len(speeds) > 2 * FEW_SAMPLES and low < LEAST_KEPT * middle and not mostly(reasons, slow):
        yield Finding(
            f"GPU {entry['gpu']} computes unevenly under load: {len(slow)} of {len(speeds)} samples"
            f" have less than {LEAST_KEPT:.0%} of the median, {middle} TFLOP/s; the"
            f" {FEW_SAMPLES}th lowest has {low}, and they report no reason",
            f"see kernel.log and what else runs on the host; {again}; ./gpufleet verify --deep",
            verdict=Verdict.INCONCLUSIVE,
            about=subjects.slow(each.address),
        )
    if middle < LEAST_KEPT * quick and not mostly(reasons, samples):
        yield Finding(
            f"GPU {entry['gpu']} reaches {middle} TFLOP/s under load, and {quick} TFLOP/s without,"
            " and reports no reason for it",
            f"{again} of this host with another one; ./gpufleet verify --deep (clocks and"
            " temperatures)",
            verdict=Verdict.INCONCLUSIVE,
            about=subjects.slow(each.address),
        )


def speeds_of(entry: SustainedResult) -> list[float]:
    """The throughput at each moment under load."""
    return [required(sample["tflops"], "a sample's tflops") for sample in entry["samples"]]


def mostly(reasons: set[str], samples: Sequence[Sample]) -> bool:
    """Return whether most of the samples report one of these reasons."""
    return sum(bool(reasons & {*(s["throttle"] or [])}) for s in samples) > MOSTLY * len(samples)
