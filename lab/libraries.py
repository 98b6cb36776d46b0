"""Takes libraries out of a wheel and gives them the names that NVIDIA's own packages have.

A wheel carries each library once, under its SONAME. NVIDIA's toolkits and archives carry the
full version in the file's name, and links: libcudart.so -> libcudart.so.11.0 -> .11.8.89.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from lab import elf

_VERSIONED = re.compile(r"(?P<link>(?P<stem>lib[^/]+?)\.so)(?:\.(?P<version>.+))?")

README = """\
This is a stand-in for {what}, made by gpufleet's lab on this site's own machine.
The libraries are NVIDIA's own, taken from its wheels on the Python package index{but}. It is for
tests on {machines}. Do not install it on another one, and do not pass it on.
"""
# How much code for GPUs the libraries keep is `device_code` of an artifact: none, all of it, or
# that of one architecture (90: compute capability 9.0).
ALL = "all"
SLIM = """, but their
code for GPUs is left out: nothing here computes anything on a GPU"""
CUT = """, but their
code for other GPUs than those of architecture sm_{architecture} is left out"""


def readme(artifact: dict[str, Any]) -> str:
    """The text of README-STAND-IN.txt; takes `what`."""
    kept = artifact.get("device_code")
    but, machines = SLIM, "machines that have no GPU"
    if kept == ALL:
        but = ""
    elif kept:
        but, machines = CUT.format(architecture=kept), f"machines with GPUs of sm_{kept}"
    return README.replace("{but}", but).replace("{machines}", machines)


def extract(wheel: ZipFile, member: str, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with wheel.open(member) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
    target.chmod(mode)


def place(
    wheel: ZipFile, member: str, directory: Path, version: str, kept: str | int | None = None
) -> Path:
    """Put one library into `directory`, under its full name and with its links.

    Of the code for GPUs, which is most of it, only what is `kept` (`device_code` of the artifact).
    """
    directory.mkdir(parents=True, exist_ok=True)
    name = Path(member).name
    raw = directory / f".{name}.whole"
    extract(wheel, member, raw)
    shared = elf.soname(raw) or name
    real, links = names(shared, version)
    if kept == ALL:
        raw.rename(directory / real)
    else:
        elf.slim(raw, directory / real, int(kept) if kept else None)
        raw.unlink()
    (directory / real).chmod(0o755)
    for link, target in links:
        (directory / link).symlink_to(target)
    return directory / real


def names(soname: str, version: str) -> tuple[str, list[tuple[str, str]]]:
    """The file's full name, and each link with what it points at."""
    match = _VERSIONED.fullmatch(soname)
    if not match:
        raise ValueError(f"{soname!r} is not a library's name")
    link = match["link"]
    real = f"{link}.{version}"
    if soname in (link, real):  # a library without a versioned SONAME, or a fully versioned one
        return real, [(link, real)]
    return real, [(soname, real), (link, soname)]


def stem(member: str) -> str:
    """libcublas for libcublas.so.11"""
    match = _VERSIONED.fullmatch(Path(member).name)
    return match["stem"] if match else ""


def is_library(member: str) -> bool:
    return bool(stem(member))
