"""cuDNN: choose an archive for each toolkit and major version, and describe it for the plan."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from gpufleet.catalog import facts, gpus, versions
from gpufleet.catalog.estimates import installed_mib
from gpufleet.catalog.records import Archive, Build
from gpufleet.components.base import alternatives
from gpufleet.components.base.context import ResolveContext
from gpufleet.documents.plan import PlannedCudnn
from gpufleet.documents.problems import Code
from gpufleet.documents.spec import StackSpec
from gpufleet.documents.types import Row
from gpufleet.frameworks import FRAMEWORKS

from . import artifact
from .toolkit_plan import Chosen


@dataclass
class Want:
    """A cuDNN that a stack or an entry of gpu_toolkits needs in a toolkit.

    `pinned` is declared and must be met; `built` is the least that a build needs: the newest
    archive of that release is chosen, or else a newer release of the same major version.
    """

    cuda: str  # X.Y
    where: str
    because: str
    pinned: str | None = None
    built: str | None = None
    stack: StackSpec | None = None  # None: declared in gpu_toolkits

    @property
    def major(self) -> int:
        return versions.major(self.pinned or self.built or "0")


@dataclass
class Picked:
    """An archive that the plan installs in a toolkit, and everything that wants it."""

    archive: Archive
    wants: list[Want]
    default: bool = False


def at_least(version: str, built: str) -> bool:
    """Return whether a cuDNN is the one that a build was compiled with, or newer."""
    return versions.has_prefix(version, built) or versions.key(version) >= versions.key(built)


def needed(build: Build, cuda: str) -> str:
    """The least cuDNN of a build on toolkit X.Y: of what it was built with, asks for of the wheels,
    and a rule's, the newest."""
    least = facts.cudnn_least(build.framework, build.version, cuda)
    return versions.newest(filter(None, [build.cudnn, build.cudnn_floor, least]))


def choose(context: ResolveContext, wants: list[Want], toolkits: dict[str, Chosen]) -> None:
    """Fill in each toolkit's cuDNN by major version, and mark the default of each.

    The default (header and unversioned link) is the first that gpu_toolkits declares for the
    toolkit, or the newest.
    """
    for short, chosen in toolkits.items():
        groups: dict[int, list[Want]] = {}
        for want in wants:
            if want.cuda == short:
                groups.setdefault(want.major, []).append(want)
        for major in sorted(groups):
            archive = _pick(context, short, major, groups[major])
            if archive is not None:
                chosen.majors[major] = Picked(archive, groups[major])
                artifact.check(
                    context,
                    archive.row,
                    f"cuDNN {archive.version} for CUDA {short}",
                    groups[major][0].where,
                )
        declared = [want.major for want in wants if want.cuda == short and not want.built]
        first = [major for major in declared if major in chosen.majors]
        if chosen.majors:
            chosen.majors[first[0] if first else max(chosen.majors)].default = True


def _pick(context: ResolveContext, short: str, major: int, wants: list[Want]) -> Archive | None:
    serving = list(facts.archives_for(major, short, context.arch))
    pins = [want for want in wants if want.pinned]
    candidates = serving
    for pin in pins:
        fitting = [a for a in candidates if versions.has_prefix(a.version, pin.pinned or "")]
        if not fitting:
            _refuse_pin(context, pin, pins[0], serving)
            return None
        candidates = fitting
    if not candidates:
        _refuse_none(context, short, major, wants[0])
        return None
    built = [want.built for want in wants if want.built]
    if built and not pins:
        wanted = max(built, key=versions.key)
        same = [a for a in candidates if versions.has_prefix(a.version, wanted)]
        newer = [a for a in candidates if at_least(a.version, wanted)]
        candidates = _usable_first(context, same) or _usable_first(context, newer) or same or newer
    else:
        candidates = _usable_first(context, candidates) or candidates
    if not candidates:
        _refuse_none(context, short, major, wants[0])
        return None
    return candidates[-1]


def _usable_first(context: ResolveContext, candidates: list[Archive]) -> list[Archive]:
    return [each for each in candidates if artifact.usable(context, each.row)]


def _refuse_pin(context: ResolveContext, pin: Want, first: Want, serving: list[Archive]) -> None:
    if any(versions.has_prefix(each.version, pin.pinned or "") for each in serving):
        context.refuse(
            Code.CUDNN_CLASH,
            f"cuDNN {first.pinned} and {pin.pinned} have the same soname and cannot both be in "
            f"toolkit {pin.cuda}",
            pin.where,
            "declare one of them; different major versions may share a toolkit",
        )
        return
    known = ", ".join(each.version for each in serving[-6:]) or "none"
    context.refuse(
        Code.CUDNN_UNKNOWN,
        f"no cuDNN {pin.pinned} for CUDA {pin.cuda} is known; known of that major: {known}",
        pin.where,
        "declare one of these" if serving else "declare another major version, or another CUDA",
    )


def _refuse_none(context: ResolveContext, short: str, major: int, want: Want) -> None:
    context.refuse(
        Code.CUDNN_UNKNOWN,
        f"no cuDNN {major} for CUDA {short} is known ({want.because} needs one)",
        want.where,
        lambda: _other_cuda(context, want),
    )


