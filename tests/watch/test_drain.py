"""Which hosts are drained after a night, and which are resumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.fleet.inventory import Connection, HostSelector
from gpufleet.fleet.schedulers import (
    ANNOTATION,
    KUBERNETES,
    PROMISE,
    SLURM,
    Scheduler,
    SchedulerError,
)
from gpufleet.watch.drain import after_night, strikes
from gpufleet.watch.history import History, HistoryError
from gpufleet.watch.run import Stopped
from tests.support.fleet_stand_ins import RunHistory, Slurm, session

HOSTS = [f"gpu{number:02}" for number in range(1, 21)]


@pytest.fixture
def slurm() -> Slurm:
    return Slurm({name: ["", ""] for name in HOSTS})


def past(flags: dict[tuple[str, str], str] | None = None, **letters: str) -> RunHistory:
    """The letters of gpu.smi by host; hosts without letters are healthy.

    `flags`: what the nights before have stored.
    """
    checks = {name: {"gpu.smi": letters.get(name, "PPP")} for name in HOSTS}
    return RunHistory(checks, flags={} if flags is None else flags)


def tried(
    slurm: Slurm,
    history: Any,
    folder: Path,
    scheduler: Scheduler | None = None,
    **settings: Any,
) -> tuple[list[str], list[str]]:
    inventory = folder / "hosts.yml"
    inventory.write_text("gpu_hosts:\n  hosts:\n" + "".join(f"    {name}:\n" for name in HOSTS))
    done: list[str] = []
    found = after_night(
        history,
        {
            "hook": "slurm",
            "after_strikes": 2,
            "selector": HostSelector([str(inventory)]),
            **settings,
        },
        done.append,
        scheduler or Scheduler(SLURM, {name: name for name in HOSTS}, runner=slurm),
    )
    return done, found.failed


def night(slurm: Slurm, history: Any, folder: Path, **settings: Any) -> list[str]:
    done, failed = tried(slurm, history, folder, **settings)
    assert failed == []
    return done


@pytest.mark.parametrize(
    ("letters", "count"),
    [
        ("P", 0),
        ("F", 1),
        ("PFF", 2),
        ("FHF", 3),
        ("FPF", 1),
        ("FUF", 2),
        ("F?.F", 2),
        ("F-F", 1),
        ("FFU", 0),
        ("FF?", 0),
        ("FFP", 0),
        ("", 0),
        ("U", 0),
    ],
)
def test_only_judged_nights_count_and_the_last_must_be_bad(letters: str, count: int) -> None:
    first = datetime(2026, 11, 1, 3, tzinfo=UTC)
    assert strikes(letters, [first + timedelta(days=n) for n in range(len(letters))]) == count


@pytest.mark.parametrize(
    ("letters", "hours", "count"),
    [
        ("FF", [0.2], 1),
        ("FF", [7], 1),
        ("FF", [13], 2),
        ("FFF", [7, 17], 2),
        ("FFFF", [1, 1, 22], 2),
        ("FPF", [1, 23], 1),
        ("FPFF", [24, 7, 17], 2),
    ],
)
def test_runs_of_one_night_are_one_strike_and_a_healthy_one_resets(
    letters: str, hours: list[float], count: int
) -> None:
    """`hours`: how long before the run after it each was, the last one first."""
    times = [datetime(2026, 11, 21, 3, tzinfo=UTC)]
    for each in hours:
        times.insert(0, times[0] - timedelta(hours=each))
    assert strikes(letters, times) == count


def test_two_bad_nights_drain_and_a_healthy_one_resumes(slurm: Slurm, tmp_path: Path) -> None:
    assert night(slurm, past(gpu01="PF"), tmp_path) == []
    output = night(slurm, past(gpu01="PFF"), tmp_path)
    reason = "gpufleet nightly: gpu.smi failed, 2 nights in a row"
    assert slurm.nodes["gpu01"] == ["DRAIN", reason + PROMISE]
    assert output == [
        "gpu01 is drained: gpu.smi failed, 2 nights in a row. Once repaired, a healthy night"
        " resumes it; by hand: scontrol update NodeName=gpu01 State=RESUME"
    ]
    assert night(slurm, past(gpu01="FFF"), tmp_path) == []
    assert night(slurm, past(gpu01="FFU"), tmp_path) == []
    output = night(slurm, past(gpu01="FFP"), tmp_path)
    assert output == ["gpu01 is healthy again and resumed: gpufleet had drained it."]
    assert slurm.nodes["gpu01"] == ["", ""]


def test_the_reason_names_the_cause_first(slurm: Slurm, tmp_path: Path) -> None:
    history = RunHistory(
        {"gpu01": {"gpu.count": "FF", "stack.gpu": "FF", "driver.cuda": "FF", "gpu.mig": "F?"}},
        {"stack.gpu": "gpu.count", "gpu.mig": "gpu.count"},
    )
    night(slurm, history, tmp_path)
    assert slurm.nodes["gpu01"][1] == (
        "gpufleet nightly: gpu.count (+2 consequences), driver.cuda failed, 2 nights in a row"
        + PROMISE
    )


@pytest.mark.parametrize(
    "reason",
    [
        "broken fan",
        f"gpufleet rollout: under way{PROMISE}",
        "Not responding",
        f"gpufleet nightly: gpu.smi failed{PROMISE} - bob: do NOT resume",
    ],
)
def test_what_others_drained_stays_drained(slurm: Slurm, tmp_path: Path, reason: str) -> None:
    slurm.nodes["gpu01"] = ["DRAIN", reason]
    assert night(slurm, past(gpu01="PP"), tmp_path) == []
    assert night(slurm, past(gpu01="FF"), tmp_path) == []
    assert slurm.nodes["gpu01"] == ["DRAIN", reason]


def test_at_most_a_percentage_is_out_of_service_whoever_drained_it(
    slurm: Slurm, tmp_path: Path
) -> None:
    slurm.nodes["gpu20"] = ["DRAIN", "broken fan"]
    bad = dict.fromkeys(HOSTS[:5], "FF") | {"gpu03": "FFF"}
    flags: dict[tuple[str, str], str] = {}
    output = night(slurm, past(flags, **bad), tmp_path)
    # 10% of 20 is two, and one is out already: the one that is bad for longest goes.
    assert [name for name in HOSTS if slurm.nodes[name][0]] == ["gpu03", "gpu20"]
    assert len(output) == 5
    assert "gpu01 is not drained" in output[1]
    assert "2 of 20 hosts are out of service already" in output[1]
    longer = {name: f"{letters}F" for name, letters in bad.items()}
    assert night(slurm, past(flags, **longer), tmp_path) == []  # reported once already
    assert "gpu01 is drained" in night(slurm, past(flags, **bad), tmp_path, most_percent=50)[0]
    assert flags == {}


def test_a_host_that_is_left_in_service_is_reported_whenever_that_begins(
    slurm: Slurm, tmp_path: Path
) -> None:
    """Also where the scheduler was silent in the night of the last strike, or a share shrank."""

    def failing(connection: object, words: Sequence[str], limit_s: float) -> str:
        raise SchedulerError("scontrol gave no answer within 60 s.")

    flags: dict[tuple[str, str], str] = {}

    def left(letters: str, **settings: Any) -> list[str]:
        bad = dict.fromkeys(HOSTS[:3], letters)
        return [
            line.split(" (")[0]
            for line in night(slurm, past(flags, **bad), tmp_path, **settings)
            if "not drained" in line
        ]

    tried(failing, past(flags, gpu01="FF"), tmp_path)  # type: ignore[arg-type]
    assert left("FFF") == ["gpu03 is not drained"]
    assert left("FFFF") == []
    # In a night in which it cannot be judged nothing begins again, in a healthy one it does.
    assert left("FFFFU") == left("FFFFUF") == []
    assert left("FFP") == []
    assert flags == {}
    assert left("FFPFF") == ["gpu03 is not drained"]
    slurm.nodes["gpu03"] = ["DRAIN", "a person did"]
    assert left("FFPFFF") == []
    assert flags == {}
    del slurm.nodes["gpu03"]
    assert left("FFPFFFF") == ["gpu03 is not drained"]
    assert left("FFPFFFFF") == []


def test_a_host_with_another_fault_is_reported_again_too(slurm: Slurm, tmp_path: Path) -> None:
    flags: dict[tuple[str, str], str] = {}
    for name in ("gpu18", "gpu19"):
        slurm.nodes[name] = ["DRAIN", "a person did"]

    def left(letters: str) -> int:
        checks = {name: {"gpu.smi": "P" * len(letters)} for name in HOSTS}
        checks["gpu01"] = {"gpu.smi": letters, "host.disk": "F" * len(letters)}
        done, failed = tried(slurm, RunHistory(checks, flags=flags), tmp_path)
        assert not failed
        return len(done)

    assert [left("PFF"), left("PFFF"), left("PFFFP")] == [1, 0, 0]
    assert flags == {}
    assert left("PFFFPFF") == 1


def test_a_node_that_does_not_respond_is_out_of_service_too(slurm: Slurm, tmp_path: Path) -> None:
    slurm.silent = {"gpu19": ("IDLE*", 9), "gpu20": ("IDLE+INVALID_REG", 9)}
    bad = dict.fromkeys(HOSTS[:2], "FF")
    output = night(slurm, past(**bad), tmp_path)
    assert [name for name in HOSTS if slurm.nodes[name][0]] == []
    assert "2 of 20 hosts are out of service already" in output[0]


def test_a_scheduler_that_does_not_answer_is_a_failure(tmp_path: Path) -> None:
    def failing(connection: object, words: Sequence[str], limit_s: float) -> str:
        raise SchedulerError("scontrol gave no answer within 60 s.")

    assert tried(failing, past(gpu01="FF"), tmp_path) == (  # type: ignore[arg-type]
        [],
        ["scontrol gave no answer within 60 s."],
    )


def test_a_node_that_cannot_be_updated_is_a_failure_and_the_others_are_updated(
    slurm: Slurm, tmp_path: Path
) -> None:
    slurm.refused = {"gpu01", "gpu03"}
    slurm.nodes["gpu01"] = ["DRAIN", f"gpufleet nightly: gpu.smi failed{PROMISE}"]
    slurm.nodes["gpu02"] = ["DRAIN", f"gpufleet nightly: gpu.smi failed{PROMISE}"]
    done, failed = tried(slurm, past(gpu03="FF", gpu04="FF"), tmp_path, most_percent=50)
    assert [line.split(":")[0] for line in done] == [
        "gpu02 is healthy again and resumed",
        "gpu04 is drained",
    ]
    assert failed == ["gpu01: Access denied.", "gpu03: Access denied."]
    assert slurm.nodes["gpu02"] == ["", ""]
    assert slurm.nodes["gpu04"][0] == "DRAIN"


def test_a_host_that_the_scheduler_does_not_know_is_named_once_and_stops_nothing(
    slurm: Slurm, tmp_path: Path
) -> None:
    del slurm.nodes["gpu01"]
    flags: dict[tuple[str, str], str] = {}
    first = night(slurm, past(flags, gpu01="FF", gpu02="FF"), tmp_path)
    assert first[0].startswith("gpu01 is not drained")
    assert "does not know it" in first[0]
    assert slurm.nodes["gpu02"][0] == "DRAIN"
    assert night(slurm, past(flags, gpu01="FFF", gpu02="FFF"), tmp_path) == []


def test_a_mark_that_cannot_be_removed_stops_nothing(tmp_path: Path) -> None:
    marked = {"gpu03": False, "gpu05": True}
    called: list[str] = []

    def kubectl(connection: object, words: Sequence[str], limit_s: float) -> str:
        if words[1] == "get":
            return json.dumps({"items": [node(name) for name in HOSTS]})
        called.append(f"{words[1]} {words[3]}")
        if words[3] == "gpu03":
            raise SchedulerError("admission webhook denied the request.")
        return ""

    def node(name: str) -> dict[str, Any]:
        reason = f"gpufleet nightly: x{PROMISE}"
        return {
            "metadata": {
                "name": name,
                "annotations": {ANNOTATION: reason} if name in marked else {},
            },
            "spec": {"unschedulable": marked.get(name, False)},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }

    nodes = {name: name for name in HOSTS}
    done, failed = tried(
        kubectl,  # type: ignore[arg-type]
        past(gpu07="PFF"),
        tmp_path,
        Scheduler(KUBERNETES, nodes, runner=kubectl),
    )
    assert failed == ["admission webhook denied the request."]
    assert called == ["annotate gpu03", "patch gpu05", "patch gpu07"]
    assert [line.split(":")[0] for line in done] == [
        "gpu05 is healthy again and resumed",
        "gpu07 is drained",
    ]


def test_a_silent_scheduler_costs_only_its_own_hosts(slurm: Slurm, tmp_path: Path) -> None:
    first, second = (Connection(name) for name in ("head1", "head2"))
    flags: dict[tuple[str, str], str] = {}

    def two(connection: Connection | None, words: Sequence[str], limit_s: float) -> str:
        if connection is second:
            raise SchedulerError("head2 does not answer.")
        return slurm(connection, words, limit_s)

    nodes = {name: name for name in HOSTS}
    via = {name: first if name < "gpu11" else second for name in HOSTS}
    slurm.nodes["gpu02"] = ["DRAIN", f"gpufleet nightly: gpu.smi failed{PROMISE}"]
    done, failed = tried(
        slurm,
        past(flags, gpu01="FF", gpu12="FF"),
        tmp_path,
        Scheduler(SLURM, nodes, via, runner=two),
    )
    assert failed == ["head2 does not answer."]
    assert [line.split(":")[0] for line in done] == [
        "gpu02 is healthy again and resumed",
        "gpu01 is drained",
    ]
    # A host whose scheduler gives no answer is not reported as unknown to it.
    assert flags == {}


@pytest.mark.parametrize(
    ("checks", "reported"),
    [
        ({"gpu.smi": "FP", "gpu.count": "PF"}, None),
        ({"gpu.smi": "FF", "gpu.count": "PF"}, "gpu.smi failed, 2 nights in a row"),
        (
            {"gpu.smi": "FF", "gpu.count": "FF", "host.disk": "FF"},
            "gpu.count, gpu.smi failed, 2 nights in a row",
        ),
        ({"host.disk": "FFF"}, None),
        ({"environment.login": "FFF"}, None),
        ({"stack.readable": "FFF"}, None),
        ({"stack.matmul": "HHH"}, "stack.matmul failed, 3 nights in a row"),
    ],
)
def test_only_the_same_critical_check_in_each_night_drains(
    slurm: Slurm, tmp_path: Path, checks: dict[str, str], reported: str | None
) -> None:
    history = past()
    history.checks["gpu01"] = checks
    night(slurm, history, tmp_path)
    assert slurm.nodes["gpu01"] == (
        ["DRAIN", f"gpufleet nightly: {reported}{PROMISE}"] if reported else ["", ""]
    )


def test_the_real_history_gives_the_same_result(slurm: Slurm, tmp_path: Path) -> None:
    with History(tmp_path / "history.sqlite") as history:
        for day, verdict in enumerate(("PASS", "FAIL", "FAIL", "FAIL"), 18):
            made = session({"gpu01": verdict, "gpu02": "PASS"})
            # The last one is of the same night as the one before.
            made.started = f"2026-11-{min(day, 20)}T0{day - 16}:00:00Z"
            history.record(made, measure=lambda snapshot, plan: {})
            output = night(slurm, history, tmp_path)
            assert bool(output) is (day == 20)
        assert slurm.nodes["gpu01"][1].startswith("gpufleet nightly: cudnn.files failed, 2 nights")


def test_without_a_scheduler_nothing_is_done() -> None:
    done: list[str] = []
    assert after_night(past(gpu01="FF"), {"hook": "none"}, done.append) == ([], [], [])
    assert done == []


def test_what_a_run_did_before_it_was_stopped_is_known(slurm: Slurm, tmp_path: Path) -> None:
    drained = 0

    def stops(connection: Any, args: Sequence[str], limit_s: float) -> str:
        nonlocal drained
        drained += "State=DRAIN" in args
        if drained == 2:
            raise Stopped("SIGTERM")
        return slurm(connection, args, limit_s)

    (tmp_path / "hosts.yml").write_text("gpu_hosts: {hosts: {gpu01: , gpu02: }}")
    selector, done = HostSelector([str(tmp_path / "hosts.yml")]), list[str]()
    with pytest.raises(Stopped):
        after_night(
            past(gpu01="PFF", gpu02="PFF"),
            {"hook": "slurm", "selector": selector, "most_percent": 100},
            done.append,
            Scheduler(SLURM, {name: name for name in HOSTS}, runner=stops),
        )
    assert [sentence.split(":")[0] for sentence in done] == ["gpu01 is drained"]


def test_a_history_that_cannot_be_written_hides_nothing_that_was_done(
    slurm: Slurm, tmp_path: Path
) -> None:
    class Busy(RunHistory):
        def flag(self, host: str, name: str, value: str | None) -> None:
            raise HistoryError("Another process is writing to the history.")

    letters = dict.fromkeys(HOSTS, "PFF")
    done, failed = tried(slurm, Busy(past(**letters).checks), tmp_path)
    assert any("is drained" in sentence for sentence in done)
    assert failed == ["Another process is writing to the history."]
