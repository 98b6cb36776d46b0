"""Processes of others on a GPU: a test that found no room on it is INCONCLUSIVE, not a failure."""

from __future__ import annotations

import re
from dataclasses import replace

from gpufleet.documents.sections.compute import Busy
from gpufleet.documents.sections.gpu import SmiDevice
from gpufleet.documents.verdict import Verdict

from . import subjects
from .registry import Finding, shortened
from .sections import Sections

# Errors of libraries when no memory is left; the vague ones have other causes as well.
NO_ROOM = re.compile(
    r"out of memory|OUT_OF_MEMORY|cudaErrorMemoryAllocation|ALLOC_FAILED"
    r"|Blas (?:x?GEMM|SGEMM) launch failed|OOM when allocating|Resource[ _]?exhausted"
    r"|failed to create cublas handle|(?P<vague>(?<!CUDA_ERROR_)NOT_INITIALIZED"
    r"|DNN library initialization failed|cuSolver internal error|Failed to create cuFFT"
    r"|(?:CUDNN_STATUS|CUSOLVER_STATUS|CUFFT)_INTERNAL_ERROR)",
    re.IGNORECASE,
)
# With so much free memory on every GPU, no other job is the cause.
ROOMY_MIB = 4096
# With less free memory on the GPU itself, a library may fail to start.
FULL_MIB = 1024
# Daemons and desktops that open the device files and compute nothing. The kernel keeps 15
# characters of a name.
DAEMONS = {
    short
    for name in (
        "nvidia-persistenced",
        "nv-fabricmanager",
        "nvidia-fabricmanager",
        "nv-hostengine",
        "dcgm-exporter",
        "nvidia-imex",
        "Xorg",
    )
    for short in (name, name[:15])
}


def holders(observed: Sections) -> list[str] | None:
    """`pid 4711 (ann, python3)` of each process that computes on a GPU; None if that is unknown.

    Without root only nvidia-smi lists processes, and in a container none outside it are listed: an
    empty list proves nothing there.
    """
    data = observed.read_elsewhere()
    listed = data["driver"].get("holders") if "driver" in data else None
    known = {
        row["pid"]: (str(row["user"]), str(row["command"]))
        for row in listed or []
        if str(row["command"]) not in DAEMONS
    }
    if listed is None:
        rows = [
            row
            for device in (data["smi"].get("devices") or [] if "smi" in data else [])
            for row in device.get("processes") or []
        ]
        named = {row["pid"]: str(row["name"]).rpartition("/")[2] for row in rows}
        known = {pid: ("unknown user", name) for pid, name in named.items() if name not in DAEMONS}
    container = data["kernel"].get("container") if "kernel" in data else None
    if not known and (listed is None or container):
        return None
    return [f"pid {pid} ({user}, {command})" for pid, (user, command) in sorted(known.items())]


# From this utilization on others compute on a GPU, in percent; one that calls itself idle may just
# have been started.
IN_USE, IN_USE_THOUGH_IDLE = 10, 50


def used_by_others(card: SmiDevice, observed: Sections) -> str | None:
    """The processes or load of others on a GPU, which excuse its speed; None if none is known."""
    data = observed.read_elsewhere()
    # A job may have started during the test: by then the processes of the test itself have ended.
    again = [
        each
        for each in (data["smi_after"].get("devices") or [] if "smi_after" in data else [])
        if card["address"] and each["address"] == card["address"]
    ]
    rows = [
        row
        for each in (card, *again)
        for row in each["processes"]
        if str(row["name"]).rpartition("/")[2] not in DAEMONS
    ]
    if rows:
        return "processes of others on it: " + shortened(
            list(dict.fromkeys(f"pid {row['pid']} ({row['name']})" for row in rows))
        )
    percent = card["utilization_percent"] or 0
    if percent >= (IN_USE_THOUGH_IDLE if "idle" in (card["throttle"] or []) else IN_USE):
        return f"a utilization of {percent} % before the test"
    listed = data["driver"].get("holders") or [] if "driver" in data else []
    # A program that only monitors a GPU does not open the second file.
    files = {f"/dev/nvidia{card['index']}", "/dev/nvidia-uvm"}
    held = [
        f"pid {row['pid']} ({row['user']}, {row['command']})"
        for row in listed
        if files <= {*row["nodes"]} and str(row["command"]) not in DAEMONS
    ]
    return f"processes that hold it: {shortened(held)}" if held else None


def _cards(observed: Sections, device: str | int | None) -> tuple[list[SmiDevice], list[SmiDevice]]:
    """The reports of nvidia-smi on all GPUs, and on the one that was tried (on all, if unknown)."""
    data, own = observed.read_elsewhere(), addresses(observed, device)
    cards = data["smi"].get("devices") or [] if "smi" in data else []
    return cards, [card for card in cards if card.get("address") in own] or cards


