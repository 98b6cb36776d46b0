"""The linker cache: which toolkits' libraries every program of the host can load.

A toolkit is registered when no other registered one has the same sonames. On a clash the
default wins, then the newest. Stacks do not depend on it: each is bound to its own toolkit.
"""

from __future__ import annotations

from gpufleet.catalog import facts, versions
from gpufleet.components.base.context import ResolveContext
from gpufleet.documents.plan import Clash, PlannedLinker

from .toolkit_plan import Chosen

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
