"""Makes a signed apt repository of stand-in drivers, and a stand-in for NVIDIA's runfile: NVIDIA's
names, and nothing of NVIDIA's inside.

The kernel module is an empty one that DKMS builds in seconds, under the name and with the version
and licence of the real one; `libcuda.so.1` answers as on a machine without a card. Tests put the
repository on a host and let the role install from it. What takes a while with the real packages can
be made to take a while here: a number of seconds in /run/stand-in/{unpack,build} on the host. With
a file /run/stand-in/fill-VERSION the build of that version fills its disk.

    python -m lab.driver_repository DIRECTORY
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lab.command import run
from lab.files import write
from lab.stubs import library

LABEL = "Stand-in"
KEY_FILE = "key.asc"
# {version: what cuDriverGetVersion says}
VERSIONS = {"570.124.06": 12080, "580.65.06": 13000}

SLOWLY = 'if [ -e /run/stand-in/{0} ]; then sleep "$(cat /run/stand-in/{0})"; fi'
_DKMS = """\
PACKAGE_NAME="{name}"
PACKAGE_VERSION="{version}"
BUILT_MODULE_NAME[0]="nvidia"
DEST_MODULE_LOCATION[0]="/updates/dkms"
MAKE[0]="make KERNEL=${{kernelver}}"
AUTOINSTALL="yes"
"""
_MAKEFILE = """\
obj-m := nvidia.o
all:
\t@if [ -e /run/stand-in/build ]; then sleep "$$(cat /run/stand-in/build)"; fi
\t@if [ -e /run/stand-in/fill-{version} ]; then dd if=/dev/zero of=ballast bs=64k; fi
\t$(MAKE) -C /lib/modules/$(KERNEL)/build M=$(CURDIR) modules
clean:
\t:
"""
_MODULE = """\
/* A stand-in for NVIDIA's kernel module: it does nothing. */
#include <linux/module.h>
static int __init stand_in_init(void) {{ return 0; }}
static void __exit stand_in_exit(void) {{ }}
module_init(stand_in_init);
module_exit(stand_in_exit);
MODULE_VERSION("{version}");
MODULE_LICENSE("{license}");
"""
_UNIT = """\
[Unit]
Description=Stand-in for NVIDIA's persistence daemon
[Service]
ExecStart=/usr/bin/test -e /dev/nvidia0
[Install]
WantedBy=multi-user.target
"""


_RUNFILE = """\
#!/bin/sh
# A stand-in for NVIDIA's runfile, with nothing of NVIDIA's inside. It keeps its options.
set -e
echo "$@" >/var/log/stand-in-runfile
case " $* " in *" --silent "*) ;; *) echo "ERROR: nobody is here to answer" >&2; exit 1;; esac
tail -n +14 "$0" | tar -xz -C /
case " $* " in
  *" --kernel-module-type=open "*) ;;
  *) sed -i 's|Dual MIT/GPL|NVIDIA|' /usr/src/nvidia-{version}/nvidia.c;;
esac
ldconfig
dkms add nvidia/{version}
exit 0
"""
_UNINSTALL = """\
#!/bin/sh
dkms remove nvidia/{version} --all
rm -rf /usr/src/nvidia-{version} {lib}/libcuda.so.{version} {lib}/libcuda.so.1
rm /usr/bin/nvidia-uninstall
ldconfig
"""


@dataclass
class Package:
    """One package: its files by path, its scripts by name."""

    name: str
    version: str
    depends: str = ""
    conflicts: str = ""
    provides: str = ""
    replaces: str = ""
    files: dict[str, str | Path] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    revision: str = "-1"

    @property
    def file(self) -> str:
        return f"{self.name}_{self.version}{self.revision}_amd64.deb"

    def control(self) -> str:
        lines = {
            "Package": self.name,
            "Version": self.version + self.revision,
            "Architecture": "amd64",
            "Maintainer": "The gpufleet developers <gpufleet@localhost>",
            "Depends": self.depends,
            "Conflicts": self.conflicts,
            "Replaces": self.replaces,
            "Provides": self.provides,
            "Description": f"stand-in for {self.name}, with nothing of NVIDIA's inside",
        }
        return "".join(f"{key}: {value}\n" for key, value in lines.items() if value)


def source_files(version: str, flavour: str, name: str = "nvidia") -> dict[str, str | Path]:
    """The kernel module's source, as DKMS builds it: {path: text}."""
    source = f"/usr/src/{name}-{version}"
    return {
        f"{source}/dkms.conf": _DKMS.format(name=name, version=version),
        f"{source}/Makefile": _MAKEFILE.format(version=version),
        f"{source}/nvidia.c": _MODULE.format(
            version=version, license="Dual MIT/GPL" if flavour == "open" else "NVIDIA"
        ),
    }


def dkms_scripts(version: str, name: str = "nvidia") -> dict[str, str]:
    """The maintainer scripts of the package with the module's source."""
    build = f'/usr/lib/dkms/common.postinst {name} {version} /usr/share/{name} "" "$2"'
    return {
        "preinst": SLOWLY.format("unpack"),
        "postinst": build,
        "prerm": f"dkms remove -m {name} -v {version} --all || :",
    }


def kernel(version: str, flavour: str) -> Package:
    """The package with the kernel module's source."""
    open_ = flavour == "open"
    return Package(
        "nvidia-kernel-open-dkms" if open_ else "nvidia-kernel-dkms",
        version,
        depends="dkms",
        conflicts="nvidia-kernel-dkms" if open_ else "nvidia-kernel-open-dkms",
        files=source_files(version, flavour),
        scripts=dkms_scripts(version),
    )


