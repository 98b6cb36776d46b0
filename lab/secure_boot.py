"""Secure Boot in a virtual machine: the firmware, what it starts, and the console of its keys.

As on a server: the firmware (OVMF) has Microsoft's keys, which signed Debian's shim; shim accepts
GRUB and the kernel by Debian's key, and keys of the machine's owner that somebody enrolled at the
console, in a program of shim's (MokManager).
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.command import run

FIRMWARE = Path("/usr/share/OVMF/OVMF_CODE_4M.ms.fd")
VARIABLES = FIRMWARE.with_name("OVMF_VARS_4M.ms.fd")
PARTITION = "esp.img"
_MIB = 128
# The system partition's files: {name there: name below the machine's root, or in its image}.
_FILES = {
    "EFI/BOOT/BOOTX64.EFI": "usr/lib/shim/shimx64.efi.signed",
    "EFI/BOOT/mmx64.efi": "usr/lib/shim/mmx64.efi.signed",
    "EFI/BOOT/grubx64.efi": "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed",
}
DOWN, ENTER = b"\x1b[B", b"\r"
# An emulated processor is slow, and slower beside other work.
_LIMIT_S = 900.0


def system_partition(root: Path, made: Path, kernel_options: str) -> None:
    """Make the partition that the firmware starts from; `made` has kernel and initrd."""
    disk = made / PARTITION
    with disk.open("wb") as stream:
        stream.truncate(_MIB << 20)
    run("mkfs.vfat", "-n", "ESP", disk)
    run("mmd", "-i", disk, "::/EFI", "::/EFI/BOOT", "::/EFI/debian")
    configuration = made / "grub.cfg"
    configuration.write_text(f"linux /vmlinuz {kernel_options}\ninitrd /initrd.img\nboot\n")
    sources = {name: root / source for name, source in _FILES.items()}
    sources |= {name: made / name for name in ("vmlinuz", "initrd.img")}
    sources["EFI/debian/grub.cfg"] = configuration
    for name, source in sources.items():
        run("mcopy", "-i", disk, source, f"::/{name}")


def options(image: Path, work: Path) -> list[str | Path]:
    """QEMU's options. The firmware's variables are the machine's own, and begin without a key."""
    variables = work / "variables.fd"
    shutil.copy(VARIABLES, variables)
    return [
        *("-machine", "smm=on"),
        *("-global", "driver=cfi.pflash01,property=secure,value=on"),
        *("-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={FIRMWARE}"),
        *("-drive", f"if=pflash,format=raw,unit=1,file={variables}"),
        *("-drive", f"if=virtio,format=raw,snapshot=on,file={image / PARTITION}"),
    ]


@contextmanager
def enrolment(console: Path, password: str) -> Iterator[None]:
    """Confirm at the console what was asked for, at a reboot that begins inside; await the next.

    shim's program waits ten seconds for a key, then asks with menus. No login is awaited: where the
    machine is slow, systemd gives up its console, which ssh does not need.
    """
    with socket.socket(socket.AF_UNIX) as terminal:
        terminal.connect(str(console))
        terminal.settimeout(_LIMIT_S)
        yield
        seen = b""
        for text, keys in (
            (b"Press any key to perform MOK management", ENTER),
            (b"Enroll MOK", DOWN + ENTER),
            (b"Continue", DOWN + ENTER),
            (b"Enroll the key", DOWN + ENTER),
            (b"assword", password.encode() + ENTER),
            (b"Reboot", ENTER),
            (b"Welcome to GRUB", b""),
        ):
            while text not in seen:
                seen += terminal.recv(1 << 16)
            seen = seen.partition(text)[2]
            terminal.sendall(keys)
