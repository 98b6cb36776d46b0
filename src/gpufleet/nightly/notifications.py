"""Telling people: mail and webhooks, with what changed and where the report is; quiet otherwise.

A message is made once, pure; each channel then has its own form of it. A channel that does not
answer is tried again for a while, and what could not be told is told the next night: the caller
notes for each channel up to which night it has heard (`told`).
"""

from __future__ import annotations

import hashlib
import json
import re
import smtplib
import ssl
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jinja2
import tenacity

from gpufleet.report import change_summary, summary, terminal

from .config import Mail, Settings, Webhook

TEMPLATES = Path(__file__).parent / "templates"
ANSWER_S = 20
# What stands in one message: lines under each heading, lines of one check, hosts in a line, checks
# in a line, sentences of what was done; the page has the rest.
MOST_LINES, MOST_OF_CHECK, MOST_HOSTS, MOST_CHECKS, MOST_DONE = 20, 10, 8, 3, 20
# Rows of the document that programs get: `changes` and `standing`.
MOST_ROWS = 200
# Of a line, and of all of a chat's message: longer ones are cut off there, and the link with them.
MOST_WORDS, MOST_CHAT = 600, 3500
HEADINGS = {"bad": "Worse", "good": "Better", "note": "Different"}
HEALTHY = "PASS"


class NotToldError(Exception):
    """A channel did not take a message; why, without any secret.

    `later`: whether it may take the same one another time. `reached`: it told some people.
    """

    def __init__(self, why: str, *, later: bool = False, reached: bool = False) -> None:
        super().__init__(why)
        self.later, self.reached = later, reached


@dataclass(frozen=True)
class Line:
    """One thing that changed, on all hosts on which it did."""

    hosts: str
    text: str
    remedy: str


@dataclass(frozen=True)
class Message:
    """What is to be told: for people, and as the document that programs get."""

    subject: str
    summary: str
    groups: Mapping[str, list[Line]] = field(default_factory=dict)
    left_out: int = 0
    done: tuple[str, ...] = ()
    link: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)


def worth_telling(changes: Mapping[str, Any], done: Iterable[str] = ()) -> bool:
    """Whether anything changed. The first night is told as it is, since it changed everything."""
    return bool(changes["changes"] or list(done) or changes["since"] is None)


def of_night(changes: Mapping[str, Any], link: str, done: Iterable[str] = ()) -> Message:
    """The message about a night."""
    rows = {weight: [line for kind, line in grouped(changes["changes"]) if kind == weight]
            for weight in HEADINGS}
    of = {weight: {change["host"] for change in changes["changes"] if change["weight"] == weight}
          for weight in HEADINGS}
    counts = [f"{_hosts(len(names))} {HEADINGS[weight].lower()}" for weight, names in of.items()
              if names]
    hosts = changes["hosts"]
    total, healthy = sum(hosts.values()), hosts.get(HEALTHY, 0)
    before = changes.get("hosts_before")
    was = f"the night before, {before.get(HEALTHY, 0)} of {sum(before.values())}" if before \
        else "this was the first night"
    nobody = " Nobody was reached: look at the control host and its network first." \
        if total > 1 and hosts.get("UNREACHABLE") == total else ""
    every = tuple(done)
    return Message(
        f"gpufleet: {', '.join(counts) or 'first night'} ({healthy} of {total} healthy)",
        f"{changes['night']}: {healthy} of {total} hosts healthy; {was}.{nobody}",
        {weight: lines[:MOST_LINES] for weight, lines in rows.items() if lines},
        sum(len(lines[MOST_LINES:]) for lines in rows.values()),
        _most(every, MOST_DONE), link, _document(changes, every, link))


def _document(changes: Mapping[str, Any], done: tuple[str, ...], link: str) -> dict[str, Any]:
    """What programs get: of long lists the first rows, and how many were left out."""
    made = {"event": "night", **changes, "done": list(done), "report": link}
    lists = {name: rows for name, rows in made.items() if isinstance(rows, list)}
    return {**made, **{name: rows[:MOST_ROWS] for name, rows in lists.items()},
            "left_out": {name: max(0, len(rows) - MOST_ROWS) for name, rows in lists.items()}}


def _most(sentences: tuple[str, ...], most: int) -> tuple[str, ...]:
    rest = len(sentences) - most
    return (*sentences[:most], *([f"... and {rest} more; the journal has them all."]
                                 if rest > 0 else []))


def of_failure(troubles: Iterable[str], when: str, headline: str | None) -> Message:
    """The message about a nightly that did not do all of its work; None: no host was judged."""
    what = tuple(troubles)
    known = headline or "No host was judged: how they are is not known."
    return Message(
        "gpufleet: the nightly did not do its work", f"{when}: {known}", done=what,
        document={"schema": 1, "event": "failure", "night": when, "errors": list(what),
                  "judged": headline is not None})


