"""Run other programs; a failure becomes an error with a message and a remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from gpufleet.stopping import MARK
from lab.errors import LabError

PACKAGES = "podman runc netavark aardvark-dns iptables makeself mmdebstrap openssh-client xz-utils"
ISOLATED = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# podman reads this file instead of the machine's own; see the comments in it.
CONTAINERS_CONF = Path(__file__).parent / "host" / "containers.conf"


def environment() -> dict[str, str]:
    # Without the mark by which a stopped command finds what it has started: containers stay.
    inherited = {name: value for name, value in os.environ.items() if name != MARK}
    return {**inherited, "CONTAINERS_CONF": str(CONTAINERS_CONF), "LC_ALL": "C"}


def run(
    *argv: str | Path,
    stdin: str | None = None,
    source: IO[bytes] | None = None,
    timeout: float = 120,
    check: bool = True,
    extra: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command and return its result; a failure raises a LabError with its output."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            input=stdin,
            # A program that asks something must find nobody there.
            stdin=(source or subprocess.DEVNULL) if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            env={**environment(), **(extra or {})},
        )
    except FileNotFoundError:
        raise missing(words[0]) from None
    except subprocess.TimeoutExpired:
        raise LabError(
            f"`{' '.join(words[:3])} ...` did not finish within {timeout:.0f} seconds",
            "The machine may be busy; run the same command again.",
        ) from None
    if check and done.returncode != 0:
        output = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-12:]
        raise LabError(
            f"`{' '.join(words[:4])} ...` failed with status {done.returncode}:\n  "
            + "\n  ".join(output),
            "Fix the cause that its output names; `python -m lab down` removes a half-built lab.",
        )
    return done


def feed(content: bytes, *argv: str, timeout: float = 120) -> None:
    """Run a command that reads these bytes; a failure raises a LabError with its output."""
    with tempfile.TemporaryFile() as stream:
        stream.write(content)
        stream.seek(0)
        run(*argv, source=stream, timeout=timeout)


def mmdebstrap(*words: str | Path, timeout: float, work: Path) -> None:
    """Build a root file system below `work`, in name spaces of its own.

    Killed, it takes its processes and mounts along. One of these is the machine's /dev/shm, which
    whoever clears `work` would empty.
    """
    if not shutil.which("mmdebstrap"):
        raise missing("mmdebstrap")
    run(*ISOLATED, "mmdebstrap", *words, timeout=timeout, extra={"TMPDIR": str(work)})


def podman(*argv: str | Path, timeout: float = 120, check: bool = True) -> str:
    return run("podman", *argv, timeout=timeout, check=check).stdout.strip()


def missing(program: str) -> LabError:
    return LabError(
        f"{program} is not installed on this machine",
        f"As root: apt-get install --no-install-recommends {PACKAGES}",
    )
