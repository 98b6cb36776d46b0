"""The driver: how old it may be, and whether the declared or the loaded one will do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import cudnn, facts, gpu, versions
from .case import Case
from .problems import Code
from .records import Branch, Toolkit
from .stacks import Stack
from .toolkits import Chosen

Row = dict[str, Any]


@dataclass(frozen=True)
class Need:
    """The oldest driver that will do, and why."""

    version: str
    because: str


def highest(needs: Iterable[Need]) -> Need | None:
    """The need that covers them all."""
    return max(needs, key=lambda need: versions.key(need.version), default=None)


def of_toolkit(toolkit: Toolkit) -> list[Need]:
    """A toolkit's need: by minor-version compatibility from CUDA 11 on, exact before."""
    name = f"CUDA {toolkit.short}"
    if toolkit.driver_minor:
        return [Need(toolkit.driver_minor, f"{name}, minor-version compatibility")]
    return [Need(toolkit.driver_exact, f"{name}, exact minimum")] if toolkit.driver_exact else []


def of_cudnn(chosen: Chosen) -> list[Need]:
    """What the cuDNN of a toolkit ask for."""
    return [
        Need(rule["driver"], f"cuDNN {picked.archive.version} with CUDA {chosen.short}")
        for picked in chosen.majors.values()
        for rule in cudnn.needs(picked.archive, chosen.short)
        if "driver" in rule
    ]


def of_gpu(card: gpu.Gpu) -> list[Need]:
    """A GPU's own need: the driver of the CUDA release that first knew its architecture."""
    row = gpu.architecture(card)
    first = facts.toolkits_of(row.first_cuda)[:1] if row and row.first_cuda else []
    return [
        Need(each.driver_exact, f"{card.text}, first known to CUDA {each.short},")
        for each in first
        if each.driver_exact
    ]


def of_stack(case: Case, stack: Stack, chosen: Chosen | None) -> Need:
    """A stack's need: its build's, its toolkit's, its cuDNN's, and its GPUs'.

    GPUs that the build reaches only through PTX need a driver as new as the build's CUDA.
    """
    row = stack.build.row["min_driver"]
    name = f"CUDA {stack.cuda}"
    if row["minor_compat"]:
        needs = [Need(row["minor_compat"], f"{name}, minor-version compatibility")]
    else:
        needs = [Need(row["exact"], f"{name}, exact minimum")]
    if chosen:
        needs += of_toolkit(chosen.toolkit) + of_cudnn(chosen)
    for card in case.gpus:
        needs += of_gpu(card)
        if not gpu.native_to_build(card, stack.build):
            needs.append(Need(row["exact"], f"{name}, {card.text} reached through PTX"))
    return max(needs, key=lambda need: versions.key(need.version))


def describe(case: Case, need: Need | None) -> Row | None:
    """The driver as the plan carries it; None where nothing is asked of it."""
    declared = case.wishes.driver
    if need is None and declared is None:
        return None
    return {
        "minimum": need.version if need else None,
        "because": need.because if need else None,
        "branch": (declared or {}).get("branch"),
        "source": (declared or {}).get("source"),
    }


def check(case: Case, need: Need | None) -> None:
    """Refuse a driver that is too old for what is asked, or does not know the GPUs.

    A host declared without a GPU needs no driver.
    """
    if case.wishes.without_gpu:
        return
    declared = case.wishes.driver or {}
    if "branch" in declared:
        _check_branch(case, declared, need)
    if case.host.driver and declared.get("source") in {None, "preinstalled"} and need:
        _check_loaded(case, case.host.driver, need)


def _check_loaded(case: Case, loaded: str, need: Need) -> None:
    if versions.key(loaded) < versions.key(need.version):
        case.refuse(
            Code.DRIVER_TOO_OLD,
            f"the host's driver is {loaded}; {need.because} needs {need.version} or newer",
            "gpu_driver",
            f"install driver {need.version} or newer, have it managed "
            f"(gpu_driver: {_fitting_branch(need)}), or ask for an older CUDA",
        )


def _fitting_branch(need: Need) -> str:
    fitting = [b.number for b in facts.branches().values() if _reaches(b.number, b, need)]
    kept = [n for n in fitting if facts.branches()[n].row["status_2026_11_20"] == "supported"]
    branch = (kept or fitting or [str(versions.major(need.version))])[0]
    return f'{{branch: "{branch}", source: distro}}'


def _reaches(declared: str, branch: Branch, need: Need) -> bool:
    """Whether a driver of that branch (or that very version) can be as new as needed."""
    if "." in declared:
        return versions.key(declared) >= versions.key(need.version)
    if branch.latest:
        return versions.key(branch.latest) >= versions.key(need.version)
    return int(branch.number) >= versions.major(need.version)


def _check_branch(case: Case, declared: dict[str, str], need: Need | None) -> None:
    wanted, where = declared["branch"], "gpu_driver.branch"
    branch = facts.branches().get(wanted.split(".")[0])
    if branch is None:
        near = versions.nearest(wanted.split(".")[0], facts.branches())
        case.refuse(
            Code.DRIVER_UNKNOWN,
            f"no driver branch {wanted} is known; nearest: {', '.join(near)}",
            where,
            f'ask for one of these, such as "{near[0]}"',
        )
        return
    if need and not _reaches(wanted, branch, need):
        case.refuse(
            Code.DRIVER_TOO_OLD,
            f"driver {wanted} is too old: {need.because} needs {need.version} or newer",
            where,
            f"declare gpu_driver: {_fitting_branch(need)}, or ask for an older CUDA",
        )
    for card in case.gpus:
        row = gpu.architecture(card)
        if gpu.older_than_branch(card, branch) and row:
            case.refuse(
                Code.GPU_TOO_OLD,
                f"{card.text} is no longer in driver branch {branch.number} ({row.name} ended with "
                f"{row.last_branch})",
                where,
                f'use branch "{row.last_branch}" or older',
            )
        elif gpu.newer_than_branch(card, branch) and row:
            first = row.first_branch or f"the branch of CUDA {row.first_cuda}"
            case.refuse(
                Code.GPU_TOO_NEW,
                f"{card.text} is newer than driver branch {branch.number} ({row.name} began with "
                f"{first})",
                where,
                "use a newer branch",
            )
    _check_module(case, declared, branch)


def _check_module(case: Case, declared: dict[str, str], branch: Branch) -> None:
    """The open kernel modules know Turing and newer; Blackwell has no others."""
    module, where = declared.get("module"), "gpu_driver.module"
    if module == "open" and not branch.has_open_module:
        case.refuse(
            Code.DRIVER_UNKNOWN,
            f"driver branch {branch.number} has no open kernel modules",
            where,
            "say module: proprietary, or use branch 515 or newer",
        )
    for card in case.gpus:
        have = versions.key(card.capability)
        if module == "open" and have < versions.key(gpu.OPEN_MODULE_MIN):
            case.refuse(
                Code.GPU_TOO_OLD,
                f"{card.text} is older than the open kernel modules know (from Turing, "
                f"{gpu.OPEN_MODULE_MIN})",
                where,
                "say module: proprietary",
            )
        if module == "proprietary" and have >= versions.key(gpu.OPEN_MODULE_ONLY):
            case.refuse(
                Code.GPU_TOO_NEW,
                f"{card.text} is newer than the proprietary kernel modules know",
                where,
                "say module: open",
            )
