"""Give lab hosts an older Python than their Debian has, for older TensorFlow releases.

Such an interpreter is not built here but copied: a prefix that stands on this machine, made by
pyenv, say, on a Debian like the hosts'. On the hosts it is in /opt/python/VERSION.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from lab import elf, files
from lab.command import podman, run
from lab.errors import LabError
from lab.progress import Progress
from lab.settings import Lab
from lab.state import Host

PLACE = Path("/opt/python")
_VERSION = re.compile(r"3\.\d{1,2}")
# Without these neither a virtual environment nor its installer works.
_TRIAL = "import ctypes, ensurepip, hashlib, ssl, venv, zlib"
# Tests, compiled files, and what was installed into the prefix since.
_LEFT_OUT = shutil.ignore_patterns("test", "tests", "__pycache__", "site-packages", "*.a")


def find(version: str, environment: Mapping[str, str], usual: Path = PLACE) -> Path:
    """The prefix of that version on this machine, the newest if there are several."""
    if not _VERSION.fullmatch(version):
        raise LabError(
            f"{version!r} is not a version of Python", "Use a version such as --python 3.6"
        )
    named = environment.get("GPUFLEET_PYTHONS", "").split(":")
    home = Path(environment.get("HOME", "/root"))
    places = [*(Path(name) for name in named if name), home / ".pyenv/versions", usual]
    for place in places:
        # 3.6 and 3.6.15, but not 3.61
        found = [*place.glob(version), *place.glob(f"{version}.*")]
        whole = [prefix for prefix in found if (prefix / f"bin/python{version}").is_file()]
        if whole:
            return max(whole, key=lambda prefix: [int(n) for n in re.findall(r"\d+", prefix.name)])
    raise LabError(
        f"Python {version} is not on this machine, so it cannot be copied to lab hosts",
        f"Searched for {version}.*/bin/python{version} in"
        f" {', '.join(str(place) for place in places)}; GPUFLEET_PYTHONS names other directories.",
    )


def give(lab: Lab, hosts: list[Host], prefixes: Mapping[str, Path], progress: Progress) -> None:
    """Have these versions on these hosts; where one is there and works, it is left alone."""
    with files.lock(lab.locks, f"lab-{lab.instance}", progress.say):
        for version, prefix in prefixes.items():
            lacking = [host for host in hosts if _fault(host, version) is not None]
            if lacking:
                title = f"Copying Python {version} to {', '.join(host.name for host in lacking)}"
                with (
                    progress.step(title),
                    files.scratch(lab.cache, f"lab-{lab.instance}") as work,
                ):
                    copy = lay_out(prefix, version, work / version)
                    for host in lacking:
                        _install(host, copy, version, prefix)


def lay_out(prefix: Path, version: str, target: Path) -> Path:
    """A copy of what an interpreter needs, fit for its place on the hosts."""
    library = prefix / "lib" / f"python{version}"
    shutil.copytree(library, target / "lib" / library.name, symlinks=True, ignore=_LEFT_OUT)
    (target / "lib" / library.name / "site-packages").mkdir()
    for shared in (prefix / "lib").glob("libpython*.so*"):
        shutil.copy2(shared, target / "lib", follow_symlinks=False)
    (target / "bin").mkdir()
    shutil.copy2(prefix / f"bin/python{version}", target / "bin")
    for link in ("python3", "python"):
        (target / "bin" / link).symlink_to(f"python{version}")
    for path in target.rglob("*"):
        if path.is_file() and not path.is_symlink():
            elf.move_runpath(path, f"{prefix}/", f"{PLACE / version}/")
    return target


def _install(host: Host, copy: Path, version: str, prefix: Path) -> None:
    place, partial = PLACE / version, PLACE / f".{version}.partial"
    podman("exec", host.container, "sh", "-c", f"mkdir -p {PLACE} && rm -rf {place} {partial}")
    podman("cp", f"{copy}/.", f"{host.container}:{partial}", timeout=300)
    podman("exec", host.container, "sh", "-c", f"chown -R 0:0 {partial} && mv {partial} {place}")
    if (fault := _fault(host, version)) is not None:
        podman("exec", host.container, "rm", "-rf", str(place))
        raise LabError(
            f"Python {version} of {prefix} does not work on {host.name} ({host.suite}): {fault}",
            "It was built for another system. Name the directory of a compatible one in"
            " GPUFLEET_PYTHONS, or choose another --suite.",
        )


def _fault(host: Host, version: str) -> str | None:
    """Why that version does not work on the host; None if it does."""
    program = PLACE / version / f"bin/python{version}"
    done = run("podman", "exec", host.container, program, "-c", _TRIAL, check=False)
    if done.returncode == 0:
        return None
    return (done.stderr.strip() or done.stdout.strip() or "nothing was said").splitlines()[-1]
