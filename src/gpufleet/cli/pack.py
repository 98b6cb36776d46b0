"""`python -m gpufleet pack FILE`: this checkout as one archive, to be put on a control host.

The files that git tracks, as they stand here; where there is no git, all but what is made by use.
Prints the digest of what is in it: the same files make the same digest.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

from gpufleet.paths import ROOT

# As .gitignore has it.
MADE = {".git", ".venv", ".venv.lock", "reports", ".gpufleet", "__pycache__", ".mypy_cache",
        ".ruff_cache", ".pytest_cache", ".ansible"}


def files(root: Path) -> list[str]:
    """The names of the files, sorted."""
    if (root / ".git").exists():
        told = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True)
        names = [name for name in told.stdout.decode().split("\0") if name]
    else:
        names = [str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()]
    return sorted(name for name in names
                  if not MADE & set(Path(name).parts) and (root / name).exists())


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

    with tarfile.open(partial, "w") as made:
        for name in files(root):
            made.add(root / name, name, filter=plain)
            if not (root / name).is_symlink():
                digest.update((root / name).read_bytes())
    partial.replace(archive)
    return digest.hexdigest()[:16]


def main(words: list[str]) -> int:
    """The verb; its exit status."""
    if len(words) != 1:
        sys.stderr.write("usage: python -m gpufleet pack FILE\n")
        return 4
    print(pack(ROOT, Path(words[0])))
    return 0
