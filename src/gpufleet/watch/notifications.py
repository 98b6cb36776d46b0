"""Build notifications of a night as text, mail, Slack or document: what to do first comes first.

Pure: `channels` sends them. A night without changes gives no notification.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpufleet.documents.nightly import ChangeEntry, Changes, Standing
from gpufleet.documents.text import cut
from gpufleet.documents.verdict import Verdict, silence_text
from gpufleet.report import change_summary, summary, terminal

from .change import OUTLIER, SLOW, count_nights
from .message_forms import ASIDE, BETTER, NEW, NOW, SILENCED, STILL, Line, Message

# Limits of one message: lines under each heading, lines of one check, hosts in a line, checks in a
# line, sentences about what was done. The report has the rest.
MOST_LINES, MOST_OF_CHECK, MOST_HOSTS, MOST_CHECKS, MOST_DONE = 20, 10, 8, 3, 20
# Rows of each list in the document for programs: `changes` and `standing`.
MOST_ROWS = 200
# Characters of a line.
MOST_CHARACTERS = 600
# How many characters the document for programs has of each text, and in all. Servers refuse
# more, and a message that is refused notifies nobody.
MOST_TEXT, MOST_DOCUMENT = 2000, 200_000
_UNJUDGED, _WAITS, _DRAINED = Verdict.INCONCLUSIVE.value, "not judged", "drained"
OF_WEIGHT = {"bad": NOW, "note": NEW, "good": BETTER}
# Characters of a subject after the program's name: what lists of mail show of it.
MOST_SUBJECT = 60
# Hosts that a subject names together.
MOST_NAMED = 2


@dataclass(frozen=True)
class Surroundings:
    """The parts of a notification beyond the document of changes, all of them for people alone.

    `done`: what the run did. `drained`: the hosts that the nightly keeps out of service. `aside`: a
    sentence for each host that is out of service. `week`: how many hosts were healthy in each of
    the last nights, where a summary of the week is wanted tonight. `as_called`: a remedy as the
    reader calls gpufleet.
    """

    done: Sequence[str] = ()
    drained: Sequence[str] = ()
    aside: Sequence[str] = ()
    week: Sequence[int] = ()
    as_called: Callable[[str], str] = str


NOTHING_ELSE = Surroundings()


def has_content(changes: Changes, around: Surroundings = NOTHING_ELSE) -> bool:
    """Return whether a night needs a notification: it is the first, or has an unsilenced change."""
    changed = change_summary.sounding(changes["changes"])
    return bool(changed or around.done or around.week or changes["since"] is None)


def nightly_message(changes: Changes, link: str, around: Surroundings = NOTHING_ELSE) -> Message:
    """Return the message about a nightly run."""
    changes = _cut(changes)
    sounding = change_summary.sounding(changes["changes"])
    lines: dict[str, list[Line]] = {heading: [] for heading in (NOW, NEW, BETTER, STILL)}
    for weight, line in grouped(sounding):
        lines[OF_WEIGHT[weight]].append(line)
    unhealthy = [line for _, line in grouped(_standing(changes, sounding))]
    lines[NOW if changes["since"] is None else STILL] += unhealthy
    hosts = changes["hosts"]
    total, healthy = sum(hosts.values()), hosts.get(Verdict.PASS, 0)
    before = changes.get("hosts_before")
    was = (
        f"the night before: {before.get(Verdict.PASS, 0)} of {sum(before.values())}"
        if before
        else "this is the first night"
    )
    unreachable = (
        " No host was reached: check the control host and its network first."
        if total > 1 and hosts.get("UNREACHABLE") == total
        else ""
    )
    week = (
        f" Healthy in the last {count_nights(len(around.week))}:"
        f" {', '.join(map(str, around.week))}."
        if around.week
        else ""
    )
    sections = {
        heading: [replace(each, remedy=around.as_called(each.remedy)) for each in rows[:MOST_LINES]]
        for heading, rows in lines.items()
    }
    sections[ASIDE] = [
        Line("", text, "")
        for sentences, most in ((around.done, MOST_DONE), (around.aside, MOST_LINES))
        for text in _most(tuple(sentences), most)
    ]
    sections[SILENCED] = [line for _, line in grouped(_silenced(changes))][:MOST_LINES]
    return Message(
        f"gpufleet: {subject(changes, around)}",
        f"{changes['night']}: {healthy} of {total} hosts healthy; {was}.{unreachable}{week}",
        {heading: rows for heading, rows in sections.items() if rows},
        sum(len(rows[MOST_LINES:]) for rows in lines.values()),
        link=link,
        document=_document(changes, tuple(around.done), link),
    )


# -- what stands, changed or not -------------------------------------------------------------------

_STATES = {
    Verdict.FAIL: "fails",
    Verdict.HUNG: "hangs",
    SLOW: "finds a slow GPU",
    OUTLIER: "finds what is worse than its siblings",
}


def _standing(changes: Changes, reported: Sequence[ChangeEntry]) -> list[ChangeEntry]:
    """Tonight's unhealthy results that are not reported as changes, in the form of changes."""
    known = {(row["host"], row["check"]) for row in reported if row["weight"] == "bad"}
    unjudged_news = {
        row["host"] for row in reported if (row["weight"], row["after"]) == ("note", _UNJUDGED)
    }
    rows: list[ChangeEntry] = []
    unjudged: dict[str, list[Standing]] = defaultdict(list)
    explains: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in _sounding(changes):
        if "explained_by" in row:
            explains[row["host"], row["explained_by"]].append(row["check"])
    for row in _sounding(changes):
        if row["verdict"] == _UNJUDGED:
            if row["host"] not in unjudged_news:
                unjudged[row["host"]].append(row)
        elif (row["host"], row["check"]) not in known:
            own = explains[row["host"], row["check"]]
            rows.append({**_as_change(row, _state(row)), "explains": own})
    return rows + [_not_judged(found) for found in unjudged.values()]


