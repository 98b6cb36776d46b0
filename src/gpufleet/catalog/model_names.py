"""GPU models by the words of their names, as nvidia-smi and CUDA report them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from gpufleet.documents.types import Row

# GRID T4-16Q, NVIDIA A100-1-5C, NVIDIA L40S-48Q, GRID T4-2B4: a share of a GPU.
_VGPU = re.compile(r"^GRID\b|-\d+[ABCQ](4|ME)?$", re.IGNORECASE)
_PORTABLE = re.compile(r"laptop|mobile|max-q(?! workstation)", re.IGNORECASE)
_DESKTOP = re.compile(r"\b(GeForce|TITAN)\b", re.IGNORECASE)


# Few names stand in a fleet, and each is compared with every row; hosts may send any.
_remembered = lru_cache(maxsize=1024)


@_remembered
def tokens(text: str) -> list[str]:
    """The words of a name, without punctuation and in lower case."""
    return re.findall(r"[a-z0-9]+", text.lower())


@_remembered
def contains(name: str, model: str) -> bool:
    """Return whether all words of a model stand side by side in a name."""
    have, wanted = tokens(name), tokens(model)
    return any(have[at : at + len(wanted)] == wanted for at in range(len(have)))


def row_of(rows: Iterable[Row], name: str) -> Row | None:
    """The row of a table whose `names` match a name with the most words; None if none does."""
    matches = [
        (len(tokens(model)), row) for row in rows for model in row["names"] if contains(name, model)
    ]
    return max(matches, key=lambda match: match[0])[1] if matches else None


@_remembered
def is_virtual(name: str) -> bool:
    """Return whether a name is a virtual GPU's: a guest's share of a GPU."""
    return bool(_VGPU.search(name.strip()))


def is_share(name: str) -> bool:
    """Return whether a name is that of a part of a GPU: a MIG instance or a virtual GPU."""
    return contains(name, "MIG") or is_virtual(name)


@_remembered
def is_portable(name: str) -> bool:
    """Return whether a name is that of a portable computer's GPU, with low clocks by design.

    `Max-Q Workstation Edition` is a card for workstations.
    """
    return bool(_PORTABLE.search(name))


@_remembered
def is_desktop(name: str) -> bool:
    """Return whether a name is that of a card for desktops, or of a portable computer's GPU.

    Under load it is as quiet as it can be at its target temperature, 81 to 91 °C, and lowers its
    clocks there: GPU Boost, since the GTX 600.
    """
    return bool(_DESKTOP.search(name)) or is_portable(name)
