"""GPU speed: throughput, and with --deep sustained load, memory bandwidth and peer copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from gpufleet.catalog import model_names, smi
from gpufleet.components.base import subjects
from gpufleet.components.base.holders import busy_finding
from gpufleet.components.base.items import for_each
from gpufleet.components.base.registry import (
    HARDWARE,
    INVENTORY,
    Evidence,
    Finding,
    check,
    is_hung,
    shortened,
    visible_gpus,
    wrong_results,
)
from gpufleet.components.base.sections import Sections
from gpufleet.components.gpu.confidential import BECAUSE, is_confidential, is_without_peers
from gpufleet.components.gpu.rates import Measured, measured, too_slow, unjudged
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.compute import (
    BandwidthResult,
    ComputeDevice,
    ComputeRun,
    PeerResult,
    Sample,
    SustainedResult,
)
from gpufleet.documents.text import brief
from gpufleet.documents.verdict import Verdict

from .clocks import low_clocks, sm_clock
from .filled import filled
from .peer_rates import least_peer, wired
from .toolkits import about_runs, checked_products, gpu_results, no_gpus, on_cards, run_error, runs
from .work_done import (
    CLOCKS,
    FORCED,
    LEAST_KEPT,
    POWER,
    THERMAL,
    load_not_done,
    mostly,
    speeds_of,
    uneven_load,
)

T = TypeVar("T")

# The remedy against each reason of the hardware; hw-slowdown alone is of either.
AGAINST = {"hw-thermal": "cool", "hw-power-brake": "brake"}
# A GPU that is slowed down by heat in more than this share of the samples: its cooling does not do.
# A card for desktops may, as long as it keeps its speed.
OFTEN = 0.1
# A GPU that keeps less than this share of its best throughput needs a reason: its power limit or
# its clocks' settings, in most of the slow samples.
USUALLY_KEPT = 0.8
DECLARE = "set gpu_expect: {tflops: ...} to have the throughput judged"


@check("gpu.throughput", reads=("compute",), repair=HARDWARE, severity="major", skip_reason=no_gpus)
def throughput(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each GPU has the declared throughput or its model's minimum, and is as fast as others."""
    best: dict[int, float] = {}
    devices: dict[int, ComputeDevice] = {}
    unknown = False
    for found in runs(plan, observed):
        if isinstance(found, Finding):
            yield found
            unknown = True
            continue
        devices |= _devices(found.run)
        for entry in found.run["cublas"]:
            if finding := busy_finding(
                f"GPU {entry['gpu']}",
                entry["error"],
                observed,
                device=entry["gpu"],
                busy=entry["busy"],
            ):
                yield finding
                unknown = True
            else:
                # The fastest of several toolkits: an old one may not support the GPU well.
                best[entry["gpu"]] = max(best.get(entry["gpu"], 0), entry["tflops"] or 0)
    if not best and not unknown:
        yield Finding(
            "No GPU has a measured throughput",
            "see toolkit.cublas",
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.TFLOPS,),
        )
    rates = [
        measured(observed, gpu, devices.get(gpu), speed) for gpu, speed in sorted(best.items())
    ]
    known: dict[int, float | None] = {}
    for each in rates:
        least, because = each.least_tflops(plan)
        known[each.gpu] = least
        figures = f"GPU {each.gpu} ({each.name or 'without a name'}): {each.rate} TFLOP/s"
        if each.rate <= 0:
            yield Finding(
                f"GPU {each.gpu} has no measured throughput: nothing was computed",
                "see toolkit.cublas",
                figures,
                about=(f"tflops/{each.gpu}",),
            )
        else:
            yield from too_slow(
                each,
                rates,
                "multiplies float32 at",
                "TFLOP/s",
                least=least,
                because=because,
                remedy="see gpu.throttle, gpu.settings and gpu.pcie; ./gpufleet verify --deep"
                " (temperatures and clocks under load)",
            )
        yield Evidence(
            f"{figures}, minimum {least if least is not None else 'unknown'}"
            f"{f' ({because})' if because else ''}"
            f"{f', beside {each.others}' if each.others else ''}"
        )
    if any(least is not None for least in known.values()):
        yield from unjudged(rates, known, "multiplies float32 at", "TFLOP/s", DECLARE)
    elif best:
        yield Finding(
            "gpu_expect.tflops: not set, and no minimum of the model is known",
            DECLARE,
            verdict=Verdict.NOT_DECLARED,
            evidence=", ".join(
                f"GPU {gpu}: {speed} TFLOP/s" for gpu, speed in sorted(best.items())
            ),
        )


# -- --deep ----------------------------------------------------------------------------------------

