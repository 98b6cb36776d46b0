"""Make the pack: everything that gpufleet installs on a machine with GPUs of one architecture.

    .venv/bin/python -m tools.gpu_pack.build

It needs what the lab's artifacts need (Debian 12, makeself) and a package index. Everything that is
fetched or made lies below GPUFLEET_CACHE, in `gpu-pack/`; the pack itself is `gpu-pack/pack/`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from lab import artifacts
from lab.progress import Progress
from lab.settings import Lab, cache_root
from tools.gpu_pack import parts

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
PYTHON = "3.12"
# The oldest glibc that the machine may have, and the names of wheels for it and for older ones.
PLATFORM = "x86_64-manylinux_2_28"
TAGS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 26, 24, 17, 12, 5)]
TAGS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
# Debian's packages that the installation of CUDA asks for, for a machine without them: its package
# manager reaches nothing. No Python is in them, so they fit other releases.
PACKAGES = ("libxml2", "libicu72")


class Pack(Lab):
    """Artifacts with device code have a directory of their own."""

    @property
    def directory(self) -> Path:
        """The directory of everything that the pack is made of."""
        return self.cache / "gpu-pack"

    @property
    def artifacts(self) -> Path:
        """The directory of the artifacts, with their catalogue."""
        return self.directory / "artifacts"


def wanted() -> list[dict[str, Any]]:
    """The descriptions of the artifacts, with the code of one architecture.

    Runfiles are not compressed: parts are, and much smaller than a runfile that is compressed.
    """
    chosen = yaml.safe_load((HERE / "artifacts.yml").read_text(encoding="utf-8"))
    found = []
    for artifact in artifacts.named(list(chosen["files"])):
        own = {"device_code": chosen["architecture"], "compression": ["--nocomp"], "level": 6}
        names = chosen["files"][artifact["file"]]
        if names:
            components = [each for each in artifact["components"] if each["key"] in names]
            own["components"] = components
        found.append({**artifact, **own})
    return found


def run(*argv: str | Path) -> None:
    """Print a command and run it; its failure ends the build."""
    print("$", *argv, flush=True)
    subprocess.run([str(word) for word in argv], check=True, cwd=ROOT)


def fetch_site(pack: Pack, site: Path) -> None:
    """Fill the site: inventory, locks, mirror, and the control machine's packages."""
    shutil.copytree(HERE / "site", site, dirs_exist_ok=True)
    built = artifacts.ensure(pack, wanted(), Progress())
    catalogue = {
        each.file: {"sha256": each.sha256, "size_bytes": each.size_bytes} for each in built
    }
    (site / "group_vars/all/artifacts.yml").write_text(
        yaml.safe_dump({"gpu_artifacts": catalogue}), encoding="utf-8"
    )
    every = json.dumps({"gpu_toolkits": sorted({each["cuda"] for each in wanted()})})
    run(BIN / "gpufleet", "artifacts", "fetch", site / "mirror", "-i", site / "hosts.yml",
        "-e", every, "--from", pack.artifacts)  # fmt: skip
    fetch_control(site)


def fetch_control(site: Path) -> None:
    """Build gpufleet's wheel, and fetch what it depends on in the versions of requirements.txt."""
    lock, wheels = site / "control.txt", site / "mirror/wheels"
    run(BIN / "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate",
        "--generate-hashes", "--python-version", PYTHON, "--python-platform", PLATFORM,
        "--constraint", "requirements.txt", "pyproject.toml", "--output-file", lock)  # fmt: skip
    run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
        "--only-binary=:all:", "--python-version", PYTHON, "--dest", wheels,
        *(f"--platform={tag}" for tag in TAGS), "--requirement", lock)  # fmt: skip
    own = site / "own"
    shutil.rmtree(own, ignore_errors=True)
    run(BIN / "uv", "build", "--quiet", "--wheel", "--no-build-isolation", "--out-dir", own)
    packages = site / "packages"
    packages.mkdir(exist_ok=True)
    if not list(packages.glob("*.deb")):
        subprocess.run(["apt-get", "download", *PACKAGES], check=True, cwd=packages)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the pack for a machine with a GPU.")
    parser.add_argument("--round", type=int, default=60, metavar="MIB", help="per directory")
    limit = parser.parse_args().round
    pack = Pack("lab", cache_root(os.environ))
    site, target = pack.directory / "site", pack.directory / "pack"
    fetch_site(pack, site)
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(site / "mirror/.gpufleet")  # what was checked here says nothing there
    manifest = parts.split(site, target, pack.directory / "parts", limit * parts.MIB)
    for name in ("__init__.py", "gpu_pack/__init__.py", "gpu_pack/parts.py", "gpu_pack/run.py"):
        place = target / "tools" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(HERE.parent / name, place)
    total = sum(part["size_bytes"] for part in manifest["parts"].values())
    folders = len(list(target.glob("[0-9]*")))
    print(f"{target}: {total / parts.MIB:.0f} MiB in {folders} directories of at most {limit} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
