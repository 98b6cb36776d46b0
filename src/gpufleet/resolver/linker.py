"""The linker cache: which toolkits' libraries the whole host sees.

A toolkit is registered when no other registered one offers the same sonames. On a clash the
default wins, then the newest. A stack does not depend on it: it is bound to its own toolkit.
"""

from __future__ import annotations

from typing import Any

from gpufleet.catalog import facts, versions

from .context import ResolveContext
from .toolkits import Chosen

Row = dict[str, Any]

FILE = "/etc/ld.so.conf.d/gpufleet-cuda.conf"


def offered(chosen: Chosen) -> list[str]:
    """The sonames that a toolkit's tree offers, those of its cuDNN included."""
    own = [picked.archive.row["soname"] for _, picked in sorted(chosen.majors.items())]
    return [*facts.toolkit_sonames(chosen.short), *own]


def register(context: ResolveContext, toolkits: dict[str, Chosen]) -> Row:
    """Mark the registered toolkits; the linker's part of the plan.

    Directories stand in the order of the linker's search: the default first, then the newest.
    """
    order = sorted(
        toolkits.values(),
        key=lambda each: (each.default, versions.key(each.toolkit.version)),
        reverse=True,
    )
    clashes: list[Row] = []
    winners: list[Chosen] = []
    for chosen in order:
        names = offered(chosen)
        beaten = False
        for winner in winners:
            shared = [name for name in names if name in offered(winner)]
            if shared:
                clashes.append({"winner": winner.short, "loser": chosen.short, "sonames": shared})
                beaten = True
        if not names:
            context.note(f"CUDA {chosen.short} is not registered: its sonames are not known")
        elif not beaten:
            chosen.registered = True
            winners.append(chosen)
    return {
        "file": FILE,
        "directories": [f"{winner.path(context)}/lib64" for winner in winners],
        "clashes": clashes,
    }
