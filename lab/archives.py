"""Put the archive of a stand-in distribution's packages on its hosts, in /srv/archive.

An archive is a directory in the cache, named by a digest of the facts and the code that make it.
`image.yml` says which kind of archive a suite has, and where its hosts keep the key.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from lab import driver_repository, ubuntu_contents, ubuntu_repository
from lab.command import podman
from lab.files import lock, scratch
from lab.images import Recipe
from lab.progress import Progress
from lab.settings import Lab
from lab.state import Host

PLACE = "/srv/archive"
# By kind: what makes the archive of a release, and the files that decide what is in it.
BUILDERS: dict[str, tuple[Callable[[str, Path], str], list[Path]]] = {
    "ubuntu": (
        ubuntu_repository.build,
        [ubuntu_repository.FACTS, *(Path(str(module.__file__)) for module in (
            driver_repository, ubuntu_contents, ubuntu_repository))],
    ),
}  # fmt: skip


def ensure(lab: Lab, recipe: Recipe, progress: Progress) -> Path:
    """The archive of a suite in the cache, made if it is not there."""
    build, sources = BUILDERS[recipe.archive["kind"]]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    path = lab.cache / "archives" / f"{recipe.suite}-{digest}"
    with lock(lab.locks, f"archive-{recipe.suite}", progress.say):
        if not path.exists():
            with (
                progress.step(f"Building stand-ins of the packages of {recipe.title}"),
                scratch(lab.cache, f"archive-{recipe.suite}") as work,
            ):
                build(recipe.suite.rpartition("-")[2], work / "archive")
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(work / "archive", path)
        for older in path.parent.glob(f"{recipe.suite}-*"):
            if older != path:
                shutil.rmtree(older)
    return path


def give(lab: Lab, hosts: Iterable[Host], progress: Progress) -> None:
    """Put the archive of its suite on each of these hosts, with its key where they look for it."""
    for host in hosts:
        recipe = Recipe(host.suite)
        if not recipe.archive:
            continue
        archive, key = ensure(lab, recipe, progress), recipe.archive["key"]
        podman("exec", host.container, "mkdir", "-p", PLACE, str(Path(key).parent))
        podman("cp", f"{archive}/.", f"{host.container}:{PLACE}")
        podman("exec", host.container, "cp", f"{PLACE}/{Path(key).name}", key)
