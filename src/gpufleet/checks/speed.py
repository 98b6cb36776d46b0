"""GPU speed: throughput, and with --deep sustained load, memory bandwidth and peer copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

from gpufleet.catalog import performance
from gpufleet.model.plan import Plan
from gpufleet.model.sections.compute import ComputeRun, SustainedResult
from gpufleet.model.verdict import Verdict

from . import subjects
from .compute import about_runs, checked_products, gpu_results, no_gpus, run_error, runs
from .holders import busy_finding
from .registry import (
    HARDWARE,
    INVENTORY,
    Evidence,
    Finding,
    check,
    required,
    visible_gpus,
)
from .sections import Sections

T = TypeVar("T")

# Throttle reasons by which the hardware itself slows a GPU down.
FORCED = {"hw-slowdown", "hw-thermal", "hw-power-brake"}
# The driver slows a GPU down because it, or its memory, is hot: in more than this share of the
# samples its cooling does not do.
THERMAL, OFTEN = "sw-thermal", 0.1
# A GPU that keeps less than this share of its best throughput cannot sustain load.
LEAST_KEPT = 0.6


@check("gpu.throughput", reads=("compute",), repair=HARDWARE, severity="major", skip_reason=no_gpus)
def throughput(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each GPU has at least the declared throughput, or the minimum of its model."""
    best: dict[int, float] = {}
    names: dict[int, str | None] = {}
    addresses: dict[int, str | None] = {}
    unknown = False
    for _, run in runs(plan, observed):
        if isinstance(run, Finding):
            yield run
            unknown = True
            continue
        names |= _names(run)
        addresses |= _addresses(run)
        for entry in run["cublas"]:
            if finding := busy_finding(
                    f"GPU {entry['gpu']}", entry["error"], observed, device=entry["gpu"],
                    busy=entry["busy"]):
                yield finding
                unknown = True
            else:
                # The fastest of several toolkits: an old one may not support the GPU well.
                best[entry["gpu"]] = max(best.get(entry["gpu"], 0), entry["tflops"] or 0)
    if not best and not unknown:
        yield Finding("No GPU has a measured throughput", "see toolkit.cublas",
                      verdict=Verdict.INCONCLUSIVE, about=(subjects.TFLOPS,))
    known = 0
    for gpu, tflops in sorted(best.items()):
        floor, because = _floor(plan, names.get(gpu))
        known += floor is not None
        figures = f"GPU {gpu} ({names.get(gpu, 'without a name')}): {tflops} TFLOP/s"
        if tflops <= 0:
            yield Finding(f"GPU {gpu} has no measured throughput: nothing was computed",
                          "see toolkit.cublas", figures, about=(f"tflops/{gpu}",))
        elif floor is not None and tflops < floor:
            yield Finding(
                f"GPU {gpu} multiplies float32 at {tflops} TFLOP/s, the minimum is {floor}"
                f" ({because})",
                "see gpu.throttle, gpu.settings and gpu.pcie; check for other processes on it;"
                " ./gpufleet verify --deep shows temperatures and clocks under load", figures,
                about=subjects.slow(addresses.get(gpu)))
        yield Evidence(f"{figures}, minimum {floor if floor is not None else 'unknown'}")
    if best and not known:
        yield Finding("gpu_expect.tflops: not set, and no minimum of the model is known",
                      "set gpu_expect: {tflops: ...} to have the throughput judged",
                      verdict=Verdict.NOT_DECLARED,
                      evidence=", ".join(f"GPU {gpu}: {speed} TFLOP/s"
                                         for gpu, speed in sorted(best.items())))


def _floor(plan: Plan, name: str | None) -> tuple[float | None, str]:
    """The minimum TFLOP/s, and where it comes from."""
    declared, because = plan["expect"].get("tflops"), plan["expect"].get("tflops_because")
    is_declared = because in {None, "gpu_expect.tflops"}
    # The minimum of the declared model is for a GPU that does not report its own: the declared name
    # does not distinguish a MIG instance or a laptop GPU.
    if declared is not None and (is_declared or not name):
        return declared, because or "gpu_expect.tflops"
    found = performance.floors(name or "")
    return (found.tflops, found.because) if found else (None, "")


# -- --deep ----------------------------------------------------------------------------------------

DEEP_NOT_REQUESTED = Finding(
    "--deep: not requested", "./gpufleet verify --deep", verdict=Verdict.NOT_DECLARED)


def deep(
    plan: Plan, observed: Sections, part: Callable[[ComputeRun], list[T] | None]
) -> Iterator[tuple[ComputeRun, list[T]] | Finding]:
    """The deep run (of the newest toolkit) and one of its parts, or why that cannot be judged."""
    if not observed["compute"]["deep"]:
        yield DEEP_NOT_REQUESTED
        return
    planned = [run for _, run in runs(plan, observed)]
    found = [(run, entries) for run in planned
             if not isinstance(run, Finding) and (entries := part(run)) is not None]
    if not found:
        reasons = "; ".join(run.cause if isinstance(run, Finding) else str(run["error"])
                            for run in planned)
        yield Finding(f"The deep run stopped before this step: {reasons}",
                      "see toolkit.cublas; ./gpufleet verify --deep --deadline 900",
                      verdict=Verdict.INCONCLUSIVE, about=about_runs(planned))
    yield from found


def _names(run: ComputeRun) -> dict[int, str | None]:
    return {device["index"]: device["name"] for device in run["devices"]}


def _addresses(run: ComputeRun) -> dict[int, str | None]:
    return {device["index"]: device["address"] for device in run["devices"]}


@check("gpu.sustained", reads=("compute",), repair=HARDWARE, severity="major", deep=True,
       skip_reason=no_gpus)
