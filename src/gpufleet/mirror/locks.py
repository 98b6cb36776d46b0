"""Resolve the stacks' locks that do not exist yet, with the roles' own module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from gpufleet import stopping
from gpufleet.paths import ROOT

from .needs import Lock, MirrorError


def resolve(locks: Iterable[Lock]) -> None:
    """Resolve every lock that is missing or outdated; raise `MirrorError` if that fails."""
    variables = [
        {
            "path": str(lock.path),
            "requirements": lock.requirements,
            "python": lock.python,
            "index_url": lock.index_url,
            "index": lock.index,
        }
        for lock in locks
        if lock.requirements
    ]
    if not variables:
        return
    # In a private file: an index's address may contain a password.
    with stopping.temporary_directory() as folder:
        file = Path(folder, "stacks.json")
        file.write_text(json.dumps({"stack_locks": variables}), encoding="utf-8")
        program = Path(sys.executable).with_name("ansible-playbook")
        done = subprocess.run(
            [str(program), "-i", "localhost,", "-e", f"@{file}", "playbooks/locks.yml"],
            cwd=ROOT,
            stdout=sys.stderr,
            check=False,
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        )
    if done.returncode:
        raise MirrorError(
            "the stacks' locks could not be resolved; see Ansible's output above",
            "Check that a Python package index is reachable (gpu_pip_index_url, or uv's own "
            "setting), and run again.",
        )
