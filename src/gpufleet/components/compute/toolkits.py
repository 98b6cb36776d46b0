"""Toolkits and wheels by themselves: what cuBLAS, NVRTC and cuDNN compute on each GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypedDict

from gpufleet.components.base import mig, subjects
from gpufleet.components.base.holders import busy_finding
from gpufleet.components.base.items import for_each
from gpufleet.components.base.registry import (
    INSPECT,
    Evidence,
    Finding,
    check,
    is_hung,
    mig_evidence,
    no_cudnn,
    no_gpus_declared,
    no_toolkits,
    required,
    shortened,
    visible_gpus,
    wrong_gpu_count,
    wrong_results,
)
from gpufleet.components.base.remedies import (
    Component,
    command,
    otherwise,
    provision,
    see,
    toolkit_at,
)
from gpufleet.components.base.remedies import cudnn as component_of_cudnn
from gpufleet.components.base.remedies import toolkit as component_of
from gpufleet.components.base.sections import Sections
from gpufleet.components.gpu.identity import off_the_bus
from gpufleet.components.gpu.unlike import contradictions, unlike_chips
from gpufleet.documents.plan import Plan, PlannedCudnn, PlannedStack, PlannedToolkit
from gpufleet.documents.sections.compute import (
    ComputeDevice,
    ComputeRun,
    CublasResult,
    GpuResult,
    NvrtcRun,
    SustainedResult,
)
from gpufleet.documents.text import brief, quantity
from gpufleet.documents.verdict import Verdict

from .work_done import too_few

DEVICE_FAULT = (
    "take the device out of service: wrong numbers from exact operands are a hardware or library"
    " fault"
)


class KernelResult(NvrtcRun, GpuResult):
    """The run of a compiled kernel on one GPU, as the result of any other part."""


class Libraries(TypedDict):
    """CUDA's libraries: a toolkit's, or those of a stack's wheels."""

    path: str
    short: str


class ToolkitRun(NamedTuple):
    """CUDA's libraries, and the run that computed with them."""

    libraries: Libraries
    run: ComputeRun


def wheel_stacks(plan: Plan) -> list[PlannedStack]:
    """The stacks whose CUDA is in wheels of their own."""
    return [stack for stack in plan["stacks"] if stack["cuda_source"] == "pip"]


def no_gpus(plan: Plan) -> str | None:
    """The skip reason of checks that need a GPU, and a toolkit or a stack with CUDA wheels."""
    return (None if wheel_stacks(plan) else no_toolkits(plan)) or no_gpus_declared(plan)


def runs(plan: Plan, observed: Sections) -> Iterator[ToolkitRun | Finding]:
    """The run of each planned toolkit, or why it cannot be judged; then the runs of wheels."""
    yield from toolkit_runs(plan, observed)
    by_path = _by_path(observed)
    loaded = False
    for stack in wheel_stacks(plan):
        if run := by_path.get(stack["venv"]):
            loaded = True
            yield ToolkitRun(_wheels(stack), run)
    for stack in wheel_stacks(plan)[:1]:
        if not loaded and not plan["toolkits"]:
            full = observed.snapshot["mode"] == "full"
            yield Finding(
                "CUDA of the stacks' wheels was not tested: "
                + (
                    "no stack of gpufleet has cuBLAS in a wheel"
                    if full
                    else f"the snapshot has mode '{observed.snapshot['mode']}'"
                ),
                see(
                    "stack.release",
                    otherwise(
                        provision(plan, Component("stack", stack["name"])),
                        "or declare gpu_toolkits",
                    ),
                )
                if full
                else command("verify", note="it probes in mode 'full'"),
                verdict=Verdict.INCONCLUSIVE,
                about=(stack["venv"],) if full else (),
            )


def _wheels(stack: PlannedStack) -> Libraries:
    return {"path": stack["venv"], "short": f"{stack['cuda']} of {stack['name']}"}


def toolkit_runs(plan: Plan, observed: Sections) -> Iterator[ToolkitRun | Finding]:
    """The run of each planned toolkit, or why it cannot be judged."""
    return (_toolkit_run(plan, observed, toolkit) for toolkit in plan["toolkits"])


def _toolkit_run(plan: Plan, observed: Sections, toolkit: PlannedToolkit) -> ToolkitRun | Finding:
    if run := _by_path(observed).get(toolkit["path"]):
        return ToolkitRun(toolkit, run)
    if observed.snapshot["mode"] != "full":
        return Finding(
            f"CUDA {toolkit['short']} was not tested: the snapshot has mode"
            f" '{observed.snapshot['mode']}'",
            command("verify", note="it probes in mode 'full'"),
            verdict=Verdict.INCONCLUSIVE,
        )
    return Finding(
        f"CUDA {toolkit['short']} was not tested: {toolkit['path']} does not exist",
        see("toolkit.present", provision(plan, component_of(toolkit))),
        verdict=Verdict.INCONCLUSIVE,
        about=(toolkit["path"],),
    )


