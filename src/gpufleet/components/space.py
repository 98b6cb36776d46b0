"""Disk space: refuse a host without room for what is not installed yet, or with a noexec tmpdir.

Sizes are estimated (catalog/estimates.py); a note names what has no estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufleet.catalog.estimates import installed_mib
from gpufleet.components.cuda import cudnn, toolkit
from gpufleet.documents.problems import Code

from .base.context import ResolveContext

# Where temporary files go, and where installers run if nothing can be run there.
DEFAULT, OTHER = "/tmp", "/var/tmp"


def check(context: ResolveContext, plan: Mapping[str, Any]) -> None:
    """Refuse a host without room for what is not installed, and an installer that cannot run.

    Needs are added up for each file system: all trees and stacks count, and the largest of the
    installers' temporary files, because installers run one after another.
    """
    needs: list[tuple[str, int, str]] = []  # directory, MiB, what for
    unknown: list[str] = []

    def want(directory: str, mib: int | None, what: str) -> None:
        if mib is None:
            unknown.append(what)
        else:
            needs.append((directory, mib, what))

    temporary: list[tuple[int, str]] = []
    # A component that will be adopted needs no room; other foreign ones were refused.
    toolkits = [
        row
        for row in plan["toolkits"]
        if not _installed(context, "toolkit", row["short"], _tree_is_gone(context, row["path"]))
        and not toolkit.is_foreign(context.host, row)
    ]
    for row in toolkits:
        want(context.spec.prefix, row["installed_mib"], f"CUDA {row['short']}")
        generation = "perl" if row["generation"] == "perl" else "cuda_installer"
        size = row["artifact"]["size_bytes"]
        if (mib := installed_mib(f"toolkit_tmp_{generation}", size)) is not None:
            temporary.append((mib, f"the installer of CUDA {row['short']}"))
    for row in plan["cudnn"]:
        gone = _tree_is_gone(context, row["toolkit_path"])
        installed = _installed(context, "cudnn", row["id"], gone)
        if not installed and not cudnn.is_foreign(context.host, row, adopting=True):
            want(context.spec.prefix, row["installed_mib"], f"cuDNN {row['version']}")
    for row in plan["stacks"]:
        # An installation that was started uses what is there, or removes it first.
        started = context.host.journal("stack", row["name"])
        gone = bool(context.host.section("stacks")) and not context.host.stack(row["name"])
        if not started and not _installed(context, "stack", row["name"], gone):
            want(context.spec.stack_root, row["installed_mib"], row["name"])
    if temporary:
        needs.append((plan["tmpdir"], *max(temporary)))
    if unknown:
        context.note("Disk space is unchecked for: " + ", ".join(unknown) + " (size not known)")
    _check_room(context, needs)
    if toolkits and plan["tmpdir"] != context.spec.tmpdir:
        context.note(
            f"{context.spec.tmpdir} is mounted noexec: NVIDIA's installer runs from"
            f" {plan['tmpdir']}"
        )
    if toolkits and context.host.noexec(plan["tmpdir"]):
        context.refuse(
            Code.NOEXEC_TMP,
            f"{plan['tmpdir']} is mounted noexec, and NVIDIA's installer runs from there",
            "gpu_tmpdir",
            "set gpu_tmpdir to a directory on a file system without noexec, such as /var/tmp",
        )


def tmpdir(context: ResolveContext) -> str:
    """Where installers run: where a hardened image keeps programs from running, another place.

    A directory that a person chose is not replaced.
    """
    host, wanted = context.host, context.spec.tmpdir
    if wanted != DEFAULT or not host.noexec(wanted) or OTHER not in host.rooms:
        return wanted
    return wanted if host.noexec(OTHER) else OTHER


def _installed(context: ResolveContext, kind: str, identity: str, gone: bool) -> bool:
    """Return whether a component is there. If a person removed it, it is installed again."""
    return context.host.receipt(kind, identity) is not None and not gone


def _tree_is_gone(context: ResolveContext, path: str) -> bool:
    return bool(context.host.section("toolkits")) and context.host.tree(path) is None


def _check_room(context: ResolveContext, needs: list[tuple[str, int, str]]) -> None:
    rooms: dict[str, tuple[int, str]] = {}
    wanted: dict[str, list[tuple[str, int, str]]] = {}
    for need in needs:
        room = context.host.room(need[0])
        if room is None:
            context.note(f"Disk space is unchecked in {need[0]}: the free space is not known")
            continue
        rooms[room.filesystem] = (room.free_mib, room.directory)
        wanted.setdefault(room.filesystem, []).append(need)
    for system, (free, _) in rooms.items():
        total = sum(mib for _, mib, _ in wanted[system])
        if total <= free:
            continue
        directories = " and ".join(dict.fromkeys(directory for directory, _, _ in wanted[system]))
        parts = ", ".join(f"{what} {mib}" for _, mib, what in wanted[system])
        context.refuse(
            Code.DISK_FULL,
            f"{directories}: {total} MiB needed, {free} MiB free ({parts}; estimated)",
            f"host {context.host.name}".strip(),
            f"free {total - free} MiB, or set gpu_prefix, gpu_stack_root or gpu_tmpdir to a "
            "larger file system",
        )
