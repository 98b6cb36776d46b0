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
tests on machines that have no GPU. Do not install it on a machine with one, and do not pass it on.
"""
SLIM = """, but their
code for GPUs is left out: nothing here computes anything on a GPU"""


def readme(artifact: dict[str, Any]) -> str:
    """The text of README-STAND-IN.txt; takes `what`."""
    return README.replace("{but}", "" if artifact.get("whole") else SLIM)


def extract(wheel: ZipFile, member: str, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with wheel.open(member) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
    target.chmod(mode)


def place(
    wheel: ZipFile, member: str, directory: Path, version: str, *, whole: bool = False
) -> Path:
    """Put one library into `directory`, under its full name and with its links.

    Without the code for GPUs, which is most of it, unless `whole`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    name = Path(member).name
    raw = directory / f".{name}.whole"
    extract(wheel, member, raw)
    shared = elf.soname(raw) or name
    real, links = names(shared, version)
    if whole:
        raw.rename(directory / real)
    else:
        elf.slim(raw, directory / real)
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
