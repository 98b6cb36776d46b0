"""Stacks: choose build and Python, derive toolkit and cuDNN, and describe them for the plan."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from gpufleet.catalog import facts, gpus, versions
from gpufleet.catalog.estimates import installed_mib
from gpufleet.catalog.records import Build
from gpufleet.components.base import alternatives
from gpufleet.components.base.context import ResolveContext
from gpufleet.components.cuda import cudnn_plan as cudnn
from gpufleet.components.cuda import toolkit_plan as toolkits
from gpufleet.components.host import processor
from gpufleet.documents.plan import CudaSource, PlannedStack
from gpufleet.documents.problems import Code
from gpufleet.documents.spec import LOCAL, StackSpec
from gpufleet.frameworks import FRAMEWORKS

from . import environment_plan as environment
from . import locks, pins, ptx, pythons
from . import variables as stack_variables

NCCL = "libnccl.so.2"
SHOWN = 4  # of the nearest releases


@dataclass
class Stack:
    """One stack with its build, and where its CUDA comes from; `python` is None when none fits."""

    spec: StackSpec
    build: Build
    python: pythons.Python | None
    source: CudaSource

    @property
    def cuda(self) -> str:
        """The CUDA of its toolkit, or the one that it was built with, as X.Y."""
        pinned = self.spec.cuda
        chosen = self.source == "toolkit" and pinned not in {None, LOCAL}
        return versions.short(
            pinned if chosen and pinned and self.build.serves(pinned) else self.build.cuda
        )


def select(context: ResolveContext) -> list[Stack]:
    """The stacks whose release is known, each with its Python; refusals for the others."""
    found = []
    names: dict[str, str] = {}
    for spec in context.spec.stacks:
        if spec.name in names:
            context.refuse(
                Code.STACK_NAME_CLASH,
                f"two stacks are named {spec.name}: {names[spec.name]} and {spec.where}",
                f"{spec.where}.name",
                f"give one of them another name: {{{spec.framework}: ..., name: ...}}",
            )
        names.setdefault(spec.name, spec.where)
        builds = facts.variants(spec.framework, spec.release, context.arch)
        if not builds:
            _refuse_unknown(context, spec)
            continue
        build = pins.build(context, spec, builds)
        if build is None:
            continue
        python = pythons.choose(context, spec, build)
        source = pins.source(context, spec, build)
        stack = Stack(spec, build, python, source or build.cuda_sources[0])
        _check_gpus(context, stack)
        _check_glibc(context, stack)
        _check_processor(context, stack)
        if source:
            found.append(stack)
    return found


def _refuse_unknown(context: ResolveContext, spec: StackSpec) -> None:
    if pins.refuse_local_version(context, spec):
        return
    known = {each.version: each for each in facts.releases(spec.framework, context.arch)}
    near = versions.nearest(spec.release, known, count=len(known))
    title = FRAMEWORKS[spec.framework].title

    def remedy() -> str:
        others = [known[each] for each in near]
        found = alternatives.release(context, spec, Code.UNKNOWN_RELEASE, others)
        if found is None:
            return alternatives.none_fits(title)
        version, comma, without = found.partition(",")
        if version not in near[:SHOWN]:
            return f"declare {title} {found}"
        return f'declare one of these, such as "{version}"{comma}{without}'

    context.refuse(
        Code.UNKNOWN_RELEASE,
        f"no {title} {spec.release} with GPU support is known; nearest: " + ", ".join(near[:SHOWN]),
        f"{spec.where}.{spec.framework}",
        remedy,
    )


def wants(context: ResolveContext, stack: Stack) -> tuple[list[toolkits.Want], list[cudnn.Want]]:
    """The toolkit and cuDNN that a stack needs; pins that do not fit are refused and left out."""
    spec, build = stack.spec, stack.build
    if stack.source != "toolkit":
        pins.wheels_cudnn_fits(context, spec, build)
        return [], []
    fits = spec.cuda not in {None, LOCAL} and build.serves(spec.cuda or "")
    exact = fits and spec.cuda and spec.cuda.count(".") > 1
    where = f"{spec.where}.cuda" if spec.cuda else spec.where
    cuda = (spec.cuda if exact else None) or stack.cuda
    pinned = spec.cudnn if pins.cudnn_fits(context, spec, build, stack.cuda) else None
    where_cudnn = f"{spec.where}.cudnn" if spec.cudnn else spec.where
    return (
        [toolkits.Want(cuda, where, spec.name, spec)],
        [
            cudnn.Want(
                stack.cuda, where_cudnn, spec.name, pinned, cudnn.needed(build, stack.cuda), spec
            )
        ],
    )


def _check_gpus(context: ResolveContext, stack: Stack) -> None:
    """Refuse GPUs that the build has no code for."""
    build, where = stack.build, f"{stack.spec.where}.{stack.spec.framework}"
    for card in context.gpus:
        if older := _too_old(card, stack):
            context.refuse(
                Code.GPU_TOO_OLD,
                f"{card.text} is too old for {older}",
                where,
                partial(_other_release, context, card, stack, newest=True),
            )
        elif newer := _too_new(card, stack):
            context.refuse(
                Code.GPU_TOO_NEW,
                f"{card.text} is too new for {newer}",
                where,
                partial(_other_release, context, card, stack, newest=False),
            )
        elif not gpus.native_to_build(card, build):
            least = ptx.needs(build)
            part = "a part of its kernels" if gpus.has_code_in_build(card, build) else "PTX"
            context.note(
                f"{stack.spec.name}: for {card.text} {part} is compiled at first use, which takes "
                f"minutes and needs driver {least.version} or newer"
            )


def _too_old(card: gpus.Gpu, stack: Stack) -> str | None:
    """Return the part of a stack that a GPU is too old for, with the reason, or None."""
    build = stack.build
    if gpus.older_than_build(card, build):
        return f"{build.name}, which was built for {build.capability_min} and newer"
    return None if stack.source == "toolkit" else cudnn.too_old_for_wheels(card, build)


def _too_new(card: gpus.Gpu, stack: Stack) -> str | None:
    """Return the part of a stack that a GPU is too new for, with the reason, or None."""
    build = stack.build
    if gpus.newer_than_build(card, build) or _wheels_too_old(card, stack):
        return f"{build.name} and CUDA {build.cuda}, which it was built with"
    # A toolkit is of the CUDA that the compiler was built with, and refuses the GPU itself.
    if stack.source != "toolkit" and gpus.newer_than_compiler(card, build):
        return (
            f"the compiler inside {build.name}, which writes PTX up to {build.compiler_ptx} "
            "whatever CUDA is beside it"
        )
    return cudnn.ends_before(card, build)


def _other_release(context: ResolveContext, card: gpus.Gpu, stack: Stack, *, newest: bool) -> str:
    """The remedy for a GPU that a build has no code for."""
    if found := _built_for(context, card, stack, newest=newest):
        return found
    if newest:
        return f"no known {stack.build.title} release was built for this GPU"
    return toolkits.newer_wheels(context, stack.spec, Code.GPU_TOO_NEW)


def _built_for(
    context: ResolveContext, card: gpus.Gpu, stack: Stack, *, newest: bool
) -> str | None:
    """The remedy for a GPU: the same release for another CUDA, and which release has code for it.

    Both have code for the host's other GPUs as well. None where no build is known for the GPU.
    """
    build = stack.build
    same = [
        each
        for each in facts.variants(build.framework, build.version, context.arch)
        if not each.unavailable and _has_code_for(card, stack, each)
    ]
    releases = [
        each
        for each in facts.releases(build.framework, context.arch)
        if _has_code_for(card, stack, each)
    ]
    others = [each for each in context.gpus if each.capability != card.capability]

    def serves(other: Build) -> bool:
        return all(_has_code_for(each, stack, other) for each in others)

    if (same or releases) and not any(map(serves, [*same, *releases])):
        cards = dict.fromkeys(each.text for each in context.gpus)
        return f"no known {build.title} was built for all of {', '.join(cards)}"
    which, code = ("newest", Code.GPU_TOO_OLD) if newest else ("first", Code.GPU_TOO_NEW)
    texts = [
        pins.other_build(stack.spec, each)
        for each in filter(serves, same)
        if context.accepts(pins.declaring(stack.spec, each), code)
    ][:1]
    ordered = list(filter(serves, releases))
    ordered = ordered[::-1] if newest else ordered
    if found := alternatives.release(context, stack.spec, code, ordered):
        texts.append(
            f"the {which} {build.title} built for {'them all' if others else 'it'} is {found}"
        )
    return "; or declare another release: ".join(texts) or None


def _has_code_for(card: gpus.Gpu, stack: Stack, build: Build) -> bool:
    """Return whether a build, in place of the stack's, has machine code for a GPU."""
    source = stack.source if stack.source in build.cuda_sources else build.cuda_sources[0]
    other = Stack(stack.spec, build, None, source)
    return (
        gpus.has_code_in_build(card, build)
        and not _too_old(card, other)
        and not _too_new(card, other)
    )


