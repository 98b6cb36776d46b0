"""`gpufleet pack FILE`: this checkout as one archive, for a control host.

Reads the files that git tracks, as they are here; without git, all but what use leaves behind.
Prints the digest of the content: the same files have the same digest.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import tarfile
from pathlib import Path

from gpufleet.paths import ROOT

from .developer import require_checkout
from .parser import Parser

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


def files(root: Path) -> list[str]:
    """The names of the files, sorted."""
    if (root / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True
        )
        names = [name for name in listed.stdout.decode().split("\0") if name]
    else:
        names = [str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()]
    return sorted(
        name for name in names if not GENERATED & set(Path(name).parts) and (root / name).exists()
    )


def pack(root: Path, archive: Path) -> str:
    """Write the archive by rename; the digest of names, modes and contents."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial, digest = archive.with_name(f".{archive.name}.partial"), hashlib.sha256()

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mode = 0o755 if entry.mode & 0o100 else 0o644
        digest.update(f"{entry.name} {entry.mode:o} {entry.linkname}\0".encode())
        return entry

    with tarfile.open(partial, "w") as tar:
        for name in files(root):
            tar.add(root / name, name, filter=plain)
            if not (root / name).is_symlink():
                digest.update((root / name).read_bytes())
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
    require_checkout("pack")
    print(pack(ROOT, options.file))
    return 0
