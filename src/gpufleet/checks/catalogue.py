"""The table of all checks for the documentation, from the registry."""

from __future__ import annotations

from . import CHECKS, PAIR_CHECKS
from .judge import REACHABLE, REACHABLE_STATEMENT
from .registry import INSPECT, READS


def markdown() -> str:
    """A table: id, what must hold, what is read, what that does to a host, what repairs it."""
    rows = [
        "| check | what must hold | severity | reads | what it does to a host | repaired by |",
        "|-|-|-|-|-|-|",
        f"| `{REACHABLE}` | {REACHABLE_STATEMENT} | critical | - | {READS} | {INSPECT} |",
    ]
    rows += [
        f"| `{check.id}` | {check.statement} | {check.severity} |"
        f" {', '.join(check.reads) or 'the whole snapshot'} | {check.effect} | {check.repair} |"
        for check in (*CHECKS.values(), *PAIR_CHECKS.values())
    ]
    return "\n".join(rows) + "\n"
