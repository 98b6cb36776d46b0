"""The document that is embedded in the page for its script: 1000 hosts in about a megabyte.

Each text is stored once and referenced by its number. A host's own name in a text is masked, so the
same sentence about two hosts is one text. A verdict is a letter. A measured value is one of 64
steps between the minimum and the maximum of its row, which is finer than a screen.

Pure: verdicts, versions and history in, one document out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from gpufleet.documents.nightly import ChangeEntry, Changes, Past, PastHost
from gpufleet.documents.verdict import LETTERS, Verdict, consequences, silence_text
from gpufleet.fleet.host_fabric import HostFabric
from gpufleet.fleet.host_versions import HostVersions
from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge.judge import CHECK_IDS

from . import change_summary, fleet_fabric, fleet_versions
from .summary import mask_name, worst_first

BAD = "FHU?"
ABSENT = "."
STEPS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
# Characters of evidence in a page; the rest is only in report.json.
MOST_EVIDENCE = 500_000
# Characters of measured values in a page. If there are more, the page has only the newest nights
# (at least LEAST_NIGHTS) and the worst hosts. A row needs ROW characters beside its values.
MOST_MEASURED = 1_500_000
LEAST_NIGHTS = 14
ROW = 40
NOWHERE = -1
MEASURE = re.compile(r"(?:gpu\.([^.]+)|cpu)\.(stack|toolkit)\.(.+)\.tflops")


class Texts:
    """Numbers of texts, each stored once; number 0 is the empty text."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {"": 0}
        self.evidence_left = MOST_EVIDENCE

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))

    def evidence(self, text: str) -> int:
        """The number of an evidence text, or NOWHERE if the page has no room for it."""
        if text not in self.numbers:
            if self.evidence_left < len(text):
                return NOWHERE
            self.evidence_left -= len(text)
        return self.number(text)


class Fabrics:
    """Numbers of rows of ports and NVLinks, and of what a host has of them, each stored once."""

    def __init__(self, texts: Texts) -> None:
        self.texts, self.left = texts, fleet_fabric.MOST_TEXTS
        self.rows: dict[tuple[str | int, ...], int] = {}
        self.numbers: dict[tuple[tuple[int, ...], ...], int] = {}

    def number(self, found: HostFabric) -> int | None:
        """The number of a host's rows, or None if the page has no room for them."""
        ports = [fleet_fabric.port_row(row) for row in found.ports]
        links = [["", *fleet_fabric.link_row(row)] for row in found.links]
        new = {text for row in [*ports, *links] for text in row[1:]} - self.texts.numbers.keys()
        if (left := self.left - sum(map(len, new))) < 0:
            return None
        self.left = left
        key = tuple(tuple(map(self._row, rows)) for rows in (ports, links))
        return self.numbers.setdefault(key, len(self.numbers))

    def _row(self, row: list[str]) -> int:
        letter, *texts = row
        return self.rows.setdefault((letter, *map(self.texts.number, texts)), len(self.rows))


def document(
    session: Session,
    past: Past | None = None,
    changes: Changes | None = None,
    host_versions: Mapping[str, HostVersions] | None = None,
    host_fabrics: Mapping[str, HostFabric] | None = None,
) -> dict[str, Any]:
    """Everything that the script shows; `past` and `changes` are documents of the history.

    `host_versions` and `host_fabrics` are those of `read_versions` and `fabrics`, if the caller has
    them.

    `hosts` are in the session's order, `order` are their indexes, the worst first. Of a host,
    `wrong` are `[check, cause, remedy, evidence]`, and the silence where one covers it, `folded`
    are `[check, the check that explains it]`, `seen` is the index in `seen` of its
    `[check, evidence]`, `excused` that in `excuses` of its `[check, declaration]`; `changed` are
    texts, and `series` is null if there was no room. A check is its index in `checks`, a text its
    number in `texts`, or -1 if there was no room.
    `fabric` is the index in `fabrics` of a host's ports and NVLinks, each by its index in `rows`:
    the letter of a port's state, and texts. It is null if there was no room.
    """
    texts = Texts()
    if host_versions is None:
        host_versions = fleet_versions.read_versions(session)
    if host_fabrics is None:
        host_fabrics = fleet_fabric.fabrics(session)
    checks = {
        check["id"]: check["statement"] for host in session.hosts for check in host.result["checks"]
    }
    indexes = {name: index for index, name in enumerate(_in_order(checks))}
    order = worst_first(session)
    excuses: dict[tuple[tuple[int, int], ...], int] = {}
    hosts = {
        host.name: _host(host, host_versions[host.name], indexes, texts, excuses) for host in order
    }
    # Evidence of failures has room before evidence of passed checks, for all hosts.
    seen: dict[tuple[tuple[int, int], ...], int] = {}
    for host in order:
        passed = tuple(_passed_evidence(host, indexes, texts))
        hosts[host.name]["seen"] = seen.setdefault(passed, len(seen))
    fabrics = Fabrics(texts)
    for host in order:
        hosts[host.name]["fabric"] = fabrics.number(host_fabrics[host.name])
    changed: dict[str, list[ChangeEntry]] = defaultdict(list)
    for change in changes["changes"] if changes else ():
        changed[change["host"]].append(change)
    nights, left = _nights(past, hosts), MOST_MEASURED
    for host in order:
        known = past["hosts"].get(host.name) if past else None
        series = list(_series(host_versions[host.name], known, len(nights), texts)) if known else []
        left -= len(series) * (ROW + len(nights))
        hosts[host.name] |= {
            "changed": [
                texts.number(
                    mask_name(" ".join([", ".join(change.checks), change.text]), host.name)
                )
                for change in change_summary.summarize(changed[host.name])
            ],
            "nights": known["verdicts"][-len(nights) :] if known and nights else "",
            "series": series if left >= 0 or not series else None,
        }
    numbers = {host.name: index for index, host in enumerate(session.hosts)}
    return {
        "letters": {letter: verdict.value for verdict, letter in LETTERS.items()},
        "checks": [[name, checks[name]] for name in indexes],
        "nights": nights,
        "steps": STEPS,
        "hosts": [hosts[host.name] for host in session.hosts],
        "order": [numbers[host.name] for host in order],
        "excuses": [list(map(list, excuse)) for excuse in excuses],
        "seen": [list(map(list, each)) for each in seen],
        "rows": list(map(list, fabrics.rows)),
        "fabrics": [list(map(list, fabric)) for fabric in fabrics.numbers],
        "texts": list(texts.numbers),
    }