def _wheels_too_old(card: gpus.Gpu, stack: Stack) -> bool:
    """Return whether a stack's CUDA wheels are of a CUDA that does not support the GPU."""
    if stack.source == "toolkit" or not stack.build.wheels_pinned:
        return False
    same = facts.toolkits_matching(stack.build.cuda)
    return bool(same) and gpus.newer_than_toolkit(card, same[-1])


def _check_glibc(context: ResolveContext, stack: Stack) -> None:
    """Refuse a host whose glibc is older than the wheel's platform tag or libraries require."""
    have, build = context.host.glibc, stack.build
    table = facts.rules("manylinux_glibc")
    needs = [build.glibc_used] if build.glibc_used else []
    for tag in build.platform_tags:
        match = re.match(r"manylinux_(\d+)_(\d+)_", tag)
        needs.append(f"{match[1]}.{match[2]}" if match else table[tag.split("_")[0]])
    need = versions.newest(needs)
    if have and versions.key(have) < versions.key(need):
        context.refuse(
            Code.GLIBC,
            f"the wheel of {build.name} needs glibc {need} or newer; the host has {have}",
            f"{stack.spec.where}.{stack.spec.framework}",
            f"declare an older {build.title}, or use a newer release of the distribution",
        )


def _check_processor(context: ResolveContext, stack: Stack) -> None:
    """Refuse a host whose processor lacks instructions that the wheel uses without asking."""
    build = stack.build
    if names := processor.lacking(context.host, build.framework, build.version):
        context.refuse(
            Code.CPU_FEATURE,
            f"the wheel of {build.name} needs a processor with {processor.shown(names)}, which the "
            "host's does not show",
            f"{stack.spec.where}.{stack.spec.framework}",
            processor.REMEDY,
        )


