"""Ownership: whether what stands in a planned place is ours.

A tree is ours when it has a receipt, or a journal entry from an installation that did not finish.
A toolkit or cuDNN of somebody else's becomes ours where the plan says so and it is what is planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpufleet.host_state import adoption
from gpufleet.host_state.host import Host
from gpufleet.model.problems import Code

from . import environment
from .context import ResolveContext


def foreign(host: Host, kind: str, identity: str, stands: bool) -> bool:
    """Whether something stands there that we did not install."""
    ours = host.receipt(kind, identity) or host.journal(kind, identity)
    return stands and not ours and host.section("receipts") is not None


def foreign_toolkit(host: Host, row: Mapping[str, Any]) -> bool:
    stands = host.tree(row["path"]) is not None or host.occupied(row["path"])
    return foreign(host, "toolkit", row["short"], stands)


def foreign_cudnn(host: Host, row: Mapping[str, Any], adopting: bool = False) -> bool:
    """Whether a toolkit of ours has libraries of that cuDNN that somebody else put there.

    `adopting`: a toolkit of somebody else's counts as well, since it becomes ours.
    """
    libraries = host.cudnn_libraries(row["toolkit_path"], row["soname"])
    ours = adopting or host.receipt("toolkit", row["toolkit"]) is not None
    return ours and foreign(host, "cudnn", row["id"], bool(libraries))


def foreign_stack(host: Host, row: Mapping[str, Any]) -> bool:
    stands = host.stack(row["name"]) is not None or host.occupied(row["venv"])
    return foreign(host, "stack", row["name"], stands)


def elsewhere(host: Host, kind: str, identity: str, path: str) -> str | None:
    """Where it is installed by its receipt, if that is not the planned place."""
    found = (host.receipt(kind, identity) or {}).get("path")
    return str(found) if found and found != path else None


def foreign_default(host: Host) -> bool:
    """Whether a directory or file stands where the default link belongs."""
    link = host.default_link
    return link is not None and str(link.get("state")) in {"directory", "file"}


def check(context: ResolveContext, plan: Mapping[str, Any], places: Mapping[str, str]) -> None:
    """Refuse to install over what we did not install.

    `places` tells for each toolkit's path and each stack's venv where it was wished.
    """

    def refuse(path: str, what: str, where: str, otherwise: str = "") -> None:
        context.refuse(
            Code.FOREIGN_TREE,
            f"{path} is there already, and gpufleet did not install it ({what} belongs there)",
            where,
            f"move it away (mv {path} {path}.old){otherwise}",
        )

    def judge(path: str, what: str, where: str, wrong: Iterable[str], away: str) -> None:
        if not plan["adopt"]:
            refuse(path, what, where, ", or have it checked and adopted: gpu_cuda_adopt: true")
        elif reasons := list(wrong):
            context.refuse(
                Code.NOT_ADOPTABLE,
                f"{path} cannot be adopted as {what}: {'; '.join(reasons)}",
                where,
                f"mend that, or {away}: the next run then installs {what}",
            )

    planned = [("toolkit", row["short"], row["path"]) for row in plan["toolkits"]]
    planned += [("stack", row["name"], row["venv"]) for row in plan["stacks"]]
    for kind, identity, path in planned:
        if other := elsewhere(context.host, kind, identity, path):
            context.refuse(
                Code.INSTALLED_ELSEWHERE,
                f"{kind} {identity} is installed in {other}, and declared in {path}",
                places[path],
                f"remove it there first (./gpufleet remove --{kind} {identity}), or declare it "
                "where it stands",
            )
    for row in plan["toolkits"]:
        if foreign_toolkit(context.host, row):
            path, wrong = row["path"], adoption.toolkit(context.host, row)
            away = f"move it away (mv {path} {path}.old)"
            judge(path, f"CUDA {row['version']}", places[path], wrong, away)
    for row in plan["cudnn"]:
        if foreign_cudnn(context.host, row, plan["adopt"]):
            path, wrong = row["toolkit_path"], adoption.cudnn(context.host, row)
            away = f"remove it (rm {path}/lib64/libcudnn*)"
            library = f"{path}/lib64/{row['soname']}"
            judge(library, f"cuDNN {row['version']}", places[path], wrong, away)
    for row in plan["stacks"]:
        if foreign_stack(context.host, row):
            refuse(row["venv"], f"the stack {row['name']}", places[row["venv"]])
    for path, digest in environment.digests(plan["environment"]).items():
        if context.host.foreign_text(path, digest):
            refuse(path, "a file of the stacks' and toolkits' environment", path)
    if plan["default_link"] and foreign_default(context.host):
        refuse(plan["default_link"]["path"], "the link to the default toolkit", "gpu_cuda_default")