def _in_order(checks: Iterable[str]) -> list[str]:
    """Checks by area, in the judge's order within each; unknown checks come last."""
    known = {name: index for index, name in enumerate(CHECK_IDS)}
    ordered = sorted(checks, key=lambda name: known.get(name, len(known)))
    areas = list(dict.fromkeys(name.partition(".")[0] for name in ordered))
    return sorted(ordered, key=lambda name: areas.index(name.partition(".")[0]))


def _host(
    host: HostRun,
    versions: HostVersions,
    indexes: Mapping[str, int],
    texts: Texts,
    excuses: dict[tuple[tuple[int, int], ...], int],
) -> dict[str, Any]:
    letters = [ABSENT] * len(indexes)
    wrong, excused = [], []
    for check in host.result["checks"]:
        index, verdict = indexes[check["id"]], Verdict(check["verdict"])
        letters[index] = LETTERS[verdict]
        if verdict is Verdict.NOT_DECLARED:
            excused.append((index, texts.number(check["cause"])))
        elif verdict is not Verdict.PASS:
            cause, remedy, evidence = (
                mask_name(check[part], host.name) for part in ("cause", "remedy", "evidence")
            )
            row = [index, texts.number(cause), texts.number(remedy), texts.evidence(evidence)]
            if silenced := check.get("silenced"):
                row.append(texts.number(silence_text(silenced)))
            wrong.append(row)
    return {
        "name": host.name,
        "verdict": LETTERS[Verdict(host.result["verdict"])],
        "checks": "".join(letters),
        "about": texts.number(fleet_versions.describe(versions.versions)),
        "wrong": wrong,
        "folded": [
            [indexes[check["id"]], indexes[cause]]
            for cause, explained in consequences(host.result["checks"]).items()
            for check in explained
        ],
        "excused": excuses.setdefault(tuple(excused), len(excuses)),
    }


def _passed_evidence(
    host: HostRun, indexes: Mapping[str, int], texts: Texts
) -> Iterator[tuple[int, int]]:
    for check in host.result["checks"]:
        if check["verdict"] == Verdict.PASS and check["evidence"]:
            evidence = mask_name(check["evidence"], host.name)
            yield indexes[check["id"]], texts.evidence(evidence)


def _nights(past: Past | None, hosts: Iterable[str]) -> list[str]:
    """The newest nights, as many as fit into the page."""
    if not past:
        return []
    rows = sum(
        1
        for name in hosts
        if name in past["hosts"]
        for measure in past["hosts"][name].get("measures", {})
        if MEASURE.fullmatch(measure)
    )
    return past["nights"][-max(LEAST_NIGHTS, MOST_MEASURED // max(1, rows) - ROW) :]


def _series(
    versions: HostVersions, known: PastHost, nights: int, texts: Texts
) -> Iterator[list[Any]]:
    """`[stack or toolkit, GPU, min, max, median, last, steps]` of each throughput series."""
    found = []
    for name, values in known.get("measures", {}).items():
        match = MEASURE.fullmatch(name)
        numbers = [value for value in values[-nights:] if value is not None]
        if match and numbers:
            card, kind, what = match.groups()
            short = versions.numbers.get(card or "", (card or "").removeprefix("GPU-")[:8])
            which = "CPU" if card is None else f"GPU {short}"
            title = f"CUDA {what}" if kind == "toolkit" else what
            found.append((title, len(which), which, values[-nights:], numbers))
    for title, _, which, values, numbers in sorted(found, key=lambda row: row[:3]):
        least, most = min(numbers), max(numbers)
        yield [
            texts.number(title),
            texts.number(which),
            *map(_short, (least, most, median(numbers), values[-1])),
            _steps(values, least, most),
        ]


def _steps(values: Iterable[float | None], least: float, most: float) -> str:
    span = (most - least) or 1
    return "".join(
        ABSENT if value is None else STEPS[round((value - least) / span * (len(STEPS) - 1))]
        for value in values
    )


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def bad_nights(past: Past | None) -> list[tuple[str, int, dict[str, int]]]:
    """Each night with its number of unhealthy hosts, in all and by verdict, the oldest first."""
    if not past:
        return []
    verdicts = {letter: verdict.value for verdict, letter in LETTERS.items()}
    columns: list[Counter[str]] = [Counter() for _ in past["nights"]]
    for host in past["hosts"].values():
        for column, letter in zip(columns, host["verdicts"], strict=False):
            column[letter] += 1
    return [
        (
            night,
            sum(column[letter] for letter in BAD),
            {verdicts[letter]: column[letter] for letter in BAD if column[letter]},
        )
        for night, column in zip(past["nights"], columns, strict=True)
    ]
