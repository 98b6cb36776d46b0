"""The catalogue of faults: what is broken, which check says so, and how that is proven.

`docs/reference/faults.md` is generated from it. Each module beside this one lists the faults of one
area in `FAULTS`; `test_*.py` inject them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Checks = Mapping[str, Mapping[str, Any]]

# The stages: where a fault is injected, and so how it is proven.
STAGES = {
    "host": "injected into a healthy lab host",
    "root": "planted under the probe: `/proc`, `/sys`, `/dev`, a stand-in `nvidia-smi`, logs",
    "stub": "a stand-in library that answers with the code, or not at all",
    "plan": "refused by the plan, before anything changes",
}


@dataclass(frozen=True)
class Fault:
    """One way to break a host.

    `number` is that of the list of failures, or `x1`, `x2`, ... for faults invented to try checks
    that were built without them in mind. `inject` is a shell script (stage `host`, run as root; so
    is `repair`), or a function that breaks a planted host. `cause` and `remedy` are regular
    expressions that must be found in what `check` says. `also` are the other checks that state the
    same cause; any further one that does not pass is collateral.
    """

    number: str
    shows: str
    stage: str
    check: str
    cause: str
    remedy: str
    inject: str | Callable[[Any], None]
    repair: str = ""
    also: tuple[str, ...] = ()
    verdict: str = "FAIL"

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise ValueError(f"fault {self.number}: no such stage: {self.stage}")

    @property
    def name(self) -> str:
        """A test's id."""
        return f"{self.number}-{re.sub(r'[^a-z0-9]+', '-', self.shows.lower()).strip('-')[:48]}"

    def says(self, check: Mapping[str, Any]) -> bool:
        """Return whether a check's cause and remedy are right; one that passes has evidence."""
        return bool(
            re.search(self.cause, check["cause"] or check["evidence"], re.DOTALL)
            and re.search(self.remedy, check["remedy"])
        )


def faults() -> Iterator[Fault]:
    """All of them, by number; the invented ones last."""
    found: list[Fault] = []
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in {"__init__", "catalogue", "conftest"} and not path.stem.startswith(
            "test_"
        ):
            found += getattr(importlib.import_module(f"{__package__}.{path.stem}"), "FAULTS", [])
    yield from sorted(
        found,
        key=lambda fault: (
            not fault.number.isdigit(),
            int(re.sub(r"\D", "", fault.number)),
            fault.shows,
        ),
    )


def verdicts(checks: Checks) -> dict[str, str]:
    """The verdict of each check."""
    return {name: check["verdict"] for name, check in checks.items()}


def is_consequence(check: Mapping[str, Any], named: set[str]) -> bool:
    """Return whether one of these explains a check, or is the reason why it is not judged."""
    pointed = re.match(r"see ([a-z-]+\.[a-z-]+)", check["remedy"])
    return check.get("explained_by") in named or (
        check["verdict"] == "INCONCLUSIVE" and bool(pointed and pointed[1] in named)
    )


def found(fault: Fault, before: Checks, after: Checks) -> dict[str, Any]:
    """The results of a fault: of the named check, its cause and remedy, and of other checks.

    `collateral`: checks that are not as before, state no part of the same cause, and are no
    consequence of one that does. `silent`: those that the fault names and that say nothing of it.
    """
    was, now, named = verdicts(before), verdicts(after), {fault.check, *fault.also}
    return {
        "caught": now[fault.check] == fault.verdict,
        "right": fault.says(after[fault.check]),
        "collateral": sorted(
            name
            for name in now
            if now[name] != was.get(name)
            and name not in named
            and not is_consequence(after[name], named)
        ),
        "silent": sorted(
            name
            for name in fault.also
            if now[name] in {was[name], "PASS"} and now[name] != "NOT-DECLARED"
        ),
    }


def table() -> list[list[str]]:
    """Rows for the documentation: number, what the user sees, check, how proven."""
    return [
        [
            fault.number,
            fault.shows,
            ", ".join(f"`{name}`" for name in dict.fromkeys((fault.check, *fault.also))),
            fault.stage,
        ]
        for fault in faults()
    ]
