"""The contents of the stand-ins of Ubuntu's packages: files, links and scripts by kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.command import run
from lab.driver_repository import SLOWLY, dkms_scripts, source_files
from lab.files import write

LIB = "/usr/lib/x86_64-linux-gnu"
# `linux/module.h` as far as the stand-in module needs it.
HEADER = """\
/* A stand-in for the kernel's headers: it keeps what modinfo tells of a module. */
#define _TOLD(name, tag, value) \\
    static const char name[] __attribute__((section(".modinfo"), used)) = tag "=" value
#define MODULE_VERSION(value) _TOLD(_told_version, "version", value)
#define MODULE_LICENSE(value) \\
    _TOLD(_told_license, "license", value); \\
    _TOLD(_told_magic, "vermagic", STAND_IN_UTS " SMP mod_unload ")
#define module_init(function) int init_module(void) { return function(); }
#define module_exit(function) void cleanup_module(void) { function(); }
#define __init
#define __exit
"""
_MAKEFILE = """\
# A stand-in for the kernel's own: it compiles each module of M by itself.
CC := {compiler}
modules:
\t@for name in $(M)/*.c; do \\
\t  echo "  CC [M] $$name"; \\
\t  $(CC) -O1 -I$(CURDIR)/include -D'STAND_IN_UTS="{kernel}"' \\
\t    -c $$name -o $${{name%.c}}.ko || exit; \\
\tdone
"""
_NOUVEAU = """\
# nvidia-graphics-drivers
blacklist nouveau
blacklist lbm-nouveau
alias nouveau off
alias lbm-nouveau off
"""
_INITRAMFS = "if [ -x /usr/sbin/update-initramfs ]; then update-initramfs -u; fi"
_PERSISTENCED = """\
#!/bin/sh
# A stand-in for NVIDIA's persistence daemon, which ends where there is no card.
mkdir -p /var/run/nvidia-persistenced
echo "$*" >/var/run/nvidia-persistenced/stand-in
[ -e /dev/nvidia0 ] || { echo "failed to query NVIDIA devices" >&2; exit 1; }
sleep infinity &
"""
_UNIT = """\
[Unit]
Description=NVIDIA Persistence Daemon (stand-in)
Wants=syslog.target
StopWhenUnneeded=true

[Service]
Type=forking
ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode --verbose
ExecStopPost=/bin/rm -rf /var/run/nvidia-persistenced
"""
_HOOKS = (
    "set -- {kernel} /boot/vmlinuz-{kernel}\nif [ -d /etc/kernel/{moment}.d ]; then\n"
    '  run-parts --arg="$1" --arg="$2" /etc/kernel/{moment}.d\nfi'
)

Inside = dict[str, Any]


def dkms_name(flavour: str, open_: bool) -> str:
    """The module's name in DKMS: Ubuntu's proprietary server branches have a name of their own."""
    return "nvidia-srv" if flavour.endswith("-server") and not open_ else "nvidia"


def _source(marks: dict[str, str], open_: bool) -> Inside:
    kind = "open" if open_ else "proprietary"
    files = source_files(marks["%"], kind, dkms_name(marks["@"], open_))
    return {"files": {path: text for path, text in files.items() if "dkms.conf" not in path}}


def _dkms(marks: dict[str, str], open_: bool) -> Inside:
    kind, name = "open" if open_ else "proprietary", dkms_name(marks["@"], open_)
    files = source_files(marks["%"], kind, name)
    scripts = dkms_scripts(marks["%"], name)
    return {
        "files": {path: text for path, text in files.items() if "dkms.conf" in path},
        "scripts": {**scripts, "postinst": f"{_INITRAMFS}\n{scripts['postinst']}"},
    }


def _library(marks: dict[str, str]) -> Inside:
    stub = Path(marks["library"])
    return {
        "files": {f"{LIB}/{stub.name}": stub},
        "scripts": {"postinst": "ldconfig", "postrm": "ldconfig"},
    }


def _persistence(marks: dict[str, str]) -> Inside:
    reload = "systemctl daemon-reload"
    return {
        "files": {
            "/lib/systemd/system/nvidia-persistenced.service": _UNIT,
            "/usr/bin/nvidia-persistenced": _PERSISTENCED,
        },
        "modes": {"/usr/bin/nvidia-persistenced": 0o755},
        "scripts": {"postinst": reload, "postrm": reload},
    }


def _headers(marks: dict[str, str]) -> Inside:
    kernel, compiler = marks["#"], marks.get("compiler", "gcc")
    top = f"/usr/src/linux-headers-{kernel}"
    hooks = (
        "if [ -d /etc/kernel/header_postinst.d ]; then\n"
        f'  run-parts --arg="{kernel}" /etc/kernel/header_postinst.d\nfi'
    )
    return {
        "files": {
            f"{top}/Makefile": _MAKEFILE.format(kernel=kernel, compiler=compiler),
            f"{top}/include/linux/module.h": HEADER,
        },
        "links": {f"/lib/modules/{kernel}/build": top},
        "scripts": {"preinst": SLOWLY.format("headers"), "postinst": hooks},
    }


def _modules(marks: dict[str, str]) -> Inside:
    top = f"/lib/modules/{marks['#']}"
    return {
        "files": {f"{top}/modules.order": "", f"{top}/modules.builtin": ""},
        "scripts": {"postinst": f"depmod {marks['#']}"},
    }


def _image(marks: dict[str, str]) -> Inside:
    kernel = marks["#"]
    return {
        "files": {
            f"/boot/vmlinuz-{kernel}": f"stand-in for the kernel {kernel}\n",
            f"/boot/config-{kernel}": "CONFIG_RD_ZSTD=y\nCONFIG_RD_GZIP=y\n",
        },
        "scripts": {
            "postinst": f"depmod {kernel}\n" + _HOOKS.format(kernel=kernel, moment="postinst"),
            "prerm": _HOOKS.format(kernel=kernel, moment="prerm"),
            "postrm": _HOOKS.format(kernel=kernel, moment="postrm")
            + f'\nif [ "$1" = purge ]; then rm -rf /lib/modules/{kernel}; fi',
        },
    }


def compiled(work: Path, name: str, source: str, kernel: str) -> Path:
    """A module for a kernel, compiled here."""
    place = work / f"built-{name}-{kernel}"
    if not place.exists():
        write(place / "include/linux/module.h", HEADER)
        write(place / f"{name}.c", source)
        run("gcc", "-O1", f"-I{place}/include", f'-DSTAND_IN_UTS="{kernel}"', "-c",
            place / f"{name}.c", "-o", place / f"{name}.ko")  # fmt: skip
    return place / f"{name}.ko"


def _module_source(version: str, kind: str = "proprietary") -> str:
    return next(str(text) for path, text in source_files(version, kind).items()
                if path.endswith(".c"))  # fmt: skip


def _modules_extra(marks: dict[str, str], work: Path) -> Inside:
    kernel = marks["#"]
    module = compiled(work, "nouveau", _module_source("1", "open"), kernel)
    return {
        "files": {f"/lib/modules/{kernel}/kernel/drivers/gpu/drm/nouveau/nouveau.ko": module},
        "scripts": {"postinst": f"depmod {kernel}"},
    }


def _prebuilt(marks: dict[str, str], work: Path) -> Inside:
    kernel, version = marks["#"], marks["%"]
    module = compiled(work / f"prebuilt-{version}", "nvidia", _module_source(version), kernel)
    folder = "nvidia-" + marks["@"].replace("-server", "srv")
    return {
        "files": {f"/lib/modules/{kernel}/kernel/{folder}/nvidia.ko": module},
        "scripts": {"postinst": f"depmod {kernel}", "postrm": f"depmod {kernel} || :"},
    }


def contents(kind: str | None, marks: dict[str, str], work: Path) -> Inside:
    """The files, links and scripts of a package of this kind."""
    kinds: dict[str, Callable[[], Inside]] = {
        "source": lambda: _source(marks, open_=False),
        "source_open": lambda: _source(marks, open_=True),
        "dkms": lambda: _dkms(marks, open_=False),
        "dkms_open": lambda: _dkms(marks, open_=True),
        "library": lambda: _library(marks),
        "persistence": lambda: _persistence(marks),
        "kernel_common": lambda: {
            "files": {"/lib/modprobe.d/nvidia-graphics-drivers.conf": _NOUVEAU},
            "scripts": {"postinst": _INITRAMFS},
        },
        "headers": lambda: _headers(marks),
        "headers_common": dict,
        "modules": lambda: _modules(marks),
        "modules_extra": lambda: _modules_extra(marks, work),
        "image": lambda: _image(marks),
        "prebuilt": lambda: _prebuilt(marks, work),
    }
    return kinds[kind]() if kind else {}