def of_test(when: str) -> Message:
    """A message to see whether messages arrive."""
    return Message("gpufleet: a test message",
                   f"{when}: somebody tried whether the nightly's messages arrive. They do.",
                   document={"schema": 1, "event": "test", "night": when})


def grouped(changes: Iterable[Mapping[str, Any]]) -> list[tuple[str, Line]]:
    """(weight, line), the bad ones first; what happened on many hosts alike is one line.

    So is what a check says in more ways than anybody reads in a mail.
    """
    found: dict[tuple[str, str, tuple[str, ...]], list[change_summary.Change]] = defaultdict(list)
    for each in change_summary.summarize({"changes": _alike(changes)}):
        found[each.weight, each.kind, each.checks].append(each)
    lines = []
    for (weight, _, checks), every in found.items():
        if len(every) > MOST_OF_CHECK:
            hosts = sorted({host for each in every for host in each.hosts})
            lines.append((weight, Line(
                _named(hosts), _said(checks, f"in {len(every)} ways, such as: {every[0].text}"),
                "the report has each of them")))
        else:
            lines += [(weight, Line(_named(sorted(each.hosts)), _said(checks, each.text),
                                    each.remedy)) for each in every]
    return sorted(lines, key=lambda it: list(HEADINGS).index(it[0]))


def _alike(changes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """ssh's words without addresses, for hosts of which nothing but those differs."""
    def said(change: Mapping[str, Any]) -> tuple[str, str]:
        return change["kind"], summary.mask_name(change["text"], change["host"])

    given = sorted(changes, key=lambda change: change["host"])
    without = [{**change, "text": _ADDRESS.sub("...", change["text"]),
                "remedy": _ADDRESS.sub("...", change["remedy"] or "")}
               if change["check"] == "host.reachable" else change for change in given]
    many = Counter(map(said, without))
    return [other if many[said(other)] > 1 else change
            for change, other in zip(given, without, strict=True)]


# As ssh names whom it calls, in its messages and on its command line.
_ADDRESS = re.compile(
    r"(?<=connect to host )\S+ port \d+|(?<=resolve hostname )[^\s:]+|\S+@\S+(?=: Permission)"
    r"|(?<=(?: by| to) )\S+ port \d+|(?<=by hand: )ssh .*|[\w.-]+@[\w.-]+|\d+(?:\.\d+){3}")


def _said(checks: tuple[str, ...], text: str) -> str:
    """A sentence with the checks that say it."""
    more = f" and {len(checks) - MOST_CHECKS} more" if len(checks) > MOST_CHECKS else ""
    line = f"{', '.join(checks[:MOST_CHECKS])}{more} {text}".strip()
    return line if len(line) <= MOST_WORDS else f"{line[:MOST_WORDS]} ..."


def _named(hosts: list[str]) -> str:
    if len(hosts) <= MOST_HOSTS:
        return ", ".join(hosts)
    names = terminal.fold_names(hosts)
    return f"{len(hosts)} hosts ({names if len(names) <= 100 else f'{names[:100]}...'})"


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"


def plain(message: Message) -> str:
    """The message as plain text."""
    parts = [message.summary]
    for weight, lines in message.groups.items():
        parts.append("\n".join([HEADINGS[weight]] + [
            f"  {line.hosts}: {line.text}"
            + (f"\n    remedy: {line.remedy}" if line.remedy and weight == "bad" else "")
            for line in lines]))
    if message.left_out:
        parts.append(f"... and {message.left_out} more; the report has them all.")
    if message.done:
        parts.append("\n".join(message.done))
    if message.link:
        parts.append(f"The whole report: {message.link}")
    return "\n\n".join(parts) + "\n"


def mail(message: Message, settings: Mail) -> EmailMessage:
    """The message as mail: plain text, and the same as a small page."""
    made = EmailMessage()
    made["Subject"], made["From"], made["To"] = (
        message.subject, settings.sender, ", ".join(settings.to))
    made["Date"], made["Message-ID"] = formatdate(usegmt=True), make_msgid(
        domain=settings.sender.rpartition("@")[2])
    # No out-of-office note answers this.
    made["Auto-Submitted"] = "auto-generated"
    made.set_content(plain(message))
    page = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined).get_template("mail.html.j2")
    made.add_alternative(page.render(message=message, headings=HEADINGS), subtype="html")
    return made


