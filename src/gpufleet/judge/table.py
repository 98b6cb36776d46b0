"""The tables of all checks for the documentation: from the registry, and what explains what."""

from __future__ import annotations

from gpufleet.components.base.registry import INSPECT, READS
from gpufleet.components.checks import CHECKS, PAIR_CHECKS

from .causes import EVERY, RELATIONS
from .judge import REACHABLE, REACHABLE_STATEMENT


def markdown() -> str:
    """A table: id, what must hold, what is read, what that does to a host, what repairs it.

    A second one: which checks the finding of a check can explain.
    """
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
    return "\n".join([*rows, *_relations()]) + "\n"


def _relations() -> list[str]:
    explains: dict[str, dict[str, None]] = {}
    for relation in RELATIONS:
        explains.setdefault(relation.cause, {}).update(dict.fromkeys(relation.consequences))
    return [
        "",
        "## What can explain what",
        "Only if each finding of the consequence is about the same as the cause:"
        " [One cause, once](../explanation/causes.md).",
        "",
        "| the finding of | can explain |",
        "|-|-|",
        *(
            f"| `{cause}` | "
            + (
                "every check that reads a section"
                if found.keys() == set(EVERY)
                else ", ".join(f"`{check}`" for check in found)
            )
            + " |"
            for cause, found in explains.items()
        ),
    ]
