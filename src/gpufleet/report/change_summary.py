"""The changes since the previous nightly run, each once with all of its hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpufleet.documents.nightly import ChangeEntry, Changes

from .summary import Issue, insert_names, mask_name

WEIGHTS = ("bad", "good", "note")
TITLES = {
    "failure": "new failure",
    "recovery": "recovered",
    "other-cause": "cause changed",
    "version": "version",
    "driver": "driver",
    "kernel": "kernel",
    "gpu": "GPU",
    "throughput": "slower",
    "errors": "errors",
    "port": "port",
    "appeared": "new host",
    "vanished": "host removed",
    "flapping": "flapping",
    "unsilenced": "silence ended",
}


@dataclass(frozen=True)
class Change:
    """One change and its hosts; `checks` and `remedy` may be empty."""

    weight: str
    kind: str
    text: str
    remedy: str
    # For how many nights in a row the check fails, this one included; otherwise 0.
    strikes: int
    checks: tuple[str, ...]
    hosts: tuple[str, ...]
    # The checks that it explains, on any of the hosts.
    explains: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return (
            "faster"
            if (self.kind, self.weight) == ("throughput", "good")
            else TITLES.get(self.kind, self.kind)
        )


def summarize(changes: Iterable[ChangeEntry]) -> list[Change]:
    """The changes of a nightly run: bad ones first, then by the number of hosts.

    A change that another one of its host explains is folded under it. Silenced ones are left out.
    """
    checks: dict[tuple[str, str, str, str, str, int], list[str]] = defaultdict(list)
    explains: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    for change in fold(sounding(changes)):
        # Several checks may report the same text: it is shown once, after their names.
        check, host = change["check"] or "", change["host"]
        text = change["text"].removeprefix(f"{check} ") if check else change["text"]
        if check and text == change["text"]:
            check = ""
        key = (
            host,
            change["weight"],
            change["kind"],
            mask_name(text, host),
            mask_name(change["remedy"] or "", host),
            change["strikes"],
        )
        checks[key] += [check] if check else []
        explains[host, change["weight"], change["kind"], *key[3:5]] |= dict.fromkeys(
            change.get("explains", ())
        )
    hosts: dict[tuple[str, str, str, str, int, tuple[str, ...]], list[str]] = defaultdict(list)
    for (host, weight, kind, text, remedy, strikes), names in checks.items():
        hosts[weight, kind, text, remedy, strikes, tuple(names)].append(host)
    summary = [
        Change(
            weight,
            kind,
            insert_names(text, found, "HOST"),
            insert_names(remedy, found),
            strikes,
            names,
            tuple(found),
            tuple(
                dict.fromkeys(
                    each for host in found for each in explains[host, weight, kind, text, remedy]
                )
            ),
        )
        for (weight, kind, text, remedy, strikes, names), found in hosts.items()
    ]
    return sorted(summary, key=lambda change: (WEIGHTS.index(change.weight), -len(change.hosts)))


def sounding(changes: Iterable[ChangeEntry]) -> list[ChangeEntry]:
    """The changes that no silence covers."""
    return [change for change in changes if "silenced" not in change]


def fold(changes: Iterable[ChangeEntry]) -> list[ChangeEntry]:
    """Without what a listed change of the same host explains; what an older one does, names it."""
    rows = list(changes)
    listed = {(row["host"], row["weight"], row["check"]) for row in rows}
    return [
        {
            **row,
            "text": f"{row['text'].removesuffix('.')} (a consequence of {row['explained_by']}).",
        }
        if row["weight"] == "bad" and "explained_by" in row
        else row
        for row in rows
        if (row["host"], row["weight"], row.get("explained_by", "")) not in listed
    ]


def strikes(changes: Changes | None) -> Callable[[Issue], int]:
    """A function that returns for how many nights in a row an issue exists; 0 if unknown."""
    known = {
        (row["host"], row["check"]): int(row["strikes"])
        for row in (changes["standing"] if changes else ())
    }

    def nights(issue: Issue) -> int:
        return max(
            (known.get((host, check), 0) for host in issue.hosts for check in issue.checks),
            default=0,
        )

    return nights
