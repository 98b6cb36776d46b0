"""Pins: the CUDA and cuDNN that a stack declares, checked against its builds.

A pin that does not fit is refused, never adjusted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpufleet.catalog import facts, versions
from gpufleet.catalog.records import Build
from gpufleet.model.plan import CudaSource
from gpufleet.model.problems import Code
from gpufleet.model.spec import LOCAL, PIP, StackSpec

from . import cudnn
from .context import ResolveContext
from .toolkits import Chosen

PYTORCH_INDEX = "https://download.pytorch.org/whl/"


def build(context: ResolveContext, spec: StackSpec, builds: Sequence[Build]) -> Build | None:
    """The release's build for the declared CUDA, its own without one; None, refused, if it has none
    that pip can install."""
    own = builds[0]
    if own.unavailable:
        _refuse_release(context, spec, own)
        return None
    if spec.cuda in {None, PIP, LOCAL}:
        return own if _index_fits(context, spec, own, builds) else None
    found = next((each for each in builds if each.is_for(spec.cuda or "")), None)
    if found is None:
        _refuse_cuda(context, spec, builds)
        return own
    if found.index is not None and not _reachable(context, spec, own, found):
        return None
    return found if _index_fits(context, spec, found, builds) else None


def _index_fits(
    context: ResolveContext, spec: StackSpec, chosen: Build, builds: Sequence[Build]
) -> bool:
    """Whether the declared index, where it is PyTorch's own for one CUDA, is the chosen build's.

    pip would prefer that index's wheel to PyPI's, as its version has a local part.
    """
    address = (spec.index or "").rstrip("/")
    has = address.rpartition("/")[2]
    if (chosen.framework != "pytorch" or not address.startswith(PYTORCH_INDEX)
            or not re.fullmatch(r"cu\d+", has) or has == chosen.variant):
        return True
    listed = next((each for each in builds if each.variant == has and not each.unavailable), None)
    other = (f"set index: {chosen.index}" if chosen.index else
             f"remove index: the wheel on PyPI has CUDA {versions.short(chosen.cuda)}")
    add = f'{"set" if spec.cuda else "add"} cuda: "{listed.cuda}", or ' if listed else ""
    context.refuse(
        Code.CUDA_MISMATCH,
        f"the wheel of {chosen.name} with CUDA {versions.short(chosen.cuda)} is on "
        f"{chosen.index or 'PyPI'}; {address} has another one, which pip would take",
        f"{spec.where}.index",
        add + other,
    )
    return False


def _refuse_release(context: ResolveContext, spec: StackSpec, build: Build) -> None:
    first = next(each for each in facts.builds(spec.framework)
                 if versions.key(each.version) > versions.key(build.version))
    context.refuse(
        Code.WHEEL_UNAVAILABLE,
        f"{build.name} cannot be installed with CUDA: {build.unavailable}",
        f"{spec.where}.{spec.framework}",
        f"declare {first.name} or newer, whose CUDA is on PyPI",
    )


def _reachable(context: ResolveContext, spec: StackSpec, own: Build, found: Build) -> bool:
    """Whether a build that is not on PyPI can be installed from the declared index."""
    others = [each.name for each in facts.builds(spec.framework)
              if versions.short(each.cuda) == versions.short(found.cuda)]
    what = f"{found.name} with CUDA {found.cuda} is not on PyPI, only on {found.index}"
    planned = found.row.get("confidence")
    what += f" ({planned})" if planned else ""
    own_has = f"remove the pin: the wheel on PyPI has CUDA {versions.short(own.cuda)}"
    if found.unavailable:
        context.refuse(
            Code.WHEEL_UNAVAILABLE,
            f"{what}, and {found.unavailable}",
            f"{spec.where}.cuda",
            own_has + (f", or declare {others[-1]}, whose wheel on PyPI has CUDA {found.cuda}"
                       if others else ""),
        )
        return False
    if spec.index is None:
        context.refuse(
            Code.WHEEL_UNAVAILABLE,
            what,
            f"{spec.where}.cuda",
            f"add index: {found.index} to this stack, or {own_has}",
        )
        return False
    return True


def _refuse_cuda(context: ResolveContext, spec: StackSpec, builds: Sequence[Build]) -> None:
    own, pinned = builds[0], spec.cuda or ""
    if own.framework == "tensorflow":
        needed = next(name for name in own.sonames if name.startswith("libcudart."))
        message = (
            f"{own.name} was built with CUDA {own.cuda} (it looks for {needed}), not with {pinned}"
        )
        remedy = (
            f'remove the pin, or set cuda: "{own.cuda}"; gpu_toolkits can install toolkit '
            f"{versions.short(pinned)} beside it"
        )
    else:
        have = ", ".join(versions.short(each.cuda) for each in builds)
        newer = ", or a newer one of the same major version" if own.framework == "jax" else ""
        message = f"{own.name} was published for CUDA {have}{newer}, not for {pinned}"
        remedy = "remove the pin"
        others = [each for release in facts.builds(spec.framework)
                  for each in facts.variants(spec.framework, release.version)
                  if each.is_for(pinned) and each.index is None]
        if others:
            remedy += f", or declare {others[-1].name}, which is for CUDA {others[-1].cuda}"
    context.refuse(Code.CUDA_MISMATCH, message, f"{spec.where}.cuda", remedy)


def other_build(spec: StackSpec, build: Build) -> str:
    """How to declare another build of a stack's release."""
    if build.variant is None:
        declared = [key for key in ("cuda", "index") if getattr(spec, key)]
        return (f"remove {' and '.join(declared)}: the wheel on PyPI has CUDA"
                f" {versions.short(build.cuda)}")
    # A plugin of JAX is identified by the major version of its CUDA.
    cuda = str(versions.major(build.cuda)) if build.framework == "jax" else build.cuda
    where = f" and index: {build.index}" if build.index else ""
    return f'{"set" if spec.cuda else "add"} cuda: "{cuda}"{where}, for the same release'


