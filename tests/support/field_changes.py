"""The changes that a public report (tests/field) makes, written into a healthy host's snapshot."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tests.support.healthy_host import Document

NO_ANSWER = {"state": "hung", "data": None, "error": "no answer within 20 s", "seconds": 20.0}
# Parts that the healthy host lacks, whole.
WHOLE = {
    "imex": {"unit": None, "enabled": None, "active": None, "nodes": [], "channels": 0},
    "setup": {"files": [], "modules": None, "settings": None, "on_disk": None}
    | {"loaded_driver": None, "installed_driver": None}
    | {"unit": None, "enabled": None, "active": None},
    "nvlsm": {"program": "/opt/nvidia/nvlsm/sbin/nvlsm", "running": True, "modules": []},
}


def change(snapshot: Document, changes: Document) -> None:
    """Write each value at its path below the sections' data; `*` is every item, and
    after `//` the rest is one key. A position that the host does not have is its last."""
    tree = {name: section.get("data") for name, section in snapshot["sections"].items()}
    for path, value in changes.items():
        section, _, part = path.partition("/")
        if part in ("state", "data"):
            snapshot["sections"][section].update({part: value, "error": "no answer within 20 s"})
            continue
        before, slashes, after = path.partition("//")
        keys = [*before.split("/"), *([f"/{after}"] if slashes else [])]
        _put(tree, keys, value)


def _put(at: Any, keys: list[str], value: Any) -> None:
    key, rest = keys[0], keys[1:]
    if isinstance(at, list):
        numbers = range(len(at)) if key == "*" else [min(int(key), len(at) - 1)]
        for number in numbers:
            if rest:
                _put(at[number], rest, value)
            else:
                at[number] = deepcopy(value)
    elif key == "*":
        for each in at:
            _put(at, [each, *rest], value)
    elif rest:
        if at.get(key) is None:
            at[key] = deepcopy(WHOLE.get(key, {}))
        _put(at[key], rest, value)
    elif isinstance(at.get(key), dict) and isinstance(value, dict):
        at[key] = {**at[key], **deepcopy(value)}
    else:
        at[key] = _whole_rows(value, at.get(key))


def _whole_rows(value: Any, healthy: Any) -> Any:
    """A list's rows with what the healthy rows have besides."""
    rows = [each for each in healthy if isinstance(each, dict)] if isinstance(healthy, list) else []
    if not rows or not isinstance(value, list):
        return deepcopy(value)
    return [{**rows[0], **deepcopy(each)} if isinstance(each, dict) else each for each in value]