def _by_path(observed: Sections) -> dict[str, ComputeRun]:
    return {run["toolkit"]: run for run in observed.data["compute"]["runs"]}


def runs_with(
    plan: Plan, observed: Sections, part: Literal["consensus", "host_copies"]
) -> tuple[list[ToolkitRun], list[str]]:
    """The runs that report a part for which one toolkit is enough; why the others do not."""
    reporting, reasons = [], []
    for found in runs(plan, observed):
        if isinstance(found, Finding):
            reasons.append(found.cause)
        elif found.run.get(part) is None:
            reasons.append(found.run["error"] or "it was not reported")
        else:
            reporting.append(found)
    return reporting, reasons


def about_runs(found: Iterable[ToolkitRun | Finding]) -> subjects.Subjects:
    """Runs that ended before a step that none of them reports."""
    return tuple(
        subject
        for each in found
        for subject in (
            each.about if isinstance(each, Finding) else (subjects.stopped(each.run["toolkit"]),)
        )
    )


def run_error(where: str, error: str, *, hung: bool) -> Finding:
    """A finding for the error of a part of a run; `hung`: it gave no answer."""
    return Finding(
        f"{where}: {error}",
        "on the host: check for processes in state D and the kernel log; a hung driver needs a"
        " reboot"
        if hung
        else "see gpu.count, driver.loaded and toolkit.files; the kernel log"
        " names a GPU's own faults (Xid)",
        verdict=Verdict.HUNG if hung else Verdict.FAIL,
    )


def on_cards(run: ComputeRun, error: str, *gpus: int) -> subjects.Subjects:
    """An error on the GPU of this number, by the card's address; of several, a fault of any."""
    addresses = {device["index"]: device["address"] for device in run["devices"]}
    return subjects.either(
        *(each for gpu in gpus for each in subjects.computing(addresses.get(gpu), error))
    )


def checked_products(
    where: str, entries: Sequence[CublasResult | SustainedResult]
) -> Iterator[Finding]:
    """A finding for each result whose products were not all compared."""
    for entry in entries:
        if not entry["error"] and not entry["busy"] and not entry.get("checked"):
            yield Finding(
                f"{where} on GPU {entry['gpu']}: not every product was checked: the probe was of"
                " an earlier release",
                "./gpufleet verify",
                verdict=Verdict.INCONCLUSIVE,
                about=(f"unchecked/{entry['gpu']}",),
            )


def not_reported(
    toolkit: Libraries, run: ComputeRun, what: str, verdict: Verdict = Verdict.FAIL
) -> Finding:
    """A finding for a part that a run does not report."""
    error = str(run["error"] or "it was not reported")
    if run["state"] == "hung":
        hung = run_error(f"{what} of CUDA {toolkit['short']}", f"no answer: {error}", hung=True)
        return replace(hung, about=(subjects.stopped(toolkit["path"]),))
    return Finding(
        f"{what} of CUDA {toolkit['short']} was not tested: {error}",
        "see driver.loaded and toolkit.files; then ./gpufleet verify",
        verdict=verdict,
    )


# -- devices --------------------------------------------------------------------------------------


@check("toolkit.device-query", reads=("compute", "gpus"), repair=INSPECT, skip_reason=no_gpus)
@for_each(runs)
def device_query(
    plan: Plan, observed: Sections, tested: ToolkitRun
) -> Iterator[Finding | Evidence]:
    """The driver shows each declared GPU to CUDA, with its PCI address and properties."""
    toolkit, run = tested
    bus = {card["address"].lower() for card in observed.data["gpus"]["pci"]}
    wanted = visible_gpus(plan) or 0
    yield from mig_evidence(plan)
    where = f"CUDA {toolkit['short']}"
    result, devices = required(run["driver"], "a run's driver"), run["devices"]
    if run["state"] == "hung" and not devices and not result["error"]:
        yield not_reported(toolkit, run, "The list of GPUs")
        return
    if result["error"] or result["cuinit"] != 0:
        yield replace(
            run_error(
                f"{where} gets no answer from the driver",
                str(result["error"] or "cuInit was not called"),
                hung=run["state"] == "hung" or is_hung(result),
            ),
            about=(subjects.GPUS,),
            entails=(subjects.stopped(toolkit["path"]),),
        )
        return
    if wrong_gpu_count(plan, len(devices), wanted):
        split = mig.split(observed)
        why = f": {shortened(split)} with MIG enabled; CUDA shows a program one instance"
        yield Finding(
            f"{where} lists {quantity(len(devices), 'GPU')}, declared is gpu_expect: {{count:"
            f" {wanted}}}{why if split else ''}",
            "declare the instances (gpu_mig), or disable MIG (nvidia-smi -mig 0)"
            if split
            else "see gpu.count and driver.nodes; if the host has that many: correct gpu_expect",
            about=subjects.missing_gpus(len(devices), wanted),
        )
    gone = subjects.gone_since(
        sum(device["address"] not in bus for device in devices), len(bus), wanted
    )
    # gpu.count says that gpufleet does not know the cards of such a machine.
    no_bus = bool([*off_the_bus(observed)])
    for device in devices:
        yield from _figures(where, device, None if no_bus else bus, gone)
    data = observed.read_elsewhere()
    listed = data["smi"]["devices"] if "smi" in data else []
    yield from unlike_chips(where, devices, listed)
    yield from contradictions(where, devices, listed)
    yield Evidence(
        f"{where}: "
        + ", ".join(
            f"{d['index']} {d['name']} ({d['address']}, {d['compute_capability']}, {d['sm_count']}"
            f" SMs, {d['memory_mib']} MiB)"
            for d in devices
        )
    )


