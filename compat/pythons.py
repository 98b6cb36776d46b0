"""Pythons: which interpreter a stack is built with."""

from __future__ import annotations

from . import versions
from .case import Case
from .problems import Code
from .records import Build
from .wishes import StackWish


def choose(case: Case, wish: StackWish, build: Build) -> str | None:
    """As wished, else the host's newest that has a wheel, else the newest that has one.

    None when none fits, which is a problem then.
    """
    have, wheels = case.host.pythons, build.pythons
    where = f"{wish.where}.python"
    name = f"{build.distribution} {build.version}"
    listed = ", ".join(wheels)
    theirs = ", ".join(have or []) or "none"
    if wish.python:
        wanted = versions.short(wish.python)
        if wanted not in wheels:
            message = f"{name} has no wheel for Python {wanted}, only for {listed}"
            remedy = f"ask for Python {wheels[-1]}, or another TensorFlow release"
        elif have is not None and wanted not in have:
            message = f"the host has no Python {wanted}; it has {theirs}"
            remedy = f"install Python {wanted} on the host, or ask for another one of {listed}"
        else:
            return wanted
        case.refuse(Code.PYTHON_UNAVAILABLE, message, where, remedy)
        return None
    if have is None:
        case.note(
            f"{wish.name}: the host's Pythons are not known, so the newest with a wheel stands "
            f"in the plan: {wheels[-1]}"
        )
        return wheels[-1]
    fitting = [each for each in wheels if each in have]
    if fitting:
        return fitting[-1]
    case.refuse(
        Code.PYTHON_UNAVAILABLE,
        f"{name} has wheels for Python {listed} only; the host has {theirs}",
        where,
        f"install one of them on the host (Python {wheels[-1]} is the newest), or ask for "
        "another TensorFlow release",
    )
    return None