def check_linker(
    context: ResolveContext, stacks: list[Stack], chosen: dict[str, toolkits.Chosen]
) -> None:
    """Refuse a registered cuDNN that would be mixed into a stack whose own lacks a library.

    A stack's cuDNN may open a library that its wheel lacks: the linker cache then provides another
    version's (rules.yml, cudnn_wheels_lack).
    """
    for stack in stacks:
        own = _cudnn_in_wheels(stack)
        for rule in facts.rules("cudnn_wheels_lack"):
            if own is None or not versions.within(own, rule):
                continue
            context.note(
                f"{stack.spec.name}: its cuDNN {own} opens {rule['file']}, which its wheel lacks; "
                f"a cuDNN {rule['fixed']} or newer in the linker cache would be mixed in"
            )
            for each in chosen.values():
                _refuse_mixing(context, stack, rule, each)


def _refuse_mixing(
    context: ResolveContext, stack: Stack, rule: dict[str, str], chosen: toolkits.Chosen
) -> None:
    for picked in chosen.majors.values() if chosen.registered else ():
        have = picked.archive.version
        if picked.archive.major == versions.major(rule["fixed"]) and (
            versions.key(have) >= versions.key(rule["fixed"])
        ):
            context.refuse(
                Code.CUDNN_CLASH,
                f"{stack.build.name} opens {rule['file']}, which its own cuDNN lacks; that of "
                f"cuDNN {have} in cuda-{chosen.short}, which is in the linker cache, would be "
                "mixed in",
                stack.spec.where,
                f"declare cuDNN {stack.build.cudnn} or older for toolkit {chosen.short}, or "
                f"another {stack.build.title}",
            )


