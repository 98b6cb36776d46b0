"""Each stack computes on every GPU that is declared, and not on the CPU unnoticed."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base import subjects
from gpufleet.components.base.items import for_each
from gpufleet.components.base.registry import (
    INVENTORY,
    Evidence,
    Finding,
    check,
    mig_evidence,
    no_gpus_declared,
    no_stacks,
    visible_gpus,
)
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.stacks import Product

from .framework_runs import LISTED, Ran, gpu_number, parse_device, runs
from .products import busy_device


@check(
    "stack.gpu",
    reads=("stacks",),
    repair=INVENTORY,
    skip_reason=lambda plan: no_stacks(plan) or no_gpus_declared(plan),
)
@for_each(runs(lambda framework: framework["matmul"]))
def gpu(plan: Plan, observed: Sections, run: Ran[list[Product]]) -> Iterator[Finding | Evidence]:
    """Every stack multiplies matrices on every declared GPU."""
    stack, _, every = run
    wanted = {("gpu", str(index)) for index in range(visible_gpus(plan) or 0)}
    yield from mig_evidence(plan)
    # Each device has a product in float32; one of a lower precision stands for none.
    results = [entry for entry in every if "precision" not in entry]
    proven = {
        parse_device(entry["device"])
        for entry in results
        if entry["wrong"] == 0 and not entry["error"]
    }
    busy = [
        (entry, finding)
        for entry in results
        if (finding := busy_device(f"{stack['name']} on {entry['requested']}", entry, observed))
    ]
    yield from (finding for _, finding in busy)
    held_up = {parse_device(entry["requested"]) for entry, _ in busy}
    missing = sorted(index for _, index in wanted - proven - held_up)
    if missing:
        unused = [
            str(entry["error"])
            for entry in results
            if gpu_number(entry) in missing
            and (listed := LISTED.match(entry["error"] or ""))
            and listed[1] == "0"
        ]
        yield Finding(
            f"{stack['name']}: no result of GPU {', '.join(missing)} of {len(wanted)} declared"
            + (f"; its programs compute on the CPU, or fail: {unused[0]}" if unused else ""),
            "see gpu.count, driver.loaded and stack.matmul; if the host has fewer GPUs:"
            " correct gpu_expect in the inventory",
            about=_without_result(stack["name"], missing, results, len(wanted)),
        )
    yield Evidence(f"{stack['name']}: {len(wanted) - len(missing)} of {len(wanted)} GPUs computed")


def _without_result(
    name: str, missing: list[str], results: list[Product], wanted: int
) -> subjects.Subjects:
    """GPUs for which stack.matmul has no right result, or that the framework does not use."""
    tried = {gpu_number(entry) for entry in results}
    if tried >= set(missing):
        return tuple(f"result/{index}@{name}" for index in missing)
    return (
        ()
        if tried & set(missing)
        else subjects.missing_numbers([int(index) for index in missing], wanted, name)
    )
