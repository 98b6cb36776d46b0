"""How much of a GPU's memory the test of its copies filled with patterns, or why it filled none."""

from __future__ import annotations

from gpufleet.components.base.registry import Evidence, Finding
from gpufleet.documents.sections.compute import BandwidthResult
from gpufleet.documents.verdict import Verdict

# Why the free memory of a GPU was not filled with patterns, where others may need it.
UNFILLED = {
    "programs": (
        "other programs compute on it",
        "./gpufleet verify --deep when nobody else uses the GPU; on a workstation close browsers"
        " and players as well",
    ),
    "in-use": (
        "more of it is in use than this test's own, and NVML lists no program that computes",
        "end the programs of containers that use the GPU, and the desktop that it shows; on a Grace"
        " host free the page cache (echo 1 >/proc/sys/vm/drop_caches); then ./gpufleet verify"
        " --deep",
    ),
    "display": (
        "its display and the programs that draw need it",
        "close the programs that draw, and log out of the desktop; if that is not enough, stop the"
        " display (systemctl isolate multi-user.target); then ./gpufleet verify --deep",
    ),
}
# Why it need not be filled.
UNFILLED_BY_DESIGN = {
    "integrated": "it is the host's memory",
    "virtual": "NVML does not say whose memory of a virtual GPU is in use",
}


def filled(entry: BandwidthResult) -> Finding | Evidence:
    """How much memory keeps its content; the copies alone have 256 MiB of it."""
    gpu, filled, unfilled = f"GPU {entry['gpu']}", entry.get("filled_mib"), entry.get("unfilled")
    if filled:
        return Evidence(f"{gpu}: {filled} MiB of its memory keep what is written")
    if unfilled in UNFILLED:
        reason, remedy = UNFILLED[unfilled]
        return Finding(
            f"{gpu}: its free memory was not filled with patterns: {reason}",
            remedy,
            verdict=Verdict.INCONCLUSIVE,
        )
    # The workload of an earlier version does not say why; one that ended early has its own finding.
    said = "unfilled" in entry and not entry["error"] and not entry["busy"]
    if said and unfilled is None:
        return Finding(
            f"{gpu}: none of its free memory was filled with patterns: too little was free",
            "end what uses the GPU's memory (nvidia-smi lists it); then ./gpufleet verify --deep",
            verdict=Verdict.INCONCLUSIVE,
        )
    because = f": {UNFILLED_BY_DESIGN[unfilled]}" if unfilled in UNFILLED_BY_DESIGN else ""
    return Evidence(f"{gpu}: its free memory was not filled with patterns{because}")
