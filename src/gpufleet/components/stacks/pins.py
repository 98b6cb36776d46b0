"""Pins: the CUDA and cuDNN that a stack declares, checked against its builds.

A pin that does not fit is refused, never adjusted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gpufleet.catalog import facts, versions
from gpufleet.catalog.records import Build
from gpufleet.components.base import alternatives
from gpufleet.components.base.context import ResolveContext
from gpufleet.components.cuda import cudnn_plan as cudnn
from gpufleet.components.cuda.toolkit_plan import Chosen
from gpufleet.documents.plan import CudaSource
from gpufleet.documents.problems import Code
from gpufleet.documents.spec import LOCAL, PIP, StackSpec
from gpufleet.frameworks import FRAMEWORKS


def build(context: ResolveContext, spec: StackSpec, builds: Sequence[Build]) -> Build | None:
    """The release's build for the declared CUDA, its own without one; None, refused, if it has none
    that pip can install."""
    own = builds[0]
    if own.unavailable and _declared(spec, builds).unavailable:
        _refuse_release(context, spec, builds)
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


def _declared(spec: StackSpec, builds: Sequence[Build]) -> Build:
    """The build for the declared CUDA, else the release's own; of some no source tells the CUDA."""
    cuda = "" if spec.cuda in {None, PIP, LOCAL} else spec.cuda
    known = (each for each in builds if "cuda_version" in each.row)
    return next((each for each in known if cuda and each.is_for(cuda)), builds[0])


def _index_fits(
    context: ResolveContext, spec: StackSpec, chosen: Build, builds: Sequence[Build]
) -> bool:
    """Return whether the declared index, if of the framework and for one CUDA, fits the build.

    pip would prefer that index's wheel to PyPI's, as its version has a local part.
    """
    address = (spec.index or "").rstrip("/")
    has = address.rpartition("/")[2]
    if (
        not _is_own_index(chosen, address)
        or not re.fullmatch(r"cu\d+", has)
        or has == chosen.variant
    ):
        return True
    listed = next((each for each in builds if each.variant == has and not each.unavailable), None)
    other = (
        f"set index: {chosen.index}"
        if chosen.index
        else f"remove index: the wheel on PyPI has CUDA {versions.short(chosen.cuda)}"
    )
    add = f'{"set" if spec.cuda else "add"} cuda: "{listed.cuda}", or ' if listed else ""
    context.refuse(
        Code.CUDA_MISMATCH,
        f"the wheel of {chosen.name} with CUDA {versions.short(chosen.cuda)} is on "
        f"{chosen.index or 'PyPI'}; {address} has another one, which pip would take",
        f"{spec.where}.index",
        add + other,
    )
    return False


def _is_own_index(build: Build, address: str) -> bool:
    """Return whether an address is on the index of the build's framework."""
    index = build.about.own_index
    return index is not None and address.startswith(index)


def _refuse_release(context: ResolveContext, spec: StackSpec, builds: Sequence[Build]) -> None:
    code, build = Code.WHEEL_UNAVAILABLE, _declared(spec, builds)
    title = build.title

    def remedy() -> str:
        known = facts.releases(spec.framework, context.arch)
        others = (each for each in builds[1:] if not each.unavailable)
        ways = [
            other_build(spec, each)
            for each in others
            if context.accepts(declaring(spec, each), code)
        ][:1]
        if found := alternatives.release(
            context, spec, code, alternatives.nearest(build.version, known)
        ):
            ways.append(f"declare {title} {found}, whose CUDA is on PyPI")
        if not known:
            return f"declare it for hosts with {facts.X86_64} only"
        return ", or ".join(ways) or alternatives.none_fits(title)

    context.refuse(
        code,
        f"{build.name} cannot be installed with CUDA: {build.unavailable}",
        f"{spec.where}.{spec.framework}",
        remedy,
    )


def _reachable(context: ResolveContext, spec: StackSpec, own: Build, found: Build) -> bool:
    """Return whether a build outside PyPI can be had from the declared index; refuse it if not."""
    if not found.unavailable and spec.index is not None:
        return True
    code, short = Code.WHEEL_UNAVAILABLE, versions.short(found.cuda)
    what = f"{found.name} with CUDA {found.cuda} is not on PyPI, only on {found.index}"
    planned = found.row.get("confidence")
    what += f" ({planned})" if planned else ""

    def remedy() -> str:
        ways = []
        if not found.unavailable and alternatives.accepted(context, spec, code, index=found.index):
            ways.append(f"add index: {found.index} to this stack")
        ways += _without_pin(context, spec, code, own)
        releases = facts.releases(spec.framework, context.arch)[::-1]
        same = [each for each in releases if versions.short(each.cuda) == short]
        if other := alternatives.release(context, spec, code, same):
            ways.append(f"declare {own.title} {other}, whose wheel on PyPI has CUDA {found.cuda}")
        return ", or ".join(ways) or alternatives.none_fits(own.title)

    context.refuse(
        code,
        f"{what}, and {found.unavailable}" if found.unavailable else what,
        f"{spec.where}.cuda",
        remedy,
    )
    return False


