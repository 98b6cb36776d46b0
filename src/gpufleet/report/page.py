"""What the page's own script shows, as one small document: a thousand hosts in about a megabyte.

Each text stands in it once, and elsewhere by its number; in a text about a host its name is a
stand-in, so that the same sentence about two hosts is one text. A verdict is a letter. A measured
value is one of 64 steps between the least and the most of its row, which is finer than a screen.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from gpufleet.checks.judge import CHECK_IDS
from gpufleet.model.verdict import Verdict
from gpufleet.verification.session import HostRun, Session

from . import change_summary, fleet_versions
from .summary import mask_name, worst_first

LETTERS = {
    Verdict.PASS: "P",
    Verdict.FAIL: "F",
    Verdict.HUNG: "H",
    Verdict.UNREACHABLE: "U",
    Verdict.INCONCLUSIVE: "?",
    Verdict.NOT_DECLARED: "-",
}
BAD = "FHU?"
ABSENT = "."
STEPS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
# Characters of evidence in a page; the rest of it is in report.json alone.
MOST_EVIDENCE = 500_000
# Characters of measured values in a page. Where there are more, it has the newest nights, so many
# at least, and those of the worst hosts; a row takes some characters beside its values.
MOST_MEASURED = 1_800_000
LEAST_NIGHTS = 14
ROW = 40
NOWHERE = -1
MEASURE = re.compile(r"(?:gpu\.([^.]+)|cpu)\.(stack|toolkit)\.(.+)\.tflops")


class Texts:
    """Each text once, by its number; number 0 is no text."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {"": 0}
        self.evidence_left = MOST_EVIDENCE

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))

    def evidence(self, text: str) -> int:
        """The same, for as long as there is room."""
        if text not in self.numbers:
            if self.evidence_left < len(text):
                return NOWHERE
            self.evidence_left -= len(text)
        return self.number(text)


def document(
    session: Session, past: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
    told: Mapping[str, fleet_versions.HostVersions] | None = None,
) -> dict[str, Any]:
    """Everything that the script shows; `past` and `changes` are what a history knows of it.

    `told`, if somebody has it already, is what hosts said of themselves.

    `hosts` are in the session's order, `order` are their places, the worst first. Of a host,
    `wrong` are `[check, cause, remedy, evidence]`, `seen` are `[check, evidence]`, and `excused` is
    the place in `excuses` of its `[check, declaration]`; `changed` are texts, and `series` is null
    where it did not fit. A check is its place in `checks`, a text its number in `texts`, -1 where
    it did not fit.
    """
    texts = Texts()
    told = fleet_versions.read_versions(session) if told is None else told
    checks = {check["id"]: check["statement"]
              for host in session.hosts for check in host.result["checks"]}
    places = {name: place for place, name in enumerate(_in_order(checks))}
    order = worst_first(session)
    excuses: dict[tuple[tuple[int, int], ...], int] = {}
    hosts = {host.name: _host(host, told[host.name], places, texts, excuses) for host in order}
    # What is wrong has its evidence in the page before what is right, of all hosts.
    for host in order:
        hosts[host.name]["seen"] = _seen(host, places, texts)
    changed: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for change in changes["changes"] if changes else ():
        changed[change["host"]].append(change)
    nights, left = _nights(past, hosts), MOST_MEASURED
    for host in order:
        known = past["hosts"].get(host.name) if past else None
        series = list(_series(told[host.name], known, len(nights), texts)) if known else []
        left -= len(series) * (ROW + len(nights))
        hosts[host.name] |= {
            "changed": [
                texts.number(mask_name(" ".join([", ".join(each.checks), each.text]), host.name))
                for each in change_summary.summarize({"changes": changed[host.name]})],
            "nights": known["verdicts"][-len(nights):] if known and nights else "",
            "series": series if left >= 0 or not series else None,
        }
    numbers = {host.name: place for place, host in enumerate(session.hosts)}
    return {
        "letters": {letter: verdict.value for verdict, letter in LETTERS.items()},
        "checks": [[name, checks[name]] for name in places],
        "nights": nights,
        "steps": STEPS,
        "hosts": [hosts[host.name] for host in session.hosts],
        "order": [numbers[host.name] for host in order],
        "excuses": [list(map(list, excuse)) for excuse in excuses],
        "texts": list(texts.numbers),
    }


