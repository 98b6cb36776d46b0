"""Toolkits by themselves: what cuBLAS, NVRTC and cuDNN of each compute on each GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from gpufleet.catalog import performance
from gpufleet.model.verdict import Verdict

from .holders import held
from .registry import (
    HARDWARE,
    INVENTORY,
    LOOK,
    Document,
    Evidence,
    Finding,
    Sections,
    check,
    declared_none,
    miscounted,
    no_cudnn,
    no_toolkits,
    one_instance,
    provision,
    shortened,
    shown,
)

DEVICE_FAULT = (
    "take the device out of service: wrong numbers from exact operands are a hardware or library"
    " fault")
# Reasons for which a GPU is slowed down by its own hardware.
FORCED = {"hw-slowdown", "hw-thermal", "hw-power-brake"}
# Less than this share of its best means that a GPU cannot keep what it began with.
LEAST_KEPT = 0.6


def no_gpus(plan: Document) -> str | None:
    """The excuse of what needs a toolkit and a GPU."""
    return no_toolkits(plan) or declared_none(plan)


def runs(
    plan: Document, seen: Sections
) -> Iterator[tuple[Document, dict[str, Any], Finding | None]]:
    """Each planned toolkit, its run, and why that cannot be judged."""
    there = {run["toolkit"]: run for run in seen["compute"]["runs"]}
    for toolkit in plan["toolkits"]:
        run = there.get(toolkit["path"])
        if run is not None:
            yield toolkit, run, None
        elif seen.snapshot["mode"] != "full":
            yield toolkit, {}, Finding(
                f"CUDA {toolkit['short']} was not tried: the snapshot is of mode"
                f" '{seen.snapshot['mode']}'",
                "./gpufleet verify (it takes snapshots of mode 'full')",
                verdict=Verdict.INCONCLUSIVE)
        else:
            yield toolkit, {}, Finding(
                f"CUDA {toolkit['short']} was not tried: there is no {toolkit['path']}",
                f"see toolkit.present; {provision(plan)}", verdict=Verdict.INCONCLUSIVE)


def unfinished(where: str, error: str) -> Finding:
    """What a part of a run says of its error; one that gave no answer hung."""
    hung = error.startswith("no answer")
    return Finding(
        f"{where}: {error}",
        "on the host: look for processes in state D and at the kernel log; a hung driver needs a"
        " reboot" if hung else "see gpu.count, driver.loaded and toolkit.files; the kernel log"
        " names a GPU's own faults (Xid)",
        verdict=Verdict.HUNG if hung else Verdict.FAIL)


def silent(toolkit: Document, run: dict[str, Any], what: str) -> Finding:
    """A part of which the run says nothing at all."""
    error = str(run["error"] or "it says nothing of it")
    if run["state"] == "hung":
        return unfinished(f"{what} of CUDA {toolkit['short']}", f"no answer: {error}")
    return Finding(f"{what} of CUDA {toolkit['short']} was not tried: {error}",
                   "see driver.loaded and toolkit.files; then ./gpufleet verify")


# -- what a driver shows of its devices ------------------------------------------------------------


@check("toolkit.device-query", reads=("compute", "gpus"), repair=LOOK, excuse=no_gpus)
def device_query(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """The driver shows each declared GPU to CUDA, at its place on the PCI bus, with its figures."""
    bus = {card["address"].lower() for card in seen["gpus"]["pci"]}
    wanted = shown(plan) or 0
    yield from one_instance(plan)
    for toolkit, run, problem in runs(plan, seen):
        if problem:
            yield problem
            continue
        where = f"CUDA {toolkit['short']}"
        told, devices = run["driver"], run["devices"]
        if told["error"] or told["cuinit"] != 0:
            yield unfinished(f"{where} gets no answer of the driver",
                             str(told["error"] or "cuInit was not called"))
            continue
        if miscounted(plan, len(devices), wanted):
            yield Finding(
                f"{where} is shown {len(devices)} GPUs, declared is gpu_expect:"
                f" {{count: {wanted}}}",
                "see gpu.count and driver.nodes; if the host has as many: correct gpu_expect")
        for device in devices:
            yield from _figures(where, device, bus)
        yield Evidence(f"{where}: " + ", ".join(
            f"{d['index']} {d['name']} ({d['address']}, {d['compute_capability']}, {d['sm_count']}"
            f" SMs, {d['memory_mib']} MiB)" for d in devices))


def _figures(where: str, device: dict[str, Any], bus: set[str]) -> Iterator[Finding]:
    name = f"{where}: GPU {device['index']} ({device['name'] or 'without a name'})"
    void = [key for key in ("name", "compute_capability", "memory_mib", "sm_count", "clock_mhz",
                            "warp_size") if not device[key]]
    if void:
        yield Finding(f"{name} has no {', '.join(void)}: what answers is no working GPU",
                      "see driver.loaded and the kernel log", str(device))
    if device["address"] not in bus:
        yield Finding(f"{name} is at {device['address']}, where the PCI bus has no NVIDIA GPU",
                      "see gpu.count and the kernel log", str(sorted(bus)))


# -- the libraries ---------------------------------------------------------------------------------


def judged(
    plan: Document, seen: Sections, where: str, entries: list[dict[str, Any]], *,
    run: Document, unit: str,
) -> Iterator[Finding | Evidence]:
    """One result per GPU: on each declared one, exact, or held by others."""
    for entry in entries:
        name = f"{where} on GPU {entry['gpu']}"
        if finding := held(name, entry, seen):
            yield finding
        elif entry["error"]:
            yield unfinished(name, entry["error"])
        elif entry["wrong"] != 0:
            wrong = "unchecked" if entry["wrong"] is None else entry["wrong"]
            yield Finding(f"{name} gave {wrong} wrong {unit}", DEVICE_FAULT, str(entry))
    missing = sorted(set(range(shown(plan) or 0)) - {entry["gpu"] for entry in entries})
    if missing:
        which = f"nothing was computed on GPU {', '.join(map(str, missing))}"
        if run["state"] == "hung":
            yield unfinished(where, f"no answer: {run['error']}: {which}")
        else:
            yield Finding(f"{where}: {which}" + (f" ({run['error']})" if run["error"] else ""),
                          "see toolkit.device-query")


@check("toolkit.cublas", reads=("compute",), excuse=no_gpus)
def cublas(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """cuBLAS of each toolkit multiplies matrices on each declared GPU, with exact results."""
    for toolkit, run, problem in runs(plan, seen):
        if problem:
            yield problem
            continue
        where = f"cuBLAS of CUDA {toolkit['short']}"
        yield from judged(plan, seen, where, run["cublas"], run=run, unit="rows")
        yield Evidence(f"{where}: " + ", ".join(
            f"GPU {e['gpu']} {e['n']}x{e['n']} exact, {e['tflops']} TFLOP/s, first {e['first_s']} s"
            for e in run["cublas"]))


@check("toolkit.nvrtc", reads=("compute", "toolkits"), excuse=no_toolkits)
def nvrtc(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """NVRTC of each toolkit compiles a kernel, which each declared GPU runs with exact results."""
    declared = shown(plan)
    for toolkit, run, problem in runs(plan, seen):
        if problem:
            yield problem
            continue
        told, where = run["nvrtc"], f"NVRTC of CUDA {toolkit['short']}"
        if told is None:
            yield silent(toolkit, run, "NVRTC")
            continue
        if run["state"] != "ok" and not _explained(run):
            yield silent(toolkit, run, "What else there is")
        if told["error"]:
            finding = unfinished(where, told["error"])
            yield Finding(finding.cause, f"see toolkit.files; {provision(plan)}",
                          verdict=finding.verdict)
            continue
        if not told["ptx"]:
            yield Finding(f"{where} gives no PTX of the kernel that it compiled", provision(plan),
                          str(told))
        if told["version"] != toolkit["short"]:
            yield Finding(f"{where} says that it is of {told['version']}", provision(plan))
        yield from _strangers(plan, seen, toolkit, run)
        ran = [{**entry, "busy": None} for entry in told["ran"]]
        if declared:
            yield from judged(plan, seen, f"A kernel by {where}", ran, run=run, unit="numbers")
        yield Evidence(f"{where}: {told['version']}, PTX for {told['arch']}; ran on "
                   + (", ".join(f"GPU {e['gpu']} ({e['arch']})" for e in ran)
                      or "no GPU: it was only compiled"))


def _explained(run: Document) -> bool:
    """Whether some part of a run that did not end says so itself, to the check that reads it."""
    parts = [run["nvrtc"], *run["nvrtc"]["ran"], run["driver"], *run["cublas"], *run["cudnn"]]
    deep = [entry for name in ("bandwidth", "peer", "sustained") for entry in run[name] or []]
    return any(part["error"] for part in parts + deep)


def _strangers(
    plan: Document, seen: Sections, toolkit: Document, run: dict[str, Any]
) -> Iterator[Finding]:
    """Maps name real paths; a tree may be reached through a link."""
    own = toolkit["path"]
    real = [tree["realpath"] for tree in seen["toolkits"]["trees"] if tree["path"] == own]
    homes = tuple(f"{home}/" for home in (own, *real))
    outside = [path for path in run["mapped"] if not path.startswith(homes)]
    if outside:
        yield Finding(f"CUDA {toolkit['short']} maps libraries from outside {own}:"
                      f" {shortened(outside)}", provision(plan), "\n".join(outside))


@check("cudnn.convolution", reads=("compute",),
       excuse=lambda plan: no_cudnn(plan) or declared_none(plan))
def convolution(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """Each cuDNN convolves on each declared GPU, with exact results."""
    told = {toolkit["short"]: (run, problem) for toolkit, run, problem in runs(plan, seen)}
    for cudnn in plan["cudnn"]:
        run, problem = told[cudnn["toolkit"]]
        if problem:
            yield problem
            continue
        where = f"cuDNN {cudnn['short']} in CUDA {cudnn['toolkit']}"
        entries = [entry for entry in run["cudnn"] if entry["soname"] == cudnn["soname"]]
        yield from judged(plan, seen, where, entries, run=run, unit="numbers")
        for version in sorted({entry["version"] for entry in entries if entry["version"]}):
            if version != cudnn["short"]:
                yield Finding(f"{where} computes as {version}", provision(plan))
        yield Evidence(f"{where}: exact on {len(entries)} GPUs")


# -- how fast --------------------------------------------------------------------------------------


@check("gpu.throughput", reads=("compute",), repair=HARDWARE, severity="major", excuse=no_gpus)
def throughput(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """Each GPU multiplies at least as fast as is declared, or as its model's floor."""
    best: dict[int, float] = {}
    names: dict[int, str] = {}
    excused = False
    for _, run, problem in runs(plan, seen):
        if problem:
            yield problem
            excused = True
            continue
        names |= {device["index"]: device["name"] for device in run["devices"]}
        for entry in run["cublas"]:
            if finding := held(f"GPU {entry['gpu']}", entry, seen):
                yield finding
                excused = True
            else:
                # Of several toolkits the fastest: an old one may not know the GPU well.
                best[entry["gpu"]] = max(best.get(entry["gpu"], 0), entry["tflops"] or 0)
    if not best and not excused:
        yield Finding("No GPU has a measured throughput", "see toolkit.cublas",
                      verdict=Verdict.INCONCLUSIVE)
    known = 0
    for gpu, tflops in sorted(best.items()):
        floor, because = _floor(plan, names.get(gpu))
        known += floor is not None
        said = f"GPU {gpu} ({names.get(gpu, 'without a name')}): {tflops} TFLOP/s"
        if tflops <= 0:
            yield Finding(f"GPU {gpu} has no measured throughput: nothing was computed",
                          "see toolkit.cublas", said)
        elif floor is not None and tflops < floor:
            yield Finding(
                f"GPU {gpu} multiplies float32 at {tflops} TFLOP/s, the least is {floor}"
                f" ({because})",
                "see gpu.throttle, gpu.settings and gpu.pcie; look who else computes on it;"
                " ./gpufleet verify --deep shows temperatures and clocks under load", said)
        yield Evidence(f"{said}, floor {floor if floor is not None else 'not known'}")
    if best and not known:
        yield Finding("gpu_expect.tflops: not set, and no floor of the model is known",
                      "set gpu_expect: {tflops: ...} to have the speed judged",
                      verdict=Verdict.NOT_DECLARED,
                      evidence=", ".join(f"GPU {gpu}: {each} TFLOP/s"
                                         for gpu, each in sorted(best.items())))