def _sounding(changes: Changes) -> list[Standing]:
    return [row for row in changes.get("standing", ()) if "silenced" not in row]


def _state(row: Standing) -> str:
    state = _STATES.get(row["verdict"])
    what = f"{row['check']} {state}" if state else "The host is unreachable"
    return f"{what}{_for_nights(row)}: {row['cause'].removesuffix('.')}."


def _for_nights(row: Standing) -> str:
    return f" for {count_nights(row['strikes'])}" if row["strikes"] > 1 else ""


def _not_judged(rows: Sequence[Standing]) -> ChangeEntry:
    """One line for all that could not be judged of a host: most often for one reason."""
    own = [row for row in rows if "explained_by" not in row] or [*rows]
    more = f" and {len(rows) - 1} more" if rows[1:] else ""
    oldest = max(rows, key=lambda row: row["strikes"])
    text = (
        f"{own[0]['check']}{more} could not be judged{_for_nights(oldest)}:"
        f" {own[0]['cause'].removesuffix('.')}."
    )
    return {**_as_change(own[0], text), "check": None}


def _silenced(changes: Changes) -> list[ChangeEntry]:
    """Silenced results, with who silenced them, why, and until when."""
    return [
        _as_change(
            {**row, "remedy": ""}, f"{row['check']} is silenced {silence_text(row['silenced'])}"
        )
        for row in changes.get("standing", ())
        if "silenced" in row
    ]


def _as_change(row: Standing, text: str) -> ChangeEntry:
    entry: ChangeEntry = {
        "kind": "failure",
        "host": row["host"],
        "check": row["check"],
        "before": None,
        "after": row["verdict"],
        "text": text,
        "remedy": row["remedy"],
        "weight": "bad",
        "strikes": row["strikes"],
    }
    if "explained_by" in row:
        entry["explained_by"] = row["explained_by"]
    return entry


# -- the subject -----------------------------------------------------------------------------------


def subject(changes: Changes, around: Surroundings = NOTHING_ELSE) -> str:
    """The most urgent news, in characters that mail lists show, and the count of healthy hosts."""
    hosts = changes["hosts"]
    end = f"{hosts.get(Verdict.PASS, 0)} of {sum(hosts.values())} healthy"
    bad = dict.fromkeys(sorted(around.drained), _DRAINED)
    new = {row["host"] for row in change_summary.sounding(changes["changes"])}
    bad |= _worst_of_hosts(changes, {*around.drained}, new)
    better = {row["host"] for row in changes["changes"] if row["weight"] == "good"}
    noted = {row["host"] for row in changes["changes"] if row["weight"] == "note"}
    further = [
        *(["first night"] if changes["since"] is None else []),
        *(["the week"] if around.week else []),
        *([f"{_names(sorted(better))} better"] if better else []),
        *([f"{_hosts(len(noted))} changed"] if noted else []),
    ]
    shown: list[str] = []
    left = len(bad)
    for part, count in [*_named_parts(bad, new), *((part, 0) for part in further)]:
        if len("; ".join([*shown, part, *_rest(left - count), end])) <= MOST_SUBJECT:
            shown.append(part)
            left -= count
    return "; ".join([*shown, *_rest(left), end])