def _in_order(checks: Iterable[str]) -> list[str]:
    """Room by room, and in each as the judge asks; what it no longer knows comes last."""
    known = {name: place for place, name in enumerate(CHECK_IDS)}
    asked = sorted(checks, key=lambda name: known.get(name, len(known)))
    rooms = list(dict.fromkeys(name.partition(".")[0] for name in asked))
    return sorted(asked, key=lambda name: rooms.index(name.partition(".")[0]))


def _host(host: HostRun, told: fleet_versions.HostVersions, places: Mapping[str, int], texts: Texts,
          excuses: dict[tuple[tuple[int, int], ...], int]) -> dict[str, Any]:
    letters = [ABSENT] * len(places)
    wrong, excused = [], []
    for check in host.result["checks"]:
        place, verdict = places[check["id"]], Verdict(check["verdict"])
        letters[place] = LETTERS[verdict]
        if verdict is Verdict.NOT_DECLARED:
            excused.append((place, texts.number(check["cause"])))
        elif verdict is not Verdict.PASS:
            said = [mask_name(check[part], host.name) for part in ("cause", "remedy", "evidence")]
            wrong.append([place, *map(texts.number, said[:2]), texts.evidence(said[2])])
    return {
        "name": host.name,
        "verdict": LETTERS[Verdict(host.result["verdict"])],
        "checks": "".join(letters),
        "about": texts.number(fleet_versions.describe(told.versions)),
        "wrong": wrong,
        "excused": excuses.setdefault(tuple(excused), len(excuses)),
    }


def _seen(host: HostRun, places: Mapping[str, int], texts: Texts) -> list[list[int]]:
    return [[places[check["id"]], texts.evidence(mask_name(check["evidence"], host.name))]
            for check in host.result["checks"]
            if check["verdict"] == Verdict.PASS and check["evidence"]]


def _nights(past: Mapping[str, Any] | None, hosts: Iterable[str]) -> list[str]:
    """The newest nights, as many as fit into the page of all hosts."""
    if not past:
        return []
    rows = sum(1 for name in hosts for measure in past["hosts"].get(name, {}).get("measures", ())
               if MEASURE.fullmatch(measure))
    nights: list[str] = past["nights"]
    return nights[-max(LEAST_NIGHTS, MOST_MEASURED // max(1, rows) - ROW):]


def _series(
    told: fleet_versions.HostVersions, known: Mapping[str, Any], nights: int, texts: Texts
) -> Iterator[list[Any]]:
    """`[what, which GPU, least, most, median, last, steps]` of each row of throughputs."""
    found = []
    for name, values in known.get("measures", {}).items():
        match = MEASURE.fullmatch(name)
        numbers = [value for value in values[-nights:] if value is not None]
        if match and numbers:
            card, kind, what = match.groups()
            short = told.numbers.get(card or "", (card or "").removeprefix("GPU-")[:8])
            which = "CPU" if card is None else f"GPU {short}"
            title = f"CUDA {what}" if kind == "toolkit" else what
            found.append((title, len(which), which, values[-nights:], numbers))
    for title, _, which, values, numbers in sorted(found, key=lambda row: row[:3]):
        least, most = min(numbers), max(numbers)
        yield [texts.number(title), texts.number(which), *map(_short, (
            least, most, median(numbers), values[-1])), _steps(values, least, most)]


def _steps(values: Iterable[float | None], least: float, most: float) -> str:
    span = (most - least) or 1
    return "".join(
        ABSENT if value is None else STEPS[round((value - least) / span * (len(STEPS) - 1))]
        for value in values)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def bad_nights(past: Mapping[str, Any] | None) -> list[tuple[str, int, dict[str, int]]]:
    """Each night, how many hosts were not healthy, and of which verdict; the oldest first."""
    if not past:
        return []
    verdicts = {letter: verdict.value for verdict, letter in LETTERS.items()}
    columns: list[Counter[str]] = [Counter() for _ in past["nights"]]
    for host in past["hosts"].values():
        for column, letter in zip(columns, host["verdicts"], strict=False):
            column[letter] += 1
    return [(night, sum(column[letter] for letter in BAD),
             {verdicts[letter]: column[letter] for letter in BAD if column[letter]})
            for night, column in zip(past["nights"], columns, strict=True)]
