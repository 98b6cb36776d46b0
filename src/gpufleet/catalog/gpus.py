"""GPUs: the compute capabilities of a name, and which toolkits, builds and drivers support one.

Reads the catalog only.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache, lru_cache

from . import facts, pci, versions
from .records import Architecture, Branch, Build, Toolkit

OPEN_MODULE_MIN = "7.5"  # Turing: drivers.yml, open_kernel_modules.min_arch
OPEN_MODULE_ONLY = "10.0"  # Blackwell: drivers.yml, open_kernel_modules.required_for


@dataclass(frozen=True)
class Gpu:
    """One GPU model: compute capability (`8.9`), its declared name, and where it is declared.

    `device` is its PCI device id (`2330`) if the host was probed, else empty.
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
    """The compute capabilities of a figure (`8.9`), a model or a family of GPUs.

    A family can have several; an unknown name has none.
    """
    # RTX4090 is written together as often as apart.
    return list(_capabilities(name) or _capabilities(re.sub(r"(?<=[A-Za-z])(?=\d)", " ", name)))


@lru_cache(maxsize=1024)
def _capabilities(name: str) -> tuple[str, ...]:
    if re.fullmatch(r"[0-9]{1,2}\.[0-9]", name):
        return (name,)
    table = facts.document("gpus.yml")
    tokens = _tokens(name)
    for family, members in table["families"].items():
        if tokens == _tokens(family):
            return tuple(members)
    best: tuple[int, str] = (0, "")
    for wanted, capability in _models():
        positions = range(len(tokens) - len(wanted) + 1)
        if any(tokens[at : at + len(wanted)] == wanted for at in positions):
            best = max(best, (len(wanted), capability))
    return (best[1],) if best[0] else ()


@cache
def _models() -> list[tuple[list[str], str]]:
    """The words of each model's name with its compute capability: the PCI devices' names too."""
    rows = facts.document("gpus.yml")["models"]
    found = [(name, row["compute_capability"]) for row in rows for name in row["names"]]
    for row in facts.document("pci.yml")["chips"]:
        for names in row["devices"].values():
            found += [(name, row["compute_capability"]) for name in names.split(" / ")]
    return [(_tokens(name), capability) for name, capability in found]


def similar(name: str) -> str | None:
    """The known model or family whose name is most like an unknown one."""
    table = facts.document("gpus.yml")
    known = [*table["families"], *(each for row in table["models"] for each in row["names"])]
    by_words = {_numbered(each): each for each in known}
    found = difflib.get_close_matches(_numbered(name), by_words, 1, 0.7)
    return by_words[found[0]] if found else None


def _numbered(name: str) -> str:
    """The words with a number, by which models differ; all words where there are none."""
    words = _tokens(name)
    return " ".join([word for word in words if re.search(r"\d", word)] or words)


def _tokens(text: str) -> list[str]:
    words = re.findall(r"[a-z0-9]+", text.lower())
    return words[1:] if words[:1] == ["nvidia"] else words


@lru_cache(maxsize=4096)
def runs_code_for(capability: str, target: str) -> bool:
    """Return whether machine code for one compute capability runs on another.

    It runs on the same major version with the same or a higher minor version (CUDA C++ programming
    guide, binary compatibility), unless an architecture is known to need code of its own.
    """
    have, need = versions.key(capability), versions.key(target)
    row = _architecture(capability)
    oldest = versions.key(row.oldest_code) if row and row.oldest_code else need
    return have.major == need.major and have.minor >= need.minor and need >= oldest


def older_than_toolkit(gpu: Gpu, toolkit: Toolkit) -> bool:
    return versions.key(gpu.capability) < versions.key(toolkit.capability_min)


def newer_than_toolkit(gpu: Gpu, toolkit: Toolkit) -> bool:
    """Return whether the GPU is too new for all machine code of the toolkit's libraries."""
    if older_than_toolkit(gpu, toolkit):
        return False
    return not any(runs_code_for(gpu.capability, target) for target in toolkit.capabilities)


def older_than_build(gpu: Gpu, build: Build) -> bool:
    return versions.key(gpu.capability) < versions.key(build.capability_min)


def native_to_build(gpu: Gpu, build: Build) -> bool:
    """Return whether the GPU runs machine code in every kernel of the build, without PTX."""
    return any(runs_code_for(gpu.capability, target) for target in build.native)


def has_code_in_build(gpu: Gpu, build: Build) -> bool:
    """Return whether the build has machine code for the GPU, at least in some kernels."""
    targets = (*build.native, *build.row["sass_archs"])
    return any(runs_code_for(gpu.capability, target) for target in targets)


def newer_than_build(gpu: Gpu, build: Build) -> bool:
    """Return whether the GPU is too new for all machine code and PTX of the build."""
    if older_than_build(gpu, build) or native_to_build(gpu, build):
        return False
    reached = [versions.key(target) for target in build.row["ptx_archs"]]
    return not any(target <= versions.key(gpu.capability) for target in reached)


def newer_than_compiler(gpu: Gpu, build: Build) -> bool:
    """Return whether the build's compiler cannot write PTX for the GPU, which needs it."""
    row, cuda = architecture(gpu), facts.cuda_of_ptx(build.compiler_ptx)
    if row is None or row.first_cuda is None or cuda is None or has_code_in_build(gpu, build):
        return False
    return versions.key(cuda) < versions.key(row.first_cuda)


def architecture(gpu: Gpu) -> Architecture | None:
    """The architecture of a GPU: its own row, its major version's, or the nearest older one."""
    return _architecture(gpu.capability)


@lru_cache(maxsize=1024)
def _architecture(capability: str) -> Architecture | None:
    found = None
    have = versions.key(capability)
    for row in facts.architectures():
        if row.compute_capability in {capability, f"{have.major}.x"}:
            return row
        if not row.compute_capability.endswith("x"):
            known = versions.key(row.compute_capability)
            if known.major == have.major and known <= have:
                found = row
    return found


def supports_mig(gpu: Gpu) -> bool:
    """Return whether the GPU supports MIG, by its device id or else by its architecture."""
    if gpu.device:
        return pci.supports_mig(gpu.device)
    return gpu.capability in {"8.0", "9.0", "10.0", "10.3", "12.0"}


def older_than_branch(gpu: Gpu, number: str) -> bool:
    """Return whether the driver branch no longer supports the GPU's architecture."""
    last = last_branch(gpu)
    return bool(last and int(number) > int(last))


def last_branch(gpu: Gpu) -> str | None:
    """The last driver branch that supports the GPU's architecture; None while none is the last."""
    row = architecture(gpu)
    return row.last_branch if row else None


def newer_than_branch(gpu: Gpu, branch: Branch) -> bool:
    """Return whether the branch is older than the GPU: its CUDA does not support the GPU yet."""
    row = architecture(gpu)
    if row is None:
        return False
    if row.first_branch:
        return int(branch.number) < int(row.first_branch)
    if row.first_cuda is None or branch.cuda_native is None:
        return False
    return versions.key(branch.cuda_native) < versions.key(row.first_cuda)
