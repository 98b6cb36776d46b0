"""The test run that a lab belongs to: its process, and whether it has ended, however it ended.

Tests name their run in the environment, and what `up` makes then has it as a label.
"""

from __future__ import annotations

from pathlib import Path

from gpufleet.stopping import STARTED

BOOT = Path("/proc/sys/kernel/random/boot_id")


def name_of(pid: int | str) -> str:
    """The name of the run that a process is: its number, its start and the machine's boot."""
    return f"{pid}:{_stat(pid)[STARTED]}:{BOOT.read_text(encoding='ascii').strip()}"


def has_ended(run: str) -> bool:
    """Return whether a run's process is gone. A person's lab has no run, and never ends."""
    if not run:
        return False
    pid = run.partition(":")[0]
    try:
        # Nobody has waited for a zombie yet.
        return _stat(pid)[0] == "Z" or name_of(pid) != run
    except (FileNotFoundError, ProcessLookupError):
        return True


def _stat(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat that follow the command's name, the state first."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
