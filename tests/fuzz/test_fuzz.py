"""A mutated document of one host costs no reader an exception, and no other host its verdict.

`--mutations 20000 --mutation-seed 7` runs longer. A failure names the mutant: the same seed and
number give it again.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.components import resolver
from gpufleet.components.probe_settings import more_seconds, probe_settings, visible_gpus
from gpufleet.errors import ConfigurationError
from gpufleet.fleet import collected
from gpufleet.fleet.judging import judged
from gpufleet.fleet.pair_selection import declared_gpus
from gpufleet.fleet.saved import judge_saved
from gpufleet.fleet.session import HostRun, Session
from gpufleet.on_host.receipts import read_receipts
from gpufleet.watch.history import History
from tests.support.healthy_host import Document, data, document
from tests.support.host_parts import with_gpus
from tests.support.nightly_sessions import at

from . import readers
from .mutations import Mutant, mutant, places

pytestmark = pytest.mark.exhaustive

FORMER = Path(__file__).parents[1] / "fixtures" / "2fb692b"
VARIABLES: dict[str, Any] = {
    "gpu_stacks": [
        {"tensorflow": "2.13.1", "name": "mine", "env": {"A": "b"}},
        {"pytorch": "2.6.0"},
    ],
    "gpu_toolkits": ["11.8"],
    "gpu_cuda_default": "11.8",
    "gpu_accept_nvidia_eula": True,
    "gpu_driver": {"branch": "535", "source": "distro", "module": "proprietary"},
    "gpu_expect": {"count": 1, "model": "NVIDIA L4", "memory_mib": 23034},
    "gpu_containers": {"engine": "docker"},
    "gpu_mig": {},
    "gpu_prefix": "/usr/local",
}
# The share that each kind of document has of `--mutations`, and the hosts in one report.
SHARES = {"snapshot": 60, "plan": 10, "collected": 8, "receipt": 4, "history": 5, "variables": 13}
MANY, BUNDLED = 100, 25
# The fault of the host that has one, and where it is.
FAULT, FAULTY = "cudnn.present", ("sections", "cudnn")


def count(request: pytest.FixtureRequest, kind: str) -> int:
    return max(1, request.config.getoption("--mutations") * SHARES[kind] // 100)


def mutants(request: pytest.FixtureRequest, kind: str, documents: list[Any]) -> Any:
    """As many mutants as this kind has, each with the number of its document."""
    seed = request.config.getoption("--mutation-seed")
    all_places = [list(places(each)) for each in documents]
    for number in range(count(request, kind)):
        random_ = random.Random(f"{kind} {seed} {number}")
        which = number % len(documents)
        yield which, mutant(documents[which], all_places[which], random_)


def printed(text: str, mutated: object) -> None:
    found = readers.CONTROL.search(text)
    assert not found, (str(mutated), text[max(0, found.start() - 80) : found.end() + 20])


def faulty() -> tuple[Document, Document]:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    data(snapshot, "cudnn")["trees"][0]["headers"][0]["version"] = "8.9.7"
    return plan, snapshot


def snapshots() -> list[Document]:
    """A host with a fault, one with a GPU, and what an earlier release sent."""
    plan, with_gpu = document("plan.json"), document("snapshot.json")
    with_gpus(plan, with_gpu, 1)
    return [faulty()[1], with_gpu, json.loads((FORMER / "snapshot.json").read_text())]


def test_snapshots(request: pytest.FixtureRequest, tmp_path: Path, defects: list[str]) -> None:
    """Door, plan, verdict, comparison, report, history, metrics, notifications."""
    declared = [
        {"gpu_stacks": [{"tensorflow": "2.13.1"}], "gpu_expect": {"count": gpus}}
        for gpus in (0, 1, 0)
    ]
    originals = snapshots()
    whole = [
        readers.arrived(json.dumps(each).encode(), readers.host("gpu01", variables))
        for each, variables in zip(originals, declared, strict=True)
    ]
    before = list(map(readers.verdicts, whole))
    assert before[0][FAULT] == "FAIL"
    reads = {check.id: check.reads for check in readers.judge.CHECKS.values()}
    batch: list[HostRun] = []
    for which, mutated in mutants(request, "snapshot", originals):
        name = f"gpu{len(batch):02}"
        run = readers.arrived(mutated.raw, readers.host(name, declared[which]))
        assert not defects, (str(mutated), defects)
        assert readers.known(run), str(mutated)
        for output in readers.compared(run):
            printed(output, mutated)
        assert not defects, (str(mutated), defects)
        _says_where(run, mutated)
        if which == 0:
            _keeps_the_fault(run, mutated, reads)
        batch.append(run)
        if len(batch) == MANY:
            _render(batch, tmp_path, mutated, defects)
            batch = []
    _render(batch, tmp_path, "the last hosts", defects)


def _says_where(run: HostRun, mutated: Mutant) -> None:
    """A host that is not judged as a whole has a cause and a remedy, with the place if refused."""
    for check in run.result["checks"]:
        if check["verdict"] in {"INCONCLUSIVE", "FAIL", "HUNG", "UNREACHABLE"}:
            assert check["cause"], (str(mutated), check)
            assert check["remedy"], (str(mutated), check)
    if run.snapshot is None:
        [check] = run.result["checks"]
        if check["verdict"] == "INCONCLUSIVE":
            assert "snapshot" in check["cause"].partition("not read: ")[2], (str(mutated), check)
        return
    for name, section in run.snapshot["sections"].items():
        if section["state"] == "damaged":
            assert section["error"].startswith(("data", "section", "state", "seconds", "error")), (
                str(mutated),
                name,
                section["error"],
            )


def _keeps_the_fault(run: HostRun, mutated: Mutant, reads: dict[str, tuple[str, ...]]) -> None:
    """No corruption makes a faulty host healthy, unless it is of the fault itself."""
    if mutated.place[:2] == FAULTY or mutated.place in {(), FAULTY[:1]}:
        return
    verdict = readers.verdicts(run).get(FAULT, "INCONCLUSIVE")
    assert run.result["verdict"] != "PASS", str(mutated)
    assert verdict in {"FAIL", "INCONCLUSIVE"}, (str(mutated), verdict)
    if (
        len(mutated.place) > 1
        and mutated.place[0] == "sections"
        and mutated.place[1] not in reads[FAULT]
        and run.snapshot is not None
    ):
        assert verdict == "FAIL", str(mutated)


def _render(batch: list[HostRun], folder: Path, mutated: object, defects: list[str]) -> None:
    """All that many hosts have in common; one of them is healthy, and stays it."""
    if not batch:
        return
    healthy = readers.arrived(
        json.dumps(document("snapshot.json")).encode(),
        readers.host(
            "healthy", {"gpu_stacks": [{"tensorflow": "2.13.1"}], "gpu_expect": {"count": 0}}
        ),
    )
    result = json.dumps(healthy.result)
    session = Session([*batch, healthy], started=at(1), finished=at(1))
    printed(readers.rendered(session, folder, with_bundles=False), mutated)
    few = Session([*batch[::BUNDLED], healthy], started=at(1), finished=at(1))
    printed(readers.rendered(few, folder, with_bundles=True), mutated)
    file = folder / "history.sqlite"
    file.unlink(missing_ok=True)
    first = Session(
        [
            HostRun(run.name, healthy.snapshot, healthy.plan, healthy.result)
            for run in session.hosts
        ],
        started=at(0),
        finished=at(0),
    )
    printed(readers.night([first, session], file), mutated)
    assert json.dumps(healthy.result) == result
    assert not defects, (str(mutated), defects)


def test_plans(request: pytest.FixtureRequest, tmp_path: Path, defects: list[str]) -> None:
    """A saved plan and a saved snapshot, judged, compared and rendered."""
    _, snapshot = faulty()
    variables = {"gpu_stacks": [{"tensorflow": "2.13.1"}], "gpu_expect": {"count": 0}}
    plans = [
        document("plan.json"),
        resolver.resolve(variables, snapshot, "gpu01"),
        json.loads((FORMER / "plan.json").read_text()),
    ]
    kept, plan = tmp_path / "snapshot.json", tmp_path / "plan.json"
    batch = []
    for _, mutated in mutants(request, "plan", plans):
        plan.write_bytes(mutated.raw)
        try:
            known = json.loads(mutated.raw.decode("utf-8", "replace"))["host"]
        except (ValueError, TypeError, LookupError, RecursionError):
            known = "gpu01"
        kept.write_bytes(
            json.dumps({**snapshot, "host": known if isinstance(known, str) else "x"}).encode(
                "utf-8", "surrogatepass"
            )
        )
        try:
            [run] = judge_saved([str(kept)], [str(plan)]).hosts
        except ConfigurationError as error:
            printed(str(error), mutated)
            continue
        assert not defects, (str(mutated), defects)
        assert readers.known(run), str(mutated)
        batch.append(run)
    for number, run in enumerate(batch):
        run.name = f"gpu{number}"
    for number in range(0, len(batch), MANY):
        printed(
            readers.rendered(
                Session(batch[number : number + MANY], finished=at(1)),
                tmp_path,
                with_bundles=number == 0,
            ),
            "plans",
        )
    assert not defects, defects


def test_collected_files(
    request: pytest.FixtureRequest, tmp_path: Path, defects: list[str]
) -> None:
    """Mutants of self-verifying hosts' files; a healthy host beside them stays healthy."""
    plan, snapshot = faulty()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    snapshot = {**snapshot, "finished": now}
    result = readers.judge.judge(plan, snapshot)
    sent = [
        {
            "schema": 1,
            "host": "gpu01",
            "looked": now,
            "plan": plan,
            "snapshot": snapshot,
            "result": result,
        },
        {
            "schema": 1,
            "host": "gpu01",
            "looked": now,
            "plan": plan,
            "snapshot": None,
            "result": readers.judge.unreachable("hung", "look", "at it"),
        },
    ]
    variables = {"gpu_stacks": [{"tensorflow": "2.13.1"}], "gpu_expect": {"count": 0}}
    hosts = [readers.host("gpu01", variables), readers.host("gpu02", variables)]
    (tmp_path / "gpu02.json").write_text(
        json.dumps(
            {
                **sent[0],
                "host": "gpu02",
                "snapshot": {**document("snapshot.json"), "host": "gpu02", "finished": now},
            }
        )
    )
    healthy = None
    for _, mutated in mutants(request, "collected", sent):
        (tmp_path / "gpu01.json").write_bytes(mutated.raw)
        run, other = collected.judge_results(tmp_path, hosts, timedelta(days=9999)).hosts
        assert not defects, (str(mutated), defects)
        assert readers.known(run), str(mutated)
        if mutated.place[:1] != ("snapshot",):
            assert run.result["verdict"] != "PASS", str(mutated)
        healthy = healthy or other.result
        assert other.result == healthy
        printed(json.dumps(run.result, ensure_ascii=False), mutated)
        for output in readers.compared(run):
            printed(output, mutated)
        assert not defects, (str(mutated), defects)


