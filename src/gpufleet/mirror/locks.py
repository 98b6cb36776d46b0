"""Resolve the stacks' locks that are not there yet, by the roles' own module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gpufleet.paths import ROOT

from .needs import Lock, MirrorError


def resolve(locks: Iterable[Lock]) -> None:
    """Have every lock there, made for what is asked now; raises `MirrorError`."""
    wanted = [
        {"path": str(lock.path), "requirements": lock.requirements, "python": lock.python,
         "index_url": lock.index_url}
        for lock in locks if lock.requirements]
    if not wanted:
        return
    # In a file that nobody else reads: an index's address may carry a password.
    with tempfile.NamedTemporaryFile("w", suffix=".json") as words:
        json.dump({"stack_locks": wanted}, words)
        words.flush()
        program = Path(sys.executable).with_name("ansible-playbook")
        done = subprocess.run(
            [str(program), "-i", "localhost,", "-e", f"@{words.name}", "playbooks/locks.yml"],
            cwd=ROOT, stdout=sys.stderr, check=False,
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")})
    if done.returncode:
        raise MirrorError(
            "the stacks' locks could not be resolved; Ansible's words stand above",
            "See that a Python package index is reached (gpu_pip_index_url, or uv's own setting), "
            "and run again.")
