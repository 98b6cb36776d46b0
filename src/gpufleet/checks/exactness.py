"""Exact results beyond the float32 product: copies between host and GPU."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.model.plan import Plan
from gpufleet.model.verdict import Verdict

from .compute import about_runs, gpu_results, no_gpus, runs
from .registry import HARDWARE, Evidence, Finding, check
from .sections import Sections


@check("gpu.host-copies", reads=("compute",), repair=HARDWARE, skip_reason=no_gpus)
def host_copies(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Numbers arrive unchanged when they are copied from the host to each GPU, and back."""
    reasons, copied = [], False
    for _, run in runs(plan, observed):
        if isinstance(run, Finding):
            reasons.append(run.cause)
            continue
        entries = run.get("host_copies")
        if entries is None:
            reasons.append(run["error"] or "it was not reported")
            continue
        copied = True
        yield from gpu_results(
            plan, observed, "Copying between host and GPU", entries, run=run, unit="numbers")
        for device in run["devices"]:
            if rates := device.get("copies"):
                yield Evidence(f"GPU {device['index']}: {rates['to_device_gib_s']} GiB/s to it,"
                               f" {rates['from_device_gib_s']} GiB/s from it")
    if not copied:
        yield Finding(
            f"Nothing was copied between the host and its GPUs: {'; '.join(reasons)}",
            "see toolkit.device-query and toolkit.cublas; then ./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
            about=about_runs(run for _, run in runs(plan, observed)))
