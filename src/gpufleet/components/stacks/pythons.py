"""Pythons: choose the interpreter of a stack's environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from gpufleet.catalog import facts, versions
from gpufleet.catalog.records import Build
from gpufleet.components.base import alternatives
from gpufleet.components.base.context import ResolveContext
from gpufleet.documents.problems import Code
from gpufleet.documents.spec import StackSpec

PYTHON_MIN = "3.6"  # the oldest that the binding and the smoke test run on
UV_MIN = "3.8"  # the oldest that uv provides, and creates environments for
UV_PYTHONS = "/opt/gpufleet/python/"  # where uv's builds are on a host


@dataclass(frozen=True)
class Python:
    """A version as X.Y, the interpreter's path where it is known, and where it comes from."""

    version: str
    path: str | None = None
    source: str = "host"  # or uv: a build that uv installs


def choose(context: ResolveContext, spec: StackSpec, build: Build) -> Python | None:
    """The declared one, else the host's newest with a wheel, else the newest with a wheel.

    Builds that uv installed for another stack come last: so no stack changes its interpreter
    because of another. None, with a problem, when none fits.
    """
    have, wheels = context.host.pythons, usable(build)
    name = f"{build.distribution} {build.version}"
    listed = ", ".join(wheels)

    def refuse(message: str, remedy: str | Callable[[], str]) -> None:
        context.refuse(Code.PYTHON_UNAVAILABLE, message, f"{spec.where}.python", remedy)

    wanted = spec.python_version or wheels[-1]
    if wanted not in wheels:
        refuse(
            f"a stack needs Python {PYTHON_MIN} or newer"
            if wanted in build.pythons
            else f"{name} has no wheel for Python {wanted}, only for {listed}",
            lambda: _ways(context, spec, build, _serving(context, spec, wheels)),
        )
        return None
    if have is None:
        return _unprobed(context, spec, wheels)
    fitting = [
        Python(version, path)
        for version in ([wanted] if spec.python else reversed(wheels))
        for path, found in have.items()
        if found == version and spec.interpreter in {None, path}
    ]
    if fitting:
        return min(fitting, key=lambda each: str(each.path).startswith(UV_PYTHONS))
    provided = [each for each in ([wanted] if spec.python else reversed(wheels)) if by_uv(each)]
    if context.spec.python_install and provided and not spec.interpreter:
        return Python(provided[0], source="uv")
    theirs = ", ".join(sorted(set(have.values()), key=versions.key)) or "none"
    if spec.interpreter:
        found = have.get(spec.interpreter)
        refuse(
            f"{spec.python} is Python {found}" if found else f"the host has no {spec.python}",
            "name an existing interpreter; the host's others are "
            + (", ".join(path for path in have if path != spec.python) or "none"),
        )
    elif spec.python:
        refuse(
            f"the host has no Python {wanted}; it has {theirs}",
            f"{_how(wanted, build.framework)}, or declare another one of {listed}",
        )
    else:
        refuse(
            f"{name} has wheels for Python {listed} only; the host has {theirs}",
            lambda: _ways(context, spec, build, [_how(wanted, build.framework)]),
        )
    return None


def _serving(context: ResolveContext, spec: StackSpec, wheels: list[str]) -> list[str]:
    """The newest Python with which a stack is accepted, as a remedy."""
    accepted = (
        f"declare Python {each}"
        for each in reversed(wheels)
        if alternatives.accepted(context, spec, Code.PYTHON_UNAVAILABLE, python=each)
    )
    return list(islice(accepted, 1))


def _ways(context: ResolveContext, spec: StackSpec, build: Build, ways: list[str]) -> str:
    """The remedy: these, or another release, which has a wheel for the Python."""
    others = alternatives.nearest(build.version, facts.releases(spec.framework, context.arch))
    if found := alternatives.release(context, spec, Code.PYTHON_UNAVAILABLE, others):
        ways = [*ways, f"declare {build.title} {found}"]
    return ", or ".join(ways) or alternatives.none_fits(build.title)


def usable(build: Build) -> list[str]:
    """The Pythons with a wheel that a stack can use, oldest first."""
    return [each for each in build.pythons if versions.key(each) >= versions.key(PYTHON_MIN)]


def by_uv(version: str) -> bool:
    """Return whether uv provides that version."""
    return versions.key(version) >= versions.key(UV_MIN)


def _how(version: str, framework: str) -> str:
    uv = "set gpu_python_install: true to let uv install it, " if by_uv(version) else ""
    return (
        f"{uv}install Python {version} on the host (such as in /opt/python/{version}, where "
        f"gpufleet finds it), or name its interpreter: {{{framework}: ..., "
        f"python: /PATH/bin/python{version}}}"
    )


def _unprobed(context: ResolveContext, spec: StackSpec, wheels: list[str]) -> Python:
    """The Python in the plan of a host whose interpreters are not known."""
    if spec.python:
        return Python(str(spec.python_version), spec.interpreter)
    context.note(
        f"{spec.name}: the host's Pythons are not known; the plan has the newest with a wheel, "
        f"{wheels[-1]}"
    )
    return Python(wheels[-1])