def sustained(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Under minutes of load each GPU stays exact, keeps its speed, and cools down again."""
    for found in deep(plan, observed, lambda run: run["sustained"]):
        if isinstance(found, Finding):
            yield found
            continue
        run, entries = found
        yield from gpu_results(
            plan, observed, "Sustained load", entries, run=run, unit="products")
        yield from checked_products("Sustained load", entries)
        for entry in entries:
            if entry["error"] or entry["busy"]:
                continue
            yield from _under_load(plan, entry, _names(run).get(entry["gpu"]),
                                   subjects.slow(_addresses(run).get(entry["gpu"])))


def _under_load(
    plan: Plan, entry: SustainedResult, name: str | None, slow: subjects.Subjects
) -> Iterator[Finding | Evidence]:
    gpu, samples = f"GPU {entry['gpu']}", entry["samples"]
    speeds = [required(sample["tflops"], "a sample's tflops") for sample in samples]
    hottest = max((s["temperature_c"] for s in samples if s["temperature_c"] is not None),
                  default=None)
    if not speeds or max(speeds) <= 0:
        yield Finding(f"{gpu} has no measured throughput under load", "see toolkit.cublas")
        return
    last = sorted(speeds[-max(1, len(speeds) // 4):])
    kept = last[len(last) // 2]
    result = Counter(reason for s in samples for reason in set(s["throttle"] or []) & FORCED)
    # A single sample may be the moment in which the clocks rise.
    forced = sorted(reason for reason, times in result.items() if times > 1)
    slowed = sum(THERMAL in (s["throttle"] or []) for s in samples)
    if forced:
        yield Finding(
            f"{gpu} is throttled by its hardware under load ({', '.join(forced)}), at"
            f" {hottest} degrees",
            "check fans, airflow, dust and the power cables; see gpu.throttle", about=slow)
    elif slowed > max(1, OFTEN * len(samples)):
        yield Finding(
            f"{gpu} is slowed by heat ({THERMAL}) in {slowed} of {len(samples)} samples under load,"
            f" at {hottest} degrees, to {kept} of {max(speeds)} TFLOP/s",
            "check fans, airflow, dust and the room's temperature; see gpu.throttle", about=slow)
    elif kept < LEAST_KEPT * max(speeds):
        yield Finding(f"{gpu} fell from {max(speeds)} to {kept} TFLOP/s under load, at {hottest}"
                      " degrees", "check fans, airflow and the power limit; see gpu.settings")
    floor, because = _floor(plan, name)
    if floor is not None and kept < floor:
        yield Finding(f"{gpu} keeps {kept} TFLOP/s under load, the minimum is {floor} ({because})",
                      "see gpu.throttle and gpu.settings", about=slow)
    if entry["settled_s"] is None:
        yield Finding(f"{gpu} was still hot when the run ended: later measurements are not"
                      " reliable", "wait until it is cool; then ./gpufleet verify",
                      verdict=Verdict.INCONCLUSIVE)
    yield Evidence(f"{gpu}: {entry['seconds']} s, {entry.get('checked', 0)} products exact,"
               f" {max(speeds)} to {kept} TFLOP/s, up to {hottest}"
               f" degrees, cool again after {entry['settled_s']} s")


@check("gpu.bandwidth", reads=("compute",), repair=HARDWARE, severity="major", deep=True,
       skip_reason=no_gpus)
def bandwidth(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each GPU copies its own memory without errors, at its model's minimum speed or more."""
    for found in deep(plan, observed, lambda run: run["bandwidth"]):
        if isinstance(found, Finding):
            yield found
            continue
        run, entries = found
        yield from gpu_results(
            plan, observed, "Copying memory", entries, run=run, unit="blocks")
        for entry in entries:
            if entry["error"] or entry["busy"]:
                continue
            name = _names(run).get(entry["gpu"]) or ""
            rate, floors = entry["gib_s"] or 0, performance.floors(name)
            if rate <= 0 or (floors and rate < floors.gib_s):
                least = (f"the minimum is {floors.gib_s} ({floors.because})" if floors
                         else "nothing was copied")
                yield Finding(f"GPU {entry['gpu']} copies its memory at {rate} GiB/s, {least}",
                              "see gpu.memory-errors and gpu.throttle")
            yield Evidence(f"GPU {entry['gpu']}: {rate} GiB/s")


@check("gpu.peer", reads=("compute",), repair=INVENTORY, severity="major", deep=True,
       skip_reason=no_gpus)
def peer(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Copies from one GPU to another arrive unchanged."""
    for found in deep(plan, observed, lambda run: run["peer"]):
        if isinstance(found, Finding):
            yield found
            continue
        run, entries = found
        if not entries and (visible_gpus(plan) or 0) < 2:
            yield Evidence("one GPU has no peer")
        elif not entries:
            yield Finding("Nothing was copied between GPUs", "see toolkit.device-query",
                          verdict=Verdict.INCONCLUSIVE, about=subjects.missing_gpus(
                              len(run["devices"]), visible_gpus(plan)))
        for entry in entries:
            pair = f"GPU {entry['from']} to GPU {entry['to']}"
            if entry["error"]:
                yield run_error(f"Copying from {pair}", entry["error"])
            elif entry["wrong"] != 0:
                yield Finding(
                    f"{entry['wrong']} numbers changed on the way from {pair}",
                    "disable ACS and IOMMU translation for the PCI bridges between them, or"
                    " check NVLink's errors (nvidia-smi nvlink -e)", str(entry))
            yield Evidence(f"{pair}: {entry['gib_s']} GiB/s,"
                       f" {'direct' if entry['access'] else 'through the host'}")
