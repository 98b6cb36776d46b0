"""Programs of another processor: QEMU runs them, and the kernel starts QEMU for them.

Debian registers QEMU with the kernel (binfmt_misc) without the flag by which a setuid program gets
its rights: `sudo` does not work on such a host. So the lab adds an entry of its own, which is the
machine's and lasts until its next boot.
"""

from __future__ import annotations

from pathlib import Path

from lab.command import run
from lab.errors import LabError

FORMATS = Path("/proc/sys/fs/binfmt_misc")
PACKAGES = "qemu-user-static binfmt-support arch-test"
# By Debian's name of the architecture: the interpreter, and what begins an ELF file of it.
ENTRY = "gpufleet-{arch}"
INTERPRETERS = {"arm64": Path("/usr/libexec/qemu-binfmt/aarch64-binfmt-P")}
MAGIC = {"arm64": r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"}
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
# P: keep the program's name; O, C: with the program's own rights; F: QEMU is opened now, so that a
# container needs none.
FLAGS = "POCF"


def missing() -> list[str]:
    """The Debian packages that this machine lacks."""
    return [] if all(path.exists() for path in INTERPRETERS.values()) else PACKAGES.split()


def ensure(arch: str) -> None:
    """Have the kernel run programs of this architecture; a `LabError` where QEMU is not there."""
    entry = FORMATS / ENTRY.format(arch=arch)
    if missing():
        raise LabError(
            f"programs for {arch} cannot be run on this machine",
            f"As root: apt-get install --no-install-recommends {PACKAGES}",
        )
    if not (FORMATS / "register").exists():
        run("mount", "-t", "binfmt_misc", "binfmt_misc", FORMATS)
    if not entry.exists():
        words = (entry.name, "M", "0", MAGIC[arch], MASK, str(INTERPRETERS[arch]), FLAGS)
        (FORMATS / "register").write_text(":" + ":".join(words), encoding="ascii")
