"""Hosts together: their collectives, and the scheduler that drains them and takes them back.

NCCL is the lab's stand-in, which computes over TCP; the scheduler is a stand-in of Slurm.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.campaign.commission import attempts, conclusion
from gpufleet.campaign.commission.attempts import blamed_hosts
from gpufleet.campaign.commission.stages import COLLECTIVES
from gpufleet.cli import commission
from gpufleet.cli.main import main
from gpufleet.errors import ConfigurationError
from gpufleet.fleet import schedulers
from gpufleet.fleet.fabric_test import InUseError
from gpufleet.fleet.inventory import HostSelector
from gpufleet.fleet.schedulers import PROMISE, SLURM, Scheduler, SchedulerError
from gpufleet.watch import host_states
from gpufleet.watch.history import History
from lab import collectives
from tests.support.collective_hosts import processes_with
from tests.support.command_line import ROOT
from tests.support.fleet_stand_ins import Slurm
from tests.support.healthy_host import Document
from tests.support.moments import wait_until
from tests.support.nightly_sessions import fabric_test, group_test
from tests.support.recorded_hosts import RecordedHosts, slow_card

NAMES = ["gpu01", "gpu02", "gpu03"]


def words_of(hosts: RecordedHosts, place: Path, *words: str) -> list[str]:
    return [
        *("commission", "-i", str(hosts.inventory), "--state", str(place / "state")),
        *("--database", str(place / "history.sqlite"), "--burn-in", "60s", *words),
    ]


def run(hosts: RecordedHosts, place: Path, *words: str) -> int:
    return main(words_of(hosts, place, *words))


def record(place: Path, name: str) -> Any:
    return json.loads((place / f"state/{name}.json").read_text())


# -- collectives -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collectives.build(tmp_path_factory.mktemp("nccl") / "stand-in")


@pytest.fixture
def group(tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedHosts:
    """Three hosts that have a stand-in of NCCL, whose byte takes 60 ns."""
    monkeypatch.setattr(attempts, "SIZES", (1 << 20,))
    monkeypatch.setattr(attempts, "REPEATS", 2)
    hosts = RecordedHosts(tmp_path / "hosts", NAMES, 1)
    own: dict[str, Document] = {}
    for name in NAMES:
        shutil.copytree(libraries, tmp_path / name)
        (tmp_path / name / "lib64/faults").write_text(f"name {name}\n")
        expect = {**hosts.variables["gpu_expect"], "bus_bandwidth_gb_s": 0.004}
        own[name] = {"gpu_nccl_dir": str(tmp_path / name), "gpu_expect": expect}
    hosts.write_inventory(**own)
    return hosts


@pytest.mark.slow
def test_hosts_run_their_collectives_together(group: RecordedHosts, tmp_path: Path) -> None:
    assert run(group, tmp_path, "--limit", "gpu01,gpu02", "--siblings", "gpu03,gpu01") == 0
    stage = record(tmp_path, "gpu01")["stages"]["collectives"]
    assert stage["notes"] == ["With gpu01, gpu02, gpu03."]
    [figure] = stage["figures"]
    assert (figure["part"], round(figure["bound"], 4), figure["unit"]) == (
        *("3 hosts", 0.0036),
        "GB/s",
    )
    assert figure["value"] > figure["bound"]
    # A sibling has nothing to prove.
    assert not (tmp_path / "state/gpu03.json").exists()


@pytest.mark.slow
def test_who_is_wrong_is_refused_and_the_others_are_tested_without_it(
    group: RecordedHosts, tmp_path: Path
) -> None:
    (tmp_path / "gpu03/lib64/faults").write_text("name gpu03\nwrong 1\n")
    assert run(group, tmp_path) == 1
    assert record(tmp_path, "gpu03")["stages"]["collectives"]["outcome"] == "failed"
    for name in ("gpu01", "gpu02"):
        stage = record(tmp_path, name)["stages"]["collectives"]
        assert stage["notes"] == ["With gpu01, gpu02."]
        assert (tmp_path / f"state/certificates/{name}.json").exists()
    evidence = json.loads(
        next((tmp_path / "state/evidence/gpu01").glob("collectives-*-fabric.json")).read_text()
    )
    assert [test["verdict"] for test in evidence] == ["FAIL", "PASS"]


@pytest.mark.slow
def test_killed_in_its_collectives_it_repeats_these_and_nothing_before(
    group: RecordedHosts, tmp_path: Path
) -> None:
    names = ("gpu01", "gpu02")
    words = ("--limit", ",".join(names))
    faults = tmp_path / "gpu02/lib64/faults"
    faults.write_text("name gpu02\nhang 1\n")
    with subprocess.Popen(
        [sys.executable, "-m", "gpufleet", *words_of(group, tmp_path, *words)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as running:
        wait_until(lambda: bool(processes_with(tmp_path / "gpu02/lib64")), 120)
        running.send_signal(signal.SIGKILL)
    # The processes that the killed command had started on the hosts end, too.
    wait_until(lambda: not processes_with(tmp_path))
    for name in names:
        stages = record(tmp_path, name)["stages"]
        ends = {stage: row["outcome"] for stage, row in stages.items()}
        assert {stage: end for stage, end in ends.items() if end != "passed"} == {
            "collectives": "running"
        }
    faults.write_text("name gpu02\n")
    group.forget()
    assert run(group, tmp_path, *words) == 0
    for name in names:
        assert group.probes(name) == ["read", "read", "full"]
        assert record(tmp_path, name)["stages"]["collectives"]["notes"] == ["With gpu01, gpu02."]
        assert (tmp_path / f"state/certificates/{name}.json").exists()


def blamed(culprits: Sequence[Any], excluded: Sequence[Any] = ()) -> dict[str, tuple[str, str]]:
    """The verdict and the reason of each host, by these findings of a group's test."""
    found = blamed_hosts(
        fabric_test(
            1,
            "all",
            group_test(1, "slow", 1.0, "a", "b", "c"),
            culprits=[*culprits],
            excluded=[*excluded],
        )
    )
    return {name: (why["verdict"], why["cause"]) for name, why in found.items()}


