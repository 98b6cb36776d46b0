"""`gpufleet pack FILE`: a checkout as one archive, for a control host: this one, or one made of the
installed package.

Reads the files that git tracks, as they are here; without git, all but what use leaves behind.
Prints the digest of the content: the same files have the same digest.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from gpufleet.paths import IN_CHECKOUT, PACKAGE, ROOT

from .parser import Parser

LAUNCHER = "gpufleet"
# As .gitignore has it.
GENERATED = {
    ".git",
    ".venv",
    ".venv.lock",
    "reports",
    ".gpufleet",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".ansible",
}


def files(root: Path) -> dict[str, Path]:
    """The files of a checkout, by their names in the archive, sorted."""
    if (root / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True
        )
        names = [name for name in listed.stdout.decode().split("\0") if name]
    else:
        names = [str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()]
    return {
        name: root / name
        for name in sorted(names)
        if not GENERATED & set(Path(name).parts) and (root / name).exists()
    }


def installed_files(package: Path, collection: Path) -> dict[str, Path]:
    """The files of an installed wheel, by their names in the archive, as in a checkout."""
    found = {**files(collection)}
    found |= {f"src/gpufleet/{name}": path for name, path in files(package).items()}
    return dict(sorted(found.items()))


def pack(contents: Mapping[str, Path], archive: Path) -> str:
    """Write the archive by rename; the digest of names, modes and contents."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial, digest = archive.with_name(f".{archive.name}.partial"), hashlib.sha256()

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        # Not every installer keeps the mode of a wheel's files.
        entry.mode = 0o755 if entry.mode & 0o100 or entry.name == LAUNCHER else 0o644
        digest.update(f"{entry.name} {entry.mode:o} {entry.linkname}\0".encode())
        return entry

    with tarfile.open(partial, "w") as tar:
        for name, path in contents.items():
            tar.add(path, name, filter=plain)
            if not path.is_symlink():
                digest.update(path.read_bytes())
    partial.replace(archive)
    return digest.hexdigest()[:16]


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "pack",
        ("pack gpufleet.tar", "pack .gpufleet/nightly.tar"),
        usage="FILE",
        exit_status="Prints the digest of the content.",
    )
    verb.add_argument_group("Archive").add_argument(
        "file", type=Path, metavar="FILE", help="Write this archive"
    )
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Write the archive and print its digest; the exit status."""
    contents = files(ROOT) if IN_CHECKOUT else installed_files(PACKAGE, ROOT)
    print(pack(contents, options.file))
    return 0
