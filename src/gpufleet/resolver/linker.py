"""The linker cache: which toolkits' libraries every program of the host can load.

A toolkit is registered when no other registered one has the same sonames. On a clash the
default wins, then the newest. Stacks do not depend on it: each is bound to its own toolkit.
"""

from __future__ import annotations

from gpufleet.catalog import facts, versions
from gpufleet.model.plan import Clash, PlannedLinker
from gpufleet.model.problems import Code

from .context import ResolveContext
from .stacks import Stack
from .toolkits import Chosen

FILE = "/etc/ld.so.conf.d/gpufleet-cuda.conf"


def sonames(chosen: Chosen) -> list[str]:
    """The sonames in a toolkit's tree, those of its cuDNN included."""
    own = [picked.archive.row["soname"] for _, picked in sorted(chosen.majors.items())]
    return [*facts.toolkit_sonames(chosen.short), *own]


def register(context: ResolveContext, toolkits: dict[str, Chosen]) -> PlannedLinker:
    """Mark the registered toolkits; the linker's part of the plan.

    Directories are in search order: the default first, then the newest.
    """
    order = sorted(
        toolkits.values(),
        key=lambda each: (each.default, versions.key(each.toolkit.version)),
        reverse=True,
    )
    clashes: list[Clash] = []
    winners: list[Chosen] = []
    for chosen in order:
        names = sonames(chosen)
        lost = False
        for winner in winners:
            shared = [name for name in names if name in sonames(winner)]
            if shared:
                clashes.append({"winner": winner.short, "loser": chosen.short, "sonames": shared})
                lost = True
        if not names:
            context.note(f"CUDA {chosen.short} is not registered: its sonames are not known")
        elif not lost:
            chosen.registered = True
            winners.append(chosen)
    return {
        "file": FILE,
        "directories": [f"{winner.path(context)}/lib64" for winner in winners],
        "clashes": clashes,
    }


def check_cudnn(context: ResolveContext, toolkits: dict[str, Chosen], stacks: list[Stack]) -> None:
    """Refuse a registered cuDNN that would be mixed into a stack whose own lacks a library.

    A stack's cuDNN may open a library that its wheel lacks: the linker cache then provides another
    version's (rules.yml, cudnn_wheels_lack).
    """
    for stack in stacks:
        own = stack.build.cudnn_in_wheels if stack.source == "pip" else None
        for rule in facts.rules("cudnn_wheels_lack"):
            if own is None or not versions.within(own, rule):
                continue
            context.note(
                f"{stack.spec.name}: its cuDNN {own} opens {rule['file']}, which its wheel lacks; "
                f"a cuDNN {rule['fixed']} or newer in the linker cache would be mixed in"
            )
            for chosen in toolkits.values():
                _refuse_mixing(context, stack, rule, chosen)


def _refuse_mixing(
    context: ResolveContext, stack: Stack, rule: dict[str, str], chosen: Chosen
) -> None:
    for picked in chosen.majors.values() if chosen.registered else ():
        have = picked.archive.version
        if picked.archive.major == versions.major(rule["fixed"]) and (
                versions.key(have) >= versions.key(rule["fixed"])):
            context.refuse(
                Code.CUDNN_CLASH,
                f"{stack.build.name} opens {rule['file']}, which its own cuDNN lacks; that of "
                f"cuDNN {have} in cuda-{chosen.short}, which is in the linker cache, would be "
                "mixed in",
                stack.spec.where,
                f"declare cuDNN {stack.build.cudnn} or older for toolkit {chosen.short}, or "
                f"another {stack.build.title}",
            )