def culprit(kind: str, *hosts: str) -> Document:
    return {"kind": kind, "hosts": [*hosts], "rails": [0], "statement": f"{kind} slow"}


def test_a_host_that_took_no_part_is_not_judged() -> None:
    """Its connection was lost, or its process was killed: that refused the host."""
    lost = {"host": "d", "cause": "it ended with status 255", "remedy": "see ssh"}
    assert blamed([culprit("member", "a")], [lost]) == {
        "a": ("FAIL", "member slow"),
        "d": ("INCONCLUSIVE", "it took no part: it ended with status 255"),
    }


def test_a_slow_link_refuses_neither_of_its_hosts() -> None:
    """Both pass with others, so neither is proven bad."""
    why = ("INCONCLUSIVE", "which host is at fault is not known: pair slow")
    assert blamed([culprit("pair", "a", "b")]) == {"a": why, "b": why}


def test_a_host_at_fault_explains_its_links() -> None:
    assert blamed([culprit("pair", "a", "b"), culprit("port", "a")]) == {"a": ("FAIL", "port slow")}


BUSY = InUseError({"gpu02": "pid 7 (ann, python3)"})


def without_gpu02(
    monkeypatch: pytest.MonkeyPatch,
    error: ConfigurationError,
    names: Sequence[str],
    siblings: Sequence[str],
    gpus: int = 8,
) -> tuple[list[list[str]], attempts.Attempts]:
    """The groups that are tested where gpu02 takes no part in any, and how each host ends."""
    groups = []

    def run_test(hosts: Sequence[Any], *rest: Any) -> Any:
        members = [host.name for host in hosts]
        groups.append(members)
        if "gpu02" in members:
            raise error
        return fabric_test(1, "all", group_test(1, "passed", 400.0, *members))

    monkeypatch.setattr(attempts.fabric_test, "run", run_test)
    spec = SimpleNamespace(expect={"count": gpus}, mig=None)
    hosts: Any = [SimpleNamespace(name=name, spec=spec) for name in names]
    settings: Any = SimpleNamespace(
        siblings=[SimpleNamespace(name=name, spec=spec) for name in siblings],
        probe=SimpleNamespace(fanout=1),
        console=SimpleNamespace(print=print),
    )
    return groups, attempts.collectives(COLLECTIVES, hosts, settings)


