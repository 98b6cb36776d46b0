"""GPUs, MIG instances and values that the driver shows to root and not to the probe's account.

NVML counts a GPU whose device file it may not open, and nvidia-smi does not list it. With MIG on,
values of the whole GPU are for root (NVIDIA/nvidia-container-toolkit issues 842 and 1740).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpufleet.components.base import subjects
from gpufleet.components.base.registry import AS_ROOT, Finding, shortened
from gpufleet.components.base.sections import Sections
from gpufleet.documents.sections.gpu import NodeAccess
from gpufleet.documents.verdict import Verdict

_DENIED = re.compile(r"insufficient permission|no permission", re.IGNORECASE)
_CARD_NODE = re.compile(r"/dev/nvidia\d+")
# The remedy of a value that is for root, also where the probe is root of a container.
SHOW = (
    f"{AS_ROOT}; in a container: give it NVIDIA_MIG_MONITOR_DEVICES=all and the capability"
    " SYS_ADMIN, or run the probe outside"
)
# The bits of a device file's mode that let every account read and write.
_EVERYONE = 0o006


def denied(text: str) -> bool:
    """True for the text by which the driver refuses a value to an account."""
    return _DENIED.search(text) is not None


def closed_nodes(observed: Sections) -> list[str]:
    """The device files of GPUs that the probe's own account may not open."""
    data = observed.read_elsewhere()
    rows = data["gpus"]["node_access"] if "gpus" in data else []
    own = bool(observed.snapshot.get("euid"))
    return [row["path"] for row in rows if _CARD_NODE.fullmatch(row["path"]) and _closed(row, own)]


def _closed(row: NodeAccess, own: bool) -> bool:
    """True where the probe's account may not open it. Root tries as another account, and is itself
    denied where that account is in spite of the mode: by a control group."""
    to_everyone = int(row["mode"] or "0", 8) & _EVERYONE == _EVERYONE
    if own and not row["tried"]:
        return not to_everyone
    return row.get("kind") == "permission" and (own or to_everyone)


def hidden(observed: Sections, unlisted: Sequence[str]) -> list[str]:
    """The device files whose permissions explain that nvidia-smi does not list these GPUs."""
    closed = closed_nodes(observed)
    return closed if 0 < len(unlisted) <= len(closed) else []


def not_shown(
    observed: Sections, address: str, closed: list[str], missing: subjects.Subjects
) -> Finding:
    """The finding of a GPU that is not listed since its device file is closed."""
    if own := bool(observed.snapshot.get("euid")):
        who = "this account"
    else:
        who = "the container or job of the probe"
    return Finding(
        f"The GPU at {address} is on the PCI bus, and nvidia-smi does not list it: {who} may not"
        f" open {shortened(closed, 8)}",
        AS_ROOT
        if own
        else "run the probe where all GPUs may be opened: outside of a container or job, whose"
        " control group (cgroup) denies the device file",
        verdict=Verdict.INCONCLUSIVE,
        about=subjects.card(address),
        entails=missing,
    )
