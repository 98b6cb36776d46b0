"""A proposal for `gpu_manifest`: what most hosts of a group have, and who differs. Pure.

The proposal is YAML for a person to read. A value without a clear majority is a comment, and so is
text from a host that Ansible would evaluate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.components.base.machine import Manifest, names, split
from gpufleet.components.base.registry import shortened
from gpufleet.documents.manifest import NONE
from gpufleet.documents.text import one_line

# A majority of fewer hosts says nothing, and less than this share of them is none.
LEAST_HOSTS, MAJORITY = 3, 2 / 3
MOST_SHOWN = 8
# Values that no group should be held to, however many hosts have them.
UNWANTED = {"clock.synchronised": "no"}
# Text that Ansible evaluates in a variable.
_TEMPLATE = re.compile(r"\{[{%#]")
_PLAIN_KEY = re.compile(r"[a-z_.]+")


@dataclass(frozen=True)
class Proposed:
    """One name: what most hosts have, the hosts by each other value, and those not read.

    `value` is None where no value has a clear majority.
    """

    name: str
    value: str | None
    hosts: int
    others: Mapping[str, list[str]]
    unread: Mapping[str, list[str]]


def propose(manifests: Mapping[str, Manifest]) -> list[Proposed]:
    """The proposal for the hosts of a group, by {host: manifest}."""
    return [_proposed(manifests, name) for name in names(manifests.values())]


def _proposed(manifests: Mapping[str, Manifest], name: str) -> Proposed:
    groups = split(manifests, name)
    silent = groups.pop(None, [])
    unread: dict[str, list[str]] = {}
    for host in silent:
        unread.setdefault(manifests[host].reason(name) or "", []).append(host)
    found = {value: hosts for value, hosts in groups.items() if value is not None}
    known = sum(map(len, found.values()))
    value = next(iter(found), None)
    most = len(found[value]) if value is not None else 0
    if value is None or most < LEAST_HOSTS - 1 or known < LEAST_HOSTS or most < MAJORITY * known:
        return Proposed(name, None, 0, found, unread)
    others = {key: hosts for key, hosts in found.items() if key != value}
    return Proposed(name, value, most, others, unread)


def as_yaml(proposal: list[Proposed], hosts: int, started: str) -> str:
    """The proposal as YAML, with a comment for each difference."""
    lines = [
        f"# What most of {hosts} hosts had at {started}. Read it, correct it, and put it into the",
        "# variables of their group. Then the check host.manifest reports each difference.",
        "gpu_manifest:",
    ]
    for row in proposal:
        lines += _lines(row)
    return "\n".join(lines) + "\n"


def _lines(row: Proposed) -> list[str]:
    key = row.name if _PLAIN_KEY.fullmatch(row.name) else _text(row.name)
    found = []
    if row.value is None and row.others:
        found.append(f"  # {key}: no value has a clear majority")
    elif row.value is None:
        found.append(f"  # {key}: not read of enough hosts")
    elif row.value == NONE:
        if row.others:
            found.append(f"  # {key}: most hosts ({row.hosts}) have none")
    elif UNWANTED.get(row.name) == row.value:
        found.append(f"  # {key}: most hosts ({row.hosts}) have {_text(row.value)}: not proposed")
    elif _TEMPLATE.search(row.name + row.value):
        found.append(
            f"  # {key}: not proposed, since Ansible would evaluate it: {_text(row.value)}"
        )
    else:
        found.append(f"  {key}: {_text(row.value)}")
    found += [f"  #   {_text(value)}: {_named(hosts)}" for value, hosts in row.others.items()]
    if found:
        found += [
            f"  #   not read ({one_line(why)}): {_named(hosts)}"
            for why, hosts in row.unread.items()
        ]
    return found


def _named(hosts: list[str]) -> str:
    return shortened(hosts, MOST_SHOWN)


def _text(value: str) -> str:
    """A text in double quotes, which YAML reads as JSON does."""
    return json.dumps(value, ensure_ascii=False)
