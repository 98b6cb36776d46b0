"""Lays out a CUDA toolkit as NVIDIA's runfile does, from wheels."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from lab import libraries, runfile
from lab.wheels import Wheel

# Where NVIDIA keeps a toolkit's files, by the architecture of the artifact; empty: x86_64.
TARGET = Path("targets/x86_64-linux")
TARGETS = {"": TARGET, "aarch64": Path("targets/sbsa-linux")}

# No wheel carries the compiler itself; what reads its version still finds one to ask.
NVCC = """\
#!/bin/sh
# Stand-in for NVIDIA's compiler: it knows its version and compiles nothing.
case $1 in
-V|--version)
  echo 'nvcc: NVIDIA (R) Cuda compiler driver'
  echo 'Copyright (c) NVIDIA Corporation'
  echo 'Cuda compilation tools, release {release}, V{version}'
  ;;
*)
  echo 'nvcc: stand-in of the gpufleet lab, which compiles nothing' >&2
  exit 1
  ;;
esac
"""


def make(artifact: dict[str, Any], wheels: list[tuple[Wheel, Path]], work: Path) -> Path:
    """The runfile of one toolkit."""
    lay_out(artifact, wheels, work / "tree")
    readme = libraries.readme(artifact)
    return runfile.pack(artifact, work / "tree", work, runfile.INSTALLER, readme)


def version_json(artifact: dict[str, Any]) -> str:
    parts = {"cuda": {"name": "CUDA SDK", "version": artifact["version"]}}
    for component in artifact["components"]:
        version = component["wheel"].partition("==")[2]
        parts[component["key"]] = {"name": component["name"], "version": version}
    return json.dumps(parts, indent=3) + "\n"


def target(artifact: dict[str, Any]) -> Path:
    return TARGETS[artifact.get("arch", "")]


def lay_out(artifact: dict[str, Any], wheels: list[tuple[Wheel, Path]], tree: Path) -> None:
    own = target(artifact)
    for directory in ("bin", str(own / "lib"), str(own / "include")):
        (tree / directory).mkdir(parents=True)
    (tree / "lib64").symlink_to(own / "lib")
    (tree / "include").symlink_to(own / "include")
    with ThreadPoolExecutor() as pool:  # unpacking is zlib's work, which Python does not serialize
        tasks = [pool.submit(_unpack, path, wheel, artifact, tree) for wheel, path in wheels]
    for task in tasks:
        task.result()
    _write(tree / "version.json", version_json(artifact))
    nvcc = NVCC.format(release=artifact["cuda"], version=artifact["nvcc"])
    _write(tree / "bin" / "nvcc", nvcc, 0o755)
    what = f"CUDA {artifact['cuda']}"
    _write(tree / "README-STAND-IN.txt", libraries.readme(artifact).format(what=what))


def _unpack(path: Path, wheel: Wheel, artifact: dict[str, Any], tree: Path) -> None:
    with ZipFile(path) as archive:
        for member in sorted(archive.namelist()):
            _place(archive, member, wheel, artifact, tree)


def _place(
    archive: ZipFile, member: str, wheel: Wheel, artifact: dict[str, Any], tree: Path
) -> None:
    """A member is `nvidia/PART/KIND/...`, and its kind decides where it belongs."""
    parts = Path(member).parts
    if len(parts) < 4 or parts[0] != "nvidia" or parts[-1] == "__init__.py":
        return
    kind, rest = parts[2], Path(*parts[2:])
    if libraries.is_library(member):
        real_names: dict[str, str] = artifact.get("real_names", {})
        version = real_names.get(libraries.stem(member), wheel.version)
        directory = tree / target(artifact) / "lib" if kind == "lib" else tree / rest.parent
        libraries.place(archive, member, directory, version, artifact.get("device_code"))
    elif kind == "include":
        libraries.extract(archive, member, tree / target(artifact) / rest)
    elif kind in ("bin", "nvvm"):
        libraries.extract(archive, member, tree / rest, 0o755 if "bin" in parts else 0o644)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
