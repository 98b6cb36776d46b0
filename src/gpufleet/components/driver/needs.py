"""How new the driver must be: for a toolkit, its cuDNN, a stack and the GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from gpufleet.catalog import facts, gpus, versions
from gpufleet.catalog.records import DriverMinimum, Toolkit
from gpufleet.components.base.context import ResolveContext
from gpufleet.components.cuda import cudnn_plan as cudnn
from gpufleet.components.cuda.toolkit_plan import Chosen
from gpufleet.components.stacks import ptx
from gpufleet.components.stacks.plan import Stack


def highest(needs: Iterable[DriverMinimum]) -> DriverMinimum | None:
    """The need that satisfies all of them."""
    return max(needs, key=lambda need: versions.key(need.version), default=None)


def of_toolkit(toolkit: Toolkit) -> list[DriverMinimum]:
    """A toolkit's need: by minor-version compatibility from CUDA 11 on, exact before."""
    name = f"CUDA {toolkit.short}"
    if toolkit.driver_minor:
        return [DriverMinimum(toolkit.driver_minor, f"{name} (minor-version compatibility)")]
    if toolkit.driver_exact:
        return [DriverMinimum(toolkit.driver_exact, f"{name} (exact minimum)")]
    return []


def of_cudnn(chosen: Chosen) -> list[DriverMinimum]:
    """The needs of the cuDNN in a toolkit."""
    return [
        DriverMinimum(rule["driver"], f"cuDNN {picked.archive.version} with CUDA {chosen.short}")
        for picked in chosen.majors.values()
        for rule in cudnn.needs(picked.archive.version, chosen.short)
        if "driver" in rule
    ]


def of_gpu(card: gpus.Gpu) -> list[DriverMinimum]:
    """A GPU's own need: the driver of the first CUDA release that supports its architecture."""
    row = gpus.architecture(card)
    first = facts.toolkits_matching(row.first_cuda)[:1] if row and row.first_cuda else []
    return [
        DriverMinimum(each.driver_exact, f"{card.text} from CUDA {each.short} on")
        for each in first
        if each.driver_exact
    ]


def of_stack(context: ResolveContext, stack: Stack, chosen: Chosen | None) -> DriverMinimum:
    """A stack's need: its build's, its toolkit's, its cuDNN's, and its GPUs'.

    GPUs that need the build's PTX need a driver that knows its version of the language.
    """
    build, name = stack.build, f"CUDA {stack.cuda}"
    if build.driver_minor:
        needs = [DriverMinimum(build.driver_minor, f"{name} (minor-version compatibility)")]
    else:
        needs = [DriverMinimum(build.driver_exact or "", f"{name} (exact minimum)")]
    if chosen:
        needs += of_toolkit(chosen.toolkit) + of_cudnn(chosen)
    for card in context.gpus:
        needs += of_gpu(card)
        if not gpus.native_to_build(card, build):
            least = ptx.needs(build)
            needs.append(DriverMinimum(least.version, f"{least.because} for {card.text}"))
    return max(needs, key=lambda need: versions.key(need.version))