def without(spec: StackSpec, build: Build) -> str:
    """What of a stack's declared CUDA and index another release's own build cannot have."""
    cuda = spec.cuda not in {None, PIP, LOCAL} and not build.is_for(spec.cuda or "")
    index = build.framework == "pytorch" and spec.index and (
        cuda or spec.index.startswith(PYTORCH_INDEX))
    keys = [key for key, unfit in (("cuda", cuda), ("index", index)) if unfit]
    return f", without {' and '.join(keys)}" if keys else ""


def refuse_local_version(context: ResolveContext, spec: StackSpec) -> bool:
    """Whether a release is one of a known release with its CUDA, such as 2.6.0+cu118: refused."""
    release, _, local = spec.release.partition("+")
    builds = facts.variants(spec.framework, release) if local else ()
    if not builds:
        return False
    own = builds[0]
    if own.unavailable:
        _refuse_release(context, spec, own)
        return True
    declare = f'{spec.framework}: "{release}"'
    digits = local.removeprefix("cu") if re.fullmatch(r"cu\d+", local) else ""
    found = next((each for each in builds
                  if versions.short(each.cuda).replace(".", "") == digits), None)
    message = (f"{own.title} {spec.release} is a release and its CUDA in one; here the two are "
               "declared apart")
    if found is own:
        remedy = f"declare {declare}: the wheel on PyPI has CUDA {versions.short(own.cuda)}"
    elif found and not found.unavailable:
        remedy = f'declare {declare}, cuda: "{found.cuda}", index: {found.index}'
    else:
        have = ", ".join(versions.short(each.cuda) for each in builds if not each.unavailable)
        message = f"no {own.title} {spec.release} with GPU support is known"
        remedy = f"declare {declare}, which was published for CUDA {have}"
    context.refuse(
        Code.UNKNOWN_RELEASE, message, f"{spec.where}.{spec.framework}", remedy)
    return True


def source(context: ResolveContext, spec: StackSpec, build: Build) -> CudaSource | None:
    """Where the build's CUDA comes from; None, refused, where that is declared and cannot be."""
    default = build.cuda_sources[0]
    if spec.cuda is None:
        return default
    if spec.cuda == PIP or (build.framework == "jax" and spec.cuda.isdecimal()):
        if build.has_cuda_wheels:
            return "pip"
        _refuse_pip(context, spec, build)
        return None
    if build.framework == "jax" and "toolkit" not in build.cuda_sources:
        first = next(each for each in facts.builds("jax") if "toolkit" in each.cuda_sources)
        context.refuse(
            Code.LOCAL_CUDA_UNAVAILABLE,
            f"{build.name} from PyPI uses nvidia-* wheels only; the first that can use an "
            f"installed toolkit is {first.version}",
            f"{spec.where}.cuda",
            f"remove cuda: {spec.cuda}, or declare {first.name} or newer",
        )
        return None
    return "toolkit" if "toolkit" in build.cuda_sources else default