def _figures(
    where: str, device: ComputeDevice, bus: set[str] | None, gone: subjects.Subjects
) -> Iterator[Finding]:
    name = f"{where}: GPU {device['index']} ({device['name'] or 'without a name'})"
    void = [
        key
        for key, value in (
            ("name", device["name"]),
            ("compute_capability", device["compute_capability"]),
            ("memory_mib", device["memory_mib"]),
            ("sm_count", device["sm_count"]),
            ("clock_mhz", device["clock_mhz"]),
            ("warp_size", device["warp_size"]),
        )
        if not value
    ]
    if void:
        yield Finding(
            f"{name} has no {', '.join(void)}: it is no working GPU",
            "see driver.loaded and the kernel log",
            brief(device),
        )
    if bus is not None and device["address"] not in bus:
        yield Finding(
            f"{name} is at {device['address']}, where the PCI bus has no NVIDIA GPU",
            "see gpu.count and the kernel log",
            brief(sorted(bus)),
            about=gone,
        )


# -- the libraries ---------------------------------------------------------------------------------


def gpu_results(
    plan: Plan,
    observed: Sections,
    where: str,
    entries: Sequence[GpuResult],
    *,
    run: ComputeRun,
    unit: str,
) -> Iterator[Finding | Evidence]:
    """One result per GPU: on each declared one, exact, or held by others."""
    for entry in entries:
        name = f"{where} on GPU {entry['gpu']}"
        if finding := busy_finding(
            name, entry["error"], observed, device=entry["gpu"], busy=entry["busy"]
        ):
            yield finding
        elif entry["error"]:
            yield replace(
                run_error(name, entry["error"], hung=is_hung(entry)),
                about=on_cards(run, entry["error"], entry["gpu"]),
                entails=(f"tflops/{entry['gpu']}",),
            )
        elif entry["wrong"] != 0:
            wrong = wrong_results(entry["wrong"], unit)
            yield Finding(f"{name} gave {wrong}", DEVICE_FAULT, brief(entry))
    missing = sorted(set(range(visible_gpus(plan) or 0)) - {entry["gpu"] for entry in entries})
    if missing:
        which = f"nothing was computed on GPU {', '.join(map(str, missing))}"
        if run["state"] == "hung":
            yield replace(
                run_error(where, f"no answer: {run['error']}: {which}", hung=True),
                about=(subjects.stopped(run["toolkit"]),),
                entails=(subjects.TFLOPS,),
            )
        else:
            yield Finding(
                f"{where}: {which}" + (f" ({run['error']})" if run["error"] else ""),
                "see toolkit.device-query",
                about=subjects.missing_numbers(missing, visible_gpus(plan)),
                entails=(subjects.TFLOPS,) if not entries else (),
            )


@check("toolkit.cublas", reads=("compute",), skip_reason=no_gpus)
@for_each(runs)
def cublas(plan: Plan, observed: Sections, tested: ToolkitRun) -> Iterator[Finding | Evidence]:
    """cuBLAS of each toolkit (or wheels) multiplies on each declared GPU, with exact results."""
    toolkit, run = tested
    where = f"cuBLAS of CUDA {toolkit['short']}"
    yield from gpu_results(plan, observed, where, run["cublas"], run=run, unit="row")
    yield from checked_products(where, run["cublas"])
    for entry in run["cublas"]:
        yield from too_few(where, entry)
    yield Evidence(
        f"{where}: "
        + ", ".join(
            f"GPU {e['gpu']} {e['n']}x{e['n']} exact {e.get('checked', 0)} times,"
            f" {e['tflops']} TFLOP/s, first {e['first_s']} s"
            for e in run["cublas"]
        )
    )


