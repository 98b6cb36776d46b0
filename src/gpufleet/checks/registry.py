"""What a check is, and the list of them.

A check is a pure generator over a plan and the sections of a snapshot that it declares to read.
It yields a `Finding` for each thing that is not as planned, and may yield `Evidence` to say what it
looked at. One that yields no finding passes. What it reads is declared, so that a section which
was not read (hung, denied, damaged) can never come out as healthy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpufleet.host_state.driver_state import Judge
from gpufleet.host_state.host import Host
from gpufleet.model.verdict import Verdict
from gpufleet.spec import expectation

Document = Mapping[str, Any]

# What repairs it, in a word, for the catalogue.
PROVISION = "provision again"
REBOOT = "reboot, or provision the driver"
INVENTORY = "correct the inventory"
HARDWARE = "hands on the machine"
INSPECT = "look at the host"


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be: why, what to do, and what shows it."""

    cause: str
    remedy: str
    evidence: str = ""
    verdict: Verdict = Verdict.FAIL


@dataclass(frozen=True)
class Evidence:
    """What a check looked at; it stands as evidence also where all is well."""

    evidence: str


class Sections(Mapping[str, Any]):
    """The data of those sections that a check declared to read, and of no others."""

    def __init__(self, snapshot: Document, reads: tuple[str, ...]) -> None:
        self.snapshot = snapshot
        self._reads = reads

    def __getitem__(self, name: str) -> Any:
        if name not in self._reads:
            raise KeyError(f"the check reads {name} without declaring it")
        return self.snapshot["sections"][name]["data"]

    def __iter__(self) -> Iterator[str]:
        return iter(self._reads)

    def __len__(self) -> int:
        return len(self._reads)


Function = Callable[[Document, Sections], Iterator[Finding | Evidence]]
SkipReason = Callable[[Document], str | None]


@dataclass(frozen=True)
class Check:
    """A registered check. `excuse` returns the declaration by which it does not apply."""

    id: str
    statement: str
    severity: str
    reads: tuple[str, ...]
    repair: str
    skip_reason: SkipReason
    function: Function
    # It judges more when the probe was deep: load of minutes, contents of files.
    deep: bool = False


CHECKS: dict[str, Check] = {}
# Those of hosts that took part in a pair, and of no others.
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
) -> Callable[[Function], Function]:
    """Register a function under a stable id; the first line of its docstring is the statement."""

    def register(function: Function) -> Function:
        if check_id in registry:
            raise ValueError(f"two checks are called {check_id}")
        statement = (inspect.getdoc(function) or "").partition("\n")[0]
        registry[check_id] = Check(
            check_id, statement, severity, reads, repair, skip_reason, function, deep)
        return function

    return register


# -- words that several checks use -----------------------------------------------------------------


def provision(plan: Document) -> str:
    """The command that makes a host what its plan says."""
    if found_locally(plan, "toolkits"):
        return "mend it by hand, or declare it and let ./gpufleet provision install it"
    return f"./gpufleet provision --limit {plan['host']}"


def shortened(items: list[str], most: int = 4) -> str:
    """`a, b and 12 more`."""
    if len(items) <= most:
        return ", ".join(items)
    return f"{', '.join(items[:most])} and {len(items) - most} more"


def numbers(version: str | None) -> tuple[int, ...]:
    """`11.8.89` as numbers to compare."""
    return tuple(int(part) for part in (version or "").split(".") if part.isdigit())


def no_gpus_declared(plan: Document) -> str | None:
    """The excuse where the GPUs of a host are declared away, or nothing is said of them."""
    expect = plan["expect"] or {"count": None}
    count = expect["count"]
    if count is None:
        return "gpu_expect.count: not set" if any(expect.values()) else "gpu_expect: not set"
    return "gpu_expect: {count: 0}" if count == 0 else None


def mig_layout(plan: Document) -> Document:
    """The declared MIG instances of each GPU."""
    return (plan["driver"] or {}).get("mig") or {}


def visible_gpus(plan: Document) -> int | None:
    """How many GPUs a program is to be shown by CUDA; None where that is not declared."""
    count = plan["expect"]["count"] if plan["expect"] else None
    return expectation.visible(count, mig_layout(plan))


def wrong_gpu_count(plan: Document, number: int, wanted: int) -> bool:
    """Whether so many GPUs are not those that were to be shown.

    More than one where cards were to be split into MIG is for gpu.mig to judge.
    """
    return number < wanted or (number > wanted and not any(mig_layout(plan).values()))


def mig_evidence(plan: Document) -> Iterator[Evidence]:
    """What nobody may take for a proof of every MIG instance."""
    if any(mig_layout(plan).values()):
        yield Evidence(
            "CUDA shows a program one MIG instance, whatever else there is: only that one"
            " was proven"
        )


def found_locally(plan: Document, kind: str) -> str | None:
    """The excuse of what asks for gpufleet's own records, where things were found by `--local`."""
    found = any(row.get("found") for row in plan[kind])
    return "gpu_toolkits: not set, these were found" if found else None