def slack(message: Message) -> dict[str, Any]:
    """The message as Slack's incoming webhooks take it, and Mattermost's."""
    text = plain(message).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    if len(text) > MOST_CHAT:
        text = f"{text[:MOST_CHAT].rpartition(chr(10))[0]}\n...\n\n{message.link}"
    return {"text": f"{message.subject}\n\n{text}"}


# --- Channels -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Channel:
    """One way to tell: what logs call it, its lasting key, and what sends a message."""

    name: str
    key: str
    send: Callable[[Message], None]


def channels(settings: Settings) -> list[Channel]:
    """Every channel that is set."""
    found = []
    if settings.mail:
        found.append(Channel(
            f"mail by {settings.mail.host}", f"mail {','.join(settings.mail.to)}",
            partial(send_mail, settings.mail)))
    for webhook in settings.webhooks:
        # The address may be a secret, its host is none.
        key = hashlib.sha256(webhook.url.encode()).hexdigest()[:12]
        found.append(Channel(
            f"webhook at {urlsplit(webhook.url).hostname}", f"webhook {key}",
            partial(send_webhook, webhook)))
    return found


def tell(channel: Channel, message: Message, within_s: float) -> None:
    """Tell it, trying again for so long where that may help; raises `NotToldError`."""
    try:
        patiently(partial(channel.send, message), within_s)
    except (OSError, ValueError, HTTPException) as error:
        raise NotToldError(f"{channel.name}: {_plain_reason(error)}", later=passing(error),
                           reached=isinstance(error, SomeRefusedError)) from None


def patiently(act: Callable[[], None], within_s: float) -> None:
    """Do it, again and again for so long where that may help."""
    tenacity.Retrying(
        stop=tenacity.stop_before_delay(within_s),
        wait=tenacity.wait_exponential_jitter(initial=1, max=15),
        retry=tenacity.retry_if_exception(passing), reraise=True)(act)


def passing(error: BaseException) -> bool:
    """Whether trying again may help: nobody answers, or the answer says later."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code == HTTPStatus.TOO_MANY_REQUESTS or error.code >= 500
    if isinstance(error, smtplib.SMTPResponseException):
        return 400 <= error.smtp_code < 500
    if isinstance(error, ssl.SSLError) or isinstance(
            getattr(error, "reason", None), ssl.SSLCertVerificationError):
        return False
    if isinstance(error, smtplib.SMTPException):
        return isinstance(error, smtplib.SMTPServerDisconnected)
    return isinstance(error, OSError)


def _plain_reason(error: Exception) -> str:
    """Why, without what was sent: an address or a password may be part of that."""
    if isinstance(error, urllib.error.HTTPError):
        return f"it answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return f"it refused {', '.join(error.recipients)}"
    if isinstance(error, smtplib.SMTPResponseException):
        said = error.smtp_error
        words = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        return f"it answered {error.smtp_code} {' '.join(words.split())}"
    if isinstance(error, HTTPException):
        # Its words may have the address in them.
        return f"what answered does not speak HTTP as it should ({type(error).__name__})"
    return " ".join(str(error).split()) or type(error).__name__


class SomeRefusedError(smtplib.SMTPRecipientsRefused):
    """The mail went to all others."""


def send_mail(settings: Mail, message: Message) -> None:
    """Hand a mail in, certificates checked; a recipient that was refused is an error."""
    checked = ssl.create_default_context()
    make: Callable[..., smtplib.SMTP] = smtplib.SMTP
    more: dict[str, Any] = {}
    if settings.tls == "tls":
        make, more = smtplib.SMTP_SSL, {"context": checked}
    with make(settings.host, settings.port, timeout=ANSWER_S, **more) as server:
        if settings.tls == "starttls":
            server.starttls(context=checked)
        if settings.user and settings.password:
            server.login(settings.user, settings.password)
        refused = server.send_message(mail(message, settings))
    if refused:
        raise SomeRefusedError(refused)


def send_webhook(webhook: Webhook, message: Message) -> None:
    """Hand a message to a webhook."""
    body = slack(message) if webhook.form == "slack" else message.document
    headers = {"Content-Type": "application/json"}
    if webhook.secret:
        headers["Authorization"] = f"Bearer {webhook.secret}"
    call(webhook.url, json.dumps(body).encode(), headers)


class _Straight(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: a POST would arrive as a GET, without what it is to say."""

    def redirect_request(self, *_: Any) -> None:
        """urllib's hook: not followed, so the answer counts as an error."""


def call(url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> None:
    """GET, or POST where there is a body; any answer but 2xx is an error."""
    request = urllib.request.Request(url, body, dict(headers or {}))
    with urllib.request.build_opener(_Straight).open(request, timeout=ANSWER_S):
        pass
