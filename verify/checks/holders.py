"""Who else holds a GPU: a host on which others compute is not thereby a broken one."""

from __future__ import annotations

import re
from typing import Any

from ..verdict import Verdict
from .registry import Document, Finding, Sections, shortened

# What libraries say when there was no memory left for them.
NO_ROOM = re.compile(
    r"out of memory|OUT_OF_MEMORY|cudaErrorMemoryAllocation|ALLOC_FAILED|NOT_INITIALIZED"
    r"|Blas (?:x?GEMM|SGEMM) launch failed|OOM when allocating|Resource ?[Ee]xhausted"
    r"|failed to create cublas handle", re.IGNORECASE)
# With so much free on every GPU, nobody's job is why there was no room.
ROOMY_MIB = 4096
# Daemons that have the device files open and compute nothing.
DAEMONS = re.compile(
    r"^(nvidia-persiste|nv-fabricmanage|nvidia-fabric|nv-hostengine|dcgm|nvidia-imex|Xorg)")


def holders(seen: Sections) -> list[str] | None:
    """`pid 4711 (ann, python3)` of each process that computes on a GPU; None if nobody looked.

    They never make a verdict of their own, and so the sections need not have been read.
    """
    data = {name: (seen.snapshot["sections"].get(name) or {}).get("data") or {}
            for name in ("driver", "smi")}
    listed = data["driver"].get("holders")
    known: dict[int, tuple[str, str]] = {
        row["pid"]: (str(row["user"]), str(row["command"])) for row in listed or []
        if not DAEMONS.match(str(row["command"]))}
    devices = data["smi"].get("devices")
    for device in devices or []:
        for row in device.get("processes") or []:
            known.setdefault(row["pid"], ("unknown user", str(row["name"]).rpartition("/")[2]))
    if listed is None and not devices:
        return None
    return [f"pid {pid} ({user}, {command})" for pid, (user, command) in sorted(known.items())]


def _roomy(seen: Sections) -> bool:
    """Whether nvidia-smi saw enough free memory on every GPU."""
    data = (seen.snapshot["sections"].get("smi") or {}).get("data") or {}
    free = [device.get("memory_free_mib") for device in data.get("devices") or []]
    return bool(free) and all(each is not None and each > ROOMY_MIB for each in free)


def held(where: str, entry: Document, seen: Sections) -> Finding | None:
    """That a GPU is busy with others' work, if that is why an entry proves nothing.

    Without memory and without anybody who has it, it is a fault like any other.
    """
    busy: dict[str, Any] | None = entry.get("busy")
    if not busy and not NO_ROOM.search(entry["error"] or ""):
        return None
    others = holders(seen)
    if not busy and (others == [] or _roomy(seen)):
        return None
    who = f"held by {shortened(others)}" if others else (
        "by whom was not seen" if others is None else "and no process of this host is seen to hold"
        " the rest")
    free = f"only {busy['free_mib']} MiB of its memory are free, {busy['wanted_mib']} are wanted" \
        if busy else f"it has no memory left ({entry['error']})"
    return Finding(
        f"{where} was not tried: {free}; {who}",
        "wait until they have ended, or have them ended; then ./gpufleet verify",
        "\n".join(others or []), Verdict.INCONCLUSIVE)
