"""GPUs: what a name means, and whether a toolkit, a build or a driver knows one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from . import facts, pci, versions
from .records import Architecture, Branch, Build, Toolkit

OPEN_MODULE_MIN = "7.5"  # Turing: drivers.yml, open_kernel_modules.min_arch
OPEN_MODULE_ONLY = "10.0"  # Blackwell: drivers.yml, open_kernel_modules.required_for


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU: compute capability (`8.9`), what it was called, where that stands.

    `device` is its PCI device id (`2330`) where the host was looked at, else empty.
    """

    capability: str
    label: str
    where: str
    device: str = ""

    @property
    def text(self) -> str:
        if self.label == self.capability:
            return f"a GPU of compute capability {self.capability}"
        return f"{self.label} (compute capability {self.capability})"


def capabilities(name: str) -> list[str]:
    """The compute capabilities that a figure, a model's or a family's name stands for.

    A family may have several; an unknown name has none.
    """
    if re.fullmatch(r"[0-9]{1,2}\.[0-9]", name):
        return [name]
    table = facts.document("gpus.yml")
    words = _words(name)
    for family, members in table["families"].items():
        if words == _words(family):
            return list(members)
    best: tuple[int, str] = (0, "")
    for row in table["models"]:
        for model in row["names"]:
            wanted = _words(model)
            places = range(len(words) - len(wanted) + 1)
            if any(words[at : at + len(wanted)] == wanted for at in places):
                best = max(best, (len(wanted), row["compute_capability"]))
    return [best[1]] if best[0] else []


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def runs_code_for(capability: str, target: str) -> bool:
    """Whether machine code for one compute capability runs on another.

    It does within a major version, on the same or a higher minor (CUDA C++ programming guide,
    binary compatibility).
    """
    have, need = versions.key(capability), versions.key(target)
    return have.major == need.major and have.minor >= need.minor


def older_than_toolkit(gpu: Gpu, toolkit: Toolkit) -> bool:
    return versions.key(gpu.capability) < versions.key(toolkit.capability_min)


def newer_than_toolkit(gpu: Gpu, toolkit: Toolkit) -> bool:
    """Whether no machine code of the toolkit's libraries runs on the GPU, though it is not old."""
    if older_than_toolkit(gpu, toolkit):
        return False
    return not any(runs_code_for(gpu.capability, target) for target in toolkit.capabilities)


def older_than_build(gpu: Gpu, build: Build) -> bool:
    return versions.key(gpu.capability) < versions.key(build.capability_min)


def native_to_build(gpu: Gpu, build: Build) -> bool:
    return any(runs_code_for(gpu.capability, target) for target in build.native)


def newer_than_build(gpu: Gpu, build: Build) -> bool:
    """Whether the build has neither machine code nor PTX for the GPU, though it is not old."""
    if older_than_build(gpu, build) or native_to_build(gpu, build):
        return False
    reached = [versions.key(target) for target in build.row["ptx_archs"]]
    return not any(target <= versions.key(gpu.capability) for target in reached)


def architecture(gpu: Gpu) -> Architecture | None:
    """The architecture of a GPU: its own row, its major version's, or the nearest below it."""
    found = None
    have = versions.key(gpu.capability)
    for row in facts.architectures():
        if row.compute_capability in {gpu.capability, f"{have.major}.x"}:
            return row
        if not row.compute_capability.endswith("x"):
            known = versions.key(row.compute_capability)
            if known.major == have.major and known <= have:
                found = row
    return found


def can_be_split(gpu: Gpu) -> bool:
    """Whether the GPU knows MIG, as far as its device id, or else its architecture, tells."""
    if gpu.device:
        return pci.can_be_split(gpu.device)
    return gpu.capability in {"8.0", "9.0", "10.0", "10.3", "12.0"}


def older_than_branch(gpu: Gpu, branch: Branch) -> bool:
    """Whether the branch no longer has the GPU's architecture."""
    row = architecture(gpu)
    return bool(row and row.last_branch and int(branch.number) > int(row.last_branch))


def newer_than_branch(gpu: Gpu, branch: Branch) -> bool:
    """Whether the branch is from before the GPU: it came with a CUDA that did not know it."""
    row = architecture(gpu)
    if row is None:
        return False
    if row.first_branch:
        return int(branch.number) < int(row.first_branch)
    if row.first_cuda is None or branch.cuda_native is None:
        return False
    return versions.key(branch.cuda_native) < versions.key(row.first_cuda)