@pytest.mark.parametrize(
    "error",
    [
        BUSY,
        ConfigurationError("No stack has NCCL.", "gpu02", "Declare one."),
        ConfigurationError("Expected a path.", "gpu02: gpu_nccl_dir", "Name one."),
    ],
)
def test_a_host_that_cannot_take_part_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, error: ConfigurationError
) -> None:
    groups, found = without_gpu02(monkeypatch, error, NAMES, [])
    assert groups == [["gpu01", "gpu02", "gpu03"], ["gpu01", "gpu03"]]
    assert {name: each.decision.outcome for name, each in found.items()} == {
        "gpu01": "passed",
        "gpu02": "not-judged",
        "gpu03": "passed",
    }


def test_the_note_names_the_siblings_that_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = without_gpu02(monkeypatch, BUSY, ["gpu01"], ["gpu02", "gpu03"])
    assert found["gpu01"].decision.reasons == []
    assert found["gpu01"].decision.notes == [
        "With gpu01, gpu03.",
        "Siblings that were left out: gpu02 (pid 7 (ann, python3)).",
    ]


@pytest.mark.parametrize(("names", "gpus"), [(["gpu01"], 1), (["gpu01", "gpu03"], 8)])
def test_without_any_requested_sibling_the_collectives_are_not_judged(
    monkeypatch: pytest.MonkeyPatch, names: Sequence[str], gpus: int
) -> None:
    """The certificate had the note that there is no collective."""
    _, found = without_gpu02(monkeypatch, BUSY, names, ["gpu02"], gpus)
    for each in found.values():
        assert each.decision.outcome == "not-judged"
        [why] = each.decision.reasons
        assert why["cause"] == "no sibling took part: gpu02 (pid 7 (ann, python3))"


# -- the scheduler ---------------------------------------------------------------------------------


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm({name: ["", ""] for name in NAMES})

    def scheduler_of(kind: str, hosts: Sequence[Any], selector: HostSelector) -> Scheduler:
        return Scheduler(SLURM, {host.name: host.name for host in hosts}, runner=made)

    monkeypatch.setattr(commission, "scheduler_of", scheduler_of)
    monkeypatch.setattr(schedulers, "BACK_S", 0)
    monkeypatch.setattr(schedulers, "POLL_S", 0)
    return made


def test_a_certified_host_returns_to_service_and_a_refused_one_does_not(
    slurm: Slurm, tmp_path: Path
) -> None:
    hosts = RecordedHosts(tmp_path / "hosts", NAMES[:2], 1)
    # Somebody else has drained the new host.
    slurm.nodes["gpu01"] = ["DRAIN", "not yet commissioned"]
    slurm.busy = {"gpu02": 2}
    hosts.change("gpu02", slow_card(0))
    assert run(hosts, tmp_path, "--hook", "slurm") == 1
    assert slurm.nodes["gpu01"] == ["", ""]
    flag, reason = slurm.nodes["gpu02"]
    serial = "165002300100"
    assert (flag, reason) == (
        "DRAIN",
        f"gpufleet commission: verify failed: GPU 0, serial number {serial}{PROMISE}",
    )
    assert slurm.busy["gpu02"] <= 0
    # It was read again when its jobs had ended, and so was its neighbour.
    assert hosts.probes("gpu02")[:3] == ["read", "read", "full"]


