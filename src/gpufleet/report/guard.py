"""The guard around what renders many hosts at once: a defect costs the hosts that it is met on.

gpufleet's failure becomes the cause of the verdict of those hosts, in the session that is returned;
the session that was given is not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from gpufleet.errors import Defect, bounded, guarded
from gpufleet.fleet.judging import undeclared
from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge import judge

T = TypeVar("T")


@dataclass(frozen=True)
class Reported(Generic[T]):
    """A rendered value, and the session that it shows."""

    value: T
    session: Session


def without_defects(
    session: Session, render: Callable[[Session], T], alone: Callable[[Session], object]
) -> Reported[T]:
    """Render a session; where that fails, without what makes `alone` fail for one host."""
    done: list[T] = []
    guarded("wrote the report", lambda: done.append(render(session)), lambda defect: None)
    if done:
        return Reported(done[0], session)
    sound = replace(session, hosts=[_renderable(session, host, alone) for host in session.hosts])
    return Reported(render(sound), sound)


def _renderable(session: Session, host: HostRun, alone: Callable[[Session], object]) -> HostRun:
    """The host, or the part of it that can be rendered."""
    shown = host
    # The host's result stays, unless the result itself cannot be rendered.
    for known in (host.result, None):
        if defect := _defect(session, shown, alone):
            result = judge.defective(defect, host.name, known)
            shown = HostRun(host.name, None, undeclared(host.name), result)
    return shown


def _defect(session: Session, host: HostRun, alone: Callable[[Session], object]) -> Defect | None:
    found: list[Defect] = []
    single = replace(session, hosts=[host], provisioned=None)
    bounded("wrote the report on this host", lambda: alone(single), found.append)
    return found[0] if found else None
