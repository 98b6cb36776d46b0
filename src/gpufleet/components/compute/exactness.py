"""Exact results beyond the float32 product: other number formats, copies from and to the host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from gpufleet.components.base import subjects
from gpufleet.components.base.items import for_each
from gpufleet.components.base.registry import HARDWARE, Evidence, Finding, check, required
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.compute import FormatResult
from gpufleet.documents.verdict import Verdict

from .toolkits import ToolkitRun, about_runs, gpu_results, no_gpus, not_reported, runs, runs_with
from .work_done import Applicable, too_few

# Formats that every probe must report, even as absent from a GPU or its cuBLAS.
FORMATS = ("fp64", "fp16", "int8", "tf32", "bf16", "fp8-e4m3", "fp8-e5m2")
# Errors of cuBLAS without an algorithm for a GPU: no fault of the GPU, and no proof either.
UNSUPPORTED = re.compile(r"CUBLAS_STATUS_(NOT_SUPPORTED|ARCH_MISMATCH|INVALID_VALUE)|no algorithm")


@check("gpu.formats", reads=("compute",), repair=HARDWARE, skip_reason=no_gpus)
@for_each(runs)
def formats(plan: Plan, observed: Sections, tested: ToolkitRun) -> Iterator[Finding | Evidence]:
    """cuBLAS is exact on each GPU in FP64, FP16, INT8, TF32, BF16 and FP8, where both have it."""
    toolkit, run = tested
    entries = run.get("formats") or []
    if not entries:
        finding = not_reported(toolkit, run, "A product in each format", Verdict.INCONCLUSIVE)
        yield replace(finding, about=(subjects.stopped(toolkit["path"]),))
        return
    applicable = Applicable(run, entries)
    for name in FORMATS:
        where = f"{name} by cuBLAS of CUDA {toolkit['short']}"
        tried = []
        for entry in entries:
            if entry["format"] == name:
                result, about = _in_format(where, entry)
                tried.append(result)
                yield applicable.missing(f"{where} on GPU {entry['gpu']}", entry) or about
                yield from too_few(where, entry)
        yield from gpu_results(plan, observed, where, tried, run=run, unit="number")


def _in_format(where: str, entry: FormatResult) -> tuple[FormatResult, Finding | Evidence]:
    """The result of one GPU, to be judged as others are, and what is said of it beside that."""
    on = f"{where} on GPU {entry['gpu']}"
    excused: FormatResult = {**entry, "wrong": 0, "error": None}
    # Each GPU has FP64.
    if entry["not_applicable"] and entry["format"] != "fp64":
        return excused, Evidence(f"{on}: not applicable, {entry['not_applicable']}")
    if entry["error"] and UNSUPPORTED.search(entry["error"]):
        return excused, Finding(
            f"{on} was not tested: {entry['error']}",
            "use a toolkit that supports the GPU: see toolkit.device-query",
            verdict=Verdict.INCONCLUSIVE,
        )
    if not (entry["error"] or entry["busy"] or entry["checked"]):
        return entry, Finding(
            f"{on}: no product was checked", "./gpufleet verify", verdict=Verdict.INCONCLUSIVE
        )
    return entry, Evidence(f"{on}: {entry['checked']} products")


@check("gpu.host-copies", reads=("compute",), repair=HARDWARE, skip_reason=no_gpus)
def host_copies(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Numbers arrive unchanged when they are copied from the host to each GPU, and back."""
    tested, reasons = runs_with(plan, observed, "host_copies")
    for _, run in tested:
        entries = required(run.get("host_copies"), "a run's copies")
        yield from gpu_results(
            plan, observed, "Copying between host and GPU", entries, run=run, unit="number"
        )
        for device in run["devices"]:
            if rates := device.get("copies"):
                yield Evidence(
                    f"GPU {device['index']}: {rates['to_device_gib_s']} GiB/s to it,"
                    f" {rates['from_device_gib_s']} GiB/s from it"
                )
    if not tested:
        yield Finding(
            f"Nothing was copied between the host and its GPUs: {'; '.join(reasons)}",
            "see toolkit.device-query and toolkit.cublas; then ./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
            about=about_runs(runs(plan, observed)),
        )
