"""The CUDA of a wheel by its files: the parts that readers of every framework share.

`Contents` is the result; `tensorflow_wheel`, `pytorch_wheel` and `jax_wheel` fill it.
"""

from __future__ import annotations

import mmap
import re
import shutil
import struct
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from email.parser import HeaderParser

from packaging.requirements import Requirement

from gpufleet.catalog import device_code, facts, versions
from gpufleet.on_host.elf import elf_dynamic

# A container of device code (magic, version 1, header of 16 bytes, size of what follows); in it the
# pieces: kind, version, size of this header, size of what follows, minor and major number of the
# PTX language, and the architecture.
_CONTAINER = b"\x50\xed\x55\xba\x01\x00\x10\x00"
_PIECE = struct.Struct("<HHIQ8xHHI")
_PTX, _MACHINE_CODE = 1, 2
NOTHING = re.compile(rb"(?!)")
# CUDA's libraries under their own names; the driver's has its own version, 1.
CUDA_LIBRARY = re.compile(r"lib(cu(?!da\b)|nv|nccl)\w*\.so\.[\d.]+")
LINUX = {"platform_system": "Linux", "sys_platform": "linux"}


@dataclass
class Contents:
    """The information in the members of one wheel; None where there is none."""

    cuda: str | None = None
    cudnn: str | None = None
    linked: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    sass: list[str] | None = None
    ptx: list[str] | None = None
    pins: list[str] | None = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    # How many containers of device code have the same code: `sm_80 compute_90/8.3: 12`.
    containers: dict[str, int] | None = None

    def leaves_out(self, member: zipfile.ZipInfo, largest: int | None) -> bool:
        """Return whether a library has more than `largest` packed bytes; it is unread then."""
        too_large = largest is not None and member.compress_size > largest
        if too_large:
            self.unread.append(member.filename.rsplit("/", 1)[-1])
        return too_large


@dataclass
class Library:
    """The libraries, words and device code that the files of a wheel's libraries contain."""

    linked: set[str] = field(default_factory=set)
    # The words that were searched for, and the containers of device code by their contents.
    words: set[str] = field(default_factory=set)
    containers: Counter[str] = field(default_factory=Counter)

    def add(self, other: Library) -> None:
        """Add the contents of another library."""
        self.linked |= other.linked
        self.words |= other.words
        self.containers += other.containers


def library(
    archive: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    names: re.Pattern[str],
    words: re.Pattern[bytes] = NOTHING,
) -> Library:
    """Read a library of a wheel: which of `names` it is linked to, and its matches of `words`.

    Each match is the first group of the pattern.
    """
    with tempfile.TemporaryFile() as copy:  # unnamed: removed however this ends
        with archive.open(member) as source:
            shutil.copyfileobj(source, copy, 1 << 20)
        copy.flush()
        needed: list[str] = elf_dynamic(f"/proc/self/fd/{copy.fileno()}")["needed"]
        with mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ) as data:
            matched = {found[1].decode() for found in words.finditer(data)}
            code = Counter(_containers(data))
    return Library({name for name in needed if names.fullmatch(name)}, matched, code)


def architectures(containers: Iterable[str]) -> tuple[list[str], list[str]]:
    """Compute capabilities with machine code, and those with PTX, in any container."""
    read = [device_code.read(each) for each in containers]
    return (
        in_order(target for code in read for target in code.machine),
        in_order(target for code in read for target in code.ptx),
    )


def in_order(names: Iterable[str]) -> list[str]:
    """Compute capabilities, each once and in order."""
    return sorted(set(names), key=versions.key)


def capabilities(numbers: Iterable[int]) -> list[str]:
    """`3.5` for each 35, in order."""
    return [f"{number // 10}.{number % 10}" for number in sorted(set(numbers))]


def extra(metadata: str, name: str, arch: str = facts.X86_64) -> list[str]:
    """The requirements of an extra on Linux, each as `project==1.2`, sorted."""
    linux = {**LINUX, "platform_machine": arch}
    return sorted(
        f"{each.name}{each.specifier}"
        for each in _requirements(metadata)
        if each.marker
        and each.marker.evaluate({**linux, "extra": name})
        and not each.marker.evaluate({**linux, "extra": ""})
    )


def cuda_packages(metadata: str, arch: str = facts.X86_64) -> list[str]:
    """NVIDIA's packages that a wheel requires on Linux, each as `project==1.2`, sorted."""
    linux = {**LINUX, "platform_machine": arch}
    return sorted(
        f"{each.name}{'[' + ','.join(sorted(each.extras)) + ']' if each.extras else ''}"
        f"{each.specifier}"
        for each in _requirements(metadata)
        if each.name.startswith(("nvidia-", "cuda-"))
        and (not each.marker or each.marker.evaluate({**linux, "extra": ""}))
    )


def _requirements(metadata: str) -> list[Requirement]:
    lines = HeaderParser().parsestr(metadata).get_all("Requires-Dist") or []
    return [Requirement(line) for line in lines]


def _containers(data: mmap.mmap) -> Iterator[str]:
    """The contents of each container of code for GPUs; one without any code is left out."""
    at = -1
    while (at := data.find(_CONTAINER, at + 1)) >= 0:
        end = at + 16 + int.from_bytes(data[at + 8 : at + 16], "little")
        piece, pieces = at + 16, set()
        while piece + _PIECE.size <= min(end, len(data)):
            kind, _, header, size, minor, major, number = _PIECE.unpack_from(data, piece)
            if kind not in (_PTX, _MACHINE_CODE) or header < _PIECE.size:
                break
            pieces.add((kind == _PTX, number, f"/{major}.{minor}" if kind == _PTX else ""))
            piece += header + size
        if pieces:
            yield " ".join(
                f"{'compute' if ptx else 'sm'}_{number}{language}"
                for ptx, number, language in sorted(pieces)
            )
