"""Objections: why a driver branch, as a source offers it, will not do for a host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpufleet.catalog import gpus, pci, versions
from gpufleet.catalog.records import Branch, Need
from gpufleet.model.problems import Code
from gpufleet.model.spec import DriverSpec

from . import kernel_module
from .context import ResolveContext
from .driver_sources import Offer

BRANCH, MODULE, SOURCE = "gpu_driver.branch", "gpu_driver.module", "gpu_driver.source"


@dataclass(frozen=True)
class Objection:
    """Why a branch will not do, and where in the wishes that can be mended."""

    code: Code
    message: str
    where: str
    remedy: str


def of(
    context: ResolveContext, offer: Offer, wish: DriverSpec, need: Need | None
) -> Iterator[Objection]:
    """Why an offer will not do for the host's GPUs, and for what it is to run."""
    branch, number = offer.branch, offer.branch.number
    asked = (wish.asked if wish.branch == number else None) or number
    if wish.source == "runfile" and not (offer.version or wish.version):
        yield Objection(
            Code.DRIVER_NOT_OFFERED,
            f"which driver of branch {number} is the newest is not known, and a runfile is of one "
            "exact version",
            BRANCH,
            f'name the version, such as branch: "{number}.00.00"',
        )
    if need and not context.spec.without_gpu and not _reaches(asked, offer, need):
        yield Objection(
            Code.DRIVER_TOO_OLD,
            f"driver {asked} is too old: {need.because} needs {need.version} or newer",
            BRANCH,
            "use a newer branch, or ask for an older CUDA",
        )
    for card in context.gpus:
        yield from _of_gpu(card, branch)
    for code, message, remedy in kernel_module.objections(context, offer, wish.module):
        yield Objection(code, message, MODULE, remedy)
    if fabric(context) and not offer.fabric_manager:
        yield Objection(
            Code.FABRIC_MANAGER,
            f"the host's GPUs are behind an NVSwitch ({fabric(context)}), and there is no fabric "
            f"manager for branch {number} in source {wish.source}",
            SOURCE,
            "use a source that has one",
        )


def _of_gpu(card: gpus.Gpu, branch: Branch) -> Iterator[Objection]:
    row = gpus.architecture(card)
    if row and gpus.older_than_branch(card, branch):
        yield Objection(
            Code.GPU_TOO_OLD,
            f"{card.text} is no longer in driver branch {branch.number} ({row.name} ended with "
            f"{row.last_branch})",
            BRANCH,
            f'use branch "{row.last_branch}" or older',
        )
    elif row and gpus.newer_than_branch(card, branch):
        first = row.first_branch or f"the branch of CUDA {row.first_cuda}"
        yield Objection(
            Code.GPU_TOO_NEW,
            f"{card.text} is newer than driver branch {branch.number} ({row.name} began with "
            f"{first})",
            BRANCH,
            "use a newer branch",
        )


def _reaches(asked: str, offer: Offer, need: Need) -> bool:
    """Whether a branch (or that very version) can be as new as needed."""
    if "." in asked:
        return versions.key(asked) >= versions.key(need.version)
    newest = offer.version or offer.branch.latest
    if newest:
        return versions.key(newest) >= versions.key(need.version)
    return int(offer.branch.number) >= versions.major(need.version)


def fabric(context: ResolveContext) -> str:
    """Where the host's NVSwitches are, in words; empty where there is none."""
    if context.spec.without_gpu:
        return ""
    seen = [pci.digits(str(row.get("device"))) for row in context.host.gpus]
    hidden = [
        found.label for each in seen if pci.behind_nvswitch(each) and (found := pci.device(each))
    ]
    return ", ".join(context.host.nvswitches or hidden[:1])