def _floor(plan: Document, name: str | None) -> tuple[float | None, str]:
    """The least TFLOP/s and why. What a host measured before would be asked for here as well."""
    declared, because = plan["expect"].get("tflops"), plan["expect"].get("tflops_because")
    wished = because in {None, "gpu_expect.tflops"}
    # The floor of the declared model is for a GPU that does not say which one it is: the declared
    # word does not tell a part of a card, or a laptop's, from the card.
    if declared is not None and (wished or not name):
        return declared, because or "gpu_expect.tflops"
    found = performance.floors(name or "")
    return (found.tflops, found.because) if found else (None, "")


# -- --deep ----------------------------------------------------------------------------------------

NOT_ASKED = Finding("--deep: not asked", "./gpufleet verify --deep", verdict=Verdict.NOT_DECLARED)


def deep(
    plan: Document, seen: Sections, part: str
) -> Iterator[tuple[Document, dict[int, str], Finding | None]]:
    """The run that was deep (the newest toolkit's), and the devices' names."""
    if not seen["compute"]["deep"]:
        yield {}, {}, NOT_ASKED
        return
    planned = [(run, problem) for _, run, problem in runs(plan, seen)]
    found = [run for run, _ in planned if run and run[part] is not None]
    if not found:
        reasons = "; ".join(problem.cause if problem else str(run["error"])
                            for run, problem in planned)
        yield {}, {}, Finding(f"The deep run did not get that far: {reasons}",
                              "see toolkit.cublas; ./gpufleet verify --deep --deadline 900",
                              verdict=Verdict.INCONCLUSIVE)
    for run in found:
        yield run, {d["index"]: d["name"] for d in run["devices"]}, None


