"""The schedulers: who drained a node, and waiting for jobs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from gpufleet.errors import ConfigurationError
from gpufleet.fleet import schedulers
from gpufleet.fleet.inventory import Connection, HostSelector, InventoryHost
from gpufleet.fleet.schedulers import (
    KUBERNETES,
    PROMISE,
    SLURM,
    NodeState,
    Scheduler,
    SchedulerError,
    scheduler_of,
    slurm_states,
)
from tests.support.fleet_stand_ins import LINE, Slurm


def over(slurm: Slurm) -> Scheduler:
    return Scheduler(SLURM, {f"{name}.example": name for name in slurm.nodes}, runner=slurm)


@pytest.mark.parametrize(
    ("state", "taken", "busy", "away"),
    [
        ("IDLE", False, False, False),
        ("MIXED", False, True, False),
        ("IDLE+DRAIN", True, False, False),
        ("ALLOCATED+DRAIN", True, True, False),
        ("IDLE+COMPLETING+DRAIN", True, True, False),
        ("IDLE+PLANNED", False, False, False),
        ("DOWN*", True, False, True),
        ("DOWN+NOT_RESPONDING", True, False, True),
        ("IDLE*", False, False, True),
        ("IDLE*+DRAIN", True, False, True),
        ("UNKNOWN*", False, False, True),
        ("INVAL", False, False, True),
        ("IDLE+INVALID_REG", False, False, True),
        ("IDLE+NOT_RESPONDING", False, False, True),
    ],
)
def test_a_node_s_state_is_a_base_and_flags(
    state: str, taken: bool, busy: bool, away: bool
) -> None:
    line = LINE.format(name="n1", cpus=0, state=state, reason="")
    assert slurm_states(line) == {"n1": NodeState(taken, busy, "", state, away)}


@pytest.mark.parametrize(
    ("reason", "ours"),
    [
        (f"gpufleet rollout: under way{PROMISE}", True),
        (f"gpufleet nightly: x{PROMISE}", False),
        (f"broken fan{PROMISE}", False),
        (f"see gpufleet rollout: x{PROMISE}", False),
        ("gpufleet", False),
        ("gpufleet rollout: bob's", False),
        (f"gpufleet rollout: x{PROMISE} - bob: RMA 4711, do NOT resume", False),
        (f"gpufleet rollout: x{PROMISE} [root@2026-11-20T03:00:00], bob: wait", False),
    ],
)
def test_only_a_reason_that_is_ours_from_end_to_end_is_ours(reason: str, ours: bool) -> None:
    line = LINE.format(
        name="n1", cpus=0, state="IDLE+DRAIN", reason=f" Reason={reason} [root@2026-11-21T01:55:05]"
    )
    state = slurm_states(line)["n1"]
    assert state.reason == reason
    assert state.ours("rollout") is ours


def test_a_comment_is_no_part_of_the_reason() -> None:
    line = LINE.format(
        name="n1",
        cpus=0,
        state="IDLE+DRAIN",
        reason=" Reason=fan [a@2026-11-21T01:55:05] Comment=gpufleet rollout: x",
    )
    assert slurm_states(line)["n1"].reason == "fan"


@pytest.mark.parametrize("who", ["root@2026-11-21T01:55:05", "root@21 Nov 01:55", "root@Unknown"])
@pytest.mark.parametrize("more", ["", " Comment=x", "   Extra=x InstanceId=y"])
def test_a_reason_ends_before_who_gave_it(who: str, more: str) -> None:
    line = LINE.format(
        name="n1",
        cpus=0,
        state="IDLE+DRAIN",
        reason=f" Reason=gpufleet rollout: x{PROMISE} [{who}]{more}",
    )
    assert slurm_states(line)["n1"].ours("rollout")


def test_what_a_person_writes_is_not_taken_for_the_node_s_state() -> None:
    line = LINE.format(
        name="n1",
        cpus=0,
        state="IDLE+DRAIN",
        reason=" Reason=PSU broken, then: scontrol update NodeName=n9 State=RESUME"
        " CPUAlloc=1 [bob@2026-11-21T01:55:05]",
    )
    state = slurm_states(line)["n1"]
    assert (state.unschedulable, state.busy, state.state) == (True, False, "IDLE+DRAIN")
    assert state.reason.endswith("NodeName=n9 State=RESUME CPUAlloc=1")


def test_slurm_is_called_with_the_node_s_own_name() -> None:
    slurm = Slurm({"n1": ["", ""]})
    over(slurm).drain("n1.example", "gpufleet rollout: two\n words")
    assert slurm.nodes["n1"] == ["DRAIN", f"gpufleet rollout: two words{PROMISE}"]
    over(slurm).resume("n1.example")
    assert slurm.commands == [
        f"scontrol update NodeName=n1 State=DRAIN Reason=gpufleet rollout: two words{PROMISE}",
        "scontrol update NodeName=n1 State=RESUME",
    ]


def test_running_jobs_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedulers, "POLL_S", 0)
    reported: list[str] = []
    over(Slurm({"n1": ["DRAIN", "x"]}, {"n1": 3})).wait_until_idle(
        ["n1.example"], 60, reported.append
    )
    assert reported == ["jobs still run on n1.example"]


def test_jobs_that_do_not_end_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedulers, "POLL_S", 0)
    with pytest.raises(SchedulerError, match=r"n1.example: 41 42.*--drain-wait"):
        over(Slurm({"n1": ["DRAIN", "x"]}, {"n1": 1000})).wait_until_idle(["n1.example"], 0)


def test_a_node_that_slurm_does_not_know_is_refused_with_the_variable() -> None:
    with pytest.raises(SchedulerError, match=r"knows no node n2.*gpu_node_name"):
        Scheduler(SLURM, {"a": "n2"}, runner=Slurm({"n1": ["", ""]})).states()


def test_without_a_scheduler_nothing_is_called() -> None:
    made = scheduler_of("none", [declared("a")], HostSelector())
    made.drain("a", "why")
    made.wait_until_idle(["a"], 0)
    assert made.states() == {"a": NodeState()}


def declared(name: str, **declared_variables: object) -> InventoryHost:
    return InventoryHost(name, declared_variables, Connection(name))


@pytest.mark.parametrize("value", ["n1;reboot", "", 7, "-x y"])
def test_a_node_name_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="a: gpu_node_name"):
        scheduler_of("slurm", [declared("a", gpu_node_name=value)], HostSelector())


def test_a_command_that_is_missing_or_fails_is_named() -> None:
    with pytest.raises(SchedulerError, match=r"nowhere is not installed.*gpu_scheduler_host"):
        schedulers.run(None, ["nowhere"])
    with pytest.raises(SchedulerError, match="status 3: not allowed"):
        schedulers.run(None, ["sh", "-c", "echo not allowed >&2; exit 3"])
    with pytest.raises(SchedulerError, match="no answer within"):
        schedulers.run(None, ["sleep", "9"], 0.1)


def test_a_command_runs_on_the_host_that_has_the_scheduler() -> None:
    there = Connection("head", "local", python=sys.executable)
    assert schedulers.run(there, ["printf", "%s", "a 'b' $c"]) == "a 'b' $c"


@pytest.mark.parametrize(
    "refusal",
    [
        "sudo: a password is required",
        "Sorry, user gpufleet is not allowed to execute 'scontrol' as root on head.",
    ],
)
def test_where_sudo_allows_only_the_probe_the_account_runs_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    for name, text in (
        ("id", "echo 1000"),
        ("scontrol", "echo as it is"),
        ("sudo", f'[ "$*" = "-u root -n true" ] || {{ echo "{refusal}" >&2; exit 1; }}'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    there = Connection("head", "local", python=sys.executable)
    assert schedulers.run(there, ["scontrol", "show"]) == "as it is\n"


# -- Kubernetes, by a kubectl that keeps its nodes in a file --------------------------------------

KUBECTL = """#!{python}
import json, os, sys
file = os.environ["NODES"]
nodes = json.load(open(file))
words = sys.argv[1:]
with open(file + ".log", "a") as log:
    log.write(json.dumps(words) + "\\n")