def addresses(observed: Sections, device: str | int | None) -> set[str]:
    """The PCI address of the GPU that CUDA numbers so, as toolkits list it; empty if unknown."""
    data = observed.read_elsewhere()
    runs = data["compute"].get("runs") or [] if "compute" in data else []
    match = re.search(r"\d+$", str(device))
    return {
        shown["address"]
        for run in runs
        for shown in run["devices"]
        if match and shown["index"] == int(match[0]) and shown["address"]
    }


def _used_by_others(error: str, device: str | int | None, observed: Sections) -> str | None:
    """How other processes may have caused an error, unless nvidia-smi rules it out."""
    if subjects.TAKEN.search(error):
        _, own = _cards(observed, device)
        modes = {card.get("compute_mode") for card in own} - {None}
        only = not modes or "exclusive_process" in modes
        return f"another process uses it exclusively ({error})" if only else None
    found = NO_ROOM.search(error)
    if not found:
        return None
    cards, own = _cards(observed, device)
    free = [card.get("memory_free_mib") for card in (own if found["vague"] else cards)]
    enough = [
        mib is not None and mib >= (FULL_MIB if found["vague"] else ROOMY_MIB) for mib in free
    ]
    return None if free and all(enough) else f"it has no memory left ({error})"


def busy_finding(
    where: str,
    error: str | None,
    observed: Sections,
    *,
    device: str | int | None = None,
    busy: Busy | None = None,
) -> Finding | None:
    """An INCONCLUSIVE finding, if other processes on the GPU are why an attempt proves nothing.

    `device` is the GPU that was tried: its index, or a name that ends with it. Missing memory that
    no process uses is a fault like any other.
    """
    why = (
        f"only {busy['free_mib']} MiB of its memory are free, {busy['wanted_mib']} are needed"
        if busy
        else _used_by_others(error or "", device, observed)
    )
    if not why:
        return None
    others = holders(observed)
    if not busy and others == []:
        return None
    who = (
        f"held by {shortened(others)}"
        if others
        else (
            "its processes are unknown"
            if others is None
            else "no process of this host is known to use the rest"
        )
    )
    return Finding(
        f"{where} was not tested: {why}; {who}",
        "wait until these processes end, or end them; then ./gpufleet verify",
        "\n".join(others or []),
        Verdict.INCONCLUSIVE,
        about=(_held(device),),
        held=bool(others),
    )


def _held(device: str | int | None) -> str:
    found = re.search(r"\d+$", str(device))
    return f"{subjects.BUSY}/{found[0]}" if found else subjects.BUSY


# Sections that start CUDA.
CUDA_SECTIONS = {"driver", "compute", "stacks", "containers"}
# And those that ask the driver.
DRIVER_SECTIONS = CUDA_SECTIONS | {"smi", "smi_after"}


def behind_driver(finding: Finding, observed: Sections, section: str | None = None) -> Finding:
    """The finding of a section that asks the driver, or of what was computed.

    What hung as a whole is explained by each failure of a card of the driver: one that waits for a
    card answers nobody. Where it answered for all of them afterwards, it did not wait. Where a
    single card hung, others failed for reasons of their own.
    """
    found = (
        behind_mps(finding, observed) if section is None or section in CUDA_SECTIONS else finding
    )
    whole = len(found.about) == 1 and not found.about[0].startswith("card/")
    if found.verdict is not Verdict.HUNG or not whole:
        return found
    data = observed.read_elsewhere()
    pci = data["gpus"]["pci"] if "gpus" in data else []
    bus = [card["address"] for card in pci if card["driver"] == "nvidia"]
    after = data.get("smi_after")
    if after and not after["error"] and {*bus} <= {card["address"] for card in after["devices"]}:
        return found
    cards = [subject for address in bus for subject in subjects.card(address)]
    own = [f"silent/{section}"] if found.about == (subjects.section(section or ""),) else []
    return replace(found, about=subjects.either(*own, *found.about, *cards))


def behind_mps(finding: Finding, observed: Sections) -> Finding:
    """The finding; INCONCLUSIVE instead of HUNG, where an MPS server may own the GPUs.

    A program that starts CUDA can wait for another account's server. As long as nvidia-smi lists
    the GPUs, the driver itself answers.
    """
    if finding.verdict is not Verdict.HUNG:
        return finding
    data = observed.read_elsewhere()
    servers = data["gpus"].get("mps") or [] if "gpus" in data else []
    answers = "smi" in data and bool(data["smi"].get("devices"))
    if not servers or not answers:
        return finding
    named = [f"pid {row['pid']} ({row['user']}, {row['command']})" for row in servers]
    return replace(
        finding,
        verdict=Verdict.INCONCLUSIVE,
        cause=f"{finding.cause}; an MPS server may own the GPUs: {shortened(named)}",
        remedy="wait until its programs end, or have its account stop it (echo quit |"
        " nvidia-cuda-mps-control); then ./gpufleet verify",
    )
