"""The planned directories that the linker's file and cache lack."""

from __future__ import annotations

from gpufleet.components.base.change import change, unobserved
from gpufleet.components.base.host import Host
from gpufleet.components.cuda.linker_plan import FILE
from gpufleet.documents.plan import Plan, PlanChange
from gpufleet.documents.types import Row


def linker_change(host: Host, plan: Plan) -> PlanChange | None:
    """The linker's file must list our directories, and its cache must have read them."""
    wanted = plan["linker"]["directories"]
    path = plan["linker"].get("file", FILE)
    if found := unobserved(host, "linker", path, "linker"):
        return found
    files = [row for row in host.linker_files if row.get("path") == path]
    rows = files[0].get("directories") or [] if files else None
    listed = rows if rows is None or isinstance(rows, list) else [rows]
    if listed is None and not wanted:
        return None
    if listed != wanted:
        because = f"{path} is missing" if listed is None else f"{path} {_unlike(listed, wanted)}"
        return change("linker", path, "install", because)
    off = [f"still has {each}" for each in _stale(host, wanted)]
    off += [f"lacks {each}" for each in _lacking(host, plan)]
    return change("linker", path, "install", f"the linker cache {off[0]}") if off else None


def _unlike(listed: list[str], wanted: list[str]) -> str:
    """How the file's directories differ from the planned ones, with the variables that say so."""
    declared = "gpu_toolkits, gpu_stacks"
    if lacking := [each for each in wanted if each not in listed]:
        return f"does not list {', '.join(lacking)} ({declared})"
    if more := [each for each in listed if each not in wanted]:
        return f"lists {', '.join(map(str, more))}, which no declared toolkit has ({declared})"
    return f"lists its directories in another order: {wanted[0]} comes first (gpu_cuda_default)"


def _cached(host: Host, directory: str) -> list[Row]:
    """The cache's entries from a toolkit's library directory.

    ldconfig reads a directory once, under the first name that any file gives it, so an entry also
    counts when it only leads into the same toolkit.
    """
    root = directory.removesuffix("/lib64")
    return [
        row
        for row in host.linker_cache
        if str(row.get("path")).startswith(f"{directory}/")
        or str(row.get("realpath")).startswith(f"{root}/")
    ]


def _stale(host: Host, directories: list[str]) -> list[str]:
    """Entries from our directories whose file is gone."""
    rows = [row for directory in directories for row in _cached(host, directory)]
    return [str(row["path"]) for row in rows if row.get("exists") is False]


def _lacking(host: Host, plan: Plan) -> list[str]:
    """Directories that the cache does not list, and cuDNN that it lacks in a registered one."""
    found = []
    for directory in plan["linker"]["directories"]:
        cached = {str(row.get("soname")) for row in _cached(host, directory)}
        root = directory.removesuffix("/lib64")
        planned = [row["soname"] for row in plan["cudnn"] if row["toolkit_path"] == root]
        found += [] if cached else [directory]
        found += [f"{directory}/{soname}" for soname in planned if soname not in cached]
    return found
