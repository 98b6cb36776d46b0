# Apache-2.0, see LICENSE
"""The control machine's own cost of each host of a ``verify``: everything but ssh.

Healthy hosts with one stack answer with a snapshot that is at hand, each under its own name. For
each, the probe's input is made, its answer is read, planned, judged and kept; then report, JUnit
and the terminal's text are written, in memory. Measured is the processor time of this process, over
the hosts; the minimum of the rounds is reported. No lab host is needed.
"""

from __future__ import annotations

import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from gpufleet.components.stacks import environment_plan as environment
from gpufleet.documents.snapshot import Snapshot
from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.fleet.judging import judged, plan_of, reason_of
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.probing import probe_config
from gpufleet.fleet.session import HostRun, Session
from gpufleet.fleet.transport.compression import compressed
from gpufleet.fleet.transport.fanout import Outcome, Target, _HostOutput
from gpufleet.report import directory as report
from gpufleet.report import terminal
from tests.support.healthy_host import data, document
from tests.support.host_parts import with_gpus

HOSTS, MOST_MS = 200, 5
MEMORY = Path("/dev/shm")
# GPUs, and whether the probe was deep: with minutes of load, which has 120 samples of each GPU.
KINDS = ((0, False), (2, False), (8, False), (2, True), (8, True))


def declared(name: str, gpus: int) -> InventoryHost:
    """A host with one stack."""
    driver = {"gpu_driver": {"branch": "535", "source": "distro"}} if gpus else {}
    return InventoryHost(
        name,
        {
            "gpu_stacks": [{"tensorflow": "2.13.1"}],
            "gpu_accept_nvidia_eula": True,
            "gpu_expect": {"count": gpus},
            **driver,
        },
        Connection(name),
    )


def answer(gpus: int, deep: bool) -> dict[str, Any]:
    """The answer of a host that is as declared."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    if gpus:
        with_gpus(plan, snapshot, gpus)
        compute = data(snapshot, "compute")
        compute["deep"] = deep
        if not deep:
            compute["runs"][0].update(sustained=None, bandwidth=None, peer=None)
    files = plan_of(declared("gpu", gpus), cast(Snapshot, snapshot))["environment"]
    digests = environment.digests(files)
    receipts = data(snapshot, "receipts")["receipts"]
    next(row for row in receipts if row["kind"] == "environment")["texts"] = {
        row["path"]: {"sha256": digests[row["path"]], "for": row["for"]} for row in files
    }
    return snapshot


def verified(gpus: int, snapshot: dict[str, Any], folder: Path) -> Session:
    """As the verb does it, without ssh."""
    session = Session(finished="2026-11-20T12:00:00Z")
    for number in range(HOSTS):
        host = declared(f"gpu{number:03}", gpus)
        raw = json.dumps({**snapshot, "host": host.name}).encode()
        begin = time.process_time()
        session.hosts.append(arrived(host, raw))
        session.seconds += time.process_time() - begin
    begin = time.process_time()
    report.write_report(folder, session)
    report.write_junit(folder / "junit.xml", session)
    terminal.show(Console(file=io.StringIO(), width=100), session, None)
    session.seconds += time.process_time() - begin
    return session


def arrived(host: InventoryHost, raw: bytes) -> HostRun:
    """A host from the probe's input to its verdict."""
    runs: list[HostRun] = []

    def judge(outcome: Outcome, snapshot: Snapshot) -> None:
        runs.append(
            judged(host, snapshot, reason_of(outcome), kept=compressed(outcome, "snapshot"))
        )

    output = _HostOutput(
        Target(host.connection, probe_config(host, ProbeOptions())),
        300,
        judge,
        ready=True,
        status=0,
    )
    output.probe()
    output.stdout = bytearray(b"\n" + raw + b"\n")
    output.outcome()
    return runs[0]


def measure(rounds: int, console: Console) -> Table:
    """Milliseconds per host."""
    table = Table(title=f"{HOSTS} healthy hosts, one stack", min_width=60)
    for heading in ("GPUs", "probe", "snapshot, KB", "control CPU, ms per host"):
        table.add_column(heading, justify="left" if heading == "probe" else "right")
    for gpus, deep in KINDS:
        snapshot, least = answer(gpus, deep), float("inf")
        for number in range(rounds + 1):
            with (
                console.status(f"{gpus} GPUs, round {number}"),
                tempfile.TemporaryDirectory(dir=MEMORY) as folder,
            ):
                session = verified(gpus, snapshot, Path(folder))
            assert {run.result["verdict"] for run in session.hosts} == {"PASS"}
            # The first one also reads the catalog.
            least = min(least, session.seconds) if number else least
        table.add_row(
            str(gpus),
            "deep" if deep else "full",
            str(len(json.dumps(snapshot)) // 1000),
            f"{least * 1000 / HOSTS:.1f}",
        )
    table.caption = f"At most {MOST_MS} with 0 or 2 GPUs, where the probe was not deep."
    return table
