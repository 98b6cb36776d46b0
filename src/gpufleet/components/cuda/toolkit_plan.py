"""Toolkits: choose the patch release of each wanted CUDA, and describe it for the plan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from gpufleet.catalog import facts, gpus, versions
from gpufleet.catalog.estimates import installed_mib
from gpufleet.catalog.records import Build, Toolkit
from gpufleet.components.base import alternatives
from gpufleet.components.base.context import ResolveContext
from gpufleet.documents.plan import Patch, PlannedToolkit
from gpufleet.documents.problems import Code
from gpufleet.documents.spec import PIP, StackSpec
from gpufleet.frameworks import FRAMEWORKS, FrameworkId

from . import artifact


@dataclass
class Want:
    """A toolkit that a stack (by its name) or an entry of gpu_toolkits needs."""

    cuda: str  # X.Y or X.Y.Z
    where: str
    because: str
    stack: StackSpec | None = None  # None: declared in gpu_toolkits

    @property
    def declared(self) -> bool:
        return self.stack is None


@dataclass
class Chosen:
    """A toolkit that the plan has, and everything that wants it."""

    toolkit: Toolkit
    wants: list[Want]
    default: bool = False
    registered: bool = False
    majors: dict[int, Any] = field(default_factory=dict)  # cuDNN by major version

    @property
    def where(self) -> str:
        return self.wants[0].where

    @property
    def short(self) -> str:
        return self.toolkit.short

    @property
    def because(self) -> list[str]:
        return list(dict.fromkeys(want.because for want in self.wants))

    def path(self, context: ResolveContext) -> str:
        return f"{context.spec.prefix}/cuda-{self.short}"


def choose(context: ResolveContext, wants: list[Want]) -> dict[str, Chosen]:
    """One toolkit for each X.Y that is wanted, oldest first."""
    groups: dict[str, list[Want]] = {}
    for want in wants:
        groups.setdefault(versions.short(want.cuda), []).append(want)
    chosen: dict[str, Chosen] = {}
    for short in sorted(groups, key=versions.key):
        toolkit = _pick(context, short, groups[short])
        if toolkit is not None:
            chosen[short] = Chosen(toolkit, groups[short])
            _check(context, chosen[short])
    return chosen


def _pick(context: ResolveContext, short: str, wants: list[Want]) -> Toolkit | None:
    """The newest release that satisfies all wants; refusals where there is none."""
    exact = list(dict.fromkeys(want.cuda for want in wants if want.cuda != short))
    if len(exact) > 1:
        other = next(want for want in wants if want.cuda == exact[1])
        context.refuse(
            Code.TOOLKIT_CLASH,
            f"CUDA {exact[0]} and {exact[1]} use the same directory, cuda-{short}",
            other.where,
            f"declare one of them, or {short} alone",
        )
    candidates = facts.toolkits_matching(exact[0] if exact else short, context.arch)
    candidates = [each for each in candidates if each.installer is not None]
    if not exact:
        # A release candidate is chosen only by its full version.
        candidates = [each for each in candidates if each.row["channel"] == "ga"]
    if not candidates or "." not in short:
        _unknown(context, exact[0] if exact else short, wants[0].where)
        return None
    checked = [each for each in candidates if artifact.usable(context, each.installer or {})]
    return (checked or candidates)[-1]


def _unknown(context: ResolveContext, wanted: str, where: str) -> None:
    known = [each.version for each in facts.toolkits(context.arch) if each.installer]
    near = versions.nearest(wanted, known)
    context.refuse(
        Code.TOOLKIT_UNKNOWN,
        f"no CUDA toolkit {wanted} with a Linux {context.arch} runfile is known; nearest: "
        + ", ".join(near),
        where,
        f'declare one of these, such as "{near[0]}"',
    )


def _check(context: ResolveContext, chosen: Chosen) -> None:
    """Refuse a toolkit whose file cannot be checked, or that GPUs or glibc do not fit."""
    toolkit = chosen.toolkit
    name = f"CUDA {toolkit.version}"
    artifact.check(context, toolkit.installer or {}, f"the {name} runfile", chosen.where)
    for card in context.gpus:
        if gpus.older_than_toolkit(card, toolkit):
            context.refuse(
                Code.GPU_TOO_OLD,
                f"{card.text} is too old for {name}, which supports {toolkit.capability_min} and "
                "newer",
                chosen.where,
                partial(_other_toolkit, context, card, chosen, newest=True),
            )
        elif gpus.newer_than_toolkit(card, toolkit):
            limit = toolkit.row["compute_capability"]["max_discrete"]
            context.refuse(
                Code.GPU_TOO_NEW,
                f"{card.text} is too new for {name}, which supports up to {limit}",
                chosen.where,
                partial(_other_toolkit, context, card, chosen, newest=False),
            )
    _check_glibc(context, chosen)


def newer_wheels(context: ResolveContext, spec: StackSpec, code: Code) -> str:
    """The remedy for a GPU that no build of a framework supports."""
    text = f"no known {FRAMEWORKS[spec.framework].title} release was built for this GPU"
    floating = [
        each for each in facts.releases(spec.framework, context.arch) if not each.wheels_pinned
    ]
    found = alternatives.release(context, replace(spec, cuda=PIP, cudnn=None), code, floating)
    if found:
        return f"{text}; from {found} on, cuda: pip installs newer CUDA wheels that may support it"
    others = [
        f"{build.title} {build.version}"
        for framework in FRAMEWORKS
        if framework != spec.framework
        and (build := _newest_for(context, spec, code, cast(FrameworkId, framework)))
    ]
    ways = [f"use {' or '.join(others)}, with code for it"] if others else []
    return "; ".join([text, ", or ".join([*ways, "run a vendor's build in a container"])])


def _newest_for(
    context: ResolveContext, spec: StackSpec, code: Code, framework: FrameworkId
) -> Build | None:
    """The newest release of a framework with machine code for each of the host's GPUs, if the host
    accepts it in the place of a stack."""
    fitting = (
        each
        for each in reversed(facts.releases(framework, context.arch))
        if all(gpus.has_code_in_build(card, each) for card in context.gpus)
        and (spec.python is None or spec.python_version in each.pythons)
    )
    newest = next(fitting, None)
    other = replace(spec, cuda=None, cudnn=None, index=None)
    accepted = newest and alternatives.accepted(
        context, other, code, framework=framework, release=newest.version
    )
    return newest if accepted else None


def _other_toolkit(context: ResolveContext, card: gpus.Gpu, chosen: Chosen, *, newest: bool) -> str:
    """The remedy: which toolkits support a GPU, and which release was built with one."""
    fitting = [
        each.short
        for each in facts.toolkits(context.arch)
        if each.installer is not None
        and not gpus.older_than_toolkit(card, each)
        and not gpus.newer_than_toolkit(card, each)
    ]
    if not fitting:
        return "no known CUDA release supports this GPU"
    text = (
        f"the newest CUDA for it is {fitting[-1]}"
        if newest
        else f"the first CUDA for it is {fitting[0]}"
    )
    stack = next((want.stack for want in chosen.wants if want.stack), None)
    code = Code.GPU_TOO_OLD if newest else Code.GPU_TOO_NEW
    if stack is None:
        return f"{text}: declare that one"
    other = next(
        (each for each in fitting if alternatives.accepted(context, stack, code, cuda=each)), None
    )
    if other:
        return f'{text}: set cuda: "{other}"'
    if stack.cuda and alternatives.accepted(context, stack, code, cuda=None, index=None):
        return f"{text}: remove cuda"
    built = [
        each
        for each in facts.releases(stack.framework, context.arch)
        if versions.short(each.cuda) in fitting
    ]
    found = alternatives.release(context, stack, code, built[::-1] if newest else built)
    title = FRAMEWORKS[stack.framework].title
    if found is None:
        return f"{text}; {newer_wheels(context, stack, code)}"
    return f"{text}, and {title} {found} was built with one that supports it"


def _check_glibc(context: ResolveContext, chosen: Chosen) -> None:
    have = context.host.glibc
    if have is None:
        return
    row, name = chosen.toolkit.row, f"CUDA {chosen.toolkit.version}"
    low = (row.get("glibc_min") or {}).get("value")
    high = (row.get("glibc_max") or {}).get("value")
    if low and versions.key(have) < versions.key(low):
        context.refuse(
            Code.GLIBC,
            f"{name} needs glibc {low} or newer; the host has {have}",
            chosen.where,
            "declare an older CUDA, or use a newer release of the distribution",
        )
    if _too_new_glibc(chosen.toolkit, have):
        text = f"nvcc of {name} cannot compile against glibc {have} (up to {high})"
        if any(want.declared for want in chosen.wants):
            context.refuse(Code.GLIBC, text, chosen.where, partial(_compiling, context, have))
        else:
            context.note(f"{text}; its libraries, which the stacks use, are not affected")


def _compiling(context: ResolveContext, glibc: str) -> str:
    """The remedy for a glibc that is too new: the first CUDA that compiles there for the GPUs."""
    older = "use an older release of the distribution"
    fitting = [
        each
        for each in facts.toolkits(context.arch)
        if each.installer is not None
        and not _too_new_glibc(each, glibc)
        and not any(gpus.older_than_toolkit(card, each) for card in context.gpus)
        and not any(gpus.newer_than_toolkit(card, each) for card in context.gpus)
    ]
    if not fitting:
        return f"no known CUDA compiles there for this host's GPUs: {older}"
    return f"declare CUDA {fitting[0].short} or newer, or {older}"


def _too_new_glibc(toolkit: Toolkit, glibc: str) -> bool:
    """Return whether the C library is too new to be compiled with the toolkit's headers."""
    high = (toolkit.row.get("glibc_max") or {}).get("value")
    return bool(high) and versions.key(glibc) > versions.key(high)


