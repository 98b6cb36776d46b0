"""Peer access between GPUs that NVLink connects, as the driver reports it.

Active links alone prove nothing: hosts were seen whose links were all up and whose driver offered
no pair of GPUs peer access.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import Literal

from gpufleet.catalog import model_names
from gpufleet.checks.base.registry import HARDWARE, Evidence, Finding, check, no_gpus_declared
from gpufleet.checks.base.sections import Sections
from gpufleet.model.plan import Plan
from gpufleet.model.sections.gpu import GpuNvlinks
from gpufleet.model.verdict import Verdict

from .confidential import BECAUSE, is_without_peers
from .identity import cards, unknown_without_cards

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
    names = {str(card["address"]): card["name"] or "" for card in cards(observed)}
    rows = [
        row
        for row in observed.data["smi"].get("nvlink") or []
        if not row["mig"] and not model_names.is_share(names.get(str(row["address"]), ""))
    ]
    gpus = [_Linked(row) for row in rows]
    connected = [pair for pair in combinations(gpus, 2) if pair[0].reaches(pair[1])]
    wrong: dict[tuple[str, frozenset[int]], list[str]] = defaultdict(list)
    unread, fine = [], 0
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
    if unread:
        yield Finding(
            f"NVLink connects GPUs {_listed(unread)}, and NVML did not report their peer access",
            "on the host: nvidia-smi topo -p2p n; then ./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
        )
    yield Evidence(
        f"{fine} of {len(connected)} pairs of GPUs that NVLink connects have peer access"
        if connected
        else "NVLink connects no two GPUs"
    )


class _Linked:
    """A GPU, what its active links lead to, and NVML's answers about the other GPUs."""

    def __init__(self, row: GpuNvlinks) -> None:
        self.index, self.address = row["index"], row["address"]
        active = [link for link in row["links"] or [] if link["active"]]
        self.by_switch = any(link["remote"] == "switch" for link in active)
        self.ends = {link["remote_address"] for link in active} - {None}
        self.peers: dict[int, dict[Question, int | None]] = {
            each["index"]: {name: each[name] for name in UNREAD} for each in row.get("peers") or []
        }

    def reaches(self, other: _Linked) -> bool:
        """Whether active links lead to the other GPU, directly or by switches."""
        return (self.by_switch and other.by_switch) or other.address in self.ends


def _listed(pairs: list[str]) -> str:
    more = f" and {len(pairs) - MOST_PAIRS} more pairs" if len(pairs) > MOST_PAIRS else ""
    return "; ".join(pairs[:MOST_PAIRS]) + more