def _without_pin(context: ResolveContext, spec: StackSpec, code: Code, own: Build) -> list[str]:
    """The remedy that leaves out a declared CUDA, where that is accepted."""
    keys = [key for key in ("cuda", "index") if getattr(spec, key)]
    if not alternatives.accepted(context, spec, code, cuda=None, index=None):
        return []
    if own.about.own_index is None:
        return ["remove the pin"]
    what = "the pin" if keys == ["cuda"] else " and ".join(keys)
    return [f"remove {what}: the wheel on PyPI has CUDA {versions.short(own.cuda)}"]


def _refuse_cuda(context: ResolveContext, spec: StackSpec, builds: Sequence[Build]) -> None:
    code, own, pinned = Code.CUDA_MISMATCH, builds[0], spec.cuda or ""
    several = own.about.several_builds
    if not several:
        needed = next(name for name in own.sonames if name.startswith("libcudart."))
        message = (
            f"{own.name} was built with CUDA {own.cuda} (it looks for {needed}), not with {pinned}"
        )
    else:
        have = ", ".join(versions.short(each.cuda) for each in builds)
        newer = ", or a newer one of the same major version" if own.about.cuda_plugin else ""
        message = f"{own.name} was published for CUDA {have}{newer}, not for {pinned}"

    def remedy() -> str:
        ways = _without_pin(context, spec, code, own)
        if not several and alternatives.accepted(context, spec, code, cuda=own.cuda):
            ways.append(f'set cuda: "{own.cuda}"')
        releases = facts.releases(spec.framework, context.arch)[::-1]
        serving = [each for each in releases if _published_for(each, pinned)]
        tried = serving if several or not ways else []
        if other := alternatives.release(context, spec, code, tried):
            ways.append(f"declare {own.title} {other}, which is for CUDA {pinned}")
        if not ways and (
            other := alternatives.release(context, spec, code, _others(context, spec))
        ):
            ways.append(f"declare {own.title} {other}")
        text = ", or ".join(ways) or alternatives.none_fits(own.title)
        if several or not facts.toolkits_matching(versions.short(pinned)):
            return text
        return f"{text}; gpu_toolkits can install toolkit {versions.short(pinned)} beside it"

    context.refuse(code, message, f"{spec.where}.cuda", remedy)


def _published_for(build: Build, cuda: str) -> bool:
    """Return whether PyPI has a build of a release for a CUDA."""
    every = facts.variants(build.framework, build.version, build.arch)
    return any(each.is_for(cuda) and each.index is None for each in every)


def _others(context: ResolveContext, spec: StackSpec) -> list[Build]:
    """The other releases of a stack's framework, the nearest first."""
    return alternatives.nearest(spec.release, facts.releases(spec.framework, context.arch))


def declaring(spec: StackSpec, build: Build) -> StackSpec:
    """A stack that declares another build of its release."""
    if build.variant is None:
        return replace(spec, cuda=None, index=None)
    return replace(spec, cuda=_declared_cuda(build), index=build.index)


def _declared_cuda(build: Build) -> str:
    # A plugin is identified by the major version of its CUDA.
    return str(versions.major(build.cuda)) if build.about.cuda_plugin else build.cuda


def other_build(spec: StackSpec, build: Build) -> str:
    """How to declare another build of a stack's release."""
    if build.variant is None:
        declared = [key for key in ("cuda", "index") if getattr(spec, key)]
        return (
            f"remove {' and '.join(declared)}: the wheel on PyPI has CUDA"
            f" {versions.short(build.cuda)}"
        )
    cuda = _declared_cuda(build)
    where = f" and index: {build.index}" if build.index else ""
    return f'{"set" if spec.cuda else "add"} cuda: "{cuda}"{where}, for the same release'


def refuse_local_version(context: ResolveContext, spec: StackSpec) -> bool:
    """Refuse a known release that is named with its CUDA (2.6.0+cu118); True if refused."""
    release, _, local = spec.release.partition("+")
    builds = facts.variants(spec.framework, release, context.arch) if local else ()
    if not builds:
        return False
    own = builds[0]
    if own.unavailable:
        _refuse_release(context, spec, builds)
        return True
    declare = f'{spec.framework}: "{release}"'
    digits = local.removeprefix("cu") if re.fullmatch(r"cu\d+", local) else ""
    found = next(
        (each for each in builds if versions.short(each.cuda).replace(".", "") == digits), None
    )
    message = (
        f"{own.title} {spec.release} is a release and its CUDA in one; here the two are "
        "declared apart"
    )
    if found is own:
        remedy = f"declare {declare}: the wheel on PyPI has CUDA {versions.short(own.cuda)}"
    elif found and not found.unavailable:
        remedy = f'declare {declare}, cuda: "{found.cuda}", index: {found.index}'
    else:
        have = ", ".join(versions.short(each.cuda) for each in builds if not each.unavailable)
        message = f"no {own.title} {spec.release} with GPU support is known"
        remedy = f"declare {declare}, which was published for CUDA {have}"
    context.refuse(Code.UNKNOWN_RELEASE, message, f"{spec.where}.{spec.framework}", remedy)
    return True