def default(context: ResolveContext, chosen: dict[str, Chosen], wants: list[Want]) -> None:
    """Mark the toolkit that `/usr/local/cuda` points to: the declared one, or the newest.

    Where none is declared, one that is the default already stays it: whoever adds a stack moves
    nobody's CUDA. A default that was refused before is not refused again.
    """
    wanted = context.spec.cuda_default
    if wanted is None:
        if chosen:
            newest = list(chosen.values())[-1]
            (_standing(context, chosen, newest) or newest).default = True
        return
    for each in chosen.values():
        if versions.has_prefix(each.toolkit.version, wanted):
            each.default = True
            return
    short = versions.short(wanted)
    if short not in chosen and any(versions.has_prefix(want.cuda, short) for want in wants):
        return
    have = ", ".join(each.toolkit.version for each in chosen.values()) or "none"
    context.refuse(
        Code.DEFAULT_NOT_DECLARED,
        f"gpu_cuda_default is {wanted}, but the toolkits of this host are: {have}",
        "gpu_cuda_default",
        f'add "{wanted}" to gpu_toolkits, or set gpu_cuda_default to one of these toolkits',
    )


def _standing(context: ResolveContext, chosen: dict[str, Chosen], newest: Chosen) -> Chosen | None:
    """The planned toolkit to which the host's link points now."""
    prefix, link = context.spec.prefix, context.host.default_link
    if link is None or link["state"] != "link" or link["path"] != f"{prefix}/cuda":
        return None
    target = str(link["target"]).removeprefix(f"{prefix}/")
    found = next((each for each in chosen.values() if target == f"cuda-{each.short}"), None)
    if found and found is not newest:
        context.note(
            f"{prefix}/cuda stays at CUDA {found.short}: gpu_cuda_default:"
            f' "{newest.short}" would move it for all users'
        )
    return found