if words[:2] == ["get", "nodes"]:
    print(json.dumps({{"items": [
        {{"metadata": {{"name": n, "annotations": v["annotations"]}}, "spec": v["spec"],
         "status": {{"conditions": [{{"type": "Ready", "status": v.get("ready", "True")}}]}}}}
        for n, v in nodes.items()]}}))
elif words[0] == "patch":
    patch = json.loads(words[words.index("--patch") + 1])
    marks = patch["metadata"]["annotations"]
    for place, values in (("annotations", marks), ("spec", patch["spec"])):
        for key, value in values.items():
            nodes[words[2]][place].pop(key, None)
            if value is not None:
                nodes[words[2]][place][key] = value
    json.dump(nodes, open(file, "w"))
elif words[0] == "annotate":
    nodes[words[2]]["annotations"].pop(words[3].rstrip("-"), None)
    json.dump(nodes, open(file, "w"))
elif words[0] == "drain" and nodes[words[1]].get("stuck"):
    sys.exit("error: cannot evict pod as it would violate the pod's disruption budget")
"""


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("NODES", str(tmp_path / "nodes"))
    return tmp_path / "nodes"


def test_a_cordon_of_ours_carries_our_mark_and_goes_with_it(nodes: Path) -> None:
    nodes.write_text(json.dumps({"n1": {"annotations": {"other": "x"}, "spec": {}}}))
    made = Scheduler(KUBERNETES, {"a": "n1"})
    made.drain("a", 'gpufleet rollout: "why"')
    assert made.states()["a"].ours("rollout")
    assert json.loads(nodes.read_text())["n1"] == {
        "annotations": {"other": "x", "gpufleet/drained": f'gpufleet rollout: "why"{PROMISE}'},
        "spec": {"unschedulable": True},
    }
    made.wait_until_idle(["a"], 90)
    assert ["drain", "n1", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s"] in [
        json.loads(line) for line in Path(f"{nodes}.log").read_text().splitlines()
    ]
    made.resume("a")
    assert json.loads(nodes.read_text())["n1"] == {"annotations": {"other": "x"}, "spec": {}}


def test_a_person_s_cordon_is_not_ours(nodes: Path) -> None:
    nodes.write_text(json.dumps({"n1": {"annotations": {}, "spec": {"unschedulable": True}}}))
    state = Scheduler(KUBERNETES, {"a": "n1"}).states()["a"]
    assert state.unschedulable
    assert not state.ours()


def test_a_node_that_a_person_gave_back_and_cordons_later_is_the_person_s(nodes: Path) -> None:
    made = Scheduler(KUBERNETES, {"a": "n1"})
    nodes.write_text(json.dumps({"n1": {"annotations": {"other": "x"}, "spec": {}}}))
    made.drain("a", "gpufleet nightly: gpu.smi failed")
    known = json.loads(nodes.read_text())
    known["n1"]["spec"] = {}  # kubectl uncordon, and nothing more
    nodes.write_text(json.dumps(known))
    made.clear_marks(made.states())
    known = json.loads(nodes.read_text())
    assert known["n1"]["annotations"] == {"other": "x"}
    known["n1"]["spec"]["unschedulable"] = True
    nodes.write_text(json.dumps(known))
    assert not made.states()["a"].ours()


@pytest.mark.parametrize("ready", ["False", "Unknown"])
def test_a_node_that_is_not_ready_is_out_of_service(nodes: Path, ready: str) -> None:
    nodes.write_text(
        json.dumps(
            {
                "n1": {"annotations": {}, "spec": {}},
                "n2": {"annotations": {}, "spec": {}, "ready": ready},
            }
        )
    )
    states = Scheduler(KUBERNETES, {"a": "n1", "b": "n2"}).states()
    assert [state.unavailable for state in states.values()] == [False, True]
    assert states["b"].state == "in service, not ready"


def test_what_is_ours_keeps_its_mark(nodes: Path) -> None:
    made = Scheduler(KUBERNETES, {"a": "n1"})
    nodes.write_text(json.dumps({"n1": {"annotations": {}, "spec": {}}}))
    made.drain("a", "gpufleet nightly: gpu.smi failed")
    made.clear_marks(made.states())
    assert made.states()["a"].ours("nightly")
    assert made.resume_command("a") == (
        "kubectl uncordon n1 && kubectl annotate node n1 gpufleet/drained-"
    )


def test_a_pod_that_may_not_be_evicted_is_reported_with_kubectl_s_message(nodes: Path) -> None:
    nodes.write_text(json.dumps({"n1": {"annotations": {}, "spec": {}, "stuck": True}}))
    with pytest.raises(SchedulerError, match="disruption budget"):
        Scheduler(KUBERNETES, {"a": "n1"}).wait_until_idle(["a"], 1)
