"""The report directory: one page for people, documents for programs, and the raw evidence."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from . import summary
from .bundle import bundles
from .errors import ConfigurationError
from .judge import CHECK_IDS
from .session import Session
from .verdict import SYMBOLS, Verdict

TEMPLATES = Path(__file__).parent / "templates"
LATEST = "latest"
# More than a screen of failures is read host by host.
MOST_WRONG = 12


def html(session: Session) -> str:
    """The page: self-contained, nothing is loaded from anywhere."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    session = session.for_people()
    document = session.document
    present = {check["id"] for host in session.hosts for check in host.result["checks"]}
    return environment.get_template("report.html.j2").render(
        document=document,
        hosts=session.hosts,
        check_ids=[name for name in CHECK_IDS if name in present],
        results={host.name: {check["id"]: check for check in host.result["checks"]}
                 for host in session.hosts},
        headline=summary.headline(session),
        wrong=summary.wrong(session),
        most_wrong=MOST_WRONG,
        numbers={host.name: number for number, host in enumerate(session.hosts, 1)},
        proven=summary.proven(session),
        unproven=summary.unproven(session),
        counts={host.name: summary.counts(host.result) for host in session.hosts},
        titles={verdict.value: title for verdict, title in summary.TITLES.items()},
        symbols={verdict.value: symbol for verdict, symbol in SYMBOLS.items()},
        classes={verdict.value: verdict.value.lower() for verdict in Verdict},
        worst=min((host.result["verdict"] for host in session.hosts),
                  key=[verdict.value for verdict in Verdict].index),
        seconds=session.seconds,
    )


def file_name(host: str) -> str:
    """A host's name as a file name."""
    return re.sub(r"[^\w.-]", "_", host).lstrip(".") or "_"


def save(directory: Path, session: Session) -> None:
    """Snapshots and plans, as files that `--snapshot` and `--plan` take."""
    for host in session.hosts:
        for kind, document in (("snapshots", host.snapshot), ("plans", host.plan)):
            if document:
                _write(directory / kind / f"{file_name(host.name)}.json", _json(document))


def share(directory: Path, session: Session) -> list[dict[str, Any]]:
    """What can be sent in a report of a fault: cleaned, and one file for each host as well."""
    made = bundles(session.hosts)
    for bundle in made:
        name = f"{file_name(bundle['host'])}.json"
        for kind, document in (("snapshots", bundle["snapshot"]), ("plans", bundle["plan"]),
                               ("bundles", bundle)):
            if document:
                _write(directory / kind / name, _json(document))
    return made


def new_directory(parent: Path) -> Path:
    """`reports/<utc time>`, a name that was not there before."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    for number in range(1000):
        directory = parent / (f"{stamp}-{number}" if number else stamp)
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigurationError(
                f"No report can be written there: {error.strerror}", str(parent),
                "Name another directory with --report DIR.") from error
        return directory
    raise FileExistsError(f"{parent} holds a thousand reports of this second")


def write(directory: Path, session: Session) -> Path:
    """Everything but JUnit, which pytest writes; the page's path."""
    save(directory, session)
    _write(directory / "report.json", _json(session.document))
    page = directory / "report.html"
    _write(page, html(session))
    return page


def point_latest(directory: Path) -> Path:
    """`latest` beside it leads to this directory: renamed into place, never absent."""
    link = directory.parent / LATEST
    new = directory.parent / f".{LATEST}.{os.getpid()}"
    new.unlink(missing_ok=True)
    new.symlink_to(directory.name)
    new.replace(link)
    return link


def _json(document: Any) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    partial.replace(path)
