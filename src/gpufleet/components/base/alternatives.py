"""Alternatives: what to declare in the place of a stack that is refused.

The resolver tries each of them on the host: a remedy names only what ends its problem, and causes
no other one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpufleet.catalog import versions
from gpufleet.catalog.records import Build
from gpufleet.documents.problems import Code
from gpufleet.documents.spec import StackSpec

from .context import ResolveContext

# The keys of a stack that are left out where no other release fits them, fewest first.
_LEFT_OUT = (
    (),
    ("cuda", "index"),
    ("cudnn",),
    ("python",),
    ("cuda", "index", "cudnn"),
    ("cuda", "index", "cudnn", "python"),
)


def accepted(context: ResolveContext, spec: StackSpec, code: Code, **changes: str | None) -> bool:
    """Return whether a stack with these changes loses this problem and gains no other one."""
    return context.accepts(replace(spec, **changes), code)  # type: ignore[arg-type]


def release(
    context: ResolveContext, spec: StackSpec, code: Code, builds: Sequence[Build]
) -> str | None:
    """The first other release that is accepted, and what to leave out with it.

    None where there is none among the builds.
    """
    for declared in _left_out(spec):
        base = replace(spec, **dict.fromkeys(declared))  # type: ignore[arg-type]
        for build in builds:
            if base.python_version not in {None, *build.pythons}:
                continue
            if build.version != spec.release and accepted(
                context, base, code, release=build.version
            ):
                return build.version + (f", without {_listed(declared)}" if declared else "")
    return None


def _listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def none_fits(title: str) -> str:
    """The remedy where no release of a framework is accepted."""
    return f"no known {title} release fits what else is declared"


def nearest(version: str, builds: Iterable[Build]) -> list[Build]:
    """Releases by their distance from one, the newer ones first; it is not among them."""
    ordered, own = list(builds), versions.key(version)
    newer = [each for each in ordered if versions.key(each.version) > own]
    older = [each for each in ordered if versions.key(each.version) < own]
    return [*newer, *reversed(older)]


def _left_out(spec: StackSpec) -> list[tuple[str, ...]]:
    """The declared keys to leave out, each choice once, the smallest first."""
    found = [tuple(key for key in keys if getattr(spec, key)) for keys in _LEFT_OUT]
    return list(dict.fromkeys(found))
