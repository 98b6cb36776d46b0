"""Run ansible-playbook: the command line of a playbook, printed, then started as a subprocess.

Touches nothing itself; the playbooks change hosts.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gpufleet.paths import PLAYBOOKS, ROOT

if TYPE_CHECKING:
    from gpufleet.fleet.inventory import HostSelector

# A variable is a secret by its name.
_SECRET = re.compile(r"pass|secret|token|credential|api_?key|private_?key|vault", re.IGNORECASE)


def log(text: str) -> None:
    """Write a line to standard error; standard output belongs to the command's result."""
    print(text, file=sys.stderr, flush=True)


def playbook_command(
    name: str, selector: HostSelector, limit: str | None, args: Sequence[str] = ()
) -> list[str]:
    """The command that runs a playbook (`site.yml`) on the selector's hosts within `limit`."""
    command = [str(Path(sys.executable).with_name("ansible-playbook")), str(PLAYBOOKS / name)]
    for option, values in (
        ("-i", selector.inventories),
        ("-e", selector.extra_vars),
        ("--limit", [limit] if limit else []),
        ("--vault-password-file", selector.vault_password_files),
    ):
        command += [arg for value in values for arg in (option, value)]
    return [*command, *args]


def without_secrets(command: Sequence[str]) -> list[str]:
    """The command to print: `***` stands for secrets among its extra variables.

    Whoever lists processes sees them all the same: a vault or `-e @FILE` keeps them out of it.
    """
    return [
        _redacted(arg) if before in {"-e", "--extra-vars"} else arg
        for before, arg in pairwise(["", *command])
    ]


def _redacted(variables: str) -> str:
    """The value of -e without the secrets in it: NAME=VALUE words, a mapping, or @FILE."""
    if variables.startswith("@") or not _SECRET.search(variables):
        return variables
    try:
        words = [word.partition("=") for word in shlex.split(variables)]
    except ValueError:
        return "***"
    if not all(equals for _, equals, _ in words):
        return "***"
    return " ".join(
        f"{name}=***" if _SECRET.search(name) else shlex.quote(f"{name}={value}")
        for name, _, value in words
    )


def run(
    command: Sequence[str],
    output: IO[str] | None = None,
    *,
    cwd: Path | None = None,
    stdin: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Print a native command and run it; returns its exit status.

    `output` receives its standard output. Ansible reads the configuration of gpufleet unless the
    environment names another one.
    """
    shown = shlex.join(without_secrets(command)).replace(f"{cwd or Path.cwd()}/", "")
    log(f"\x1b[2m$ {shown}\x1b[0m" if sys.stderr.isatty() else f"$ {shown}")
    settings = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), **os.environ, **(environment or {})}
    # Interrupted, it still waits until `stopping` has ended the command.
    with subprocess.Popen(command, cwd=cwd, env=settings, stdin=stdin, stdout=output) as running:
        return running.wait()
