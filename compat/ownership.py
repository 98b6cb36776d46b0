"""Ownership: whether what stands in a planned place is ours.

A tree is ours when it has a receipt, or a journal entry from an installation that did not finish.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .case import Case
from .host import Host
from .problems import Code


def foreign(host: Host, kind: str, identity: str, stands: bool) -> bool:
    """Whether something stands there that we did not install."""
    ours = host.receipt(kind, identity) or host.journal(kind, identity)
    return stands and not ours and host.section("receipts") is not None


def foreign_toolkit(host: Host, row: Mapping[str, Any]) -> bool:
    return foreign(host, "toolkit", row["short"], host.tree(row["path"]) is not None)


def foreign_cudnn(host: Host, row: Mapping[str, Any]) -> bool:
    """Whether a toolkit of ours has libraries of that cuDNN that somebody else put there."""
    libraries = host.cudnn_libraries(row["toolkit_path"], row["soname"])
    ours = host.receipt("toolkit", row["toolkit"]) is not None
    return ours and foreign(host, "cudnn", row["id"], bool(libraries))


def foreign_stack(host: Host, row: Mapping[str, Any]) -> bool:
    return foreign(host, "stack", row["name"], host.stack(row["name"]) is not None)


def foreign_default(host: Host) -> bool:
    """Whether a directory or file stands where the default link belongs."""
    link = host.default_link
    return link is not None and str(link.get("state")) in {"directory", "file"}


def check(case: Case, plan: Mapping[str, Any], places: Mapping[str, str]) -> None:
    """Refuse to install over what we did not install.

    `places` tells for each toolkit's path and each stack's venv where it was wished.
    """

    def refuse(path: str, what: str, where: str) -> None:
        case.refuse(
            Code.FOREIGN_TREE,
            f"{path} is there already, and gpufleet did not install it ({what} belongs there)",
            where,
            f"move it away (mv {path} {path}.old), or have it adopted once that is available",
        )

    for row in plan["toolkits"]:
        if foreign_toolkit(case.host, row):
            refuse(row["path"], f"CUDA {row['version']}", places[row["path"]])
    for row in plan["cudnn"]:
        if foreign_cudnn(case.host, row):
            path = f"{row['toolkit_path']}/lib64/{row['soname']}"
            refuse(path, f"cuDNN {row['version']}", places[row["toolkit_path"]])
    for row in plan["stacks"]:
        if foreign_stack(case.host, row):
            refuse(row["venv"], f"the stack {row['name']}", places[row["venv"]])
    if plan["default_link"] and foreign_default(case.host):
        refuse(plan["default_link"]["path"], "the link to the default toolkit", "gpu_cuda_default")
