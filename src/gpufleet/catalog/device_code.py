"""Device code: which GPUs a build has machine code for, and which run its PTX. Pure.

A build has its kernels in many containers, each for a part of them. A container is written as its
code: `sm_80 sm_89 compute_90/8.3` has machine code for 8.0 and 8.9, and PTX for 9.0 and newer in
version 8.3 of the PTX language. A GPU runs a build's machine code only where no container leaves it
to PTX: the driver compiles PTX at the first use, and has to know its version of the language.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from . import versions
from .gpus import runs_code_for

_PIECE = re.compile(r"(sm|compute)_(\d+)(?:/(\d+\.\d+))?")


@dataclass(frozen=True)
class Container:
    """The compute capabilities that a container has machine code and PTX for."""

    machine: tuple[str, ...]
    ptx: tuple[str, ...]
    languages: tuple[str, ...]  # the versions of its PTX, where they were read

    def runs_on(self, capability: str) -> bool:
        """Return whether a GPU runs its machine code."""
        return any(runs_code_for(capability, each) for each in self.machine)

    def compiles_for(self, capability: str) -> bool:
        """Return whether the driver can compile its PTX for a GPU."""
        have = versions.key(capability)
        return any(have >= versions.key(each) for each in self.ptx)


def read(text: str) -> Container:
    """A container as it is written."""
    pieces = [match.groups() for match in map(_PIECE.fullmatch, text.split()) if match]
    return Container(
        tuple(_capability(number) for kind, number, _ in pieces if kind == "sm"),
        tuple(_capability(number) for kind, number, _ in pieces if kind == "compute"),
        tuple(language for _, _, language in pieces if language),
    )


def split(containers: Iterable[Container], known: Iterable[str]) -> tuple[list[str], list[str]]:
    """The known compute capabilities that run machine code alone, and those that need PTX.

    A container without any code for a GPU counts for neither: its kernels are for other GPUs.
    """
    every = list(containers)
    native: list[str] = []
    compiled: list[str] = []
    for each in known:
        own = [code for code in every if code.runs_on(each)]
        left = [code for code in every if code not in own and code.compiles_for(each)]
        if own or left:
            (compiled if left else native).append(each)
    return native, compiled


def language(containers: Iterable[Container]) -> str | None:
    """The newest version of the PTX language in containers; None where none was read."""
    found = [each for code in containers for each in code.languages]
    return versions.newest(found) if found else None


def _capability(number: str) -> str:
    return f"{number[:-1]}.{number[-1]}"
