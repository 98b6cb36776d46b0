"""Pins: CUDA and cuDNN that a person wrote for a stack, checked against its build.

A pin is checked and never bent: one that does not fit is refused.
"""

from __future__ import annotations

from gpufleet.catalog import facts, versions
from gpufleet.catalog.records import Build
from gpufleet.model.problems import Code
from gpufleet.model.spec import StackSpec

from . import cudnn
from .context import ResolveContext
from .toolkits import Chosen


def pip_fits(context: ResolveContext, wish: StackSpec, build: Build) -> None:
    """Refuse `cuda: pip` where the release has no CUDA wheels, or with a cuDNN of one's own."""
    if wish.cudnn:
        context.refuse(
            Code.CUDNN_MISMATCH,
            "with cuda: pip, cuDNN comes from pip wheels as well and cannot be chosen",
            f"{wish.where}.cudnn",
            "remove cudnn from this stack",
        )
    if build.has_cuda_wheels:
        return
    first = next(each.version for each in facts.builds() if each.has_cuda_wheels)
    context.refuse(
        Code.PIP_CUDA_UNAVAILABLE,
        f"TensorFlow {build.version} has no and-cuda extra; the first with one is {first}",
        f"{wish.where}.cuda",
        f"remove cuda: pip (CUDA {build.cuda} is then installed as a toolkit), or ask for "
        f"TensorFlow {first} or newer",
    )


def cuda_fits(context: ResolveContext, wish: StackSpec, build: Build) -> bool:
    """Whether the pinned CUDA is the built one: the same X.Y, and no older patch release."""
    pinned = wish.cuda or build.cuda
    same = versions.short(pinned) == versions.short(build.cuda)
    if same and (pinned.count(".") < 2 or versions.key(pinned) >= versions.key(build.cuda)):
        return True
    needed = next(name for name in build.sonames if name.startswith("libcudart."))
    context.refuse(
        Code.CUDA_MISMATCH,
        f"TensorFlow {build.version} was built with CUDA {build.cuda} (it looks for {needed}), "
        f"not with {pinned}",
        f"{wish.where}.cuda",
        f'remove the pin, or say cuda: "{build.cuda}"; a toolkit {versions.short(pinned)} can '
        "stand beside it through gpu_toolkits",
    )
    return False


def cudnn_fits(context: ResolveContext, wish: StackSpec, build: Build) -> bool:
    """Whether the pinned cuDNN is of the built major version, and not older."""
    pinned = wish.cudnn or build.cudnn
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
        f"TensorFlow {build.version} was built with cuDNN {build.cudnn}: {reason}",
        f"{wish.where}.cudnn",
        f"remove the pin, or ask for cuDNN {build.cudnn}" + _instead(build, pinned),
    )
    return False


def _reaches(pinned: str, built: str) -> bool:
    """Whether some release that begins as pinned can be as new as the built one."""
    return versions.begins(built, pinned) or cudnn.at_least(pinned, built)


def _instead(build: Build, pinned: str) -> str:
    """The newest release built with the pinned cuDNN and the same CUDA, as an alternative."""
    for other in reversed(facts.builds()):
        if (
            other.cudnn_major == versions.major(pinned)
            and versions.short(other.cuda) == versions.short(build.cuda)
            and _reaches(pinned, other.cudnn)
        ):
            return f"; with cuDNN {pinned}, use TensorFlow {other.version}"
    return ""


def toolkit_fits(context: ResolveContext, wish: StackSpec, build: Build, chosen: Chosen) -> None:
    """Refuse a stack whose toolkit or cuDNN became older than its own by somebody else's pin."""
    if versions.key(chosen.toolkit.version) < versions.key(build.cuda):
        places = ", ".join(want.where for want in chosen.wants if want.cuda != chosen.short)
        context.refuse(
            Code.CUDA_MISMATCH,
            f"TensorFlow {build.version} was built with CUDA {build.cuda}; cuda-{chosen.short} "
            f"gets {chosen.toolkit.version}",
            wish.where,
            f"ask for CUDA {build.cuda} or newer at {places}",
        )
    picked = chosen.majors.get(build.cudnn_major)
    if picked is None or cudnn.at_least(picked.archive.version, build.cudnn):
        return
    places = ", ".join(want.where for want in picked.wants if want.pinned)
    context.refuse(
        Code.CUDNN_MISMATCH,
        f"TensorFlow {build.version} was built with cuDNN {build.cudnn}; cuda-{chosen.short} gets "
        f"{picked.archive.version}",
        wish.where,
        f"ask for cuDNN {build.cudnn} or newer at {places}",
    )
