"""Locks: refuse a stack whose lock cannot be made, and put the locks' digests into a plan.

The resolver reads no files: the caller passes the digests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufleet.catalog import facts, lock_results, versions
from gpufleet.catalog.lock_results import Failure
from gpufleet.catalog.records import Build
from gpufleet.components.base import alternatives
from gpufleet.components.base.context import ResolveContext
from gpufleet.documents.plan import CudaSource
from gpufleet.documents.problems import Code
from gpufleet.documents.spec import StackSpec

SHOWN = 160  # characters of uv's reason


def check(  # noqa: PLR0917 - what a lock is made from
    context: ResolveContext,
    spec: StackSpec,
    build: Build,
    source: CudaSource,
    python: str,
    lock: str,
) -> None:
    """Refuse a stack whose recorded lock failed, unless the user has that lock.

    Where the stack's Python is not known, it is a note; where the user's locks are not known, too,
    unless no attempt can make the lock. What a host has installed is not refused: a verification
    needs no lock.
    """
    has_lock = context.locks is not None and lock in context.locks
    if has_lock or _installed(context, spec, python):
        return
    _check_glibc(context, spec, build, lock)
    # The locks of other architectures were not tried.
    failed = lock_results.failure(build, source, python) if build.arch == facts.X86_64 else None
    if failed is None:
        return
    message = (
        f"the lock of {build.name}{_of(source)} for Python {python} cannot be made "
        f"({failed.date}: {_shown(failed.reason)})"
    )
    # Another Python of the host may have a lock.
    assumed = spec.python is None and context.host.pythons is None and failed.pythons
    if assumed or (context.locks is None and not failed.final):
        if not context.trial:
            remedy = _remedy(context, spec, build, failed, python, lock)
            context.note(f"{spec.name}: {message}: {remedy}")
    else:
        context.refuse(
            Code.LOCK_UNAVAILABLE,
            message,
            f"{spec.where}.python",
            lambda: _remedy(context, spec, build, failed, python, lock),
        )


def _check_glibc(context: ResolveContext, spec: StackSpec, build: Build, lock: str) -> None:
    """Refuse a host whose glibc is older than the wheels of a new lock may need."""
    have, least = context.host.glibc, facts.rules("lock_glibc")["value"]
    if have and context.locks is not None and versions.key(have) < versions.key(least):
        context.refuse(
            Code.GLIBC,
            f"the lock of {build.name} is made for glibc {least}: some packages of it may have no "
            f"wheel for glibc {have}, which the host has",
            f"{spec.where}.{spec.framework}",
            f"put a lock of your own into gpu_locks_dir, as {lock}, made by uv pip compile with "
            f"--python-platform {context.arch}-manylinux_2_17 and --generate-hashes, or use a "
            "newer release of the distribution",
        )


def _installed(context: ResolveContext, spec: StackSpec, python: str) -> bool:
    """Return whether the host's receipt has this release on this Python."""
    receipt = context.host.receipt("stack", spec.name) or {}
    found = versions.short(str(receipt.get("python")))
    return (receipt.get("version"), found) == (spec.release, python)


def _of(source: CudaSource) -> str:
    return " with CUDA from pip" if source == "pip" else ""


def _shown(reason: str) -> str:
    """The beginning of uv's reason, in whole words."""
    text = reason.removeprefix("error: ")
    return text if len(text) <= SHOWN else f"{text[:SHOWN].rpartition(' ')[0]} ..."


def _remedy(  # noqa: PLR0917 - what a lock is made from
    context: ResolveContext, spec: StackSpec, build: Build, failed: Failure, python: str, lock: str
) -> str:
    code = Code.LOCK_UNAVAILABLE
    ways, pythons = (
        [],
        [
            each
            for each in failed.pythons
            if alternatives.accepted(context, spec, code, python=each)
        ],
    )
    if pythons:
        ways.append(f"declare Python {' or '.join(pythons)}, for which it has a lock")
    others = [
        each
        for each in facts.releases(spec.framework, context.arch)
        if each.version in failed.releases
    ]
    found = alternatives.release(context, spec, code, alternatives.nearest(build.version, others))
    if found:
        ways.append(f"declare {build.title} {found}, which has a lock for Python {python}")
    ways.append(f"put a lock of your own into gpu_locks_dir, as {lock}")
    return ", or ".join(ways)


def with_locks(plan: Mapping[str, Any], digests: Mapping[str, str]) -> dict[str, Any]:
    """The plan with `lock_sha256` in each stack: the lock's digest, None where there is no lock.

    `digests` maps a lock's file name to the sha256 of its content, in hex. A receipt with
    another digest is then a change.
    """
    stacks = [{**row, "lock_sha256": digests.get(row["lock"])} for row in plan["stacks"]]
    return {**plan, "stacks": stacks}
