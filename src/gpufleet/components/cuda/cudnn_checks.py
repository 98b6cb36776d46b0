"""The checks of cuDNN: which faults each shows, and what it reads."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base.fault import Judged, shown
from gpufleet.components.base.registry import (
    Evidence,
    Finding,
    check,
    files_unchanged,
    found_locally,
    no_cudnn,
)
from gpufleet.components.base.remedies import cudnn as component_of
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan

from . import cudnn


def _judged(plan: Plan, observed: Sections) -> Judged:
    return cudnn.faults(plan["cudnn"], observed.data["cudnn"]["trees"])


@check("cudnn.present", reads=("cudnn",), skip_reason=no_cudnn)
def present(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Declared version, header and cudnnGetVersion() agree."""
    return shown(plan, _judged(plan, observed), cudnn.RELEASE)


@check(
    "cudnn.files",
    reads=("receipts",),
    deep=True,
    skip_reason=lambda plan: no_cudnn(plan) or found_locally(plan, "cudnn"),
)
def files(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every cuDNN file is unchanged since installation."""
    for row in plan["cudnn"]:
        yield from files_unchanged(
            plan, observed.data["receipts"], *component_of(row), row["toolkit_path"]
        )


@check("cudnn.links", reads=("cudnn",), skip_reason=no_cudnn)
def links(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each cuDNN library has a symlink matching its SONAME."""
    return shown(plan, _judged(plan, observed), cudnn.LINK)


@check("cudnn.readable", reads=("cudnn",), severity="major", skip_reason=no_cudnn)
def readable(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every user can read the cuDNN libraries and headers."""
    return shown(plan, _judged(plan, observed), cudnn.ACCESS)