DEEP_NOT_REQUESTED = Finding(
    "--deep: not requested", "./gpufleet verify --deep", verdict=Verdict.NOT_DECLARED
)


def deep(
    part: Callable[[ComputeRun], list[T] | None],
) -> Callable[[Plan, Sections], Iterator[tuple[ComputeRun, list[T]] | Finding]]:
    """The deep run (of the newest toolkit) and one of its parts, or why that cannot be judged."""

    def parts(plan: Plan, observed: Sections) -> Iterator[tuple[ComputeRun, list[T]] | Finding]:
        if not observed.data["compute"]["deep"]:
            yield DEEP_NOT_REQUESTED
            return
        planned = list(runs(plan, observed))
        found = [
            (each.run, entries)
            for each in planned
            if not isinstance(each, Finding) and (entries := part(each.run)) is not None
        ]
        if not found:
            reasons = "; ".join(
                each.cause
                if isinstance(each, Finding)
                else str(each.run["error"] or "it was not reported")
                for each in planned
            )
            yield Finding(
                f"The deep run stopped before this step: {reasons}",
                "see toolkit.cublas; ./gpufleet verify --deep --deadline 900",
                verdict=Verdict.INCONCLUSIVE,
                about=about_runs(planned),
            )
        yield from found

    return parts


def _devices(run: ComputeRun) -> dict[int, ComputeDevice]:
    return {device["index"]: device for device in run["devices"]}


@check(
    "gpu.sustained",
    reads=("compute",),
    repair=HARDWARE,
    severity="major",
    deep=True,
    skip_reason=no_gpus,
)
@for_each(deep(lambda run: run["sustained"]))
def sustained(
    plan: Plan, observed: Sections, part: tuple[ComputeRun, list[SustainedResult]]
) -> Iterator[Finding | Evidence]:
    """Under minutes of load each GPU stays exact, keeps its speed, and cools down again."""
    run, entries = part
    yield from gpu_results(plan, observed, "Sustained load", entries, run=run, unit="product")
    yield from checked_products("Sustained load", entries)
    sound = [entry for entry in entries if not entry["error"] and not entry["busy"]]
    rates = [
        measured(observed, entry["gpu"], _devices(run).get(entry["gpu"]), kept_tflops(entry))
        for entry in sound
    ]
    quick = {each["gpu"]: each["tflops"] or 0 for each in run["cublas"] if not each["error"]}
    for entry, each in zip(sound, rates, strict=True):
        yield from load_not_done(entry)
        yield from uneven_load(entry, each, quick.get(entry["gpu"], 0))
        for item in _under_load(plan, entry, each, rates):
            if isinstance(item, Finding) and item.about == subjects.slow(each.address):
                yield replace(item, about=subjects.sustained(each.address))
            else:
                yield item
        if (device := _devices(run).get(entry["gpu"])) and not plan["expect"].get("tflops"):
            yield from low_clocks(device, entry["samples"])
    known = {each.gpu: each.least_tflops(plan)[0] for each in rates}
    yield from unjudged(rates, known, "keeps", "TFLOP/s under load", DECLARE)