def _rest(hosts: int) -> list[str]:
    return [f"{hosts} more"] if hosts else []


def _worst_of_hosts(
    changes: Changes, known: Collection[str], new: Collection[str]
) -> dict[str, str]:
    """By host that is not `known`, the worst of it in few words: what is new comes first."""
    order = [*map(str, Verdict), SLOW, OUTLIER]
    rows = [
        row for row in _sounding(changes) if row["host"] not in known and "explained_by" not in row
    ]
    found: dict[str, str] = {}
    for row in sorted(
        rows, key=lambda row: (row["host"] not in new, order.index(row["verdict"]), row["host"])
    ):
        nights = f" {count_nights(row['strikes'])}" if row["strikes"] > 1 else ""
        what = {
            Verdict.UNREACHABLE: "unreachable",
            _UNJUDGED: _WAITS,
        }.get(row["verdict"], f"fails {row['check']}")
        found.setdefault(row["host"], f"{what}{nights}")
    return found


def _named_parts(found: Mapping[str, str], new: Collection[str]) -> list[tuple[str, int]]:
    """`gpu03 unreachable 3 nights` for all hosts of which the same is said, and their number.

    The order is kept, but what is said of many hosts comes before what is said of few, and what
    readers know from earlier nights after what is new.
    """
    hosts: dict[str, list[str]] = defaultdict(list)
    for host, what in found.items():
        hosts[what].append(host)

    def order(what: str) -> tuple[bool, bool, int]:
        names = hosts[what]
        # Hosts that wait for no person come last: a GPU may be busy with a job.
        return (
            _WAITS in what,
            what != _DRAINED and not {*names} & {*new},
            -len(names) if len(names) > MOST_NAMED else 0,
        )

    return [
        (f"{_names(names)} {what.replace('fails ', 'fail ') if names[1:] else what}", len(names))
        for what in sorted(hosts, key=order)
        for names in [hosts[what]]
    ]