def source(context: ResolveContext, spec: StackSpec, build: Build) -> CudaSource | None:
    """The source of the build's CUDA; None, refused, where that is declared and cannot be."""
    default = build.cuda_sources[0]
    if spec.cuda is None:
        return default
    if spec.cuda == PIP or (build.about.cuda_plugin and spec.cuda.isdecimal()):
        if build.has_cuda_wheels:
            return "pip"
        _refuse_pip(context, spec, build)
        return None
    if build.about.can_be_local and "toolkit" not in build.cuda_sources:
        local = [
            each
            for each in facts.releases(spec.framework, context.arch)
            if "toolkit" in each.cuda_sources
        ]
        context.refuse(
            Code.LOCAL_CUDA_UNAVAILABLE,
            f"{build.name} from PyPI uses nvidia-* wheels only; the first that can use an "
            f"installed toolkit is {local[0].version}",
            f"{spec.where}.cuda",
            lambda: _without_cuda(context, spec, Code.LOCAL_CUDA_UNAVAILABLE, local),
        )
        return None
    return "toolkit" if "toolkit" in build.cuda_sources else default


def _without_cuda(
    context: ResolveContext, spec: StackSpec, code: Code, others: Sequence[Build], note: str = ""
) -> str:
    """The remedy for a source of CUDA that a build cannot have: the default, or another release."""
    title = FRAMEWORKS[spec.framework].title
    ways = []
    if alternatives.accepted(context, spec, code, cuda=None):
        ways.append(f"remove cuda: {spec.cuda}{note}")
    if found := alternatives.release(context, spec, code, others):
        ways.append(f"declare {title} {found}")
    return ", or ".join(ways) or alternatives.none_fits(title)


def _refuse_pip(context: ResolveContext, spec: StackSpec, build: Build) -> None:
    code = Code.PIP_CUDA_UNAVAILABLE
    pip = [each for each in facts.releases(build.framework, context.arch) if each.has_cuda_wheels]
    if build.cuda_sources[0] == "bundled":
        note = ""
        message = (
            f"{build.name} has CUDA {build.cuda} inside of its wheel; the first that takes it from "
            f"nvidia-* wheels is {pip[0].version}"
        )
    else:
        note = f" (CUDA {build.cuda} is then installed as a toolkit)"
        message = f"{build.name} has no and-cuda extra; the first with one is {pip[0].version}"
    context.refuse(
        code,
        message,
        f"{spec.where}.cuda",
        lambda: _without_cuda(context, spec, code, pip, note),
    )


def wheels_cudnn_fits(context: ResolveContext, spec: StackSpec, build: Build) -> None:
    """Refuse a pinned cuDNN beside CUDA from wheels, unless it is the one that they have."""
    if spec.cudnn is None:
        return
    if build.about.exact_cudnn:
        own = build.cudnn_in_wheels
        if own and versions.has_prefix(own, spec.cudnn):
            return
        message = (
            f"{build.name} comes with cuDNN {own or 'of an unknown version'}, not with {spec.cudnn}"
        )
    else:
        message = "with cuda: pip, cuDNN comes from pip wheels as well and cannot be pinned"
    context.refuse(
        Code.CUDNN_MISMATCH, message, f"{spec.where}.cudnn", "remove cudnn from this stack"
    )


def cudnn_fits(context: ResolveContext, spec: StackSpec, build: Build, cuda: str) -> bool:
    """Return whether the pinned cuDNN has the build's major version, and is new enough."""
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
        lambda: f"remove the pin, or set it to cuDNN {needed}" + _instead(context, spec, pinned),
    )
    return False


def _cudnn_need(build: Build, needed: str, cuda: str) -> str:
    if needed == build.cudnn:
        return f"{build.name} was built with cuDNN {needed}"
    if needed == build.cudnn_floor:
        return f"{build.name} asks for cuDNN {needed} or newer"
    return f"{build.name} refuses a cuDNN older than {needed} with CUDA {cuda}"


def _reaches(pinned: str, built: str) -> bool:
    """Return whether a release that begins as pinned can be as new as the build's."""
    return versions.has_prefix(built, pinned) or cudnn.at_least(pinned, built)


def _instead(context: ResolveContext, spec: StackSpec, pinned: str) -> str:
    """The newest release that takes the pinned cuDNN, as an alternative."""
    others = [
        each
        for each in reversed(facts.releases(spec.framework, context.arch))
        if each.cudnn_major == versions.major(pinned)
    ]
    kept = replace(spec, cudnn=pinned)
    found = alternatives.release(context, kept, Code.CUDNN_MISMATCH, others)
    if found is None or "cudnn" in found:
        return ""
    return f"; with cuDNN {pinned}, use {FRAMEWORKS[spec.framework].title} {found}"


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