def _refuse_pip(context: ResolveContext, spec: StackSpec, build: Build) -> None:
    first = next(each.version for each in facts.builds(build.framework) if each.has_cuda_wheels)
    if build.cuda_sources[0] == "bundled":
        message = (
            f"{build.name} has CUDA {build.cuda} inside of its wheel; the first that takes it from "
            f"nvidia-* wheels is {first}"
        )
        remedy = f"remove cuda: pip, or declare {build.title} {first} or newer"
    else:
        message = f"{build.name} has no and-cuda extra; the first with one is {first}"
        remedy = (
            f"remove cuda: pip (CUDA {build.cuda} is then installed as a toolkit), or "
            f"declare {build.title} {first} or newer"
        )
    context.refuse(Code.PIP_CUDA_UNAVAILABLE, message, f"{spec.where}.cuda", remedy)


def wheels_cudnn_fits(context: ResolveContext, spec: StackSpec, build: Build) -> None:
    """Refuse a pinned cuDNN beside CUDA from wheels, unless it is the one that they have."""
    if spec.cudnn is None:
        return
    if build.framework == "pytorch":
        own = build.cudnn_in_wheels
        if own and versions.has_prefix(own, spec.cudnn):
            return
        message = f"{build.name} comes with cuDNN {own or 'of an unknown version'}, not with" \
            f" {spec.cudnn}"
    else:
        message = "with cuda: pip, cuDNN comes from pip wheels as well and cannot be pinned"
    context.refuse(
        Code.CUDNN_MISMATCH, message, f"{spec.where}.cudnn", "remove cudnn from this stack"
    )


def cudnn_fits(context: ResolveContext, spec: StackSpec, build: Build, cuda: str) -> bool:
    """Whether the pinned cuDNN is of the build's major version, and not older than it needs."""
    needed = cudnn.needed(build, cuda)
    pinned = spec.cudnn or needed
    major = versions.major(pinned)
    if major != build.cudnn_major:
        reason = (
            f"it looks for libcudnn.so.{build.cudnn_major}, and cuDNN {pinned} has "
            f"libcudnn.so.{major}"
        )
    elif not _reaches(pinned, needed):
        reason = f"cuDNN {pinned} is older than that"
    else:
        return True
    context.refuse(
        Code.CUDNN_MISMATCH,
        f"{_cudnn_need(build, needed, cuda)}: {reason}",
        f"{spec.where}.cudnn",
        f"remove the pin, or set it to cuDNN {needed}" + _instead(build, pinned, cuda),
    )
    return False


def _cudnn_need(build: Build, needed: str, cuda: str) -> str:
    if needed == build.cudnn:
        return f"{build.name} was built with cuDNN {needed}"
    return f"{build.name} refuses a cuDNN older than {needed} with CUDA {cuda}"


def _reaches(pinned: str, built: str) -> bool:
    """Whether a release that begins as pinned can be as new as the build's."""
    return versions.has_prefix(built, pinned) or cudnn.at_least(pinned, built)


def _instead(build: Build, pinned: str, cuda: str) -> str:
    """The newest release that takes the pinned cuDNN on the same CUDA, as an alternative."""
    for other in reversed(facts.builds(build.framework)):
        if (
            other.cudnn_major == versions.major(pinned)
            and other.serves(cuda)
            and _reaches(pinned, cudnn.needed(other, cuda))
            and not facts.cudnn_instead(other.framework, other.version, pinned)
        ):
            return f"; with cuDNN {pinned}, use {other.name}"
    return ""


def toolkit_fits(context: ResolveContext, spec: StackSpec, build: Build, chosen: Chosen) -> None:
    """Refuse a stack whose toolkit or cuDNN is older than its build's because of another pin."""
    if versions.key(chosen.toolkit.version) < versions.key(build.cuda):
        locations = ", ".join(want.where for want in chosen.wants if want.cuda != chosen.short)
        context.refuse(
            Code.CUDA_MISMATCH,
            f"{build.name} was built with CUDA {build.cuda}; cuda-{chosen.short} gets "
            f"{chosen.toolkit.version}",
            spec.where,
            f"declare CUDA {build.cuda} or newer in {locations}",
        )
    picked = chosen.majors.get(build.cudnn_major)
    needed = cudnn.needed(build, chosen.short)
    if picked is None:
        return
    have = picked.archive.version
    instead = facts.cudnn_instead(build.framework, build.version, have)
    if not cudnn.at_least(have, needed):
        reason = _cudnn_need(build, needed, chosen.short)
    elif instead:
        reason, needed = f"{build.name} refuses cuDNN {have}", instead
    else:
        return
    locations = ", ".join(want.where for want in picked.wants if want.pinned)
    context.refuse(
        Code.CUDNN_MISMATCH,
        f"{reason}; cuda-{chosen.short} gets {have}",
        spec.where,
        f"declare cuDNN {needed} or newer in {locations}",
    )
