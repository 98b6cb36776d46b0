"""The loads of a burn-in beside the GPUs, and their judgement: a disk, and all links. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpufleet.components.base.registry import shortened
from gpufleet.documents.commission import Reason
from gpufleet.documents.sections.compute import ComputeRun, LinkLoad
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.validator import section_data
from gpufleet.documents.verdict import Verdict

from .decision import DISK, LINKS, reason

# Notes on a load, and why it does not pass.
Found = tuple[list[str], list[Reason]]
# An end of a link that is the host's memory.
HOST = None
MOST_NAMED = 8


def beside(snapshot: Snapshot | None, gpus: int) -> Found:
    """Notes and reasons on the loads beside so many GPUs."""
    notes, reasons = [], []
    for found in (disk_load(snapshot), links_load(snapshot, gpus)):
        notes += found[0]
        reasons += found[1]
    return notes, reasons


def runs(snapshot: Snapshot | None) -> Sequence[ComputeRun]:
    """The compute runs with each toolkit, the newest first."""
    data = section_data(snapshot) if snapshot else {}
    return data["compute"]["runs"][::-1] if "compute" in data else []


def disk_load(snapshot: Snapshot | None) -> Found:
    """A note on the disk that a burn-in has loaded, and why it does not pass."""
    found = next((disk for run in runs(snapshot) if (disk := run.get("disk"))), None)
    again = "free space there, and commission the host again"
    if found is None or found["error"] or not found["rounds"]:
        why = found and found["error"]
        cause = f"No disk was loaded: {why or 'nothing was written and read back'}"
        return [], [reason(DISK, Verdict.INCONCLUSIVE, cause, again)]
    what = f"{found['rounds']} rounds of {found['mib']} MiB in {found['directory']}"
    rates = f"{found['write_mib_s']:g} MiB/s written, {found['read_mib_s']:g} MiB/s read"
    if found["wrong"]:
        cause = (
            f"{found['wrong']} blocks of 4 MiB changed between writing and reading"
            f" {found['directory']}, in {found['rounds']} rounds"
        )
        remedy = "on the host: see dmesg and smartctl -x; replace the drive, or test the memory"
        return [], [reason(DISK, Verdict.FAIL, cause, remedy, f"{what}: {rates}")]
    return [f"The disk beside the GPUs: {what}, {rates}, each block as it was written."], []


def links_load(snapshot: Snapshot | None, gpus: int) -> Found:
    """A note on the links that a burn-in has loaded, and why they do not pass."""
    entries = loaded_links(snapshot)
    by_ends = {(entry["from"], entry["to"]): entry for entry in entries}
    ends = [*range(gpus), HOST]
    lost = []
    for a, b in ((a, b) for a in ends for b in ends if a != b):
        entry = by_ends.get((a, b))
        if entry is None or entry["error"]:
            lost.append(f"{way(a, b)} ({entry['error'] if entry else 'not loaded'})")
        elif not entry["checked"] and entry["access"] is not False:
            lost.append(f"{way(a, b)} (nothing was compared)")
    if wrong := [entry for entry in entries if entry["wrong"]]:
        return [], [_changed(wrong)]
    if lost:
        cause = f"Not all links were loaded: {shortened(lost, MOST_NAMED)}"
        remedy = "see gpu.peer and kernel.log; then commission the host again"
        return [], [reason(LINKS, Verdict.INCONCLUSIVE, cause, remedy, "\n".join(lost))]
    apart = [entry for entry in entries if entry["access"] is False]
    loaded = [entry for entry in entries if entry["checked"]]
    pairs = sum(HOST not in {entry["from"], entry["to"]} for entry in loaded)
    notes = [
        f"The links beside the GPUs, all at once: {pairs} directions between GPUs and"
        f" {len(loaded) - pairs} with the host, {sum(entry['gib'] for entry in loaded):.0f} GiB;"
        f" {sum(entry['checked'] for entry in loaded)} blocks compared, each as it was sent."
    ]
    if apart:
        notes.append(
            "Not loaded, since these GPUs cannot address each other's memory: "
            + shortened([way(entry["from"], entry["to"]) for entry in apart], MOST_NAMED)
            + "."
        )
    return notes, []


def loaded_links(snapshot: Snapshot | None) -> list[LinkLoad]:
    """The load of each direction of a link; empty where none was loaded."""
    return next((links for run in runs(snapshot) if (links := run.get("fabric"))), None) or []


def way(a: int | None, b: int | None) -> str:
    """A direction as messages name it."""
    return " to ".join("the host" if end is HOST else f"GPU {end}" for end in (a, b))


def _changed(wrong: Sequence[LinkLoad]) -> Reason:
    """Why blocks that changed fail the host: of one link, or of all links of one GPU."""
    listed = [
        f"{entry['wrong']} of {entry['checked']} blocks changed on the way from"
        f" {way(entry['from'], entry['to'])}"
        for entry in wrong
    ]
    cause = f"{listed[0]}, while all GPUs and links were loaded"
    if listed[1:]:
        cause += f"; and on {len(listed) - 1} other ways"
    ends = [{entry["from"], entry["to"]} - {HOST} for entry in wrong]
    times = Counter(gpu for each in ends for gpu in each)
    common = [gpu for gpu, count in times.items() if count == len(wrong)]
    if len(common) == 1 and len(wrong) > 1:
        # On its own, so that the pair before it does not hide which one of them is at fault.
        cause += f". GPU {common[0]} is an end of all of them"
    remedy = (
        "see kernel.log, gpu.nvlink and gpu.pcie; put the GPU into another slot to tell it from"
        " the slot, its riser or the switch, and replace what the error follows"
    )
    return reason(LINKS, Verdict.FAIL, cause, remedy, "\n".join(listed))
