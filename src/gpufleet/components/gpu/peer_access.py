"""Peer access between GPUs that NVLink connects, as the driver reports it.

Active links alone prove nothing: hosts were seen whose links were all up and whose driver offered
no pair of GPUs peer access.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator
from itertools import combinations
from typing import Literal

from gpufleet.catalog import fabric, model_names
from gpufleet.components.base import subjects
from gpufleet.components.base.registry import (
    HARDWARE,
    Evidence,
    Finding,
    check,
    no_gpus_declared,
    shortened,
)
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.gpu import GpuNvlinks
from gpufleet.documents.verdict import Verdict

from .confidential import BECAUSE, is_without_peers
from .identity import cards, unknown_without_cards
from .nvlink import by_card
from .smi_elements import label

# nvmlGpuP2PStatus_t of nvml.h; the texts are those of `nvidia-smi topo -p2p`.
STATUS = {
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by a registry key",
    5: "not supported",
    6: "unknown",
}
DISABLED, UNKNOWN = 4, 6
Question = Literal["read", "write", "nvlink"]
UNREAD: dict[Question, int | None] = {
    "read": None,
    "write": None,
    "nvlink": None,
}
MOST_PAIRS = 4


@check("gpu.peer-access", reads=("smi", "gpus"), repair=HARDWARE, skip_reason=no_gpus_declared)
def peer_access(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """GPUs that NVLink connects can read and write each other's memory."""
    yield from unknown_without_cards(observed, "Peer access between the GPUs")
    if plan["expect"].get("nvlinks") != 0:
        yield from _unread(observed)
    names = {str(card["address"]): card["name"] or "" for card in cards(observed)}
    rows = [
        row
        for row in observed.data["smi"].get("nvlink") or []
        if not row["mig"] and not model_names.is_share(names.get(str(row["address"]), ""))
    ]
    gpus = [_Linked(row, names) for row in rows]
    connected = [pair for pair in combinations(gpus, 2) if pair[0].reaches(pair[1])]
    perhaps = [pair for pair in combinations(gpus, 2) if pair[0].may_reach(pair[1])]
    wrong: dict[tuple[str, frozenset[int]], list[str]] = defaultdict(list)
    unread, unknown, fine = [], [], 0
    for first, second in perhaps:
        answers = first.peers.get(second.index, UNREAD)
        # Where the driver says that NVLink connects them, it does, wherever the links lead.
        if all(status == 0 for status in answers.values()):
            fine += 1
        else:
            unknown.append(f"{first.index} and {second.index}")
    for first, second in connected:
        pair = f"{first.index} and {second.index}"
        answers = first.peers.get(second.index, UNREAD)
        bad = {name: status for name, status in answers.items() if status}
        if bad:
            what = ", ".join(f"{name} {STATUS.get(code, code)}" for name, code in bad.items())
            wrong[what, frozenset(bad.values())].append(pair)
        elif None in answers.values():
            unread.append(pair)
        else:
            fine += 1
    for (what, codes), pairs in wrong.items():
        if is_without_peers(observed):
            yield Evidence(f"GPUs {_listed(pairs)} have no peer access ({what}): {BECAUSE}")
            continue
        yield Finding(
            f"NVLink connects GPUs {_listed(pairs)}, and the driver offers them no peer access:"
            f" {what}",
            "remove the setting that disables it (NVreg_RegistryDwords in /etc/modprobe.d), and"
            " reload the driver"
            if DISABLED in codes
            else "see driver.fabric and kernel.log (Xid 74, SXids); on the host: nvidia-smi topo"
            " -p2p n; drain the host and reboot it",
            verdict=Verdict.INCONCLUSIVE if codes == {UNKNOWN} else Verdict.FAIL,
        )
    if unknown and not is_without_peers(observed):
        yield Finding(
            f"NVML did not report what the active NVLinks of GPUs {_listed(unknown)} lead to, and"
            " the driver offers no peer access between them",
            "on the host: nvidia-smi nvlink -R; nvidia-smi topo -p2p n; then ./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
        )
    if unread:
        yield Finding(
            f"NVLink connects GPUs {_listed(unread)}, and NVML did not report their peer access",
            "on the host: nvidia-smi topo -p2p n; then ./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
        )
    count = len(connected) + len(perhaps)
    yield Evidence(
        f"{fine} of {count} pairs of GPUs that NVLink connects have peer access"
        if count
        else "NVLink connects no two GPUs"
    )


def _unread(observed: Sections) -> Iterator[Finding]:
    """GPUs that may have NVLinks, of which NVML reported none."""
    read = {at for at, row in by_card(observed).items() if row["links"] is not None}
    ids = {device["address"]: device["device"] for device in observed.data["gpus"]["pci"]}
    listed = cards(observed)
    unread = [
        card
        for card in listed
        if card["address"] not in read
        and fabric.nvlinks(card["name"] or "", ids.get(str(card["address"])))
    ]
    if unread and len(listed) > 1:
        yield Finding(
            f"NVML did not report the NVLinks of {shortened([label(card) for card in unread])}, and"
            " so not which GPUs they connect",
            "see gpu.nvlink",
            verdict=Verdict.INCONCLUSIVE,
            about=tuple(name for card in unread for name in subjects.nvlinks(card["address"])),
        )


class _Linked:
    """A GPU, what its active links lead to, and NVML's answers about the other GPUs."""

    def __init__(self, row: GpuNvlinks, gpus: Container[str | None]) -> None:
        self.index, self.address = row["index"], row["address"]
        active = [link for link in row["links"] or [] if link["active"]]
        self.by_switch = any(link["remote"] == "switch" for link in active)
        self.ends = {link["remote_address"] for link in active} - {None}
        # True if NVML reports neither the kind nor the GPU at the other end of an active link.
        self.by_unknown = any(
            link["remote"] is None and link["remote_address"] not in gpus for link in active
        )
        self.peers: dict[int, dict[Question, int | None]] = {
            each["index"]: {name: each[name] for name in UNREAD} for each in row.get("peers") or []
        }

    def reaches(self, other: _Linked) -> bool:
        """Return whether active links lead to the other GPU, directly or by switches."""
        return (self.by_switch and other.by_switch) or other.address in self.ends

    def may_reach(self, other: _Linked) -> bool:
        """Return whether links of both may lead to each other: NVML did not report all ends."""
        known = self.reaches(other) or not (self.by_unknown or other.by_unknown)
        return not known and all(each.by_unknown or each.by_switch for each in (self, other))


def _listed(pairs: list[str]) -> str:
    more = f" and {len(pairs) - MOST_PAIRS} more pairs" if len(pairs) > MOST_PAIRS else ""
    return "; ".join(pairs[:MOST_PAIRS]) + more
