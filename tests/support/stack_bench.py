"""A stack to be installed by its module: its place, its lock, and a stand-in for uv."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.ansible_modules import Run, sha256

ROOT = Path(__file__).resolve().parents[2]
BINDING = ROOT / "roles" / "stacks" / "files" / "_gpufleet_binding.py"

SONAME = "libcudart.so.11.0"

# uv, reduced to what the module asks of it: an environment, and "installed" packages.
UV = """#!/bin/sh
echo "$@" >>{calls}
{fails}
for word; do last=$word; done
case $1 in
venv) {python} -m venv --without-pip "$last" ;;
pip) site=$(echo {venv}/lib/python3*/site-packages)
  if [ "$2" = uninstall ]; then rm -r "$site/$last"-* "$site/native.so"; exit; fi
  printf whole >"$site/native.so"
  grep '==' "$last" | sed 's/==/ /; s/ *\\\\$//' | while read -r name version; do
    rm -rf "$site/$name"-*
    mkdir -p "$site/$name-$version.dist-info"
    printf 'Name: %s\\nVersion: %s\\n' "$name" "$version" \\
      >"$site/$name-$version.dist-info/METADATA"
    echo "native.so,sha256=x,5" >"$site/$name-$version.dist-info/RECORD"
  done ;;
esac
"""
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Bench:
    """A stack's place, its lock, a toolkit's libraries, and a stand-in for uv."""

    def __init__(self, root: Path, module: ModuleType, run: Run) -> None:
        self.root, self.module, self.run = root, module, run
        self.venv, self.state, self.calls = root / "stack", root / "state", root / "calls"
        self.lock, self.uv = root / "stack.lock", root / "uv"
        self.lib = root / "cuda" / "lib64"
        self.lib.mkdir(parents=True)
        self.write()

    def write(self, version: str = "2.13.1", fails: str = "") -> None:
        """Write lock and uv."""
        self.lock.write_text(f"tensorflow=={version} \\\n    --hash=sha256:00\nnumpy==1.24.3\n")
        self.uv.write_text(
            UV.format(calls=self.calls, fails=fails, python=sys.executable, venv=self.venv)
        )
        self.uv.chmod(0o755)

    def install(self, check: bool = False, **more: Any) -> dict[str, Any]:
        """Run the module."""
        arguments = {
            "name": "tensorflow-2.13.1",
            "distribution": "tensorflow",
            "version": "2.13.1",
            "venv": self.venv,
            "python": VERSION,
            "interpreter": sys.executable,
            "uv": self.uv,
            "lock": self.lock,
            "lock_sha256": sha256(self.lock).partition(":")[2],
            "binding": BINDING.read_text(),
            "activation": self.root / "variables.sh",
            "cache": self.root / "cache",
            "state_dir": self.state,
        }
        return self.run(self.module, check, **{**arguments, **more})

    def receipt(self) -> dict[str, Any]:
        """The stack's receipt."""
        document: dict[str, Any] = json.loads(
            (self.state / "receipts" / "stack-tensorflow-2.13.1.json").read_text()
        )
        return document

    def site(self) -> Path:
        """The environment's packages."""
        return next(self.venv.glob("lib/python3*/site-packages"))