def _other_cuda(context: ResolveContext, want: Want) -> str:
    """The remedy for a CUDA that no cuDNN is known for."""
    stack, code = want.stack, Code.CUDNN_UNKNOWN
    if stack is None:
        return "declare another CUDA release"
    if stack.cuda and alternatives.accepted(context, stack, code, cuda=None, index=None):
        return "remove cuda"
    others = alternatives.nearest(stack.release, facts.releases(stack.framework, context.arch))
    found = alternatives.release(context, stack, code, others)
    title = FRAMEWORKS[stack.framework].title
    return f"declare {title} {found}" if found else alternatives.none_fits(title)


def needs(version: str, cuda: str) -> list[Row]:
    """The rules by which a cuDNN requires a driver and a GPU, beyond those of its toolkit."""
    return [
        rule
        for rule in facts.rules("cudnn_needs")
        if versions.has_prefix(cuda, rule["cuda"]) and versions.within(version, rule)
    ]


def check_gpus(context: ResolveContext, chosen: Chosen) -> None:
    """Refuse GPUs that are too old for a cuDNN."""
    for picked in chosen.majors.values():
        for card in context.gpus:
            for low in _above(card, picked.archive.version, chosen.short):
                context.refuse(
                    Code.GPU_TOO_OLD,
                    f"{card.text} is too old for cuDNN {picked.archive.version}, which "
                    f"supports {low} and newer",
                    picked.wants[0].where,
                    partial(_older, context, chosen, picked),
                )


def _older(context: ResolveContext, chosen: Chosen, picked: Picked) -> str:
    """The remedy for a GPU that is too old for a cuDNN."""
    stack = next((want.stack for want in picked.wants if want.stack), None)
    if stack is None:
        return "declare an older cuDNN"
    code, ways = Code.GPU_TOO_OLD, []
    if stack.cudnn and alternatives.accepted(context, stack, code, cudnn=None):
        ways.append("remove cudnn")
    older = [
        each.version
        for each in facts.archives_for(picked.archive.major, chosen.short, context.arch)
    ]
    for version in reversed(older):
        if alternatives.accepted(context, stack, code, cudnn=version):
            ways.append(f'set cudnn: "{version}"')
            break
    others = facts.releases(stack.framework, context.arch)[::-1]
    if found := alternatives.release(context, stack, code, others):
        ways.append(f"declare {FRAMEWORKS[stack.framework].title} {found}")
    return ", or ".join(ways) or "no known release fits this GPU and what else is declared"


def _above(card: gpus.Gpu, version: str, cuda: str) -> list[str]:
    """The least compute capabilities of a cuDNN that a GPU does not reach."""
    lows = [
        rule["compute_capability"] for rule in needs(version, cuda) if "compute_capability" in rule
    ]
    return [low for low in lows if versions.key(card.capability) < versions.key(low)]


def too_old_for_wheels(card: gpus.Gpu, build: Build) -> str | None:
    """Which cuDNN from wheels, of an exact version, a GPU is too old for."""
    own = build.cudnn_in_wheels
    lows = _above(card, own, build.cuda) if own else []
    return f"cuDNN {own} of {build.name}, which supports {lows[0]} and newer" if lows else None


def ends_before(card: gpus.Gpu, build: Build) -> str | None:
    """Which cuDNN of a build has no code for a GPU that is newer than it."""
    for rule in facts.rules("cudnn_ends"):
        major = build.row["cudnn_major"]
        if (
            build.framework in rule["frameworks"]
            and major
            and int(major) <= rule["major"]
            and versions.key(card.capability) > versions.key(rule["compute_capability"])
        ):
            return (
                f"cuDNN {major} of {build.name}, whose support ends at {rule['compute_capability']}"
            )
    return None


def ceiling(cards: list[gpus.Gpu], build: Build) -> str | None:
    """The bound on the cuDNN from wheels, as X.Y, where it floats to one without code for a GPU.

    Some frameworks' wheels keep below it by their requirements, for any GPU.
    """
    short = versions.short(build.cuda)
    limits = [
        rule["from"]
        for rule in facts.rules("cudnn_needs")
        for card in cards
        if versions.has_prefix(short, rule["cuda"])
        and "compute_capability" in rule
        and versions.major(rule["from"]) == build.cudnn_major
        and versions.key(card.capability) < versions.key(rule["compute_capability"])
    ]
    if build.about.bounds_cudnn or not floating_pin(build) or not limits:
        return None
    return str(min(limits, key=versions.key))


def floating_pin(build: Build) -> str | None:
    """The name of a build's cuDNN package, where it asks for a range of it."""
    pins = [pin for pin in build.cuda_pins if pin.startswith("nvidia-cudnn") and "==" not in pin]
    return re.split(r"[^\w-]", pins[0])[0] if pins else None


def describe(context: ResolveContext, chosen: Chosen, picked: Picked) -> PlannedCudnn:
    """The cuDNN as the plan carries it."""
    archive = picked.archive
    row = archive.row
    file = artifact.describe(context, row)
    return {
        "id": f"{chosen.short}-{archive.major}",
        "version": archive.version,
        "short": ".".join(archive.version.split(".")[:3]),
        "major": archive.major,
        "soname": row["soname"],
        "toolkit": chosen.short,
        "toolkit_path": chosen.path(context),
        "default": picked.default,
        "artifact": {
            **file,
            "include_dir": row["layout"]["include_dir"],
            "lib_dir": row["layout"]["lib_dir"],
        },
        "installed_mib": installed_mib("cudnn_installed", file["size_bytes"]),
        "because": list(dict.fromkeys(want.because for want in picked.wants)),
        "sources": facts.sources("cudnn", archive.source_keys),
    }
