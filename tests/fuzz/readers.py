"""Everything that reads a host's documents, for one host and for many, as the verbs call it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from gpufleet.campaign.provision import provision
from gpufleet.campaign.provision import reasons as differences
from gpufleet.campaign.rollout.runner import unhealthy
from gpufleet.components.changes import changes
from gpufleet.documents import received
from gpufleet.documents.snapshot import Snapshot
from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.fleet.judging import judged, reason_of
from gpufleet.fleet.session import HostRun, Session
from gpufleet.fleet.transport.fanout import Target, _HostOutput
from gpufleet.judge import judge
from gpufleet.report import directory as report
from gpufleet.report import junit, terminal
from gpufleet.report.bundle import bundles
from gpufleet.watch import message_forms, metrics, notifications
from gpufleet.watch.history import History
from gpufleet.watch.measures import measured

# What no output may contain; a page and a mail have line feeds, and rich pads with spaces.
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
GROUPS = ("PASS", "FAIL", "HUNG", "UNREACHABLE", "INCONCLUSIVE")


def host(name: str, variables: dict[str, Any]) -> InventoryHost:
    """A host of the inventory."""
    return InventoryHost(name, variables, Connection(name))


def arrived(raw: bytes, declared: InventoryHost) -> HostRun:
    """A host whose probe printed this, planned, judged and compared with its plan."""
    output = _HostOutput(Target(declared.connection, {}), 300, ready=True, status=0)
    output.stdout = bytearray(b"Welcome\n" + raw + b"\n")
    output.stderr = raw[:200]
    outcome = output.outcome()
    return judged(declared, outcome.snapshot, reason_of(outcome))


def compared(run: HostRun) -> list[str]:
    """The output of every decision about one host after its verdict."""
    printed: list[str] = []
    session = Session([run])
    reasons = provision.reasons_of([host(run.name, {})], session.hosts)
    provision.show_reasons(reasons, 1, printed.append)
    provision._compared(run, lambda each: differences.beyond(each.plan, each.snapshot, each.result))
    if run.snapshot is not None and not run.plan["problems"]:
        printed += [row["because"] for row in changes(run.plan, run.snapshot)]
    printed += unhealthy(session).values()
    return printed


def rendered(session: Session, folder: Path, *, with_bundles: bool) -> str:
    """All that a verification writes and shows of many hosts, as one text."""
    texts = [report.render_page(session)]
    junit.write(folder / "junit.xml", session)
    texts.append((folder / "junit.xml").read_text(encoding="utf-8"))
    shown = io.StringIO()
    terminal.show(Console(file=shown, width=100, no_color=True), session, None)
    texts += [shown.getvalue(), json.dumps(session.document, ensure_ascii=False)]
    if with_bundles:
        texts.append(json.dumps(bundles(session.hosts), ensure_ascii=False))
    return "\n".join(texts)


def night(sessions: list[Session], file: Path) -> str:
    """All that nightly runs record, compare and send, as one text."""
    with History(file) as history:
        for session in sessions:
            history.record(session)
        return reported(history, sessions[-1])


def reported(history: History, session: Session | None = None) -> str:
    """The reports of a history on its last night."""
    found, past = history.changes(), history.past()
    message = notifications.nightly_message(found, "https://reports.example.org/")
    texts = [
        json.dumps([found, past, message.document], ensure_ascii=False),
        message_forms.as_text(message),
        # A space of no width keeps a chat from obeying a host's text.
        message_forms.as_slack(message)["text"].replace("\u200b", ""),
    ]
    if session:
        texts.append(report.render_page(session, found, past))
        texts.append(
            metrics.text(
                metrics.Run(
                    1,
                    1,
                    1,
                    (),
                    1,
                    session.document["hosts"],
                    measured(session).values,
                )
            )
        )
    return "\n".join(texts)


def door(raw: bytes) -> Snapshot | None:
    """Return a snapshot as the reader of results accepts it; None where it refuses it."""
    try:
        return received.snapshot(raw, "gpu01")
    except ValueError:
        return None


def verdicts(run: HostRun) -> dict[str, str]:
    """The verdict of each check."""
    return {check["id"]: check["verdict"] for check in run.result["checks"]}


def known(run: HostRun) -> bool:
    """Return whether the result is one that every reader knows."""
    return (
        run.result["verdict"] in GROUPS
        and all(check["verdict"] in {*GROUPS, "NOT-DECLARED"} for check in run.result["checks"])
        and judge.exit_status(Session([run]).document) in (0, 1, 3)
    )
