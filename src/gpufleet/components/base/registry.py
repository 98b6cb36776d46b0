"""The definition of a check, the registry of all checks, and helpers that several checks share.

A check is a pure generator over a plan and the sections of a snapshot that it declares to read.
It yields a `Finding` for each difference from the plan, and may yield `Evidence` of what it
compared. A check without findings passes. The sections that it reads are declared, so that one that
was not read (hung, denied, damaged) is never reported as healthy.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from gpufleet.components.base import expectation
from gpufleet.components.base.driver_state import Judge
from gpufleet.components.base.host import Host
from gpufleet.documents.plan import Component as Kind
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.cuda import ClosedPath, Receipts
from gpufleet.documents.text import is_number, quantity, quoted, shell
from gpufleet.documents.verdict import Verdict

from . import subjects
from .remedies import Component, Remedy, of_driver, person, provision, then
from .sections import Sections
from .subjects import Subjects

T = TypeVar("T")

# The remedy of a check, in short, for the table of checks.
PROVISION = "provision again"
REBOOT = "reboot, or provision the driver"
INVENTORY = "correct the inventory"
HARDWARE = "service the hardware"
INSPECT = "inspect the host"
# The remedy where the probe read too little; there is no inventory with --local.
AS_ROOT = (
    "let the probe run as root: ansible_become and ansible_become_password, or sudo with --local"
)

# How release 1.0 writes that a part gave no answer; `torch.compile` has the class before it.
_SILENT = re.compile(r"(TimeoutError: )?no answer\b")

# The effect of a check on a host, for the same table. None is left when the check has ended,
# and nothing that others use is changed: docs/explanation/architecture.md.
READS = "reads"
COMPUTES = "computes on each GPU"
LOADS = "loads each GPU for minutes"
COMPUTES_ON_PAIR = "computes on the GPUs of both hosts"
# The probe's work for a section of the snapshot, where it does more than read.
WORK = {
    "compute": COMPUTES,
    "stacks": "computes with each stack on each GPU",
    "containers": "starts a container and computes in it",
}


@dataclass(frozen=True)
class Finding:
    """A difference from the plan: cause, remedy, and the evidence for it."""

    cause: str
    remedy: Remedy | str
    evidence: str = ""
    verdict: Verdict = Verdict.FAIL
    # The finding's subjects, see `subjects`: another check with the same subject explains it, if
    # `causes` relates the two. Without subjects nothing explains it.
    about: Subjects = ()
    # Further subjects whose findings this one explains.
    entails: Subjects = ()
    # INCONCLUSIVE because processes hold the GPU: it was busy, which is no change of the host.
    held: bool = False


@dataclass(frozen=True)
class Evidence:
    """A value that a check compared; it is shown also where the check passes."""

    evidence: str
    # The kind of the faults that it belongs to, where a component's judge yields it (`fault`).
    kind: str = ""


Function = Callable[[Plan, Sections], Iterator[Finding | Evidence]]
SkipReason = Callable[[Plan], str | None]


@dataclass(frozen=True)
class Check:
    """A registered check. `skip_reason` returns the declaration by which it does not apply."""

    id: str
    statement: str
    severity: str
    reads: tuple[str, ...]
    repair: str
    skip_reason: SkipReason
    function: Function
    # It judges more when the probe was deep: load of minutes, contents of files.
    deep: bool = False
    # The effect of the probe on the host for this check.
    effect: str = READS


CHECKS: dict[str, Check] = {}
# Checks that apply only to hosts that took part in a pair.
PAIR_CHECKS: dict[str, Check] = {}


def check(
    check_id: str,
    *,
    reads: tuple[str, ...],
    repair: str = PROVISION,
    severity: str = "critical",
    skip_reason: SkipReason = lambda plan: None,
    registry: dict[str, Check] = CHECKS,
    deep: bool = False,
    effect: str | None = None,
) -> Callable[[Function], Function]:
    """Register a function under a stable id; the first line of its docstring is the statement.

    Without `effect` it follows from the sections: what the probe does to fill them.
    """
    work = [LOADS if deep and name == "compute" else WORK[name] for name in reads if name in WORK]

    def register(function: Function) -> Function:
        if check_id in registry:
            raise ValueError(f"two checks are called {check_id}")
        statement = (inspect.getdoc(function) or "").partition("\n")[0]
        registry[check_id] = Check(
            check_id,
            statement,
            severity,
            reads,
            repair,
            skip_reason,
            function,
            deep,
            "; ".join(work) or READS if effect is None else effect,
        )
        return function

    return register


# -- what several checks share ---------------------------------------------------------------------


def required(value: T | None, what: str) -> T:
    """A value that the check needs; without it the documents are damaged, and nothing is judged."""
    if value is None:
        raise ValueError(f"{what} is null")
    return value


def shortened(items: list[str], most: int = 4) -> str:
    """`a, b and 12 more`."""
    if len(items) <= most:
        return ", ".join(items)
    return f"{', '.join(items[:most])} and {len(items) - most} more"


def wrong_results(wrong: int | None, what: str) -> str:
    """`3 wrong rows`, for a cause; None where nobody compared them."""
    return f"{what}s that were not checked" if wrong is None else quantity(wrong, f"wrong {what}")


def numbers(version: str | None) -> tuple[int, ...]:
    """`11.8.89` as numbers to compare."""
    return tuple(int(part) for part in (version or "").split(".") if is_number(part))


def no_gpus_declared(plan: Plan) -> str | None:
    """The skip reason where no GPUs are declared: a count of 0, or no count."""
    expect = plan["expect"]
    count = expect["count"] if expect else None
    if count is None:
        declared = any(expect.values()) if expect else False
        return "gpu_expect.count: not set" if declared else "gpu_expect: not set"
    if count:
        return None
    return (
        "gpu_expect: not set, no GPU was found" if expect.get("found") else "gpu_expect: {count: 0}"
    )


def no_gpus(plan: Plan) -> str | None:
    """The skip reason of a host that has no GPU: by its declaration, or as `--local` found it."""
    return no_gpus_declared(plan) if plan["expect"] and plan["expect"]["count"] == 0 else None


def mig_layout(plan: Plan) -> dict[str, list[str]]:
    """The declared MIG instances of each GPU."""
    driver = plan["driver"]
    return driver.get("mig") or {} if driver else {}


def visible_gpus(plan: Plan) -> int | None:
    """How many GPUs CUDA must show to a program; None where that is not declared."""
    count = plan["expect"]["count"] if plan["expect"] else None
    return expectation.visible(count, mig_layout(plan))


def wrong_gpu_count(plan: Plan, number: int, wanted: int) -> bool:
    """Return whether CUDA shows a wrong number of GPUs.

    More than one, where MIG is declared, is left to gpu.mig.
    """
    return number < wanted or (number > wanted and not any(mig_layout(plan).values()))


def mig_evidence(plan: Plan) -> Iterator[Evidence]:
    """A note that not every MIG instance was tested."""
    if any(mig_layout(plan).values()):
        yield Evidence("CUDA shows a program only one MIG instance: only that one was tested")


def found_locally(plan: Plan, kind: Literal["toolkits", "cudnn"]) -> str | None:
    """The skip reason of checks of receipts, where `--local` found what is installed."""
    found = any(row.get("found") for row in plan[kind])
    return "gpu_toolkits: not set, these were found" if found else None


def no_toolkits(plan: Plan) -> str | None:
    """The skip reason of the checks of toolkits."""
    return None if plan["toolkits"] else "gpu_toolkits and gpu_stacks: no toolkit is declared"


def no_cudnn(plan: Plan) -> str | None:
    """The skip reason of the checks of cuDNN."""
    return None if plan["cudnn"] else "gpu_toolkits and gpu_stacks: no cuDNN is declared"


def no_stacks(plan: Plan) -> str | None:
    """The skip reason of the checks of stacks."""
    return None if plan["stacks"] else "gpu_stacks: []"


def driver_findings(judge: Judge, plan: Plan, observed: Sections) -> Iterator[Finding]:
    """The faults that a judge of the driver reports, as findings."""
    for fault in judge(plan, Host(observed.snapshot)):
        yield Finding(f"{fault.cause[:1].upper()}{fault.cause[1:]}", of_driver(plan, fault.remedy))


def unreadable_paths(trees: Iterable[tuple[str, list[ClosedPath]]]) -> Iterator[Finding]:
    """Findings for what users other than root cannot read or enter, of each (path, closed)."""
    for path, closed in trees:
        entries = [f"{entry['path']} (mode {entry['mode']})" for entry in closed]
        if entries:
            yield Finding(
                f"Some users cannot read {shortened(entries)}: {path} is unusable for them",
                "on the host: chmod a+r the files, chmod a+rx the directories",
                "\n".join(entries),
                entails=(path,) if path.startswith("/") else (),
            )


def _named(kind: Kind, receipt_id: str) -> str:
    """The component of a receipt, as a sentence names it."""
    alone = {"driver": "the driver", "environment": "the environment"}
    return alone.get(kind, f"{kind} {receipt_id}")


def _planned(plan: Plan, kind: str, receipt_id: str) -> str | None:
    """The version that the plan has for a receipt, if any."""
    versions = {("toolkit", row["short"]): row["version"] for row in plan["toolkits"]}
    versions |= {
        ("cudnn", f"{row['toolkit']}-{row['major']}"): row["version"] for row in plan["cudnn"]
    }
    versions |= {("stack", row["name"]): row["version"] for row in plan["stacks"]}
    return versions.get((kind, receipt_id))


def is_hung(part: Mapping[str, Any], of: str = "") -> bool:
    """Return whether a part's error is a missing answer; `of`: the beginning of its keys.

    Snapshots of release 1.0 say so in the words of the error alone.
    """
    return bool(part.get(f"{of}hung", _SILENT.match(part[f"{of}error"] or "")))


def timed_out(what: str, part: Mapping[str, Any], of: str = "") -> Finding | None:
    """A HUNG finding if the error of a part is a missing answer, as `is_hung`, else None."""
    if not is_hung(part, of):
        return None
    error = str(part[f"{of}error"])
    return Finding(
        f"{what} gave no answer: {error}",
        "on the host: check the load, processes in state D and dead network mounts; then"
        " ./gpufleet verify",
        error,
        Verdict.HUNG,
    )


def not_executable(observed: Sections, paths: Iterable[str]) -> Iterator[Finding]:
    """Mount points of these paths that are mounted noexec."""
    for mount_point in observed.data["disks"]["noexec"]:
        below = [path for path in paths if path.startswith(f"{mount_point.rstrip('/')}/")]
        if below:
            yield Finding(
                f"{mount_point} is mounted noexec: nothing in {shortened(below)} can"
                " be loaded or started",
                "on the host: "
                + shell(
                    "mount -o remount,exec",
                    mount_point,
                    instead=(f"mount {quoted(mount_point)} again without noexec"),
                )
                + "; then remove noexec from /etc/fstab",
                about=(subjects.noexec(mount_point),),
            )


def files_unchanged(
    plan: Plan, receipts: Receipts, kind: Kind, receipt_id: str, path: str
) -> Iterator[Finding]:
    """Compare installed files with their receipt, file by file."""
    component, name = Component(kind, receipt_id), _named(kind, receipt_id)
    found = [r for r in receipts["receipts"] if (r["kind"], r["id"]) == (kind, receipt_id)]
    if not found:
        yield Finding(
            f"{name} has no receipt: it is not installed, or not by gpufleet",
            provision(plan, component),
            about=(path,) if path != "/" else (),
        )
        return
    # A receipt of another path, or without files, proves nothing.
    if found[0]["path"] != path:
        yield Finding(
            f"The receipt of {name} names the path {found[0]['path']}, planned is {path}",
            then(person(f"if {path} exists, move it away"), provision(plan, component)),
        )
    version = _planned(plan, kind, receipt_id)
    if version and found[0]["version"] != version:
        yield Finding(
            f"The receipt of {name} names the version {found[0]['version']}, planned is {version}",
            provision(plan, component),
        )
    if found[0]["unlisted"]:
        yield Finding(
            f"No receipt lists {shortened(found[0]['unlisted'])}: another program installed it,"
            f" or the receipt of {name} is incomplete",
            then(
                person(
                    f"on the host: move files away that do not belong to {name}; if"
                    " they do, move the receipt away and set gpu_cuda_adopt: true"
                ),
                provision(plan, component),
            ),
            "\n".join(found[0]["unlisted"]),
        )
    if not found[0]["files"]:
        yield Finding(
            f"The receipt of {name} lists no files",
            provision(plan, component),
        )
    unreadable = [entry for entry in found[0]["changed"] if entry["what"] == "unreadable"]
    if unreadable:
        reasons = [f"{entry['path']} ({entry.get('error')})" for entry in unreadable]
        disks = shortened(sorted({entry.get("disk") or "unknown" for entry in unreadable}))
        yield Finding(
            f"{quantity(len(unreadable), 'file')} of {name} under {path} cannot be read:"
            f" {shortened(reasons)}; their disk: {disks}",
            then(
                person(
                    "on the host: look for errors of that disk in the kernel log (dmesg -T) and"
                    " in its own (smartctl -a); a disk that fails has to be replaced"
                ),
                provision(plan, component, contents=True),
            ),
            "\n".join([*reasons, f"disk: {disks}"]),
        )
    changed = [
        f"{entry['path']} ({entry['what']})"
        for entry in found[0]["changed"]
        if entry not in unreadable
    ]
    missing = all(entry["what"] == "missing" for entry in found[0]["changed"])
    if changed:
        yield Finding(
            f"Since {name} was installed, {len(changed)} of its"
            f" {quantity(found[0]['files'], 'file')} changed under {found[0]['path']}:"
            f" {shortened(changed)}",
            provision(
                plan,
                component,
                contents=any(entry["what"] == "sha256" for entry in found[0]["changed"]),
            ),
            "\n".join(changed),
            about=tuple(
                dict.fromkeys(
                    _subject(found[0]["path"], entry["path"]) for entry in found[0]["changed"]
                )
            )
            if missing
            else (),
            # A program that loads these libraries may end, and this is the reason then.
            entails=(subjects.stopped(receipt_id),)
            if kind == "stack" and any(".so" in entry["path"] for entry in found[0]["changed"])
            else (),
        )


def _subject(root: str, path: str) -> str:
    """A file below a tree; a library by its name alone."""
    return subjects.library(root, path) if ".so" in path else f"{root.rstrip('/')}/{path}"
