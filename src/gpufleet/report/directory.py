"""The report directory: a page for people, documents for programs, snapshots and plans.

Writes files below the report directory only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gpufleet.documents.nightly import Changes, Past
from gpufleet.documents.verdict import SYMBOLS, Bundle, Verdict
from gpufleet.errors import ConfigurationError
from gpufleet.files import write_file
from gpufleet.fleet.session import HostRun, Session
from gpufleet.paths import host_file_name

from . import change_summary, fleet_fabric, fleet_versions, guard, junit, page, strip_plots, summary
from .bundle import bundles
from .rendering import source, template

LATEST = "latest"
# The directories of the documents of each host.
DOCUMENTS = ("plans", "snapshots")


def render_page(session: Session, changes: Changes | None = None, past: Past | None = None) -> str:
    """The self-contained HTML page; it loads nothing.

    A host that cannot be rendered is shown as not judged.
    """
    return _rendered(session, changes, past).value


def _rendered(session: Session, changes: Changes | None, past: Past | None) -> guard.Reported[str]:
    return guard.without_defects(
        session,
        lambda shown: _page(shown, changes, past),
        lambda single: _page(single, None, None),
    )


def _page(session: Session, changes: Changes | None, past: Past | None) -> str:
    """The page of hosts that can be rendered.

    Issues and changes are plain HTML, for mail, paper and browsers without scripts. The page's
    script draws the grid and the hosts' details from the embedded document. `changes` and `past`
    are the documents of a nightly run with a history, see `model.nightly`.
    """
    session = session.for_display()
    style, script = source("report.css"), source("report.js")
    host_versions = fleet_versions.read_versions(session)
    host_fabrics = fleet_fabric.fabrics(session)
    strips = changes.get("strips", []) if changes else []
    return template("report.html.j2").render(
        document=session.document,
        taken=session.taken,
        hosts=session.hosts,
        headline=summary.headline(session),
        issues=summary.issues(session),
        numbers={host.name: number for number, host in enumerate(session.hosts, 1)},
        verified=summary.verified_statements(session),
        skipped=summary.skipped_checks(session),
        states=session.states,
        provisioned=None if session.provisioned is None else summary.provision_reasons(session),
        verdicts=Counter(host.result["verdict"] for host in session.hosts),
        titles={verdict.value: title for verdict, title in summary.TITLES.items()},
        symbols={verdict.value: symbol for verdict, symbol in SYMBOLS.items()},
        classes={verdict.value: verdict.value.lower() for verdict in Verdict},
        worst=min(
            (host.result["verdict"] for host in session.hosts),
            key=[verdict.value for verdict in Verdict].index,
        ),
        seconds=session.seconds,
        changes=changes,
        strikes=change_summary.strikes(changes),
        count_consequences=summary.count_consequences,
        change_summary=[
            replace(change, remedy=session.as_called(change.remedy))
            for change in (change_summary.summarize(changes["changes"]) if changes else ())
        ],
        silenced_changes=sum("silenced" in change for change in changes["changes"])
        if changes
        else 0,
        strips=strip_plots.groups(strips),
        more_strips=len(strips[strip_plots.MOST_STRIPS :]),
        most_listed=strip_plots.MOST_LISTED,
        strip_size=(strip_plots.WIDTH, strip_plots.HEIGHT, strip_plots.LINE),
        trend=page.bad_nights(past),
        versions=fleet_versions.compare_versions(host_versions),
        rails=fleet_fabric.rails(host_fabrics),
        most_rail_hosts=fleet_fabric.MOST_HOSTS,
        faults=fleet_fabric.FAULTS,
        data=_embedded(page.document(session, past, changes, host_versions, host_fabrics)),
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _embedded(document: dict[str, Any]) -> Markup:
    """JSON without `<`: no text in it (a host named </script>) can end the script element."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _hash(text: str) -> str:
    """The hash for the page's content security policy: only this text may run."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def write_documents(directory: Path, session: Session) -> None:
    """Write snapshots and plans as files for `--snapshot` and `--plan`."""
    _make(directory, *DOCUMENTS)
    for host in session.hosts:
        name = f"{host_file_name(host.name)}.json"
        _write(directory / "plans" / name, _line(host.plan))
        if snapshot := host.snapshot_text:
            _write(directory / "snapshots" / name, snapshot)


def require_writable(directory: Path) -> None:
    """Create a directory for bundles; refuse one that cannot be written, before anything runs."""
    try:
        for place in (directory, *(directory / kind for kind in ("bundles", "plans", "snapshots"))):
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                pass
    except OSError as error:
        raise ConfigurationError(
            f"The directory cannot be written: {error.strerror}",
            str(directory),
            "Use another directory: --save DIR.",
        ) from error


def write_bundles(directory: Path, session: Session) -> list[Bundle]:
    """Write cleaned documents for a fault report: page, verdicts, and one bundle for each host."""
    written = bundles(session.hosts)
    _make(directory, "bundles", *DOCUMENTS)
    _remove_former(directory)
    cleaned = Session(
        [
            HostRun(bundle["host"], bundle["snapshot"], bundle["plan"], bundle["result"])
            for bundle in written
        ],
        session.started,
        session.finished,
        session.seconds,
        taken=session.taken,
    )
    _write(directory / "report.json", _json(cleaned.document))
    _write(directory / "report.html", render_page(cleaned))
    for bundle in written:
        name = f"{host_file_name(bundle['host'])}.json"
        for kind, document in (
            ("snapshots", bundle["snapshot"]),
            ("plans", bundle["plan"]),
            ("bundles", bundle),
        ):
            if document:
                _write(directory / kind / name, _json(document))
    return written


def _remove_former(directory: Path) -> None:
    """Remove the documents of a former run: a host's name in it is another host's now."""
    for kind in ("bundles", *DOCUMENTS):
        for path in (directory / kind).glob("*.json"):
            try:
                document = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                continue
            if isinstance(document, dict) and {"schema", "host"} <= document.keys():
                path.unlink()


def create_directory(parent: Path) -> Path:
    """Create `PARENT/<UTC time>`, with a new name."""
    latest = parent / LATEST
    if latest.is_dir() and not latest.is_symlink():
        raise ConfigurationError(
            "It is a directory, not the link that each run replaces.",
            str(latest),
            "Rename it, or use another directory: --report DIR.",
        )
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    for number in range(1000):
        directory = parent / (f"{stamp}-{number}" if number else stamp)
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigurationError(
                f"The report directory cannot be created: {error.strerror}",
                str(parent),
                "Use another directory: --report DIR.",
            ) from error
        return directory
    raise FileExistsError(f"{parent} has a thousand reports of this second")


def write_report(
    directory: Path,
    session: Session,
    changes: Changes | None = None,
    past: Past | None = None,
) -> guard.Reported[Path]:
    """Write page, verdicts, snapshots and plans, without JUnit; the page's path."""
    write_documents(directory, session)
    _write(directory / "report.json", _line(session.document))
    path = directory / "report.html"
    page = _rendered(session, changes, past)
    _write(path, page.value)
    return guard.Reported(path, page.session)


