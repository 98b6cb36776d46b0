"""Which findings explain which: one cause is shown once, with its consequences under it.

`RELATIONS` says which checks the findings of a check can explain. It alone explains nothing: a
check is explained only if each of its own findings is about what the cause is about or entails
(`Finding.about`, in the vocabulary of `subjects`). An INCONCLUSIVE cause explains no failure.
So a finding about another card, another stack or a wrong number stays one of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gpufleet.components.base.registry import CHECKS, Finding
from gpufleet.components.base.subjects import covered, itself
from gpufleet.documents.verdict import HEALTHY_VERDICTS, Verdict


class Relation(NamedTuple):
    """A check and those that it can explain; with `words` only of findings about these.

    `hangs`: also of one that hangs.
    """

    cause: str
    consequences: tuple[str, ...]
    words: tuple[str, ...] = ()
    hangs: bool = True


def _reading(*sections: str, but: Collection[str] = ()) -> tuple[str, ...]:
    """The checks that read one of these sections, in their order, without some of them."""
    return tuple(
        check.id
        for check in CHECKS.values()
        if not set(sections).isdisjoint(check.reads) and check.id not in but
    )


# Checks that compute by a toolkit's libraries, by a stack's framework, and in a container.
COMPUTE = _reading("compute", but=("stack.capability",))
FRAMEWORK = _reading(
    "stacks", but=("install.owned", "stack.release", "stack.python", "stack.readable")
)
CONTAINERS = _reading("containers", but=("containers.vulnerable",))
PROGRAMS = (*COMPUTE, *FRAMEWORK, *CONTAINERS)
# Checks of nvidia-smi's reports on the GPUs.
REPORTED = _reading("smi", "smi_after", but=("gpu.smi",))
SMALL = ("stack.hello", "stack.local-devices", "stack.gpu-device-name", "stack.device-placement")
BEYOND = ("stack.numpy", "stack.convolution", "stack.routines", "stack.workers", "stack.compile")
LATER = ("stack.convolution", "stack.routines", "stack.libraries", "stack.workers", "stack.compile")
# Checks that find no GPU where the framework uses none.
USES_GPUS = (
    "stack.mapped",
    "stack.matmul",
    "stack.gpu",
    "stack.local-devices",
    "stack.gpu-device-name",
    "stack.device-placement",
    "stack.convolution",
    "stack.capability",
)
# Every check that reads a section.
EVERY = tuple(check.id for check in CHECKS.values() if check.reads)
# Checks of the kernel's messages about a card.
LOGS = ("kernel.log", "kernel.after-load")
INSTALLED_CUDNN = ("cudnn.files", "cudnn.present", "cudnn.links", "cudnn.readable")

# The first cause that covers a finding is taken: the most fundamental ones come first.
RELATIONS = (
    # A section that was not read; one that hung, since a card does not answer its driver.
    Relation("host.probe", tuple(name for name in EVERY if name not in LOGS)),
    Relation("host.probe", LOGS, ("section",)),
    *(Relation(log, ("host.probe",), ("silent",)) for log in LOGS),
    # An image.
    Relation("host.booted", tuple(name for name in EVERY if name != "host.booted"), ("boot",)),
    # A kernel module or a PCI setting that is declared.
    Relation(
        "network.setup",
        ("network.ports", "network.settings", "network.gpudirect"),
        ("module", "pci"),
    ),
    # An RDMA device of which nothing was read.
    Relation(
        "network.ports",
        ("network.errors", "network.settings", "network.lossless", "network.gpudirect"),
        ("rdma",),
    ),
    Relation("network.settings", ("network.gpudirect",), ("modules",)),
    # A GPU whose NVLinks were not read.
    Relation("gpu.nvlink", ("gpu.peer-access",), ("nvlinks",)),
    # An installation that was not finished, a tree that is gone, a mount that executes nothing.
    Relation(
        "install.complete",
        (
            "toolkit.present",
            "toolkit.files",
            "toolkit.readable",
            "toolkit.default-link",
            *INSTALLED_CUDNN,
            "linker.cache",
            "stack.release",
            "stack.files",
            "stack.readable",
            *PROGRAMS,
        ),
    ),
    Relation(
        "toolkit.readable",
        ("toolkit.present", "cudnn.present", "stack.readable", "stack.python"),
        ("noexec",),
    ),
    Relation(
        "toolkit.present",
        (
            "toolkit.files",
            "toolkit.readable",
            "toolkit.default-link",
            *INSTALLED_CUDNN,
            "linker.cache",
            *COMPUTE,
            *FRAMEWORK,
        ),
        ("/",),
    ),
    Relation("toolkit.files", ("linker.cache", "stack.libraries", "stack.matmul")),
    Relation(
        "cudnn.files",
        (
            "cudnn.present",
            "cudnn.links",
            "cudnn.readable",
            "linker.cache",
            "stack.libraries",
            "stack.matmul",
        ),
    ),
    Relation(
        "cudnn.present",
        ("cudnn.links", "cudnn.readable", "linker.cache", "stack.libraries", "stack.matmul"),
    ),
    Relation("cudnn.links", ("linker.cache", "stack.libraries", "stack.matmul")),
    Relation("linker.cache", ("stack.libraries", "stack.matmul")),
    Relation(
        "stack.release",
        ("stack.files", "stack.python", "stack.readable", *FRAMEWORK, "containers.matmul"),
    ),
    # A changed library ends a program; what hangs is the GPU.
    Relation("stack.files", FRAMEWORK, ("run", "/"), hangs=False),
    Relation("stack.readable", ("stack.python",), ("noexec",)),
    Relation("stack.python", FRAMEWORK, ("run",)),
    # A driver that does not run, from what is installed to what programs see of it.
    Relation("driver.secure-boot", ("kernel.log",), ("key",)),
    Relation("driver.secure-boot", ("driver.loaded",)),
    Relation("driver.packages", ("driver.loaded", "stack.libraries")),
    Relation("driver.modules", ("driver.loaded", "driver.cuda")),
    Relation("driver.nouveau", ("driver.loaded",)),
    Relation("host.repositories", ("host.plan",)),
    Relation(
        "driver.loaded",
        (
            "driver.pending",
            "driver.nodes",
            "driver.access",
            "driver.cuda",
            "gpu.mig",
            "gpu.smi",
            *REPORTED,
            *PROGRAMS,
        ),
    ),
    # What the kernel says of the module that is not loaded, or of the card that it was stopped by.
    Relation("driver.loaded", LOGS, ("branch", "module", "key", "card")),
    # A card that is gone.
    Relation(
        "kernel.log",
        (
            "kernel.application-errors",
            "kernel.after-load",
            "gpu.count",
            "gpu.smi",
            "gpu.visible",
            "gpu.recovery",
            "gpu.after-load",
            *PROGRAMS,
        ),
    ),
    # A card that failed during the load.
    Relation("kernel.after-load", ("gpu.after-load", *PROGRAMS)),
    Relation("gpu.count", ("gpu.mig", "gpu.smi", *REPORTED, "driver.cuda", *PROGRAMS)),
    Relation("driver.nodes", ("driver.access", "driver.cuda", *PROGRAMS)),
    Relation("driver.fabric", ("driver.cuda", "gpu.fabric")),
    Relation("driver.cuda", PROGRAMS),
    Relation("gpu.smi", REPORTED),
    Relation("gpu.visible", ("gpu.identity", "gpu.mig", *PROGRAMS)),
    # A host that is not in the NVLink domain of its rack.
    Relation("gpu.rack", ("gpu.fabric",), ("card", "domains")),
    Relation("gpu.fabric", ("gpu.rack",), ("reported",)),
    # A card that is slow, and values that it does not report.
    Relation("kernel.log", ("gpu.memory-errors",), ("memory",)),
    # A card that needs a reset, that no program may use, or that has a fault since the load.
    Relation("gpu.memory-errors", ("gpu.settings",)),
    *(
        Relation(cause, PROGRAMS, ("card", "result"))
        for cause in ("gpu.recovery", "gpu.memory-errors", "gpu.settings", "gpu.after-load")
    ),
    Relation(
        "gpu.throttle", ("gpu.throughput", "gpu.sustained"), ("slow", "sustained", "throttled")
    ),
    # A cause of slowness under load explains any slowness; else the card is slow from the start.
    Relation("gpu.sustained", ("gpu.throughput",), ("slow",)),
    Relation("gpu.throughput", ("gpu.sustained",), ("sustained",)),
    # A run that stopped, a GPU that others hold or on which nothing was computed.
    Relation("toolkit.device-query", COMPUTE[1:]),
    Relation("toolkit.cublas", COMPUTE[2:]),
    Relation("gpu.sustained", ("gpu.bandwidth", "gpu.peer")),
    Relation(
        "toolkit.cublas",
        ("stack.matmul", "stack.gpu", *SMALL, *BEYOND, "containers.matmul"),
        ("busy",),
    ),
    # The same error on the same card.
    Relation("toolkit.cublas", ("stack.matmul", "containers.matmul"), ("card", "result")),
    Relation("stack.matmul", ("containers.matmul",), ("card", "result")),
    Relation("stack.numpy", ("stack.matmul", "stack.convolution"), ("numpy",)),
    Relation("stack.build", ("stack.libraries", *USES_GPUS), ("gpus",)),
    Relation("stack.libraries", USES_GPUS, ("gpus",)),
    Relation(
        "stack.matmul", tuple(check for check in FRAMEWORK if check != "stack.matmul"), ("run",)
    ),
    # In the order of the stages: what stopped in one has nothing of those after it.
    *(Relation(LATER[at], LATER[at + 1 :], ("run",)) for at in range(len(LATER) - 1)),
    Relation("stack.matmul", ("stack.gpu",), ("result",)),
    Relation("stack.matmul", ("stack.convolution",), ("gpus", "gpu", "nothing")),
    Relation("stack.matmul", ("stack.gpu", *SMALL, *BEYOND, "containers.matmul"), ("busy",)),
    Relation("stack.hello", SMALL[1:], ("busy",)),
    # An engine that starts no container.
    Relation(
        "containers.runtime",
        ("containers.vulnerable", "containers.gpus", "containers.reload", "containers.matmul"),
    ),
    Relation("containers.gpus", ("containers.reload", "containers.matmul")),
)


class Judged(NamedTuple):
    """A check's verdict and its findings; `shown` are those that its cause states."""

    verdict: Verdict
    findings: Sequence[Finding]
    shown: Sequence[Finding]