def _names(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= MOST_NAMED else _hosts(len(hosts))


# -- documents and lines ---------------------------------------------------------------------------


def _document(changes: Changes, done: tuple[str, ...], link: str) -> dict[str, Any]:
    """The document for programs: long lists are cut, with the number of rows left out."""
    document = {"event": "night", **changes, "done": _cut(list(done)), "report": link}
    lists = {name: rows for name, rows in document.items() if isinstance(rows, list)}
    kept: dict[str, list[Any]] = {}
    left = MOST_DOCUMENT
    for name, rows in lists.items():
        kept[name] = []
        for row in rows[:MOST_ROWS]:
            left -= len(str(row))
            if left < 0:
                break
            kept[name].append(row)
    return {
        **document,
        **kept,
        "left_out": {name: len(rows) - len(kept[name]) for name, rows in lists.items()},
    }


def _cut(value: Any) -> Any:
    """A document with every text cut."""
    if isinstance(value, dict):
        return {name: _cut(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_cut(item) for item in value]
    return cut(value, MOST_TEXT) if isinstance(value, str) else value


def _most(sentences: tuple[str, ...], most: int) -> tuple[str, ...]:
    rest = len(sentences) - most
    shown = tuple(cut(each, MOST_CHARACTERS) for each in sentences[:most])
    return (*shown, f"... and {rest} more; see the journal.") if rest > 0 else shown


def failure_message(troubles: Iterable[str], when: str, headline: str | None) -> Message:
    """Return the message about a nightly run with failed steps; `headline` None: none judged."""
    errors = _most(tuple(troubles), MOST_DONE)
    outcome = headline or "No host was judged: the state of the hosts is unknown."
    return Message(
        "gpufleet: the nightly run failed",
        f"{when}: {outcome}",
        done=errors,
        document={
            "schema": 1,
            "event": "failure",
            "night": when,
            "errors": list(errors),
            "judged": headline is not None,
        },
    )


def test_message_of(when: str) -> Message:
    """Return a message that tests the channels."""
    return Message(
        "gpufleet: test message",
        f"{when}: this message tests the nightly's notifications.",
        document={"schema": 1, "event": "test", "night": when},
    )


def grouped(changes: Iterable[ChangeEntry]) -> list[tuple[str, Line]]:
    """Return (weight, line), bad ones first; equal changes of many hosts are one line.

    More than `MOST_OF_CHECK` different texts of one check are one line, too.
    """
    changes = list(changes)
    remedies = {row["host"]: row["remedy"] for row in changes if row["check"] == "host.reachable"}
    found: dict[tuple[str, str, tuple[str, ...]], list[change_summary.Change]] = defaultdict(list)
    for each in change_summary.summarize(_alike(changes)):
        found[each.weight, each.kind, each.checks].append(each)
    lines = []
    for (weight, _, checks), entries in found.items():
        if len(entries) > MOST_OF_CHECK:
            hosts = sorted({host for each in entries for host in each.hosts})
            lines.append(
                (
                    weight,
                    Line(
                        _named(hosts),
                        _with_checks(
                            checks, f"({len(entries)} different causes), such as: {entries[0].text}"
                        ),
                        "see the report",
                    ),
                )
            )
        else:
            lines += [
                (
                    weight,
                    Line(
                        _named(sorted(each.hosts)),
                        _with_checks(checks, each.text, len(each.explains)),
                        cut(
                            f"of one of them, {remedies[min(each.hosts)]}"
                            if _MASKED in each.remedy and min(each.hosts) in remedies
                            else each.remedy,
                            MOST_CHARACTERS,
                        ),
                    ),
                )
                for each in entries
            ]
    return sorted(lines, key=lambda it: change_summary.WEIGHTS.index(it[0]))


def _alike(changes: Iterable[ChangeEntry]) -> list[ChangeEntry]:
    """Remove addresses from ssh's messages where hosts differ in nothing else.

    Of hosts behind one dead switch some time out, and others are reported to have no route.
    """
    given = sorted(changes, key=lambda change: change["host"])
    reasons = {found[2] for row in given for found in [_NO_ANSWER.search(row["text"])] if found}

    def masked(text: str) -> str:
        either = rf"\1{_MASKED}: {', or '.join(sorted(reasons))}"
        return _ADDRESS.sub(_MASKED, _NO_ANSWER.sub(either, text))

    def text_of(change: ChangeEntry) -> str:
        return summary.mask_name(masked(change["text"]), change["host"])

    def shown(change: ChangeEntry) -> ChangeEntry:
        if change["check"] != "host.reachable" or many[text_of(change)] == 1:
            return change
        remedy = _ADDRESS.sub(_MASKED, change["remedy"] or "")
        return {**change, "text": masked(change["text"]), "remedy": remedy}

    many = Counter(text_of(row) for row in given if row["check"] == "host.reachable")
    return [shown(change) for change in given]


_MASKED = "..."
_NO_ANSWER = re.compile(
    r"(connect to host )\S+ port \d+: (No route to host|Connection timed out)(?=\.?$)"
)
# Host addresses in ssh's messages and on its command line.
_ADDRESS = re.compile(
    r"(?<=connect to host )\S+ port \d+|(?<=resolve hostname )[^\s:]+"
    r"|(?<!\S)[^\s@]+@[^\s@]+(?=: Permission)|(?<=(?: by| to) )\S+ port \d+"
    r"|(?<=by hand: )ssh .*|(?<![\w.-])[\w.-]+@[\w.-]+|(?<!\d)\d{1,3}(?:\.\d{1,3}){3}"
)


def _with_checks(checks: tuple[str, ...], text: str, consequences: int = 0) -> str:
    """A sentence that begins with the checks that it is about, and counts what they explain."""
    more = f" and {len(checks) - MOST_CHECKS} more" if len(checks) > MOST_CHECKS else ""
    line = f"{', '.join(checks[:MOST_CHECKS])}{more} {text}".strip()
    line = line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]} ..."
    return f"{line} ({summary.count_consequences(consequences)})" if consequences else line


def _named(hosts: list[str]) -> str:
    if len(hosts) <= MOST_HOSTS:
        return ", ".join(hosts)
    names = terminal.fold_names(hosts)
    return f"{len(hosts)} hosts ({names if len(names) <= 100 else f'{names[:100]}...'})"


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"