def no_toolkits(plan: Document) -> str | None:
    """The excuse of the checks of toolkits."""
    return None if plan["toolkits"] else "gpu_toolkits and gpu_stacks: no toolkit is asked for"


def no_cudnn(plan: Document) -> str | None:
    """The excuse of the checks of cuDNN."""
    return None if plan["cudnn"] else "gpu_toolkits and gpu_stacks: no cuDNN is asked for"


def no_stacks(plan: Document) -> str | None:
    """The excuse of the checks of stacks."""
    return None if plan["stacks"] else "gpu_stacks: []"


def driver_findings(judge: Judge, plan: Document, observed: Sections) -> Iterator[Finding]:
    """What one of those who judge a part of the driver says, as findings."""
    for fault in judge(plan, Host(observed.snapshot)):
        yield Finding(f"{fault.cause[:1].upper()}{fault.cause[1:]}", fault.remedy)


def unreadable_paths(trees: Iterable[tuple[str, Document]]) -> Iterator[Finding]:
    """What other users than root cannot read or pass through, of each (path, tree)."""
    for path, tree in trees:
        entries = [f"{entry['path']} (mode {entry['mode']})" for entry in tree["closed"]]
        if entries:
            yield Finding(
                f"Only some users can read {shortened(entries)}: for others {path} is as good as"
                " missing",
                "on the host: chmod a+r the files, chmod a+rx the directories",
                "\n".join(entries),
            )


def _planned(plan: Document, kind: str, receipt_id: str) -> str | None:
    """The version that a receipt must be of, where the plan says one."""
    versions = {("toolkit", row["short"]): row["version"] for row in plan["toolkits"]}
    versions |= {("cudnn", f"{row['toolkit']}-{row['major']}"): row["version"]
                 for row in plan["cudnn"]}
    versions |= {("stack", row["name"]): row["version"] for row in plan["stacks"]}
    return versions.get((kind, receipt_id))


def timed_out(what: str, error: str | None) -> Finding | None:
    """That something gave no answer in its time, if that is the error: nothing else is known."""
    if "no answer" not in (error or ""):
        return None
    return Finding(
        f"{what} gave no answer: {error}",
        "on the host: look at its load, and for processes in state D and dead mounts; then"
        " ./gpufleet verify", error or "", Verdict.HUNG)


def not_executable(observed: Sections, paths: Iterable[str]) -> Iterator[Finding]:
    """Places of these paths that are mounted noexec."""
    for mount_point in observed["disks"]["noexec"]:
        below = [path for path in paths if path.startswith(f"{mount_point.rstrip('/')}/")]
        if below:
            yield Finding(
                f"{mount_point} is mounted noexec: nothing in {shortened(below)} can"
                " be loaded or started",
                f"on the host: mount -o remount,exec {mount_point}; then remove noexec from"
                " /etc/fstab",
            )


def files_unchanged(
    plan: Document, receipts: Document, kind: str, receipt_id: str, path: str
) -> Iterator[Finding]:
    """The one way to judge installed files: as their receipt says, file by file."""
    found = [r for r in receipts["receipts"] if (r["kind"], r["id"]) == (kind, receipt_id)]
    if not found:
        yield Finding(
            f"{kind} {receipt_id} has no receipt: it is not installed, or not by gpufleet",
            provision(plan),
        )
        return
    # A receipt of another place, or of nothing, would prove whatever one likes.
    if found[0]["path"] != path:
        yield Finding(
            f"The receipt of {kind} {receipt_id} is of {found[0]['path']}, planned is {path}",
            f"move {path} away, if it is there; then {provision(plan)}",
        )
    version = _planned(plan, kind, receipt_id)
    if version and found[0]["version"] != version:
        yield Finding(
            f"The receipt of {kind} {receipt_id} is of {found[0]['version']}, planned is {version}",
            provision(plan),
        )
    if found[0]["unlisted"]:
        yield Finding(
            f"No receipt knows {shortened(found[0]['unlisted'])}: it was put there by somebody"
            f" else, or the receipt of {kind} {receipt_id} was shortened",
            f"on the host: move what is not of {kind} {receipt_id} away; if it was, move the"
            f" receipt away and let it be adopted (gpu_cuda_adopt: true); then {provision(plan)}",
            "\n".join(found[0]["unlisted"]),
        )
    if not found[0]["files"]:
        yield Finding(
            f"The receipt of {kind} {receipt_id} lists no file: it proves nothing",
            f"move {path} away; then {provision(plan)}",
        )
    changed = [f"{entry['path']} ({entry['what']})" for entry in found[0]["changed"]]
    if changed:
        yield Finding(
            f"Since {kind} {receipt_id} was installed, {len(changed)} of its"
            f" {found[0]['files']} files changed under {found[0]['path']}: {shortened(changed)}",
            provision(plan),
            "\n".join(changed),
        )
