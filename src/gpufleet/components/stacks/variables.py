"""The environment variables of a stack: which are allowed, and which releases read them.

Refused are variables that make a stack load other libraries or modules than its own, and variables
that its release does not read: they would have no effect.
"""

from __future__ import annotations

import difflib
import re

from gpufleet.catalog import facts, versions
from gpufleet.catalog.records import Build
from gpufleet.components.base.context import ResolveContext
from gpufleet.documents.problems import Code
from gpufleet.documents.spec import StackSpec

# These make programs use other libraries, modules or interpreters than their own.
FORBIDDEN = re.compile(r"LD_\w*|PYTHON\w*|PATH|VIRTUAL_ENV|CUDA_(HOME|PATH|ROOT|DIR)")
EVERYWHERE = "gpu_stack_environment"


def of(context: ResolveContext, spec: StackSpec, build: Build) -> dict[str, str]:
    """A stack's variables, its own over those of all stacks; with refusals.

    A variable of all stacks that the release does not read is left out with a note; in the
    stack's own it is refused.
    """
    found = {}
    for name, value in context.spec.environment.items():
        if _fits(context, build, name, value, f"{EVERYWHERE}.{name}"):
            if _reads(name, build):
                found[name] = value
            else:
                context.note(f"{spec.name} does not get {name}: {_since(name, build)}")
    for name, value in spec.environment.items():
        where = f"{spec.where}.environment.{name}"
        if not _fits(context, build, name, value, where):
            continue
        if _reads(name, build):
            found[name] = value
        else:
            first = _first(name, build)
            context.refuse(
                Code.VARIABLE_UNKNOWN,
                _since(name, build),
                where,
                f"remove it, or declare {build.title} {first} or newer"
                if first
                else "; ".join(filter(None, ("remove it", _fraction(name, build.framework)))),
            )
    return dict(sorted(found.items()))


def _reads(name: str, build: Build) -> bool:
    first = _first(name, build)
    return first is not None and versions.key(first) <= versions.key(build.version)


def _since(name: str, build: Build) -> str:
    first = _first(name, build)
    return (
        f"{build.name} does not read {name}; the first that does is {first}"
        if first
        else (f"{build.title} does not read {name}")
    )


def _first(name: str, build: Build) -> str | None:
    """The first release of the framework that reads a variable; None: none does."""
    found: str | None = facts.rules("stack_variables")[name]["from"].get(build.framework)
    return found


def _fraction(name: str, framework: str) -> str | None:
    """How a framework is kept to a part of the memory, if a variable is meant for that."""
    texts: dict[str, str] = facts.rules("stack_memory_fraction")
    return texts.get(framework) if "FRACTION" in name else None


def _fits(context: ResolveContext, build: Build, name: str, value: str, where: str) -> bool:
    """Return whether name and value are allowed, for any release."""
    known = facts.rules("stack_variables")
    if FORBIDDEN.fullmatch(name):
        context.refuse(
            Code.VARIABLE_FORBIDDEN,
            f"{name} makes the stack use other programs, libraries or modules than its own",
            where,
            "remove it; a stack finds its own without it",
        )
    elif name not in known:
        # One answer to a variable of all stacks, whatever their frameworks.
        concerned = (
            [each.framework for each in context.spec.stacks]
            if (where.startswith(EVERYWHERE))
            else [build.framework]
        )
        own = [each for each, rule in known.items() if {*concerned} & {*rule["from"]}]
        (near,) = difflib.get_close_matches(name, own, 1, 0)
        fractions = filter(None, (_fraction(name, each) for each in dict.fromkeys(concerned)))
        context.refuse(
            Code.VARIABLE_UNKNOWN,
            "; ".join(fractions) or f"the variable {name} is not known; did you mean {near}?",
            where,
            f"use one of {', '.join(own)}, or set it in your own programs",
        )
    elif not re.fullmatch(known[name]["values"], value):
        context.refuse(
            Code.WRONG_TYPE,
            f"{where} is {value!r}, not {known[name]['means']}",
            where,
            f"write {name} as {known[name]['means']}",
        )
    else:
        return True
    return False