def kept_tflops(entry: SustainedResult) -> float:
    """The throughput at the end: the median of the last quarter."""
    speeds = speeds_of(entry)
    last = sorted(speeds[-max(1, len(speeds) // 4) :])
    return last[len(last) // 2] if last else 0


def _fall_explained(samples: Sequence[Sample], speeds: Sequence[float]) -> bool:
    """Return whether the limits that slow samples report explain why they are slower."""
    least = USUALLY_KEPT * max(speeds)
    slow = [each for each, speed in zip(samples, speeds, strict=True) if speed < least]
    fast = [each for each, speed in zip(samples, speeds, strict=True) if speed >= least]
    # A GPU may be at its power limit from the first second on: the same power allows lower clocks
    # when it is warmer, or when its links are loaded too.
    reasons = {POWER}
    # Clocks that are set explain a fall only where they limit the slow samples alone, and are
    # lower than before: the same limit was on while the GPU was fast.
    if not mostly({CLOCKS}, fast) and sm_clock(slow) < sm_clock(fast):
        reasons.add(CLOCKS)
    return mostly(reasons, slow)


def _under_load(
    plan: Plan, entry: SustainedResult, each: Measured, rates: Sequence[Measured]
) -> Iterator[Finding | Evidence]:
    gpu, samples, slow = f"GPU {entry['gpu']}", entry["samples"], subjects.slow(each.address)
    speeds, kept, settled = speeds_of(entry), each.rate, entry["settled_s"]
    hottest = max(
        (s["temperature_c"] for s in samples if s["temperature_c"] is not None), default=None
    )
    if not speeds or max(speeds) <= 0:
        yield Finding(f"{gpu} has no measured throughput under load", "see toolkit.cublas")
        return
    result = Counter(reason for s in samples for reason in set(s["throttle"] or []) & FORCED)
    # A single sample may be the moment in which the clocks rise.
    forced = sorted(reason for reason, times in result.items() if times > 1)
    slowed = sum(THERMAL in (s["throttle"] or []) for s in samples)
    if forced:
        yield Finding(
            f"{gpu} is throttled by its hardware under load ({', '.join(forced)}), at"
            f" {hottest} degrees",
            "; ".join(
                smi.remedy(AGAINST[reason])
                for reason in (AGAINST if forced == ["hw-slowdown"] else forced)
                if reason in AGAINST
            ),
            about=subjects.throttled(each.address),
            # A few samples do not explain a GPU that is slow from the start.
            entails=slow if mostly(FORCED, samples) else (),
        )
    elif slowed > max(1, OFTEN * len(samples)) and (
        kept < USUALLY_KEPT * max(speeds) or not model_names.is_desktop(each.name or "")
    ):
        yield Finding(
            f"{gpu} is slowed by heat ({THERMAL}) in {slowed} of {len(samples)} samples under load,"
            f" at {hottest} degrees, to {kept} of {max(speeds)} TFLOP/s",
            smi.remedy("cool"),
            about=subjects.throttled(each.address),
            entails=slow if mostly({THERMAL}, samples) else (),
        )
    elif kept < USUALLY_KEPT * max(speeds):
        fell = f"{gpu} fell from {max(speeds)} to {kept} TFLOP/s under load, at {hottest} degrees"
        if each.others:
            yield Finding(
                f"{fell}, beside {each.others}",
                "./gpufleet verify --deep when nobody else uses the GPU",
                verdict=Verdict.INCONCLUSIVE,
            )
        elif kept < LEAST_KEPT * max(speeds):
            yield Finding(fell, "check fans, airflow and the power limit; see gpu.settings")
        elif not _fall_explained(samples, speeds):
            yield Finding(
                f"{fell}, and reports no reason for it",
                "./gpufleet verify --deep again; if it stays, check fans, airflow and power"
                " supply, and compare with another GPU of this model",
                verdict=Verdict.INCONCLUSIVE,
                about=slow,
            )
    least, because = each.least_tflops(plan)
    yield from too_slow(
        each,
        rates,
        "keeps",
        "TFLOP/s under load",
        least=least,
        because=because,
        remedy="see gpu.throttle and gpu.settings; compare the cooling of the GPUs",
    )
    if hottest is None and all(sample["throttle"] is None for sample in samples):
        # A share of a GPU has no sensors of its own, and not every integrated GPU has NVML's.
        if not model_names.is_share(each.name or "") and not smi.is_model(
            each.name, "", None, "integrated"
        ):
            yield Finding(
                f"{gpu} reported neither its temperature nor its throttle reasons under load",
                "see gpu.smi; on the host: nvidia-smi -q -d TEMPERATURE,PERFORMANCE; then"
                " ./gpufleet verify --deep",
                verdict=Verdict.INCONCLUSIVE,
            )
    elif settled is None and hottest is not None:
        yield Finding(
            f"{gpu} was still hot when the run ended: later measurements are not reliable",
            "wait until it is cool; then ./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
        )
    yield Evidence(
        f"{gpu}: {entry['seconds']} s, {entry.get('checked', 0)} products exact,"
        f" {max(speeds)} to {kept} TFLOP/s"
        f"{'' if hottest is None else f', up to {hottest} degrees'}"
        f"{'' if settled is None else f', cool again after {settled} s'}"
    )


@check(
    "gpu.bandwidth",
    reads=("compute",),
    repair=HARDWARE,
    severity="major",
    deep=True,
    skip_reason=no_gpus,
)
@for_each(deep(lambda run: run["bandwidth"]))
def bandwidth(
    plan: Plan, observed: Sections, part: tuple[ComputeRun, list[BandwidthResult]]
) -> Iterator[Finding | Evidence]:
    """Each GPU copies and keeps its memory's content, at its model's minimum speed or more."""
    run, entries = part
    yield from gpu_results(plan, observed, "Copying memory", entries, run=run, unit="block")
    rates = [
        measured(observed, entry["gpu"], _devices(run).get(entry["gpu"]), entry["gib_s"] or 0)
        for entry in entries
        if not entry["error"] and not entry["busy"]
    ]
    for each in rates:
        floors = each.floors()
        if each.rate <= 0:
            yield Finding(
                f"GPU {each.gpu} copies its memory at 0 GiB/s: nothing was copied",
                "see gpu.memory-errors and gpu.throttle",
            )
        else:
            yield from too_slow(
                each,
                rates,
                "copies its memory at",
                "GiB/s",
                least=floors.gib_s if floors else None,
                because=floors.gib_s_because if floors else "",
                remedy="see gpu.memory-errors and gpu.throttle",
            )
        yield Evidence(f"GPU {each.gpu}: {each.rate} GiB/s")
    minimums = {each.gpu: floors.gib_s if (floors := each.floors()) else None for each in rates}
    yield from unjudged(
        rates,
        minimums,
        "copies its memory at",
        "GiB/s",
        "compare the rate with the model's data sheet, or with another GPU of this model",
    )
    for entry in entries:
        yield filled(entry)


@check(
    "gpu.peer",
    reads=("compute",),
    repair=INVENTORY,
    severity="major",
    deep=True,
    skip_reason=no_gpus,
)
@for_each(deep(lambda run: run["peer"]))
def peer(
    plan: Plan, observed: Sections, part: tuple[ComputeRun, list[PeerResult]]
) -> Iterator[Finding | Evidence]:
    """Copies from one GPU to another arrive unchanged, as fast as their connection allows."""
    run, entries = part
    if not entries and (visible_gpus(plan) or 0) < 2:
        yield Evidence("one GPU has no peer")
    elif not entries:
        yield Finding(
            "Nothing was copied between GPUs",
            "see toolkit.device-query",
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.stopped(run["toolkit"]),)
            if run["state"] == "hung"
            else subjects.missing_gpus(len(run["devices"]), visible_gpus(plan)),
        )
    copied = {(entry["from"], entry["to"]) for entry in entries}
    numbers = range(max(visible_gpus(plan) or 0, len(run["devices"])))
    missing = [
        f"GPU {a} to GPU {b}"
        for a in numbers
        for b in numbers
        if entries and a != b and (a, b) not in copied
    ]
    if missing:
        yield Finding(
            f"Nothing was copied from {shortened(missing, 8)}",
            "see toolkit.device-query; ./gpufleet verify --deep",
            "\n".join(missing),
            Verdict.INCONCLUSIVE,
            subjects.missing_gpus(len(run["devices"]), visible_gpus(plan)),
        )
    for entry in entries:
        pair = f"GPU {entry['from']} to GPU {entry['to']}"
        if finding := busy_finding(f"Copying from {pair}", entry["error"], observed):
            yield finding
        elif entry["error"]:
            about = on_cards(run, entry["error"], entry["from"], entry["to"])
            hung = is_hung(entry)
            yield replace(run_error(f"Copying from {pair}", entry["error"], hung=hung), about=about)
        elif entry["wrong"] != 0:
            yield Finding(
                f"Copying from {pair} gave {wrong_results(entry['wrong'], 'number')}",
                "disable ACS and IOMMU translation for the PCI bridges between them, or"
                " check NVLink's errors (nvidia-smi nvlink -e)",
                brief(entry),
            )
        else:
            yield from _peer_rate(observed, _devices(run), entry)
        apart = not entry["access"]
        encrypted = f", encrypted: {BECAUSE}" if apart and is_confidential(observed) else ""
        yield Evidence(
            f"{pair}: {entry['gib_s']} GiB/s, {'through the host' if apart else 'direct'}"
            f"{encrypted}"
        )


def _peer_rate(
    observed: Sections, devices: Mapping[int, ComputeDevice], entry: PeerResult
) -> Iterator[Finding]:
    """GPUs that NVLink connects address each other; every copy has a minimum rate."""
    ends = [
        measured(observed, gpu, devices.get(gpu), entry["gib_s"] or 0)
        for gpu in (entry["from"], entry["to"])
    ]
    pair = f"GPU {entry['from']} to GPU {entry['to']}"
    joined = wired([devices.get(end.gpu) for end in ends])
    if joined and not entry["access"] and not is_without_peers(observed):
        yield Finding(
            f"GPU {entry['from']} and GPU {entry['to']} cannot address each other's memory, though"
            " NVLink connects them",
            "see gpu.nvlink, driver.fabric and kernel.log; on the host: nvidia-smi topo -p2p r",
        )
        return
    least, because = least_peer(observed, devices, entry)
    if ends[0].rate >= least and ends[0].rate > 0:
        return
    cause = f"Copies from {pair} reach {ends[0].rate} GiB/s, the minimum is {least} ({because})"
    if others := next((end.others for end in ends if end.others), None):
        yield Finding(
            f"{cause}, beside {others}",
            "./gpufleet verify when nobody else uses the GPUs",
            verdict=Verdict.INCONCLUSIVE,
        )
    else:
        yield Finding(
            cause,
            "see gpu.pcie, gpu.nvlink and kernel.log; disable ACS and IOMMU"
            " translation for the PCI bridges between them",
        )