@check("gpu.sustained", reads=("compute",), repair=HARDWARE, severity="major", deep=True,
       excuse=no_gpus)
def sustained(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """Under minutes of load each GPU stays exact, as fast as it began, and cools down again."""
    for run, names, problem in deep(plan, seen, "sustained"):
        if problem:
            yield problem
            continue
        yield from judged(plan, seen, "Sustained load", run["sustained"], run=run, unit="rows")
        for entry in run["sustained"]:
            if entry["error"] or entry["busy"]:
                continue
            yield from _under_load(plan, entry, names.get(entry["gpu"]))


def _under_load(
    plan: Document, entry: dict[str, Any], name: str | None
) -> Iterator[Finding | Evidence]:
    gpu, samples = f"GPU {entry['gpu']}", entry["samples"]
    speeds = [sample["tflops"] for sample in samples]
    hottest = max((s["temperature_c"] for s in samples if s["temperature_c"] is not None),
                  default=None)
    if not speeds or max(speeds) <= 0:
        yield Finding(f"{gpu} has no measured throughput under load", "see toolkit.cublas")
        return
    last = sorted(speeds[-max(1, len(speeds) // 4):])
    kept = last[len(last) // 2]
    told = Counter(reason for s in samples for reason in set(s["throttle"] or []) & FORCED)
    # One sample alone may be the moment in which the clocks rise.
    forced = sorted(reason for reason, times in told.items() if times > 1)
    if forced:
        yield Finding(
            f"{gpu} is slowed down by its own hardware under load ({', '.join(forced)}), at"
            f" {hottest} degrees",
            "look at fans, airflow, dust and the power cables; see gpu.throttle")
    elif kept < LEAST_KEPT * max(speeds):
        yield Finding(f"{gpu} fell from {max(speeds)} to {kept} TFLOP/s under load, at {hottest}"
                      " degrees", "look at fans, airflow and the power limit; see gpu.settings")
    floor, because = _floor(plan, name)
    if floor is not None and kept < floor:
        yield Finding(f"{gpu} keeps {kept} TFLOP/s under load, the least is {floor} ({because})",
                      "see gpu.throttle and gpu.settings")
    if entry["settled_s"] is None:
        yield Finding(f"{gpu} was still hot when the run ended: what was measured after it is not"
                      " to be trusted", "wait until it is cool; then ./gpufleet verify",
                      verdict=Verdict.INCONCLUSIVE)
    yield Evidence(f"{gpu}: {entry['seconds']} s, {max(speeds)} to {kept} TFLOP/s, up to {hottest}"
               f" degrees, cool again after {entry['settled_s']} s")


@check("gpu.bandwidth", reads=("compute",), repair=HARDWARE, severity="major", deep=True,
       excuse=no_gpus)
def bandwidth(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """Each GPU copies its own memory without an error, at least as fast as its model's floor."""
    for run, names, problem in deep(plan, seen, "bandwidth"):
        if problem:
            yield problem
            continue
        yield from judged(plan, seen, "Copying memory", run["bandwidth"], run=run, unit="blocks")
        for entry in run["bandwidth"]:
            if entry["error"] or entry["busy"]:
                continue
            rate, found = entry["gib_s"] or 0, performance.floors(names.get(entry["gpu"]) or "")
            if rate <= 0 or (found and rate < found.gib_s):
                least = f"the least is {found.gib_s} ({found.because})" if found else "none at all"
                yield Finding(f"GPU {entry['gpu']} copies its memory at {rate} GiB/s, {least}",
                              "see gpu.memory-errors and gpu.throttle")
            yield Evidence(f"GPU {entry['gpu']}: {rate} GiB/s")


@check("gpu.peer", reads=("compute",), repair=INVENTORY, severity="major", deep=True,
       excuse=no_gpus)
def peer(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """What one GPU copies to another arrives there as it was."""
    for run, _, problem in deep(plan, seen, "peer"):
        if problem:
            yield problem
            continue
        entries = run["peer"]
        if not entries and (shown(plan) or 0) < 2:
            yield Evidence("one GPU has no peer")
        elif not entries:
            yield Finding("Nothing was copied between GPUs", "see toolkit.device-query",
                          verdict=Verdict.INCONCLUSIVE)
        for entry in entries:
            pair = f"GPU {entry['from']} to GPU {entry['to']}"
            if entry["error"]:
                yield unfinished(f"Copying from {pair}", entry["error"])
            elif entry["wrong"] != 0:
                yield Finding(
                    f"{entry['wrong']} numbers were changed on the way from {pair}",
                    "switch ACS and the IOMMU's translation off for the PCI bridges between them,"
                    " or look at NVLink's errors (nvidia-smi nvlink -e)", str(entry))
            yield Evidence(f"{pair}: {entry['gib_s']} GiB/s,"
                       f" {'direct' if entry['access'] else 'through the host'}")
