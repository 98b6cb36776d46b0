"""Pythons: which interpreter a stack is built with."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.catalog import versions
from gpufleet.catalog.records import Build
from gpufleet.model.problems import Code
from gpufleet.model.spec import StackSpec

from .context import ResolveContext

PYTHON_MIN = "3.6"  # the oldest that the binding and the smoke test run on
UV_MIN = "3.8"  # the oldest that uv has builds of, and makes environments for
BROUGHT = "/opt/gpufleet/python/"  # where uv's builds stand on a host


@dataclass(frozen=True)
class Python:
    """A version as X.Y, the interpreter's path where it is known, and whose it is."""

    version: str
    path: str | None = None
    source: str = "host"  # or uv: a build that uv brings


def choose(context: ResolveContext, wish: StackSpec, build: Build) -> Python | None:
    """As wished, else the host's newest that has a wheel, else the newest that has one.

    What uv brought counts last, since it came for one stack: another keeps what it was made with.
    None when none fits, which is a problem then.
    """
    have, wheels = context.host.pythons, usable(build)
    name = f"{build.distribution} {build.version}"
    listed = ", ".join(wheels)

    def refuse(message: str, remedy: str) -> None:
        context.refuse(Code.PYTHON_UNAVAILABLE, message, f"{wish.where}.python", remedy)

    wanted = version_of(wish.python or wheels[-1])
    if wanted not in wheels:
        refuse(
            f"a stack needs Python {PYTHON_MIN} or newer"
            if wanted in build.pythons
            else f"{name} has no wheel for Python {wanted}, only for {listed}",
            f"ask for Python {wheels[-1]}, or another TensorFlow release",
        )
        return None
    if have is None:
        return _unseen(context, wish, wheels)
    fitting = [
        Python(version, path)
        for version in ([wanted] if wish.python else reversed(wheels))
        for path, found in have.items()
        if found == version and wish.interpreter in {None, path}
    ]
    if fitting:
        return min(fitting, key=lambda each: str(each.path).startswith(BROUGHT))
    brought = [each for each in ([wanted] if wish.python else reversed(wheels)) if by_uv(each)]
    if context.spec.python_install and brought and not wish.interpreter:
        return Python(brought[0], source="uv")
    theirs = ", ".join(sorted(set(have.values()), key=versions.key)) or "none"
    if wish.interpreter:
        found = have.get(wish.interpreter)
        refuse(
            f"{wish.python} is Python {found}" if found else f"the host has no {wish.python}",
            "name an interpreter that is there; the host's others are "
            + (", ".join(path for path in have if path != wish.python) or "none"),
        )
    elif wish.python:
        refuse(
            f"the host has no Python {wanted}; it has {theirs}",
            f"{_how(wanted)}, or ask for another one of {listed}",
        )
    else:
        refuse(
            f"{name} has wheels for Python {listed} only; the host has {theirs}",
            f"{_how(wanted)}, or ask for another TensorFlow release",
        )
    return None


def usable(build: Build) -> list[str]:
    """The Pythons with a wheel that a stack can be made with, oldest first."""
    return [each for each in build.pythons if versions.key(each) >= versions.key(PYTHON_MIN)]


def version_of(python: str) -> str:
    """The version X.Y of a wish: of `3.11.2`, or of `/opt/python/3.6/bin/python3.6`."""
    return versions.short(python.rpartition("/python")[2])


def by_uv(version: str) -> bool:
    """Whether uv knows that version."""
    return versions.key(version) >= versions.key(UV_MIN)


def _how(version: str) -> str:
    uv = "say gpu_python_install: true and have uv bring it, " if by_uv(version) else ""
    return (
        f"{uv}install Python {version} on the host (in /opt/python/{version}, say, where it is "
        "found by itself), or name its interpreter: {tensorflow: ..., python: /PATH/bin/python"
        f"{version}}}"
    )


def _unseen(context: ResolveContext, wish: StackSpec, wheels: list[str]) -> Python:
    """What stands in the plan of a host whose interpreters are not known."""
    if wish.python:
        return Python(version_of(wish.python), wish.interpreter)
    context.note(
        f"{wish.name}: the host's Pythons are not known, so the newest with a wheel stands "
        f"in the plan: {wheels[-1]}"
    )
    return Python(wheels[-1])
