"""A rollout with stand-ins for provisioning and for Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpufleet.campaign.provision.provision import Converged
from gpufleet.campaign.rollout import progress, rollout, runner
from gpufleet.campaign.rollout.progress import TOKEN, Store
from gpufleet.cli.main import main
from gpufleet.documents.verdict import exit_status
from gpufleet.fleet import schedulers
from gpufleet.fleet.inventory import HostSelector
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.schedulers import PROMISE, SLURM, Scheduler
from gpufleet.paths import PLAYBOOKS
from tests.support.fleet_stand_ins import Slurm, session

HOSTS = [f"gpu{number}" for number in range(1, 7)]


class World:
    """Six hosts, a Slurm, and the verdicts of the unhealthy hosts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inventory = folder / "hosts.yml"
        self.inventory.write_text(
            "gpu_hosts:\n  hosts:\n"
            + "".join(
                f"    {name}: {{gpu_expect: {{count: 0}}, rack: r{i // 3}}}\n"
                for i, name in enumerate(HOSTS)
            )
        )
        self.bad: dict[str, str] = {}
        self.ran: list[list[str]] = []
        self.slurm = Slurm({name: ["", ""] for name in HOSTS})
        self.during: Callable[[], object] = lambda: None

    def converge(self, question: HostSelector, manner: ProbeOptions, **more: Any) -> Converged:
        assert question.limit
        names = question.limit.split(",")
        self.ran.append(names)
        assert all(self.slurm.nodes[name][0] for name in names), "worked on while in service"
        self.during()
        verdicts = {name: self.bad.get(name, "PASS") for name in names}
        return Converged(session(verdicts), names, {}, exit_status(verdicts.values()))

    def run(self, *words: str) -> int:
        return main(
            [
                "rollout",
                "-i",
                str(self.inventory),
                "--state",
                str(self.folder / "state"),
                "--report",
                str(self.folder / "reports"),
                *words,
            ]
        )

    @property
    def drained(self) -> list[str]:
        return [name for name, (flag, _) in self.slurm.nodes.items() if flag]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)

    def scheduler_of(kind: str, hosts: Sequence[Any], selector: HostSelector) -> Scheduler:
        return Scheduler(SLURM, {host.name: host.name for host in hosts}, runner=made.slurm)

    monkeypatch.setattr(rollout, "scheduler_of", scheduler_of)
    monkeypatch.setattr(runner, "converge", made.converge)
    monkeypatch.delenv(TOKEN, raising=False)
    monkeypatch.setattr(schedulers, "BACK_S", 0)
    monkeypatch.setattr(schedulers, "POLL_S", 0)
    return made


def test_the_canary_then_batches_each_drained_and_resumed(world: World) -> None:
    assert world.run("--batch", "50%", "--domain", "rack") == 0
    assert world.ran == [["gpu1"], ["gpu2", "gpu3"], ["gpu4", "gpu5", "gpu6"]]
    assert world.drained == []


def test_a_plan_shows_the_batches_and_does_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert world.run("--plan", "--canary", "gpu6", "--batch", "3") == 0
    assert capsys.readouterr().out.splitlines() == [
        "  1. gpu6  (canary)",
        "  2. gpu1 gpu2 gpu3",
        "  3. gpu4 gpu5",
    ]
    assert world.ran == world.slurm.commands == []


