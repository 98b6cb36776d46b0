"""The guard around what renders many hosts at once: a defect costs the hosts that it is met on.

Changes those hosts of the session: gpufleet's failure becomes the cause of their verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from gpufleet.checks import judge
from gpufleet.errors import Defect, guarded
from gpufleet.model.verdict import HostResult
from gpufleet.verification.session import HostRun, Session, undeclared

T = TypeVar("T")


def without_defects(
    session: Session, whole: Callable[[], T], alone: Callable[[Session], object]
) -> T:
    """`whole()`; where it fails, once more without what of a host makes `alone` fail for it."""
    done: list[T] = []
    guarded("wrote the report", lambda: done.append(whole()), lambda defect: None)
    if done:
        return done[0]
    for host in session.hosts:
        # What is known of it stays, unless that is what cannot be rendered.
        for known in (host.result, None):
            defect = _defect(session, host, alone)
            if defect:
                _withdraw(host, defect, known)
    return whole()


def _defect(session: Session, host: HostRun, alone: Callable[[Session], object]) -> Defect | None:
    found: list[Defect] = []
    single = replace(session, hosts=[host], provisioned=None)
    guarded("wrote the report on this host", lambda: alone(single), found.append)
    return found[0] if found else None


def _withdraw(host: HostRun, defect: Defect, known: HostResult | None) -> None:
    host.result = judge.defective(defect, host.name, known)
    host.plan, host.snapshot, host.versions = undeclared(host.name), None, None
