"""`provision`: look at every host, run Ansible where one differs from its plan, look again there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verify.session import Manner, Session
from verify.wishes import Question

Told = Callable[[str], None]


@dataclass(frozen=True)
class Converged:
    """What came of it: all hosts' verdicts; where Ansible ran and why; the exit status."""

    session: Session
    ran: list[str]
    reasons: dict[str, list[str]]
    status: int


def converge(
    question: Question, manner: Manner, *, force: bool = False, words: Sequence[str] = (),
    told: Told = print,
) -> Converged:
    """Make the hosts what their plans say; a plan that cannot be is a `ConfigurationError`."""
    raise NotImplementedError