def describe(context: ResolveContext, chosen: Chosen) -> PlannedToolkit:
    """The toolkit as the plan carries it."""
    toolkit = chosen.toolkit
    runfile = artifact.describe(context, toolkit.installer or {})
    return {
        "version": toolkit.version,
        "short": toolkit.short,
        "path": chosen.path(context),
        "default": chosen.default,
        "registered": chosen.registered,
        "generation": toolkit.row["installer_generation"],
        "gcc_max": toolkit.row["host_gcc"]["max_major"],
        "sonames": list(facts.toolkit_sonames(toolkit.short)),
        "artifact": runfile,
        "patches": _patches(context, toolkit),
        "installed_mib": installed_mib("toolkit_installed", runfile["size_bytes"]),
        "because": chosen.because,
        "sources": facts.sources("toolkits", toolkit.source_keys),
    }


def _patches(context: ResolveContext, toolkit: Toolkit) -> list[Patch]:
    """The patches with a usable checksum; a note names the others.

    A toolkit works without its patches: a patch without a checksum is no reason to refuse it.
    """
    found: list[Patch] = []
    for row in toolkit.row["patches"]:
        if artifact.usable(context, row):
            patch = artifact.describe(context, row)
            found.append({"version": row["patch"], **patch, "installer": row["installer"]})
        else:
            context.note(
                f"CUDA {toolkit.version}: patch {row['patch']} is left out, because no checksum of "
                f"{row['file']} is known; set one in gpu_artifacts"
            )
    return found