def library_of(version: str, cuda_version: int, work: Path) -> Path:
    """A `libcuda.so.1` that finds no card."""
    stub = work / f"libcuda.so.{version}"
    functions = {
        "cuInit": library.Function(status=100),
        "cuDriverGetVersion": library.Function(writes=cuda_version, to=0),
    }
    library.write(stub, "libcuda.so.1", functions)
    return stub


def packages(version: str, cuda_version: int, work: Path) -> list[Package]:
    """Every package of one version of the driver."""
    exact = f"(= {version}-1)"
    stub = library_of(version, cuda_version, work)
    lib = "/usr/lib/x86_64-linux-gnu"
    return [
        kernel(version, "proprietary"),
        kernel(version, "open"),
        Package(
            "libcuda1",
            version,
            files={f"{lib}/{stub.name}": stub},
            scripts={"postinst": "ldconfig", "postrm": "ldconfig"},
        ),
        Package("nvidia-smi", version, files={"/usr/share/doc/nvidia-smi/stand-in": "stand-in\n"}),
        Package("nvidia-driver-cuda", version, depends=f"libcuda1 {exact}, nvidia-smi {exact}"),
        Package(
            "nvidia-persistenced",
            version,
            files={"/lib/systemd/system/nvidia-persistenced.service": _UNIT},
            scripts={"postinst": "systemctl daemon-reload", "postrm": "systemctl daemon-reload"},
        ),
    ]


def make(package: Package, folder: Path, work: Path) -> Path:
    """Build one package into a folder."""
    root = work / f"{package.name}-{package.version}"
    for name, content in package.files.items():
        path = root / name.lstrip("/")
        if isinstance(content, Path):
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(content, path)
        else:
            write(path, content, mode=package.modes.get(name, 0o644))
    for name, target in package.links.items():
        link = root / name.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    write(root / "DEBIAN/control", package.control())
    for name, text in package.scripts.items():
        write(root / "DEBIAN" / name, f"#!/bin/sh\nset -e\n{text}\n", mode=0o755)
    made = folder / package.file
    run("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", root, made)
    return made


def index(files: Iterable[Path], place: str = "./") -> str:
    """The repository's list of packages, which lie in `place`."""
    text = ""
    for file in sorted(files):
        content = file.read_bytes()
        text += run("dpkg-deb", "--field", file).stdout.rstrip()
        text += f"\nFilename: {place}{file.name}\nSize: {len(content)}\n"
        text += f"SHA256: {hashlib.sha256(content).hexdigest()}\n\n"
    return text


def sign(folder: Path, label: str, work: Path) -> str:
    """Write Release, signed with a new key; returns the key's fingerprint."""
    listed = (folder / "Packages").read_bytes()
    write(
        folder / "Release",
        f"Origin: {label}\nLabel: {label}\nSuite: stand-in\nCodename: stand-in\n"
        f"Architectures: amd64\nDate: Fri, 20 Nov 2026 12:00:00 UTC\nSHA256:\n"
        f" {hashlib.sha256(listed).hexdigest()} {len(listed)} Packages\n",
    )
    gpg, fingerprint = key(folder, label, work)
    run(*gpg, "--clearsign", "--output", folder / "InRelease", folder / "Release")
    return fingerprint


def key(folder: Path, label: str, work: Path) -> tuple[list[str], str]:
    """Write a new public key; returns the gpg that signs with it, and its fingerprint."""
    home = Path(tempfile.mkdtemp(dir=work))
    gpg = ["gpg", "--homedir", str(home), "--batch", "--yes", "--quiet"]
    gpg += ["--pinentry-mode", "loopback"]
    user = f"{label} repository, for tests"
    # So is NVIDIA's own key. Its agent ends when its home directory goes.
    run(*gpg, "--passphrase", "", "--quick-generate-key", user, "rsa3072", "sign", "never")
    write(folder / KEY_FILE, run(*gpg, "--armor", "--export").stdout)
    listing = run(*gpg, "--with-colons", "--fingerprint").stdout
    lines = listing.splitlines()
    return gpg, next(line.split(":")[9] for line in lines if line.startswith("fpr"))


def build(
    folder: Path,
    versions: Iterable[str] = tuple(VERSIONS),
    label: str = LABEL,
    without: Iterable[str] = (),
) -> str:
    """Make a repository of these versions, without packages of some names; returns the fingerprint
    of the key that it is signed with."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        files = [
            make(package, folder, work)
            for version in versions
            for package in packages(version, VERSIONS[version], work)
            if package.name not in without
        ]
        write(folder / "Packages", index(files))
        return sign(folder, label, work)


def runfile(path: Path, version: str) -> Path:
    """Make the stand-in for a version's runfile; returns it."""
    lib = "/usr/lib/x86_64-linux-gnu"
    with tempfile.TemporaryDirectory() as place:
        work, root = Path(place), Path(place) / "root"
        stub = root / lib.lstrip("/") / f"libcuda.so.{version}"
        stub.parent.mkdir(parents=True)
        shutil.copyfile(library_of(version, VERSIONS[version], work), stub)
        for name, content in kernel(version, "open").files.items():
            write(root / name.lstrip("/"), str(content))
        uninstall = root / "usr/bin/nvidia-uninstall"
        write(uninstall, _UNINSTALL.format(version=version, lib=lib), mode=0o755)
        run("tar", "-czf", work / "files", "--owner=0", "--group=0", "-C", root, "usr")
        path.write_bytes(_RUNFILE.format(version=version).encode() + (work / "files").read_bytes())
    return path


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