def test_receipts(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Mutants of receipts, which the probe reads on the host: an unreadable one is named."""
    paths = sorted((FORMER / "receipts").iterdir())
    receipts = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    shutil.copytree(FORMER / "receipts", tmp_path / "receipts")
    whole = len(read_receipts(str(tmp_path))["receipts"])
    for which, mutated in mutants(request, "receipt", receipts):
        place = tmp_path / "receipts" / paths[which].name
        place.write_bytes(mutated.raw)
        found = read_receipts(str(tmp_path))
        assert len(found["receipts"]) + len(found["unreadable"]) == whole, str(mutated)
        json.dumps(found)
        place.write_bytes(paths[which].read_bytes())


def test_history(request: pytest.FixtureRequest, tmp_path: Path, defects: list[str]) -> None:
    """A value of the history's file that is none of ours: it is read, or refused with its place."""
    original, copy = tmp_path / "original.sqlite", tmp_path / "history.sqlite"
    variables = {"gpu_stacks": [{"tensorflow": "2.13.1"}], "gpu_expect": {"count": 0}}
    runs = [
        readers.arrived(json.dumps(each).encode(), readers.host(name, variables))
        for name, each in zip(("a", "b", "c"), snapshots(), strict=True)
    ]
    with History(original) as history:
        for number in range(3):
            history.record(Session(runs[number % 2 :], started=at(number), finished=at(number)))
    with sqlite3.connect(original) as base:
        columns = [
            (table, column[1])
            for (table,) in base.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
            )
            for column in base.execute(f"PRAGMA table_info({table})")
            if not column[5]
        ]
    seed = request.config.getoption("--mutation-seed")
    odd: list[Callable[[], Any]] = [
        lambda: None,
        lambda: -1,
        lambda: 2**62,
        lambda: 0.5,
        lambda: float("inf"),
        lambda: "",
        lambda: "x\x1b[31m\u202e",
        lambda: "9" * 50_000,
        lambda: "4",
    ]
    for number in range(count(request, "history")):
        random_ = random.Random(f"history {seed} {number}")
        (table, column), value = random_.choice(columns), random_.choice(odd)()
        shutil.copy(original, copy)
        with sqlite3.connect(copy) as base:
            base.execute(
                f'UPDATE OR IGNORE {table} SET "{column}" = ? WHERE "{column}" IS'
                f' (SELECT "{column}" FROM {table} LIMIT 1 OFFSET ?)',
                (value, random_.randrange(20)),
            )
        base.close()
        try:
            with History(copy) as history:
                readers.reported(history)
        except ConfigurationError as error:
            assert str(copy) in str(error), (table, column, value)
        assert not defects, (table, column, value, defects)


def test_variables(request: pytest.FixtureRequest, defects: list[str]) -> None:
    """Variables of the inventory: a plan, or problems with place and remedy."""
    snapshot = readers.door(json.dumps(snapshots()[1]).encode())
    reason = readers.judge.unreachable("no", "no")
    for _, mutated in mutants(request, "variables", [VARIABLES]):
        try:
            variables = json.loads(mutated.raw.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        if not isinstance(variables, dict):
            continue
        declared = readers.host("gpu01", variables)
        try:
            probe_settings(declared.spec)
            more_seconds(declared.spec, probe_settings(declared.spec, warm=True))
            visible_gpus(declared.spec)
            declared_gpus(declared)
            run = judged(declared, snapshot, reason)
            plan = resolver.resolve(variables, None, "gpu01")
        except ConfigurationError:
            continue
        assert not defects, (str(mutated), defects)
        for problem in plan["problems"]:
            assert problem["where"], (str(mutated), problem)
            assert problem["remedy"], (str(mutated), problem)
        readers.compared(run)
        assert not defects, (str(mutated), defects)