def write_junit(path: Path, session: Session) -> Session:
    """Write the JUnit file; the session with each host as not judged that cannot be written."""

    def write(shown: Session) -> None:
        junit.write(path, shown)

    return guard.without_defects(session, write, write).session


def update_latest(directory: Path) -> Path:
    """Point the link `latest` to this directory, by a rename, so that it is never absent."""
    link = directory.parent / LATEST
    new = directory.parent / f".{LATEST}.{os.getpid()}"
    new.unlink(missing_ok=True)
    new.symlink_to(directory.name)
    new.replace(link)
    return link


def publish(page: Path, parent: Path) -> None:
    """Copy a report's page, and nothing else of it, to the same name below `parent`.

    In files of `parent`'s group, if it is set on the directory (setgid): the web server's.
    """
    directory = parent / page.parent.name
    directory.mkdir(exist_ok=True)
    write_file(directory / page.name, page.read_text(encoding="utf-8"), 0o640)
    update_latest(directory)


def _make(directory: Path, *kinds: str) -> None:
    for kind in kinds:
        (directory / kind).mkdir(parents=True, exist_ok=True)


def _line(document: object) -> str:
    """JSON for programs, in one line: with indentation it takes Python ten times as long."""
    return json.dumps(document, ensure_ascii=False, check_circular=False) + "\n"


def _json(document: object) -> str:
    """JSON for people, who look at what they send."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    partial.replace(path)
