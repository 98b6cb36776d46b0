"""Pins: the CUDA and cuDNN that a stack declares, checked against its build.

A pin that does not fit is refused, never adjusted.
"""

from __future__ import annotations

from gpufleet.catalog import facts, versions
from gpufleet.catalog.records import Build
from gpufleet.model.problems import Code
from gpufleet.model.spec import StackSpec

from . import cudnn
from .context import ResolveContext
from .toolkits import Chosen


def pip_fits(context: ResolveContext, spec: StackSpec, build: Build) -> None:
    """Refuse `cuda: pip` where the release has no CUDA wheels, or beside a pinned cuDNN."""
    if spec.cudnn:
        context.refuse(
            Code.CUDNN_MISMATCH,
            "with cuda: pip, cuDNN comes from pip wheels as well and cannot be pinned",
            f"{spec.where}.cudnn",
            "remove cudnn from this stack",
        )
    if build.has_cuda_wheels:
        return
    first = next(each.version for each in facts.builds(build.framework) if each.has_cuda_wheels)
    context.refuse(
        Code.PIP_CUDA_UNAVAILABLE,
        f"{build.name} has no and-cuda extra; the first with one is {first}",
        f"{spec.where}.cuda",
        f"remove cuda: pip (CUDA {build.cuda} is then installed as a toolkit), or "
        f"declare {build.title} {first} or newer",
    )


def cuda_fits(context: ResolveContext, spec: StackSpec, build: Build) -> bool:
    """Whether the pinned CUDA is the build's: the same X.Y, and no older patch release."""
    pinned = spec.cuda or build.cuda
    same = versions.short(pinned) == versions.short(build.cuda)
    if same and (pinned.count(".") < 2 or versions.key(pinned) >= versions.key(build.cuda)):
        return True
    needed = next(name for name in build.sonames if name.startswith("libcudart."))
    context.refuse(
        Code.CUDA_MISMATCH,
        f"{build.name} was built with CUDA {build.cuda} (it looks for {needed}), "
        f"not with {pinned}",
        f"{spec.where}.cuda",
        f'remove the pin, or set cuda: "{build.cuda}"; gpu_toolkits can install toolkit '
        f"{versions.short(pinned)} beside it",
    )
    return False


def cudnn_fits(context: ResolveContext, spec: StackSpec, build: Build) -> bool:
    """Whether the pinned cuDNN is of the build's major version, and not older."""
    pinned = spec.cudnn or build.cudnn
    major = versions.major(pinned)
    if major != build.cudnn_major:
        reason = (
            f"it looks for libcudnn.so.{build.cudnn_major}, and cuDNN {pinned} has "
            f"libcudnn.so.{major}"
        )
    elif not _reaches(pinned, build.cudnn):
        reason = f"cuDNN {pinned} is older than that"
    else:
        return True
    context.refuse(
        Code.CUDNN_MISMATCH,
        f"{build.name} was built with cuDNN {build.cudnn}: {reason}",
        f"{spec.where}.cudnn",
        f"remove the pin, or set it to cuDNN {build.cudnn}" + _instead(build, pinned),
    )
    return False


def _reaches(pinned: str, built: str) -> bool:
    """Whether a release that begins as pinned can be as new as the build's."""
    return versions.has_prefix(built, pinned) or cudnn.at_least(pinned, built)


def _instead(build: Build, pinned: str) -> str:
    """The newest release built with the pinned cuDNN and the same CUDA, as an alternative."""
    for other in reversed(facts.builds(build.framework)):
        if (
            other.cudnn_major == versions.major(pinned)
            and versions.short(other.cuda) == versions.short(build.cuda)
            and _reaches(pinned, other.cudnn)
        ):
            return f"; with cuDNN {pinned}, use {other.name}"
    return ""


def toolkit_fits(context: ResolveContext, spec: StackSpec, build: Build, chosen: Chosen) -> None:
    """Refuse a stack whose toolkit or cuDNN is older than its build's because of another pin."""
    if versions.key(chosen.toolkit.version) < versions.key(build.cuda):
        locations = ", ".join(want.where for want in chosen.wants if want.cuda != chosen.short)
        context.refuse(
            Code.CUDA_MISMATCH,
            f"{build.name} was built with CUDA {build.cuda}; cuda-{chosen.short} "
            f"gets {chosen.toolkit.version}",
            spec.where,
            f"declare CUDA {build.cuda} or newer in {locations}",
        )
    picked = chosen.majors.get(build.cudnn_major)
    if picked is None or cudnn.at_least(picked.archive.version, build.cudnn):
        return
    locations = ", ".join(want.where for want in picked.wants if want.pinned)
    context.refuse(
        Code.CUDNN_MISMATCH,
        f"{build.name} was built with cuDNN {build.cudnn}; cuda-{chosen.short} gets "
        f"{picked.archive.version}",
        spec.where,
        f"declare cuDNN {build.cudnn} or newer in {locations}",
    )
