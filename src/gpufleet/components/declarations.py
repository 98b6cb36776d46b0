"""The differences between two plans of one host: the effects of another declaration. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpufleet.documents.plan import Plan


class Difference(NamedTuple):
    """A part of the plan with what it is in each of two plans; empty where it is in one alone."""

    part: str
    before: str
    after: str

    def __str__(self) -> str:
        if not self.before:
            return f"add {self.part}: {self.after}"
        if not self.after:
            return f"no longer declare {self.part}: {self.before}"
        return f"change {self.part}: {self.before} becomes {self.after}"


def differences(before: Plan, after: Plan) -> list[Difference]:
    """The parts that differ, in the order of a plan."""
    old, new = _parts(before), _parts(after)
    return [
        Difference(part, old.get(part, ""), new.get(part, ""))
        for part in dict.fromkeys((*old, *new))
        if old.get(part) != new.get(part)
    ]


def _parts(plan: Plan) -> dict[str, str]:
    """A description of each part that a run would install, set or refuse, by part."""
    found: dict[str, str] = {}
    if driver := plan["driver"]:
        chosen = driver["version"] or driver["branch"] or "any"
        least = f"{driver['minimum']} or newer" if driver["minimum"] else chosen
        found["driver"] = f"{chosen} from {driver['source']}" if driver["managed"] else least
    for row in plan["toolkits"]:
        found[f"toolkit {row['short']}"] = f"CUDA {row['version']} in {row['path']}"
    for cudnn in plan["cudnn"]:
        found[f"cuDNN {cudnn['id']}"] = f"{cudnn['version']} in CUDA {cudnn['toolkit']}"
    for stack in plan["stacks"]:
        found[f"stack {stack['name']}"] = (
            f"Python {stack['python']}, CUDA {stack['cuda']} from {stack['cuda_source']}"
        )
    if link := plan["default_link"]:
        # A host that has one keeps it, which only its probe shows.
        found[f"default {link['path']}, unless a host has one and none is declared"] = link[
            "target"
        ]
    if order := plan["linker"]["directories"]:
        found["linker's order"] = ", ".join(order)
    for file in plan["environment"]:
        found[f"file {file['path']}"] = _text(file)
    for name in ("containers", "network", "expect"):
        if value := plan.get(name):
            found |= {f"{name} {key}": _text(each) for key, each in _given(value).items()}
    for problem in plan["problems"]:
        found[f"refused {problem['where']}"] = problem["message"]
    return found


def _given(value: Any) -> Mapping[str, Any]:
    rows = value if isinstance(value, Mapping) else {"": value}
    return {key: each for key, each in rows.items() if each not in (None, [], {})}


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and "text" in value:
        return f"{len(str(value['text']).splitlines())} lines ({hash_of(value)})"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def hash_of(value: Any) -> str:
    """A short digest, by which two contents can be told apart."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:8]