def explained(judged: Mapping[str, Judged]) -> dict[str, str]:
    """The check that explains each explained check; an explaining check is not explained itself."""
    direct: dict[str, str] = {}
    for name, result in judged.items():
        if result.verdict not in HEALTHY_VERDICTS and (cause := _cause(name, judged, direct)):
            direct[name] = cause
    return {name: _first(name, direct) for name in direct}


def _cause(name: str, judged: Mapping[str, Judged], direct: Mapping[str, str]) -> str | None:
    result = judged[name]
    found = [one for one in result.findings if one.verdict not in HEALTHY_VERDICTS]
    words = {
        itself(subject).partition("/")[0].partition("@")[0] or "/"
        for finding in found
        for subject in finding.about
    }
    for relation in RELATIONS:
        cause = judged.get(relation.cause)
        if (
            name not in relation.consequences
            or cause is None
            or cause.verdict in HEALTHY_VERDICTS
            or (relation.words and not words <= set(relation.words))
            or (result.verdict is Verdict.HUNG and not relation.hangs)
            or (cause.verdict is Verdict.INCONCLUSIVE and result.verdict is not cause.verdict)
        ):
            continue
        known = _known(cause.shown)
        # Where a finding of this check is explained, what that finding entails is explained too.
        known |= {
            itself(subject)
            for finding in found
            if covered(finding.about, known)
            for subject in finding.entails
        }
        if all(covered(finding.about, known) for finding in found) and (
            _first(relation.cause, direct) != name
        ):
            return relation.cause
    return None


def _known(findings: Sequence[Finding]) -> set[str]:
    """The subjects that these findings are about and entail."""
    return {
        itself(subject) for finding in findings for subject in (*finding.about, *finding.entails)
    }


def _first(name: str, direct: Mapping[str, str]) -> str:
    """The first cause of a chain."""
    return _first(direct[name], direct) if name in direct else name
