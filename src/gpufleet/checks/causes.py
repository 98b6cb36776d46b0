"""Which findings explain which: one cause is shown once, with its consequences under it.

`EXPLAINS` names for each check the checks that its findings can explain. It alone explains
nothing: a check is explained only if each of its own findings is about what the cause is about
(`Finding.about`, in the vocabulary of `subjects`), and if the cause's verdict is at least as bad.
So a finding about another card, another stack or a wrong number stays one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpufleet.model.verdict import Verdict

from .registry import CHECKS, Finding
from .subjects import covered

HEALTHY = (Verdict.PASS, Verdict.NOT_DECLARED)

# Checks that load a toolkit's libraries on the GPUs, and those that need a stack's framework.
COMPUTE = (
    "toolkit.device-query", "toolkit.cublas", "toolkit.nvrtc", "cudnn.convolution",
    "gpu.host-copies", "gpu.throughput", "gpu.sustained", "gpu.bandwidth", "gpu.peer")
FRAMEWORK = (
    "stack.matmul", "stack.gpu", "stack.build", "stack.libraries", "stack.mapped", "stack.hello",
    "stack.local-devices", "stack.gpu-device-name", "stack.device-placement", "stack.capability")
CONTAINERS = ("containers.runtime", "containers.cdi", "containers.gpus", "containers.reload",
              "containers.matmul")
# What programs see of the GPUs.
SEEN = (*COMPUTE, *FRAMEWORK, *CONTAINERS)
# What nvidia-smi reports of them.
REPORTED = ("gpu.identity", "gpu.visible", "gpu.memory-errors", "gpu.pcie", "gpu.throttle",
            "gpu.settings")

# {cause: what it can explain}. The first cause that covers a finding is taken: the most
# fundamental ones come first.
EXPLAINS: Mapping[str, Sequence[str]] = {
    # A section that was not read explains the checks that read it.
    "host.probe": tuple(check.id for check in CHECKS.values() if check.reads),
}


class Judged(NamedTuple):
    """A check's verdict and its findings; `shown` are those that its cause states."""

    verdict: Verdict
    findings: Sequence[Finding]
    shown: Sequence[Finding]


def explained(judged: Mapping[str, Judged]) -> dict[str, str]:
    """{check: the check that explains it}; a check that explains is not explained itself."""
    direct = {name: cause for name, result in judged.items()
              if result.verdict not in HEALTHY and (cause := _cause(name, result, judged))}
    return {name: _first(name, direct) for name in direct}


def _cause(name: str, result: Judged, judged: Mapping[str, Judged]) -> str | None:
    order = list(Verdict)
    open_findings = [finding for finding in result.findings if finding.verdict not in HEALTHY]
    for cause, consequences in EXPLAINS.items():
        found = judged.get(cause)
        if name not in consequences or found is None or found.verdict in HEALTHY:
            continue
        if order.index(found.verdict) > order.index(result.verdict):
            continue
        subjects = {subject for finding in found.shown
                    for subject in (*finding.about, *finding.entails)}
        if open_findings and all(covered(one.about, subjects) for one in open_findings):
            return cause
    return None


def _first(name: str, direct: Mapping[str, str]) -> str:
    """The first cause of a chain."""
    cause = direct[name]
    return _first(cause, direct) if cause in direct else cause