def test_a_refusal_stands_where_the_scheduler_denies_the_drain(
    slurm: Slurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hosts = RecordedHosts(tmp_path / "hosts", NAMES[:1], 1)
    hosts.change("gpu01", slow_card(0))

    def denied(*words: Any) -> None:
        raise SchedulerError("Access denied.")

    drain = Scheduler.drain

    def first_only(self: Scheduler, host: str, reason: str) -> None:
        (denied if "failed" in reason else partial(drain, self))(host, reason)

    monkeypatch.setattr(Scheduler, "drain", first_only)
    assert run(hosts, tmp_path, "--hook", "slurm") == 1
    assert (tmp_path / "state/refusals/gpu01.json").exists()
    printed = " ".join(capsys.readouterr().out.split())
    assert "By hand: scontrol update NodeName=gpu01 State=DRAIN 'Reason=" in printed


def test_a_host_whose_refusal_cannot_be_issued_is_drained(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = RecordedHosts(tmp_path / "hosts", NAMES[:1], 1)
    hosts.change("gpu01", slow_card(0))

    def refuses(*_: object) -> None:
        raise ConfigurationError("The agent has no such key.")

    monkeypatch.setattr(conclusion, "issue", refuses)
    assert run(hosts, tmp_path, "--hook", "slurm") == 1
    flag, reason = slurm.nodes["gpu01"]
    assert flag == "DRAIN" and "verify failed: GPU 0" in reason


@pytest.mark.parametrize("why", ["Jobs still run after 0 s", "Access denied", "knows no node"])
def test_a_host_that_is_not_handed_over_stops_no_other(
    slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    hosts = RecordedHosts(tmp_path / "hosts", NAMES[:2], 1)
    if why.startswith("Jobs"):
        slurm.busy = {"gpu02": 100_000}
    elif why.startswith("Access"):
        slurm.refused = {"gpu02"}
    else:
        del slurm.nodes["gpu02"]
    assert run(hosts, tmp_path, "--hook", "slurm", "--drain-wait", "0") == 3
    output = capsys.readouterr().out
    assert why in output
    assert "--resume" not in output
    # It serves its jobs as before, and nothing is recorded of it.
    assert all(node == ["", ""] for node in slurm.nodes.values())
    assert hosts.probes("gpu02")[1:] == []
    assert not (tmp_path / "state/gpu02.json").exists()
    assert (tmp_path / "state/certificates/gpu01.json").exists()
    with History(tmp_path / "history.sqlite") as history:
        assert host_states.recorded(history).keys() == {"gpu01"}


@pytest.mark.parametrize("stop", [SchedulerError("Nothing answers."), KeyboardInterrupt()])
def test_what_stops_a_run_before_its_first_stage_gives_its_hosts_back(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    hosts = RecordedHosts(tmp_path / "hosts", NAMES[:2], 1)
    slurm.nodes["gpu02"] = ["DRAIN", "ann's"]

    def not_idle(*_: object) -> None:
        assert slurm.nodes["gpu01"][0] == "DRAIN"
        raise stop

    monkeypatch.setattr(Scheduler, "not_idle", not_idle)
    assert run(hosts, tmp_path, "--hook", "slurm") != 0
    assert slurm.nodes["gpu01"] == ["", ""]
    assert slurm.nodes["gpu02"] == ["DRAIN", "ann's"]


def test_a_certified_host_that_somebody_drained_later_stays_drained(
    slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = RecordedHosts(tmp_path / "hosts", NAMES[:1], 1)
    assert run(hosts, tmp_path, "--hook", "slurm") == 0
    drained = ["DRAIN", "Xid 79, ask ann before touching"]
    slurm.nodes["gpu01"] = list(drained)
    assert run(hosts, tmp_path, "--hook", "slurm") == 0
    assert slurm.nodes["gpu01"] == drained
    assert "gpu01 is certified, but out of service" in capsys.readouterr().out


def test_a_host_that_does_not_come_back_is_certified_all_the_same(
    slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = RecordedHosts(tmp_path / "hosts", NAMES[:1], 1)
    slurm.stuck = {"gpu01"}
    assert run(hosts, tmp_path, "--hook", "slurm") == 0
    output = capsys.readouterr().out
    assert "gpu01 is certified, but out of service" in output
    assert "scontrol update" in output
