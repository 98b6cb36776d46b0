"""Find the files of a lock on the package index, for hosts with glibc.

uv lists every file of each locked version with its checksum. Of the wheels, those are selected that
an installer would choose for each version of glibc. Without a wheel, the source distribution is
selected, with its build requirements.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ansible_collections.gpufleet.gpu.plugins.module_utils.python_environment import (
    index_variables,
    resolved_for,
)
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from gpufleet import stopping

from .needs import WHEELS, File, Lock, MirrorError

UV = Path(sys.executable).with_name("uv")
# Minor versions of glibc 2 on supported hosts: from CentOS 7's to the newest that uv knows.
GLIBC = range(17, 41)
LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
# Build requirements of a source without a pyproject.toml, by PEP 517.
BUILD_DEFAULT = ("setuptools>=40.8.0", "wheel")
STDERR_LINES = 6


def resolved(lock: Lock, text: str) -> list[File]:
    """Return the files of a lock with this text."""
    packages = _pylock(text, lock, f"the packages of {lock.path} cannot be looked up", "--no-deps")
    return _files(packages, lock, lock.path.name, text)


def build_requirements(lock: Lock, sources: Iterable[Path]) -> list[File]:
    """Return the build requirements of these sources, in versions for the lock's Python."""
    found: dict[str, File] = {}
    for source in sources:
        failed = f"the build requirements of {source.name} cannot be looked up"
        packages = _pylock("\n".join(declared_by(source)), lock, failed, "--only-binary", ":all:")
        for file in _files(packages, lock, f"building {source.name}"):
            found.setdefault(file.path, file)
    return list(found.values())


def _pylock(requirements: str, lock: Lock, failed: str, *options: str) -> list[dict[str, Any]]:
    """The packages of uv's output, in the format of PEP 751."""
    command = [
        *(str(UV), "pip", "compile", "--quiet", "--no-header", "--format", "pylock.toml"),
        *("--python-version", resolved_for(lock.python)),
        *("--python-platform", f"{lock.arch}-manylinux_2_{GLIBC[-1]}", *options),
    ]
    environment = {**os.environ, **index_variables(lock.index_url, lock.index)}
    with stopping.temporary_directory() as work:
        source, output = Path(work, "requirements.txt"), Path(work, "pylock.toml")
        source.write_text(requirements, encoding="utf-8")
        done = subprocess.run(
            [*command, "--output-file", str(output), str(source)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = "\n".join(done.stderr.strip().splitlines()[-STDERR_LINES:])
            raise MirrorError(
                f"{failed}: {last}",
                "Check that a Python package index is reachable "
                "(gpu_pip_index_url, or uv's own setting), and run again.",
            )
        packages: list[dict[str, Any]] = tomllib.loads(output.read_text())["packages"]
        return packages


def _files(
    packages: list[dict[str, Any]], lock: Lock, reason: str, text: str | None = None
) -> list[File]:
    """Select the files of packages; `text`: a lock, only files with its checksums count."""
    found: list[File] = []
    for package in packages:
        known = [
            row
            for row in (*package.get("wheels", ()), package.get("sdist"))
            if row and (text is None or f"sha256:{row['hashes'].get('sha256')}" in text)
        ]
        rows = {_name(row): row for row in known}
        selected = best(rows, lock.python, lock.arch) or [
            name for name in rows if not name.endswith(".whl")
        ]
        if not selected:
            raise MirrorError(
                f"the package index has no file of {package['name']} {package['version']} with a "
                f"checksum that {lock.path} lists",
                "Remove the lock, so that it is resolved again, or name the index that it was "
                "resolved from (gpu_pip_index_url).",
            )
        found += [
            File(
                f"{WHEELS}/{name}",
                "package",
                f"sha256:{rows[name]['hashes']['sha256']}",
                rows[name]["url"],
                rows[name].get("size"),
                reasons=(reason,),
            )
            for name in selected
        ]
    return found


def _name(row: dict[str, Any]) -> str:
    return str(row.get("name") or unquote(urlsplit(row["url"]).path)).rpartition("/")[2]


def best(names: Iterable[str], python: str, arch: str = "x86_64") -> list[str]:
    """Return the wheels that an installer would choose; several if that depends on glibc."""
    tagged = [(name, parse_wheel_filename(name)[3]) for name in names if name.endswith(".whl")]
    chosen: dict[str, None] = {}
    for glibc in GLIBC:
        ranks = _ranks(python, glibc, arch)
        fitting = [
            (min(ranks[tag] for tag in tags if tag in ranks), name)
            for name, tags in tagged
            if any(tag in ranks for tag in tags)
        ]
        if fitting:
            chosen[min(fitting)[1]] = None
    return list(chosen)


@cache
def _ranks(python: str, glibc: int, arch: str) -> dict[Tag, int]:
    """The rank of each tag, an installer's first choice first."""
    major, _, minor = python.partition(".")
    version = (int(major), int(minor))
    interpreter = f"cp{major}{minor}"
    abi = interpreter + ("m" if version < (3, 8) else "")
    platforms = list(_platforms(glibc, arch))
    tags: list[Tag] = [
        *cpython_tags(version, [abi], platforms),
        *compatible_tags(version, interpreter, platforms),
    ]
    return {tag: rank for rank, tag in enumerate(tags)}


def _platforms(glibc: int, arch: str) -> Iterator[str]:
    # manylinux2014 was the first for aarch64: an installer asks for none before it there.
    for minor in range(glibc, 4 if arch == "x86_64" else 16, -1):
        yield f"manylinux_2_{minor}_{arch}"
        if minor in LEGACY:
            yield f"{LEGACY[minor]}_{arch}"
    yield f"linux_{arch}"


def declared_by(source: Path) -> list[str]:
    """The build requirements that a source declares."""
    try:
        project = tomllib.loads(_pyproject(source))
        declared = project["build-system"]["requires"]
    except (KeyError, tomllib.TOMLDecodeError):
        return list(BUILD_DEFAULT)
    # setuptools requires wheel only when it builds.
    return [*declared, "wheel"]


def _pyproject(source: Path) -> str:
    """The text of the source's pyproject.toml; empty if it has none."""
    if zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            for name in archive.namelist():
                if name.count("/") == 1 and name.endswith("/pyproject.toml"):
                    return archive.read(name).decode()
        return ""
    with tarfile.open(source) as archive:
        for member in archive:
            if member.name.count("/") == 1 and member.name.endswith("/pyproject.toml"):
                stream = archive.extractfile(member)
                return stream.read().decode() if stream else ""
    return ""
