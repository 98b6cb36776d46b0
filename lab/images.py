"""Images of fresh servers, made from Debian's packages and without a container registry.

A suite is one of Debian's, or a named stand-in: a Debian (`base`) that says in its files that it is
another distribution, and has that one's tools (`packages`) and layout (`script`).

An image is a tarball in the cache, named by a digest of everything that went into it, so that a
changed recipe, mirror or certificate makes a new one. podman gets its own copy per lab.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from pathlib import Path
from typing import Any

import yaml

from gpufleet.catalog.facts import DATA
from lab import driver_repository, emulation, machine, mirror
from lab.command import mmdebstrap, podman, run
from lab.errors import LabError
from lab.files import lock, move, scratch, write
from lab.progress import Progress
from lab.settings import RECIPE_LABEL, SUITE_LABEL, Lab

HERE = Path(__file__).parent / "host"
BUILD_S = 1800
# How many times as long everything may take where the processor is emulated.
SLOWER = 4
_CUSTOMIZE = HERE / "customize.sh"


class Recipe:
    """Everything that decides what a suite's image holds."""

    def __init__(self, suite: str) -> None:
        plan: dict[str, Any] = yaml.safe_load((HERE / "image.yml").read_text(encoding="utf-8"))
        if suite not in plan["suites"]:
            raise LabError(
                f"the lab has no recipe for the suite {suite!r}",
                f"Choose one of {', '.join(plan['suites'])}, or add it to {HERE / 'image.yml'}.",
            )
        chosen: dict[str, Any] = plan["suites"][suite]
        self.suite = suite
        self.base: str = chosen.get("base", suite)
        self.title: str = chosen.get("title", f"Debian {suite}")
        # The architecture of its programs, by Debian's name; empty: this machine's.
        self.arch: str = chosen.get("arch", "")
        # Files that name the distribution: the text of each by its path below the root.
        self.files: dict[str, str] = chosen.get("files", {})
        # The archive of stand-in packages on its hosts: its kind, and where they keep its key.
        self.archive: dict[str, str] = chosen.get("archive", {})
        self.script = HERE / chosen["script"] if "script" in chosen else None
        if "catalog" in chosen:
            self.files = {**self.files, **stand_ins(DATA / chosen["catalog"], suite)}
        debian: dict[str, Any] = plan["suites"][self.base]
        self.packages: list[str] = [*plan["packages"], *chosen.get("packages", [])]
        self.components: list[str] = debian.get("components", plan["components"])
        self.apt_options: list[str] = debian.get("apt_options", [])
        self.mirror = mirror.find(os.environ)
        self.network = machine.network(os.environ)

    @property
    def slower(self) -> int:
        """How many times as long its hosts and its build may take."""
        return SLOWER if self.arch else 1

    @property
    def digest(self) -> str:
        parts = [
            *(self.suite, self.packages, self.components, self.apt_options, self.mirror),
            self.network.files(),
            [[path.name, path.read_text("utf-8")] for path in self.network.certificates],
            _CUSTOMIZE.read_text(encoding="utf-8"),
        ]
        if self.base != self.suite:
            parts += [self.base, self.files]
        if self.arch:
            parts.append(self.arch)
        if self.script:
            parts.append(self.script.read_text(encoding="utf-8"))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]

    def build(self, work: Path) -> Path:
        target = work / "image.tar"
        overlay = work / "overlay"
        overlay.mkdir()
        self.network.write(overlay)
        for name, text in self.files.items():
            write(overlay / name, text)
        # The distribution's own script first: it makes way for the files that name it.
        hooks = [
            f'sh {shlex.quote(str(script))} "$1" {shlex.quote(str(overlay))}'
            for script in (self.script, _CUSTOMIZE)
            if script
        ]
        mmdebstrap(
            "--format=tar",
            "--variant=minbase",
            f"--components={','.join(self.components)}",
            f"--include={','.join(self.packages)}",
            *([f"--architectures={self.arch}"] if self.arch else []),
            *(f"--aptopt={option}" for option in self.apt_options),
            *(f"--customize-hook={hook}" for hook in hooks),
            self.base,
            target,
            self.mirror,
            timeout=BUILD_S * self.slower,
            work=work,
        )
        return target


def stand_ins(catalog: Path, suite: str) -> dict[str, str]:
    """The parts that make a distribution's packages on the host: program, facts, contents."""
    facts: dict[str, Any] = yaml.safe_load(catalog.read_text(encoding="utf-8"))
    facts["major"] = suite.partition("-")[2]
    facts["driver_source"] = {
        version: {
            flavour: {
                name: str(text)
                for name, text in driver_repository.kernel(version, flavour).files.items()
            }
            for flavour in ("open", "proprietary")
        }
        for version in facts["driver"]["versions"]
    }
    toolkit = [path for path in (HERE.parent / "container_toolkit").iterdir() if path.is_file()]
    version = facts["containers"]["toolkit"][0]["version"].partition("-")[0]
    return {
        "usr/lib/stand-in/facts.json": json.dumps(facts),
        **{
            f"usr/lib/stand-in/{name}": path.read_text("utf-8").replace("@VERSION@", version)
            for name, path in [
                (f"{catalog.stem}.py", HERE / f"{catalog.stem}.py"),
                *((f"toolkit/{path.name}", path) for path in toolkit),
            ]
        },
    }


def tarball(lab: Lab, recipe: Recipe, progress: Progress) -> Path:
    """The image's tarball in the cache, made if it is not there."""
    path = lab.images / f"{recipe.suite}-{recipe.digest}.tar"
    with lock(lab.locks, f"image-{recipe.suite}", progress.say):
        if not path.exists():
            # Settings taken over from this machine may hold a password for the package index.
            lab.images.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (
                progress.step(f"Building a fresh {recipe.title} from packages"),
                scratch(lab.cache, f"image-{recipe.suite}") as work,
            ):
                work.chmod(0o711)  # apt fetches as a user of its own
                move(recipe.build(work), path, mode=0o600)
        for older in lab.images.glob(f"{recipe.suite}-*.tar"):
            if older != path:
                older.unlink()
    return path


def ensure(lab: Lab, suite: str, progress: Progress) -> str:
    """The name of this lab's image of a suite, ready to start hosts from."""
    recipe = Recipe(suite)
    if recipe.arch:
        emulation.ensure(recipe.arch)
    name = lab.image(suite)
    template = f'{{{{index .Config.Labels "{RECIPE_LABEL}"}}}}'
    present = podman("image", "inspect", "--format", template, name, check=False)
    if present != recipe.digest:
        give(lab, recipe, tarball(lab, recipe, progress), progress)
    return name


def give(lab: Lab, recipe: Recipe, path: Path, progress: Progress) -> None:
    """Give podman a tarball as this lab's image of a suite; hosts start from it from now on."""
    with progress.step(f"Giving podman the image of {recipe.title}"):
        labels = [lab.label, f"{SUITE_LABEL}={recipe.suite}", f"{RECIPE_LABEL}={recipe.digest}"]
        changes = ["CMD /sbin/init", *(f"LABEL {label}" for label in labels)]
        options = [f"--change={change}" for change in changes]
        if recipe.arch:
            options.append(f"--arch={recipe.arch}")
        # podman's copy of the tarball is as large, and stays where podman is killed.
        with scratch(lab.cache, f"lab-{lab.instance}") as work:
            run(
                *("podman", "import", "--quiet", *options, str(path), lab.image(recipe.suite)),
                timeout=600,
                extra={"TMPDIR": str(work)},
            )
