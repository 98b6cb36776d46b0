"""Build notifications: what changed and where the report is, as text, mail, Slack or document.

Pure: `channels` sends them. A night without changes gives no notification.
"""

from __future__ import annotations

import html
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from pathlib import Path
from typing import Any

import jinja2

from gpufleet.model.nightly import ChangeEntry, Changes
from gpufleet.model.text import cut
from gpufleet.model.verdict import Verdict
from gpufleet.report import change_summary, summary, terminal

from .config import Mail

TEMPLATES = Path(__file__).parent / "templates"
# Limits of one message: lines under each heading, lines of one check, hosts in a line, checks in a
# line, sentences about what was done. The report has the rest.
MOST_LINES, MOST_OF_CHECK, MOST_HOSTS, MOST_CHECKS, MOST_DONE = 20, 10, 8, 3, 20
# Rows of each list in the document for programs: `changes` and `standing`.
MOST_ROWS = 200
# Characters of a line, and of a chat message: a chat cuts longer ones off, and the link with them.
MOST_CHARACTERS, MOST_CHAT = 600, 3500
# How many characters the document for programs has of each text, and in all. Servers refuse
# more, and a message that is refused notifies nobody.
MOST_TEXT, MOST_DOCUMENT = 2000, 200_000
HEADINGS = {"bad": "Worse", "good": "Better", "note": "Different"}


@dataclass(frozen=True)
class Line:
    """One change, with all hosts on which it happened."""

    hosts: str
    text: str
    remedy: str


@dataclass(frozen=True)
class Message:
    """A notification: its parts for people, and the document for programs."""

    subject: str
    summary: str
    groups: Mapping[str, list[Line]] = field(default_factory=dict)
    left_out: int = 0
    done: tuple[str, ...] = ()
    link: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)


def has_content(changes: Changes, done: Iterable[str] = ()) -> bool:
    """Whether a night needs a notification: something not silenced changed, or it is the first."""
    changed = change_summary.sounding(changes["changes"])
    return bool(changed or list(done) or changes["since"] is None)


def nightly_message(changes: Changes, link: str, done: Iterable[str] = ()) -> Message:
    """Return the message about a nightly run."""
    changes = _cut(changes)
    sounding = change_summary.sounding(changes["changes"])
    rows = {
        weight: [line for kind, line in grouped(sounding) if kind == weight] for weight in HEADINGS
    }
    of = {
        weight: {change["host"] for change in sounding if change["weight"] == weight}
        for weight in HEADINGS
    }
    counts = [
        f"{_hosts(len(names))} {HEADINGS[weight].lower()}" for weight, names in of.items() if names
    ]
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
    silenced = sum("silenced" in row for row in changes.get("standing", ()))
    silent = f" Silenced: {summary.count_checks(silenced)}." if silenced else ""
    sentences = tuple(done)
    return Message(
        f"gpufleet: {', '.join(counts) or 'first night'} ({healthy} of {total} healthy)",
        f"{changes['night']}: {healthy} of {total} hosts healthy; {was}.{unreachable}{silent}",
        {weight: lines[:MOST_LINES] for weight, lines in rows.items() if lines},
        sum(len(lines[MOST_LINES:]) for lines in rows.values()),
        _most(sentences, MOST_DONE),
        link,
        _document(changes, sentences, link),
    )


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
                        cut(each.remedy, MOST_CHARACTERS),
                    ),
                )
                for each in entries
            ]
    return sorted(lines, key=lambda it: list(HEADINGS).index(it[0]))


def _alike(changes: Iterable[ChangeEntry]) -> list[ChangeEntry]:
    """Remove addresses from ssh's messages where hosts differ in nothing else."""

    def text_of(change: ChangeEntry) -> tuple[str, str]:
        return change["kind"], summary.mask_name(change["text"], change["host"])

    given = sorted(changes, key=lambda change: change["host"])
    without: list[ChangeEntry] = [
        {
            **change,
            "text": _ADDRESS.sub("...", change["text"]),
            "remedy": _ADDRESS.sub("...", change["remedy"] or ""),
        }
        if change["check"] == "host.reachable"
        else change
        for change in given
    ]
    many = Counter(map(text_of, without))
    return [
        other if many[text_of(other)] > 1 else change
        for change, other in zip(given, without, strict=True)
    ]


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


def as_text(message: Message) -> str:
    """Return the message as plain text."""
    parts = [message.summary]
    for weight, lines in message.groups.items():
        parts.append(
            "\n".join(
                [HEADINGS[weight]]
                + [
                    f"  {line.hosts}: {line.text}"
                    + (f"\n    remedy: {line.remedy}" if line.remedy and weight == "bad" else "")
                    for line in lines
                ]
            )
        )
    if message.left_out:
        parts.append(f"... and {message.left_out} more; see the report.")
    if message.done:
        parts.append("\n".join(message.done))
    if message.link:
        parts.append(f"Full report: {message.link}")
    return "\n\n".join(parts) + "\n"


def as_mail(message: Message, settings: Mail) -> EmailMessage:
    """Return the message as mail: plain text, and the same as HTML."""
    email = EmailMessage()
    email["Subject"], email["From"], email["To"] = (
        message.subject,
        settings.sender,
        ", ".join(settings.to),
    )
    email["Date"], email["Message-ID"] = (
        formatdate(usegmt=True),
        make_msgid(domain=settings.sender.rpartition("@")[2]),
    )
    # Suppresses out-of-office replies.
    email["Auto-Submitted"] = "auto-generated"
    email.set_content(as_text(message))
    page = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    ).get_template("mail.html.j2")
    email.add_alternative(page.render(message=message, headings=HEADINGS), subtype="html")
    return email


# What a chat makes of text, which hosts and what they run may have chosen: a mention of people, a
# link under other words, an address that is opened for a preview. A space without width ends it.
_OBEYED = re.compile(r"(?<![A-Za-z0-9])@(?=\w)|\](?=[(\[])|(?<=\w):(?=//)|\bwww(?=\.)", re.I)
NO_WIDTH = "\u200b"


def as_slack(message: Message) -> dict[str, Any]:
    """Return the message as the body for an incoming webhook of Slack or Mattermost."""
    text = _OBEYED.sub(
        lambda found: found[0] + NO_WIDTH, html.escape(as_text(replace(message, link="")), False)
    )
    if message.link:
        text += f"\nFull report: {html.escape(message.link, False)}\n"
    if len(text) > MOST_CHAT:
        text = f"{text[:MOST_CHAT].rpartition(chr(10))[0]}\n...\n\n{message.link}"
    return {"text": f"{message.subject}\n\n{text}"}
