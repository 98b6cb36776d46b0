"""GPUs that are split into MIG instances, of which CUDA shows a program one."""

from __future__ import annotations

from .registry import AS_ROOT
from .sections import Sections


def split(observed: Sections) -> list[str]:
    """The addresses of the GPUs with MIG, as nvidia-smi lists them."""
    data = observed.read_elsewhere()
    return [
        str(card["address"])
        for card in (data["smi"]["devices"] if "smi" in data else [])
        if (card.get("elements") or {}).get("mig_mode/current_mig") == "Enabled"
    ]


def no_card(observed: Sections) -> tuple[str, str] | None:
    """The cause and remedy of a CUDA that finds no card, where each GPU has MIG; else None."""
    data = observed.read_elsewhere()
    listed = data["smi"]["devices"] if "smi" in data else []
    if not listed or len(split(observed)) < len(listed):
        return None
    return (
        "each GPU has MIG enabled, and this account may use none of the instances",
        "nvidia-smi -L lists the instances: without one, declare gpu_mig and provision; if there"
        f" are some, their files in /dev/nvidia-caps are closed to this account: {AS_ROOT}",
    )