def describe(
    context: ResolveContext, stack: Stack, chosen: toolkits.Chosen | None, driver_min: str
) -> PlannedStack:
    """The stack as the plan carries it."""
    spec, build = stack.spec, stack.build
    picked = chosen.majors.get(build.cudnn_major) if chosen else None
    python = stack.python.version if stack.python else build.pythons[-1]
    for text in build.row.get("notes", []):
        if build.variant or (stack.source == "pip" and "and-cuda" in text):
            context.note(f"{spec.name}: {text}")
    _note_builtins(context, stack)
    sonames, optional = _sonames(stack)
    lock = f"{spec.name}{_variant(context, stack)}-py{python}.lock"
    if stack.python:
        locks.check(context, spec, build, stack.source, python, lock)
    return {
        "name": spec.name,
        "framework": build.framework,
        "distribution": build.distribution,
        "version": build.version,
        "python": stack.python.version if stack.python else None,
        "interpreter": stack.python.path if stack.python else None,
        "python_source": stack.python.source if stack.python else None,
        "venv": f"{context.spec.stack_root}/{spec.name}",
        "cuda": stack.cuda,
        "cuda_source": stack.source,
        "toolkit_path": chosen.path(context) if chosen else None,
        "cudnn": picked.archive.version if picked else _cudnn_in_wheels(stack),
        "sonames": sonames,
        "sonames_optional": optional,
        "requirements": [
            *build.requirements(stack.source),
            *_cudnn_bound(context, stack),
            *build.ceilings(python),
            *(facts.rules("kernel_requirements") if context.spec.jupyter_kernels else []),
        ],
        "index": spec.index,
        "lock": lock,
        "lock_sha256": None,  # set by locks.with_locks, for callers that can read files
        "installer": "uv" if pythons.by_uv(python) else "pip",
        "build": {"cuda": build.cuda, "cudnn_major": build.row["cudnn_major"]},
        "compute_capability": {
            "min": build.capability_min,
            "native": build.native,
            "ptx": build.jit,
        },
        "driver_min": driver_min,
        "environment": stack_variables.of(context, spec, build),
        "activation": environment.activation(spec.name),
        "installed_mib": _installed(stack),
        "sources": facts.sources(build.framework, build.row["source"]),
    }


def _note_builtins(context: ResolveContext, stack: Stack) -> None:
    """Note a part of the build's NVRTC that LD_LIBRARY_PATH can replace, bound or not."""
    build = stack.build
    for rule in facts.rules("nvrtc_builtins_by_name"):
        if (rule["framework"], build.variant) == (build.framework, None) and (
            versions.within(build.version, rule)
        ):
            context.note(
                f"{stack.spec.name}: its NVRTC opens {rule['file']} by that name: a directory in "
                f"LD_LIBRARY_PATH with a toolkit's comes first, and {rule['fails']} may fail"
            )


def _sonames(stack: Stack) -> tuple[list[str], list[str]]:
    """The libraries that a stack must load, and those that it may load.

    On a toolkit a plugin has what is in the toolkit and in the wheel of NCCL; the others
    (CUPTI, NVSHMEM) it takes if they are there.
    """
    build = stack.build
    if not build.about.cuda_plugin or stack.source != "toolkit":
        return build.sonames, build.sonames_optional
    there = {*facts.toolkit_sonames(stack.cuda), f"libcudnn.so.{build.cudnn_major}", NCCL}
    return (
        [name for name in build.sonames if name in there],
        [name for name in build.sonames if name not in there],
    )


def _cudnn_bound(context: ResolveContext, stack: Stack) -> list[str]:
    """The requirement that keeps a floating cuDNN to one that has code for the host's GPUs."""
    below = cudnn.ceiling(context.gpus, stack.build) if stack.source == "pip" else None
    return [f"{cudnn.floating_pin(stack.build)}<{below}"] if below else []


def _variant(context: ResolveContext, stack: Stack) -> str:
    """The part of a lock's name that tells apart what other variables change in it."""
    build = stack.build
    wheels = f"-{build.variant}" if build.variant else ""
    if stack.source != build.cuda_sources[0]:
        wheels += {"pip": "-cuda-pip", "toolkit": "-cuda-local"}[stack.source]
    # A lock of its own: that of hosts with newer GPUs stays as it is.
    wheels += "-older-gpu" if _cudnn_bound(context, stack) else ""
    wheels += f"-{build.arch}" if build.arch != facts.X86_64 else ""
    return wheels + ("-jupyter" if context.spec.jupyter_kernels else "")


def _cudnn_in_wheels(stack: Stack) -> str | None:
    return None if stack.source == "toolkit" else stack.build.cudnn_in_wheels


def _installed(stack: Stack) -> int | None:
    """MiB of the environment, estimated from the wheel; CUDA wheels add their own.

    The wheel's size is that of the release's own build. Where that has its CUDA from wheels, a
    variant has as much CUDA, inside of it or from wheels.
    """
    build = stack.build
    mib = installed_mib("stack_installed", facts.wheel_bytes(build.framework, build.version))
    own = facts.build(build.framework, build.version)
    like_wheels = stack.source == "bundled" and own is not None and own.has_cuda_wheels
    if mib is not None and (stack.source == "pip" or like_wheels):
        mib += int(facts.rules("estimates")["stack_cuda_wheels"]["plus_mib"])
    return mib
