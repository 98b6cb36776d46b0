"""PTX: which driver compiles a build's PTX, on GPUs that it has no machine code for.

Minor-version compatibility covers machine code alone: a driver refuses PTX in a version of the
language that is newer than its own CUDA.
"""

from __future__ import annotations

from gpufleet.catalog import facts, gpus, versions
from gpufleet.catalog.records import Build, DriverMinimum
from gpufleet.components.base.context import ResolveContext


def needs(build: Build) -> DriverMinimum:
    """The driver of the CUDA that the build's version of PTX began with.

    Where that version was not read, it is the CUDA that the build was made with.
    """
    cuda = facts.cuda_of_ptx(build.ptx_language)
    first = facts.toolkits_matching(cuda)[:1] if cuda else []
    exact = next((each.driver_exact for each in first if each.driver_exact), None)
    name = f"PTX {build.ptx_language}" if exact else "the PTX"
    # NVIDIA's table has not every patch release; its minimum is then that of the major version.
    least = exact or build.driver_exact or build.driver_minor or ""
    return DriverMinimum(least, f"{name} of {build.name}")


def note_unchecked(context: ResolveContext, build: Build, name: str) -> None:
    """Note the GPUs that a driver compiles no PTX of a stack for, where no GPU is declared."""
    least, have = needs(build), _known_driver(context)
    if context.gpus or context.spec.without_gpu or have is None:
        return
    # A branch without a version may be as new as any version of it.
    bound = least.version if "." in have else str(versions.major(least.version))
    served = _served(build)
    if served and versions.key(have) < versions.key(bound):
        context.note(
            f"{name}: on GPUs of compute capability {', '.join(served)} the driver compiles "
            f"{least.because}, which needs driver {least.version} or newer, not {have}"
        )


def _known_driver(context: ResolveContext) -> str | None:
    """The declared driver or its branch, else the host's."""
    declared = context.spec.driver
    return (declared.requested if declared else None) or context.host.driver


def _served(build: Build) -> list[str]:
    """The compute capabilities that need the build's PTX, and that its CUDA supports."""
    toolkits = facts.toolkits_matching(versions.short(build.cuda))
    cards = (gpus.Gpu(each, each, "") for each in build.jit)
    return [
        card.capability
        for card in cards
        if any(not gpus.newer_than_toolkit(card, each) for each in toolkits)
    ]
