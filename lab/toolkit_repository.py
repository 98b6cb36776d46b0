"""A signed apt repository with stand-ins for NVIDIA's container toolkit, which cannot be had here.

`python -m lab toolkit-repository DIR` writes it: the packages under their real names, in three
versions, each labelled a stand-in; the key is made for this directory and thrown away with it. The
programs say how they were called (/var/log/stand-in-container-toolkit.log on the host).
"""

from __future__ import annotations

import hashlib
import shutil
from email.utils import formatdate
from pathlib import Path

from lab.command import run
from lab.files import scratch
from lab.settings import Lab

PROGRAMS = Path(__file__).parent / "container_toolkit"
VERSIONS = ("1.17.8-1", "1.18.0-1", "1.20.0-1")
OWNER = "gpufleet lab (stand-in, not NVIDIA) <lab@localhost>"
# Each package with its programs and what it needs, as in the real one's control file.
PACKAGES = {
    "libnvidia-container1": ([], ""),
    "libnvidia-container-tools": ([], "libnvidia-container1 (>= {})"),
    "nvidia-container-toolkit-base": (
        ["nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-runtime"],
        "",
    ),
    "nvidia-container-toolkit": (
        ["nvidia-container-runtime-hook"],
        "libnvidia-container-tools ({1} {0}), nvidia-container-toolkit-base (= {0})",
    ),
}
BASE, TOOLKIT = "nvidia-container-toolkit-base", "nvidia-container-toolkit"
# From this version on the base package has systemd units: first among the administrator's own.
UNITS_SINCE, UNITS = "1.18", ("nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path")
# From this version on the toolkit needs the very same version of libnvidia-container-tools.
EXACT_SINCE = "1.20"


def build(lab: Lab, directory: Path) -> str:
    """Write the repository; returns the fingerprint of its key."""
    packages = directory / "amd64"
    shutil.rmtree(directory, ignore_errors=True)
    packages.mkdir(parents=True)
    with scratch(lab.cache, "toolkit-repository") as work:
        for version in VERSIONS:
            for name in PACKAGES:
                _package(name, version, work, packages)
        _lists(packages)
        fingerprint = _signed(packages, directory / "key.asc", work / "keys")
    (directory / "fingerprint").write_text(fingerprint + "\n", encoding="ascii")
    return fingerprint


def _package(name: str, version: str, work: Path, target: Path) -> None:
    programs, depends = PACKAGES[name]
    tree = work / f"{name}-{version}"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/bin").mkdir(parents=True)
    for program in programs:
        text = (PROGRAMS / program).read_text(encoding="utf-8")
        _script(tree / "usr/bin" / program, text.replace("@VERSION@", version.partition("-")[0]))
    label = tree / "usr/share/doc" / name / "README-STAND-IN"
    label.parent.mkdir(parents=True)
    label.write_text("Made by gpufleet's lab. Not NVIDIA's package.\n", encoding="utf-8")
    needs = depends.format(version, "=" if version >= EXACT_SINCE else ">=")
    (tree / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: {OWNER}\n"
        + (f"Depends: {needs}\n" if needs else "")
        + "Description: STAND-IN made by gpufleet's lab, not NVIDIA's package\n",
        encoding="utf-8",
    )
    _maintainer_scripts(name, version, tree)
    run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, target / f"{tree.name}.deb")


def _maintainer_scripts(name: str, version: str, tree: Path) -> None:
    """Write the scripts of the real packages' installation and removal, and their units."""
    scripts = {
        path.name: path.read_text(encoding="utf-8") for path in (PROGRAMS / "maintainer").iterdir()
    }
    if name == TOOLKIT:
        _script(tree / "DEBIAN/postinst", scripts["toolkit-postinst"])
        _script(tree / "DEBIAN/postrm", scripts["toolkit-postrm"])
    if name != BASE:
        return
    with_units = version >= UNITS_SINCE
    _script(
        tree / "DEBIAN/postinst",
        scripts["base-postinst"] + with_units * scripts["base-postinst-units"],
    )
    if with_units:
        environment = "etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
        directory = "lib/systemd/system" if version >= EXACT_SINCE else "etc/systemd/system"
        files = {f"{directory}/{unit}": PROGRAMS / "units" / unit for unit in UNITS}
        for place, source in files.items():
            (tree / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, tree / place)
        (tree / environment).parent.mkdir(parents=True)
        (tree / environment).write_text("# STAND-IN\n", encoding="utf-8")
        kept = [place for place in (*files, environment) if place.startswith("etc/")]
        (tree / "DEBIAN/conffiles").write_text(
            "".join(f"/{place}\n" for place in kept), encoding="utf-8"
        )


def _script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def _lists(packages: Path) -> None:
    """Packages and Release, as apt reads them in a repository without suites."""
    entries = []
    for path in sorted(packages.glob("*.deb")):
        control = run("dpkg-deb", "--field", path).stdout.strip()
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        size = path.stat().st_size
        entries.append(f"{control}\nFilename: ./{path.name}\nSize: {size}\nSHA256: {digest}\n")
    listed = "\n".join(entries)
    (packages / "Packages").write_text(listed, encoding="utf-8")
    digest = hashlib.sha256(listed.encode()).hexdigest()
    (packages / "Release").write_text(
        f"Origin: stand-in\nDate: {formatdate(usegmt=True)}\nArchitectures: amd64\n"
        f"SHA256:\n {digest} {len(listed.encode())} Packages\n",
        encoding="utf-8",
    )


def _signed(packages: Path, key: Path, home: Path) -> str:
    home.mkdir(mode=0o700)
    gpg = ("gpg", "--homedir", home, "--batch", "--quiet", "--passphrase", "")
    run(*gpg, "--quick-generate-key", OWNER, "rsa2048", "sign", "never")
    run(*gpg, "--armor", "--output", key, "--export")
    release = packages / "Release"
    run(*gpg, "--clearsign", "--output", packages / "InRelease", release)
    keys = run(*gpg, "--with-colons", "--list-keys").stdout.splitlines()
    return next(line.split(":")[9] for line in keys if line.startswith("fpr:"))
