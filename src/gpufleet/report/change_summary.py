"""What changed since last night, each thing once with all hosts to which it happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .summary import Issue, insert_names, mask_name

WEIGHTS = ("bad", "good", "note")
TITLES = {
    "failure": "new failure",
    "recovery": "recovered",
    "other-cause": "other cause",
    "version": "version",
    "driver": "driver",
    "kernel": "kernel",
    "gpu": "GPU",
    "throughput": "slower",
    "appeared": "new host",
    "vanished": "gone",
    "flapping": "flapping",
}


@dataclass(frozen=True)
class Change:
    """One change; `checks` and `remedy` may be empty."""

    weight: str
    kind: str
    text: str
    remedy: str
    # How many nights in a row it is bad, this one included; 0 where it is not.
    strikes: int
    checks: tuple[str, ...]
    hosts: tuple[str, ...]

    @property
    def title(self) -> str:
        return "faster" if (self.kind, self.weight) == ("throughput", "good") else TITLES.get(
            self.kind, self.kind)


def summarize(changes: Mapping[str, Any]) -> list[Change]:
    """The document's changes, bad ones first, of those the ones of most hosts."""
    checks: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for change in changes["changes"]:
        # Several checks may say the same of a host: then their names stand before it.
        check, host = change["check"] or "", change["host"]
        text = change["text"].removeprefix(f"{check} ") if check else change["text"]
        if check and text == change["text"]:
            check = ""
        key = (host, change["weight"], change["kind"], mask_name(text, host),
               mask_name(change["remedy"] or "", host), change["strikes"])
        checks[key] += [check] if check else []
    hosts: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for key, names in checks.items():
        hosts[*key[1:], tuple(names)].append(key[0])
    news = [
        Change(weight, kind, insert_names(text, found, "HOST"), insert_names(remedy, found),
               strikes, names, tuple(found))
        for (weight, kind, text, remedy, strikes, names), found in hosts.items()
    ]
    return sorted(news, key=lambda each: (WEIGHTS.index(each.weight), -len(each.hosts)))


def strikes(changes: Mapping[str, Any] | None) -> Callable[[Issue], int]:
    """How many nights in a row something is bad, at most; 0 where nobody knows."""
    known = {(each["host"], each["check"]): int(each["strikes"])
             for each in (changes or {}).get("standing", ())}

    def row(wrong: Issue) -> int:
        return max((known.get((host, check), 0) for host in wrong.hosts for check in wrong.checks),
                   default=0)

    return row