@check("toolkit.nvrtc", reads=("compute", "toolkits"), skip_reason=no_toolkits)
@for_each(toolkit_runs)
def nvrtc(plan: Plan, observed: Sections, tested: ToolkitRun) -> Iterator[Finding | Evidence]:
    """NVRTC of each toolkit compiles a kernel, which each declared GPU runs with exact results."""
    toolkit, run = tested
    declared = visible_gpus(plan)
    result, where = run["nvrtc"], f"NVRTC of CUDA {toolkit['short']}"
    if result is None:
        yield not_reported(toolkit, run, "NVRTC")
        return
    if run["state"] != "ok" and not _error_reported(run):
        yield not_reported(toolkit, run, "The rest")
    repair = provision(plan, *toolkit_at(plan, toolkit["path"]))
    if result["error"]:
        finding = run_error(where, result["error"], hung=is_hung(result))
        yield Finding(finding.cause, see("toolkit.files", repair), verdict=finding.verdict)
        return
    if not result["ptx"]:
        yield Finding(f"{where} returns no PTX of the compiled kernel", repair, brief(result))
    if result["version"] != toolkit["short"]:
        yield Finding(f"{where} reports version {result['version']}", repair)
    yield from _foreign_libraries(plan, observed, toolkit, run)
    results: list[KernelResult] = [{**entry, "busy": None} for entry in result["ran"]]
    if declared:
        yield from gpu_results(
            plan, observed, f"A kernel by {where}", results, run=run, unit="number"
        )
    yield Evidence(
        f"{where}: {result['version']}, PTX for {result['arch']}; ran on "
        + (
            ", ".join(f"GPU {e['gpu']} ({e['arch']})" for e in result["ran"])
            or "no GPU: it was only compiled"
        )
    )


def _error_reported(run: ComputeRun) -> bool:
    """Return whether a part of an unfinished run has an error, which its own check reports."""
    nvrtc, driver = required(run["nvrtc"], "a run's nvrtc"), required(run["driver"], "its driver")
    errors = [nvrtc["error"], driver["error"], *(entry["error"] for entry in nvrtc["ran"])]
    results = (run["cublas"], run["cudnn"], run["bandwidth"], run["peer"], run["sustained"])
    return any(errors) or any(entry["error"] for entries in results for entry in entries or ())


def _foreign_libraries(
    plan: Plan, observed: Sections, toolkit: Libraries, run: ComputeRun
) -> Iterator[Finding]:
    """Libraries outside the toolkit. Mapped paths are real; a tree may be behind a symlink."""
    own = toolkit["path"]
    real = [tree["realpath"] for tree in observed.data["toolkits"]["trees"] if tree["path"] == own]
    homes = tuple(f"{home}/" for home in (own, *real))
    outside = [path for path in run["mapped"] if not path.startswith(homes)]
    if outside:
        yield Finding(
            f"CUDA {toolkit['short']} maps libraries from outside {own}: {shortened(outside)}",
            provision(plan, *toolkit_at(plan, own)),
            "\n".join(outside),
        )


def _cudnn_runs(
    plan: Plan, observed: Sections
) -> Iterator[tuple[PlannedCudnn, ComputeRun] | Finding]:
    """Each planned cuDNN with the run of its toolkit, or why that cannot be judged."""
    toolkits = {toolkit["short"]: toolkit for toolkit in plan["toolkits"]}
    for cudnn in plan["cudnn"]:
        found = _toolkit_run(plan, observed, toolkits[cudnn["toolkit"]])
        yield found if isinstance(found, Finding) else (cudnn, found.run)


@check(
    "cudnn.convolution",
    reads=("compute",),
    skip_reason=lambda plan: no_cudnn(plan) or no_gpus_declared(plan),
)
@for_each(_cudnn_runs)
def convolution(
    plan: Plan, observed: Sections, tested: tuple[PlannedCudnn, ComputeRun]
) -> Iterator[Finding | Evidence]:
    """Each cuDNN computes a convolution on each declared GPU, with exact results."""
    cudnn, run = tested
    where = f"cuDNN {cudnn['short']} in CUDA {cudnn['toolkit']}"
    entries = [entry for entry in run["cudnn"] if entry["soname"] == cudnn["soname"]]
    yield from gpu_results(plan, observed, where, entries, run=run, unit="number")
    for version in sorted({entry["version"] for entry in entries if entry["version"]}):
        if version != cudnn["short"]:
            yield Finding(
                f"{where} reports version {version}", provision(plan, component_of_cudnn(cudnn))
            )
    yield Evidence(f"{where}: exact on {len(entries)} GPUs")
