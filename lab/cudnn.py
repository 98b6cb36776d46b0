"""Makes a cuDNN archive as NVIDIA offers it, from a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import ZipFile

from lab import libraries
from lab.command import run
from lab.runfile import TAR_OPTIONS
from lab.wheels import Wheel


def make(artifact: dict[str, Any], wheels: list[tuple[Wheel, Path]], work: Path) -> Path:
    top = work / artifact["file"].removesuffix(".tar.xz")
    for _, wheel in wheels:
        lay_out(artifact, wheel, top)
    return pack(top, work / artifact["file"], artifact.get("level", 0))


def lay_out(artifact: dict[str, Any], wheel: Path, top: Path) -> None:
    with ZipFile(wheel) as archive:
        for member in sorted(archive.namelist()):
            name = Path(member).name
            if libraries.is_library(member):
                kept = artifact.get("device_code")
                libraries.place(archive, member, top / "lib", artifact["version"], kept)
            elif "include" in Path(member).parts and name.endswith(".h"):
                libraries.extract(archive, member, top / "include" / name)
            elif ".dist-info/" in member and name.lower().startswith("license"):
                libraries.extract(archive, member, top / "LICENSE")
    what = f"cuDNN {artifact['version']}"
    text = libraries.readme(artifact).format(what=what)
    (top / "README-STAND-IN.txt").write_text(text, encoding="utf-8")


def pack(top: Path, target: Path, level: int = 0) -> Path:
    """Compressed so that every machine makes the same file: a fixed number of threads, no date."""
    program = f"xz -{level} -T2" if target.suffix == ".xz" else "gzip -1 -n"
    run(
        *("tar", "--create", f"--file={target}", f"--directory={top.parent}", "--format=gnu"),
        *(f"--use-compress-program={program}", *TAR_OPTIONS, top.name),
        timeout=1800,
    )
    return target
