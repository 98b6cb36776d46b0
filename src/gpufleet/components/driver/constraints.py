"""Constraints: why a driver branch of a source does not fit a host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpufleet.catalog import facts, gpus, pci, versions
from gpufleet.catalog.records import Branch, DriverMinimum
from gpufleet.components.base.context import ResolveContext
from gpufleet.components.base.host import Host, mapping, mappings
from gpufleet.components.driver import running as driver_running
from gpufleet.documents.plan import PlannedSubnetManager
from gpufleet.documents.problems import Code
from gpufleet.documents.spec import DriverSpec

from . import kernel_module
from .sources import Offer

# The vendor of the bridges to hidden NVSwitches, and of the adapters that look like them.
ADAPTERS = "0x15b3"
BRANCH, MODULE, SOURCE = "gpu_driver.branch", "gpu_driver.module", "gpu_driver.source"


@dataclass(frozen=True)
class Violation:
    """Why a branch does not fit, and the variable that can change it."""

    code: Code
    message: str
    where: str
    remedy: str


def violations(
    context: ResolveContext, offer: Offer, spec: DriverSpec, need: DriverMinimum | None
) -> Iterator[Violation]:
    """Why a branch does not fit the host's GPUs, or what the host runs."""
    branch, number = offer.branch, offer.branch.number
    requested = (spec.requested if spec.branch == number else None) or number
    if spec.source == "runfile" and not (offer.version or spec.version):
        yield Violation(
            Code.DRIVER_NOT_OFFERED,
            f"the newest version of driver branch {number} is not known, and a runfile needs an "
            "exact version",
            BRANCH,
            f'declare the version, such as branch: "{number}.00.00"',
        )
    if need and not context.spec.without_gpu and not _reaches(requested, offer, need):
        yield Violation(
            Code.DRIVER_TOO_OLD,
            f"driver {requested} is too old: {need.because} needs {need.version} or newer",
            BRANCH,
            "declare an older CUDA, or use a newer branch",
        )
    for card in context.gpus:
        yield from _of_gpu(card, branch)
    for code, message, remedy in kernel_module.violations(context, offer, spec.module):
        yield Violation(code, message, MODULE, remedy)
    if fabric(context) and not offer.fabric_manager:
        yield Violation(
            Code.FABRIC_MANAGER,
            f"the host's GPUs are behind an NVSwitch ({fabric(context)}), and source {spec.source} "
            f"has no fabric manager for branch {number}",
            SOURCE,
            "use a source that has one",
        )


def _of_gpu(card: gpus.Gpu, branch: Branch) -> Iterator[Violation]:
    row = gpus.architecture(card)
    if row and gpus.older_than_branch(card, branch.number):
        yield Violation(
            Code.GPU_TOO_OLD,
            f"driver branch {branch.number} no longer supports {card.text} (the last branch for "
            f"{row.name} is {row.last_branch})",
            BRANCH,
            f'use branch "{row.last_branch}" or older',
        )
    elif row and gpus.newer_than_branch(card, branch):
        first = row.first_branch or f"the branch of CUDA {row.first_cuda}"
        yield Violation(
            Code.GPU_TOO_NEW,
            f"{card.text} is too new for driver branch {branch.number} (the first branch for "
            f"{row.name} is {first})",
            BRANCH,
            "use a newer branch",
        )


def _reaches(requested: str, offer: Offer, need: DriverMinimum) -> bool:
    """Return whether a branch (or the exact version) can be as new as needed."""
    if "." in requested:
        return versions.key(requested) >= versions.key(need.version)
    newest = offer.version or offer.branch.latest
    if newest:
        return versions.key(newest) >= versions.key(need.version)
    return int(offer.branch.number) >= versions.major(need.version)


def fabric(context: ResolveContext) -> str:
    """The addresses of the host's NVSwitches, or a GPU that implies one; empty without any."""
    if context.spec.without_gpu:
        return ""
    return ", ".join(context.host.nvswitches or _behind_hidden_nvswitch(context)[:1])


def subnet_manager(context: ResolveContext, spec: DriverSpec | None) -> PlannedSubnetManager | None:
    """The packages and modules that the NVSwitches' subnet manager needs; None: none needed."""
    if spec is None or context.spec.without_gpu or not _behind_hidden_nvswitch(context):
        return None
    needed = facts.document("driver_offers.yml")["subnet_manager"]
    return {
        "packages": needed["packages"] if spec.source in needed["sources"] else [],
        "modules": needed["modules"],
    }


def _behind_hidden_nvswitch(context: ResolveContext) -> list[str]:
    """The names of the GPUs that are behind NVSwitches which no PCI bus shows."""
    if _managed_below(context.host):
        return []
    found = [pci.digits(str(row.get("device"))) for row in context.host.gpus]
    return [
        card.label for each in found if pci.behind_nvswitch(each) and (card := pci.device(each))
    ]


def _managed_below(host: Host) -> bool:
    """Return whether the machine below manages a guest's NVSwitches, or they serve no other GPU.

    A fabric manager exits there with nothing to do. A guest that has a whole board has also the
    bridges by which the fabric manager reaches the NVSwitches. Its fabric manager may have failed
    after CUDA started, so where bridges may be unknown, an enabled unit is kept: without it CUDA
    does not start after the next boot.
    """
    if not driver_running.may_lack_fabric(host):
        return False
    network = mapping(host.section("network"))
    bridges = {
        str(row.get("address")): row.get("bridge") for row in mappings(network.get("devices"))
    }
    if True in bridges.values():
        return False
    # Without the module mlx5_ib no RDMA device says of an adapter whether it is a bridge.
    unknown = [
        row
        for row in mappings(network.get("adapters"))
        if row.get("vendor") == ADAPTERS and bridges.get(str(row.get("address"))) is not False
    ]
    without = bool(network) and not unknown
    driver = mapping(host.section("driver"))
    starts, enabled = driver.get("cuinit") == 0, mapping(driver.get("fabric")).get("enabled")
    return len(host.gpus) == 1 or without or (starts and not enabled)
