"""A message in the forms in which it is sent: text, mail with a small page, Slack."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from pathlib import Path
from typing import Any

import jinja2

from .config import Mail

TEMPLATES = Path(__file__).parent / "templates"
# Characters of a chat message: a chat cuts longer ones off, and the link with them.
MOST_CHAT = 3500
# The sections of a message in their order. What is unhealthy comes with its remedy.
NOW, NEW, BETTER, STILL, ASIDE, SILENCED = (
    "Needs a hand now",
    "Different since the last night",
    "Better",
    "Still unhealthy",
    "In and out of service",
    "Silenced",
)
WITH_REMEDY = {NOW, STILL}


@dataclass(frozen=True)
class Line:
    """One change, with all hosts on which it happened."""

    hosts: str
    text: str
    remedy: str


@dataclass(frozen=True)
class Message:
    """A notification: its sections for people, and the document for programs."""

    subject: str
    summary: str
    sections: Mapping[str, list[Line]] = field(default_factory=dict)
    left_out: int = 0
    done: tuple[str, ...] = ()
    link: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)


def shows_remedy(heading: str, line: Line) -> bool:
    """Return whether a line of a section is followed by its remedy."""
    return heading in WITH_REMEDY and bool(line.remedy)


def as_text(message: Message) -> str:
    """Return the message as plain text."""
    parts = [message.summary]
    for heading, lines in message.sections.items():
        parts.append(
            "\n".join(
                [heading]
                + [
                    f"  {line.hosts}{': ' if line.hosts else ''}{line.text}"
                    + (f"\n    remedy: {line.remedy}" if shows_remedy(heading, line) else "")
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
    email.add_alternative(page.render(message=message, shows_remedy=shows_remedy), subtype="html")
    return email


# Texts of hosts and of their programs that a chat obeys: a mention of people, a
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