def test_a_canary_that_breaks_stops_it_and_stays_drained_with_the_reason(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.bad = {"gpu1": "FAIL"}
    assert world.run("--batch", "5") == 1
    assert world.ran == [["gpu1"]]
    assert world.slurm.nodes["gpu1"] == ["DRAIN", f"gpufleet rollout: FAIL: cudnn.files{PROMISE}"]
    assert world.drained == ["gpu1"]
    output = capsys.readouterr().out
    assert "Stopped: gpu1 not healthy" in output
    assert "5 hosts were not touched: gpu2 gpu3 gpu4 gpu5 gpu6" in output


def test_once_fixed_it_is_resumed_where_it_stopped(world: World) -> None:
    world.bad = {"gpu3": "FAIL"}
    assert world.run("--batch", "2") == 1
    assert world.drained == ["gpu2", "gpu3"]
    world.bad.clear()
    assert world.run("--resume") == 0
    assert world.ran == [["gpu1"], ["gpu2", "gpu3"], ["gpu2", "gpu3"], ["gpu4", "gpu5"], ["gpu6"]]
    assert world.drained == []


def test_what_could_not_be_judged_is_not_healthy(world: World) -> None:
    world.bad = {"gpu1": "INCONCLUSIVE"}
    assert world.run() == 3
    assert world.drained == ["gpu1"]


def test_what_a_person_drained_is_provisioned_and_stays_drained(world: World) -> None:
    world.slurm.nodes["gpu4"] = ["DRAIN", "broken fan"]
    assert world.run("--batch", "6") == 0
    assert world.ran[-2:] == [["gpu2", "gpu3", "gpu5", "gpu6"], ["gpu4"]]
    assert world.slurm.nodes["gpu4"] == ["DRAIN", "broken fan"]
    assert world.drained == ["gpu4"]


def test_unhealthy_hosts_drained_by_others_are_named_and_stop_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.slurm.nodes["gpu2"] = ["DRAIN", "RMA 4711"]
    world.bad = {"gpu2": "UNREACHABLE", "gpu6": "FAIL"}
    assert world.run("--batch", "2") == 1
    assert world.drained == ["gpu2", "gpu6"]
    world.bad = {"gpu2": "UNREACHABLE"}
    assert world.run("--resume") == 0
    output = capsys.readouterr().out
    assert "✓ 5 hosts are rolled out and healthy." in output
    assert "gpu2 is not (UNREACHABLE: cudnn.files)" in output.splitlines()[-2]
    assert world.slurm.nodes["gpu2"] == ["DRAIN", "RMA 4711"]


def test_a_dead_node_s_jobs_are_not_waited_for(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.slurm.nodes["gpu2"] = ["DOWN*+COMPLETING", "Not responding"]
    assert world.run("--drain-wait", "0") == 0
    assert not any("gpu2" in names for names in world.ran)
    assert "jobs may still run there" in capsys.readouterr().out


def test_a_canary_drained_by_others_must_still_be_healthy(world: World) -> None:
    world.slurm.nodes["gpu1"] = ["DRAIN", "RMA 4711"]
    world.bad = {"gpu1": "UNREACHABLE"}
    assert world.run() == 1
    assert world.ran == [["gpu1"]]
    assert world.slurm.nodes["gpu1"] == ["DRAIN", "RMA 4711"]


@pytest.mark.parametrize("owner", ["nightly", "health"])
def test_the_rollout_owns_what_another_owner_drained_while_it_runs(
    world: World, owner: str
) -> None:
    world.slurm.nodes["gpu1"] = ["DRAIN", f"gpufleet {owner}: gpu.smi failed{PROMISE}"]
    seen: list[str] = []
    world.during = lambda: seen.append(world.slurm.nodes["gpu1"][1])
    world.bad = {"gpu1": "FAIL"}
    assert world.run() == 1
    assert seen[0].startswith("gpufleet rollout: under way since ")
    # Stopped, it is still nobody else's to give back; nor while it is tried again.
    assert world.slurm.nodes["gpu1"][1] == f"gpufleet rollout: FAIL: cudnn.files{PROMISE}"
    world.slurm.nodes["gpu1"] = ["DRAIN", f"gpufleet {owner}: gpu.smi failed{PROMISE}"]
    world.bad = {}
    assert world.run("--resume") == 0
    assert seen[1].startswith("gpufleet rollout: under way since ")
    assert world.drained == []


def test_what_a_person_takes_over_meanwhile_is_not_resumed(world: World) -> None:
    world.during = lambda: world.slurm.nodes.update(gpu1=["DRAIN", "I look into it"])
    assert world.run("--limit", "gpu1") == 0
    assert world.drained == ["gpu1"]


def test_a_node_that_does_not_come_back_stops_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.slurm.stuck = {"gpu1"}
    assert world.run() == 1
    assert "not back in service (gpu1: IDLE+DOWN Not responding)" in capsys.readouterr().out
    assert world.ran == [["gpu1"]]


def test_a_node_whose_slurmd_is_dead_stops_it_and_stays_ours(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.slurm.silent = {"gpu2": ("IDLE*", 1000)}
    assert world.run("--batch", "2") == 1
    output = capsys.readouterr().out
    assert "not back in service (gpu2: IDLE*)" in output
    assert "gpu2: left drained" in output
    assert world.ran == [["gpu1"], ["gpu2", "gpu3"]]
    # gpu3 works; and what Slurm says of gpu2 later does not make it somebody else's.
    assert world.drained == ["gpu2"]
    assert world.slurm.nodes["gpu2"][1] == f"gpufleet rollout: does not come back: IDLE*{PROMISE}"
    world.slurm.silent = {}
    assert world.run("--resume") == 0
    assert world.drained == []


def test_a_slurmd_that_takes_a_while_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedulers, "BACK_S", 60)
    world.slurm.silent = {"gpu1": ("IDLE*", 3)}
    assert world.run("--limit", "gpu1") == 0


@pytest.mark.parametrize(
    ("status", "reported"),
    [(0, "is installed again; declare it"), (2, "could not be restored (status 2")],
)
def test_on_request_the_unhealthy_hosts_go_back_to_the_former_driver(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: int,
    reported: str,
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(runner, "run", lambda words: commands.append(words) or status)
    world.bad = {"gpu2": "FAIL"}
    assert world.run("--batch", "2", "--rollback") == 1
    assert [words[1:] for words in commands] == [
        [str(PLAYBOOKS / "rollback.yml"), "-i", str(world.inventory), "--limit", "gpu2"]
    ]
    assert reported in capsys.readouterr().out
    assert world.drained == ["gpu2", "gpu3"]


@pytest.mark.parametrize("step", ["drain", "provision", "resume"])
def test_killed_at_any_step_it_is_continued(world: World, step: str) -> None:
    class PowerCut(BaseException):
        pass

    real = Store.save

    def save(store: Store, state: progress.Progress) -> None:
        real(store, state)
        if state.step == step and state.done == 1:
            raise PowerCut

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "save", save)
        with pytest.raises(PowerCut):
            world.run("--batch", "3")
    assert world.run("--resume") == 0
    assert world.ran[-1] == ["gpu5", "gpu6"]
    assert world.ran.count(["gpu1"]) == 1
    assert world.drained == []


def test_a_second_one_is_refused_until_the_first_is_done_or_abandoned(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.bad = {"gpu1": "HUNG"}
    assert world.run() == 1
    capsys.readouterr()
    assert world.run() == 4
    assert "0 of 6 hosts are done" in capsys.readouterr().out
    assert world.run("--abandon") == 0
    assert "scontrol update NodeName=gpu1 State=RESUME" in capsys.readouterr().out
    world.bad.clear()
    assert world.run() == 0


def test_a_rollout_with_a_broken_inventory_can_be_abandoned(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.bad = {"gpu1": "FAIL"}
    assert world.run("--hook", "slurm") == 1
    whole = world.inventory.read_text()
    world.inventory.write_text("gpu_hosts: [")
    assert world.run("--abandon") == 1
    assert "Cannot determine which hosts are still drained" in capsys.readouterr().out
    world.inventory.write_text(whole)
    assert world.run("--resume") == 4


def test_abandoning_names_a_host_that_left_the_inventory(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.bad = {"gpu1": "FAIL"}
    assert world.run() == 1
    world.inventory.write_text(world.inventory.read_text().replace("gpu1", "gpu7"))
    assert world.run("--abandon") == 0
    assert "gpu1: no longer in the inventory" in capsys.readouterr().out


def test_it_pauses_after_the_canary_on_request(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert world.run("--pause", "--batch", "5") == 0
    assert (world.ran, world.drained) == ([["gpu1"]], [])
    assert "The rollout is paused" in capsys.readouterr().out
    assert world.run() == 4
    assert "paused after the canary" in capsys.readouterr().out
    assert world.run("--resume") == 0
    assert world.ran == [["gpu1"], [f"gpu{number}" for number in range(2, 7)]]


def test_a_canary_of_all_hosts_is_not_followed_by_a_pause(world: World) -> None:
    assert world.run("--pause", "--canary", "6") == 0
    assert world.run("--resume") == 4


def test_nothing_to_resume_is_refused(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.run("--resume") == 4
    assert "no rollout to resume or abandon" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--canary", "gpu9"], "gpu9 is not among the hosts"),
        (["--batch", "0%"], "neither a number of hosts nor a percentage"),
        (["--domain", "row"], "No failure domain is known for gpu1"),
        (["--limit", "nobody"], "No host matches"),
        (["--hook", "pbs"], "invalid choice"),
        (["-e", "gpu_stacks=[]", "-e", '{"gpu_toolkits": ["77.1"]}'], "77.1"),
        (["--drain-wait", "-1"], "--drain-wait"),
        (["--pause", "--canary", "0"], "no canary"),
        (["--cannary", "gpu2"], "Did you mean --canary?"),
        (["--skiptags=driver"], "Did you mean --skip-tags?"),
        (["gpu2"], "'gpu2' is not an option. Select hosts by --limit"),
        (["--forks", "many"], "value: 'many'"),
    ],
)
def test_a_mistake_is_refused_before_anything_changes(
    world: World, words: list[str], reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert world.run(*words) == 4
    assert reported in " ".join(capsys.readouterr().out.split())
    assert world.ran == world.slurm.commands == []
    assert world.run("--resume") == 4


def test_a_node_that_the_scheduler_lacks_is_refused_before_anything_changes(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    del world.slurm.nodes["gpu6"]
    assert world.run() == 4
    assert "knows no node gpu6" in capsys.readouterr().out
    assert world.ran == world.drained == []


def test_a_host_that_left_the_inventory_is_refused(world: World) -> None:
    world.bad = {"gpu1": "FAIL"}
    assert world.run() == 1
    world.inventory.write_text(world.inventory.read_text().replace("gpu6", "gpu7"))
    assert world.run("--resume") == 4
    assert world.ran == [["gpu1"]]


def test_jobs_that_do_not_end_stop_it(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.slurm.busy = {"gpu1": 1000}
    assert world.run("--drain-wait", "0") == 1
    assert "gpu1: 41 42" in capsys.readouterr().out
    assert world.ran == []
    assert world.drained == ["gpu1"]
    world.slurm.busy = {}
    assert world.run("--resume") == 0


def test_what_resume_may_change_holds_from_then_on(world: World) -> None:
    world.slurm.busy = {"gpu1": 1000}
    assert world.run("--drain-wait", "0") == 1
    world.slurm.busy = {"gpu1": 5}
    assert (
        world.run(
            "--resume", "--drain-wait", "60", "--fanout", "7", "--deadline", "11", "--rollback"
        )
        == 0
    )
    noted = Store(world.folder / "state").load()
    assert noted
    assert {name: noted.settings[name] for name in rollout.CHANGEABLE} == {
        "drain_wait": 60,
        "fanout": 7,
        "deadline": 11,
        "rollback": True,
    }
    assert world.drained == []


@pytest.mark.parametrize(
    "words",
    [
        ["--limit", "gpu2"],
        ["--batch", "2"],
        ["--canary", "gpu3"],
        ["--force"],
        ["--domain", "rack"],
        ["-e", "gpu_stacks=[]"],
        ["--hook", "slurm"],
        ["--drain-wait", "-1"],
        ["--tags", "driver"],
    ],
)
def test_what_resume_may_not_change_is_refused(
    world: World, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    world.bad = {"gpu1": "FAIL"}
    assert world.run() == 1
    world.bad = {}
    before = (world.folder / "state" / "rollout.json").read_text()
    assert world.run("--resume", *words) == 4
    assert words[0] in capsys.readouterr().out
    assert (world.folder / "state" / "rollout.json").read_text() == before
    assert world.ran == [["gpu1"]]
    assert world.run("--resume") == 0


def test_the_options_it_was_started_with_may_be_repeated(world: World) -> None:
    words = ("--hook", "slurm", "--limit", "gpu1,gpu2", "--tags", "driver")
    world.bad = {"gpu1": "FAIL"}
    assert world.run(*words) == 1
    world.bad = {}
    assert world.run(*words, "--resume") == 0


def test_one_at_a_time(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(world.folder / "state").alone():
        assert world.run() == 4
    assert "only one can run at a time" in capsys.readouterr().out


def test_a_damaged_state_file_is_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    (world.folder / "state").mkdir()
    (world.folder / "state" / "rollout.json").write_text("{")
    assert world.run() == 4
    assert "rollout.json" in capsys.readouterr().out


def test_the_state_file_is_readable_by_its_owner_only(world: World) -> None:
    assert world.run() == 0
    assert (world.folder / "state" / "rollout.json").stat().st_mode & 0o077 == 0


def test_a_playbook_that_a_killed_run_left_is_waited_for(tmp_path: Path) -> None:
    program = "import time, sys; sys.stdin.read()  # ansible-playbook"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, env={**os.environ, TOKEN: "then"}
    ) as left:
        while not progress.left_behind("then"):
            time.sleep(0.01)
        assert progress.left_behind("another") == []
        assert left.stdin
        reported: list[str] = []

        def say(text: str) -> None:
            reported.append(text)
            left.stdin.close()  # type: ignore[union-attr]

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(TOKEN, "")
            progress.wait_for_leftovers("then", say)
            assert os.environ[TOKEN] == "then"
    assert len(reported) == 1
    assert str(left.pid) in reported[0]


@pytest.mark.parametrize("words", [(), ("--pause",)])
def test_a_canary_with_jobs_that_never_end_stops_it(
    world: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    world.slurm.nodes["gpu1"] = ["DOWN*+COMPLETING", "Not responding"]
    assert world.run(*words) != 0
    assert not world.ran
    assert world.drained == ["gpu1"]
    assert "gpu1 is the canary, and jobs may still run there" in capsys.readouterr().out


def returned_while_waiting(world: World, host: str, times: int) -> None:
    """Somebody returns a host to service while the jobs of gpu2 are awaited."""
    line, left = world.slurm.line, [times]

    def returns(name: str) -> str:
        if name == "gpu2" and world.slurm.nodes["gpu2"][0] and left[0]:
            left[0] -= 1
            world.slurm.nodes[host] = ["", ""]
        return line(name)

    world.slurm.line = returns  # type: ignore[method-assign]


@pytest.mark.parametrize("before", [["", ""], ["DRAIN", "broken fan"]])
def test_what_returns_to_service_while_others_are_awaited_is_drained_again(
    world: World, before: list[str]
) -> None:
    """`World.converge` fails where a host is provisioned in service."""
    world.slurm.nodes["gpu4"] = before
    world.slurm.busy = {"gpu2": 3}
    returned_while_waiting(world, "gpu4", times=1)
    assert world.run("--batch", "6") == 0
    assert sorted(name for names in world.ran for name in names) == HOSTS
    assert world.drained == []


def test_what_returns_to_service_each_time_stops_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    returned_while_waiting(world, "gpu4", times=1000)
    assert world.run("--batch", "6") != 0
    assert world.ran == [["gpu1"]]
    assert "gpu4: returned to service each time" in capsys.readouterr().out


def test_what_others_return_to_service_while_the_batch_is_provisioned_is_left(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.slurm.nodes["gpu4"] = ["DRAIN", "broken fan"]

    def while_provisioned() -> None:
        if world.ran != [["gpu1"]]:
            world.slurm.nodes["gpu4"] = ["", ""]

    world.during = while_provisioned
    assert world.run("--batch", "6") == 0
    assert not any("gpu4" in names for names in world.ran)
    assert "somebody returned it to service meanwhile" in capsys.readouterr().out
