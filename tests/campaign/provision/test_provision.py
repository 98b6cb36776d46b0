"""`provision`: which hosts Ansible runs on, in what words, and what is made of both looks."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpufleet.campaign.provision import provision
from gpufleet.cli import provision as provision_verb
from gpufleet.cli.main import main
from gpufleet.fleet.inventory import Connection, HostSelector, InventoryHost, locks_in
from gpufleet.fleet.judging import plan_of
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge import judge
from gpufleet.paths import PLAYBOOKS
from gpufleet.report import junit
from tests.support.host_documents import converged as as_planned
from tests.support.host_documents import declaration, receipt, section

NAMES = ("gpu01", "gpu02", "gpu03")


class Fleet:
    """Hosts that are looked at and provisioned without any: what was done stands in `ran`."""

    def __init__(self) -> None:
        self.hosts = [
            InventoryHost(name, declaration("2.13.1"), Connection(name)) for name in NAMES
        ]
        self.snapshots: dict[str, dict[str, Any] | None] = {
            host.name: {**as_planned(plan_of(host, None)), "host": host.name, "euid": 0}
            for host in self.hosts}  # fmt: skip
        self.looks: list[list[str]] = []
        self.ran: list[list[str]] = []
        self.output: list[str] = []
        self.failing: dict[str, str] = {}
        # The remedies of what fails, and after which step it no longer does.
        self.repairs: dict[str, list[dict[str, str]]] = {}
        self.heals: dict[str, str] = {}
        self.status = 0
        self.failed: list[str] = []
        # What the callback writes.
        self.messages: list[dict[str, str]] = []
        self.steps: list[dict[str, dict[str, str]]] = []

    def drift(self, name: str) -> None:
        """Change a file there."""
        snapshot = self.snapshots[name]
        assert snapshot
        receipt(snapshot, "toolkit", "11.8")["changed"] = [{"path": "bin/nvcc", "what": "size"}]

    def inventory_hosts(self, question: HostSelector) -> list[InventoryHost]:
        """Stands for gpufleet.fleet.inventory.inventory_hosts."""
        return self.hosts

    def verify(self, hosts: list[InventoryHost], options: ProbeOptions, report: object) -> Session:
        """Stands for gpufleet.fleet.probing.verify."""
        self.looks.append([host.name for host in hosts])
        session = Session(seconds=1.0)
        for host in hosts:
            plan, snapshot = plan_of(host, self.snapshots[host.name]), self.snapshots[host.name]
            verdict = self.failing.get(host.name, "PASS")
            check = {"id": "gpu.count", "verdict": verdict, "cause": "one is gone", "remedy": "",
                     "statement": "", "evidence": "",
                     "repairs": self.repairs.get(host.name, [])}  # fmt: skip
            planned = {"id": "host.plan", "verdict": "PASS", "cause": "", "remedy": "",
                       "statement": "", "evidence": ""}  # fmt: skip
            result = {"verdict": verdict, "checks": [planned, check]} if snapshot else judge.unreachable(
                "No route to host", "look there")  # fmt: skip
            session.hosts.append(HostRun(host.name, snapshot, plan, result))
        return session

    def run(self, command: list[str], output: object = None, *, environment: dict[str, str]) -> int:
        """Stands for ansible-playbook: mends files, where it gets in."""
        self.ran.append(command[1:])
        if self.failed:
            retry = Path(environment["ANSIBLE_RETRY_FILES_SAVE_PATH"], "site.retry")
            retry.write_text("".join(f"{name}\n" for name in self.failed))
        lines = "".join(f"{json.dumps(row)}\n" for row in self.messages)
        Path(environment["GPUFLEET_FAILURES_FILE"]).write_text(lines)
        words = dict(pairwise(command)).get("--limit", ",".join(NAMES))
        steps = json.loads(command[-1])["gpu_repair"] if "gpu_repair" in command[-1] else {}
        self.steps.append(steps)
        for name, rung in self.heals.items():
            if rung in steps.get(name, {}).values():
                self.failing.pop(name)
        for name in words.split(","):
            if name in self.snapshots and (snapshot := self.snapshots[name]):
                receipt(snapshot, "toolkit", "11.8")["changed"] = []
        return self.status

    def converge(self, **more: Any) -> provision.Converged:
        """Provision."""
        return provision.converge(
            HostSelector(["inv"]), ProbeOptions(), notify=self.output.append, **more
        )


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    made = Fleet()
    for name in ("inventory_hosts", "verify", "run"):
        monkeypatch.setattr(provision, name, getattr(made, name))
    return made


PLAYBOOK = [str(PLAYBOOKS / "site.yml"), "-i", "inv"]


def test_where_no_host_differs_nothing_is_run(fleet: Fleet) -> None:
    done = fleet.converge()
    assert (fleet.ran, fleet.looks) == ([], [list(NAMES)])
    assert (done.ran, done.reasons, done.status) == ([], {}, 0)
    assert fleet.output[0].startswith("No host differs from its plan: nothing to run.")


def test_the_one_that_differs_is_run_and_probed_again_and_the_others_are_left(
    fleet: Fleet,
) -> None:
    fleet.drift("gpu02")
    done = fleet.converge(args=["-v"])
    assert fleet.ran == [[*PLAYBOOK, "--limit", "gpu02", "-v"]]
    assert fleet.looks == [list(NAMES), ["gpu02"]]
    assert fleet.output == [
        "Ansible runs on gpu02: repair toolkit 11.8: changed since it was installed:"
        " bin/nvcc (size)",
        "2 of 3 hosts match their plans and are left alone.",
    ]
    assert done.status == 0
    assert [run.name for run in done.session.hosts] == list(NAMES)
    assert done.session.seconds == 2.0
    assert done.session.document["provisioned"] == done.reasons
    assert list(done.reasons) == done.ran == ["gpu02"]


def test_a_host_that_is_not_reached_gets_no_ansible_and_is_named_once(fleet: Fleet) -> None:
    fleet.snapshots["gpu01"] = None
    fleet.failing["gpu03"] = "HUNG"
    fleet.drift("gpu02")
    done = fleet.converge()
    assert fleet.ran == [[*PLAYBOOK, "--limit", "gpu02"]]
    assert list(done.reasons) == ["gpu02"]
    assert (
        fleet.output[0] == "Nothing is run on gpu01: it is not reached, see host.reachable below."
    )
    assert done.status == 1


def test_hosts_that_are_left_alone_for_one_reason_are_one_line(fleet: Fleet) -> None:
    for name in NAMES:
        fleet.snapshots[name] = None
    done = fleet.converge()
    assert fleet.ran == []
    (line,) = [line for line in fleet.output if line.startswith("Nothing is run on")]
    assert all(name in line for name in NAMES)
    assert done.status == 1


def test_check_mode_says_why_hosts_are_left_alone(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.snapshots["gpu01"] = None
    assert main(["provision", "-i", "inv,", "--check"]) == 1
    assert "gpu01: No route to host. Remedy: look there" in capsys.readouterr().err


def test_force_runs_it_everywhere_after_no_probe(fleet: Fleet) -> None:
    done = fleet.converge(force=True)
    assert fleet.ran == [PLAYBOOK]
    assert fleet.looks == [list(NAMES)]
    assert done.ran == list(NAMES)


def test_where_all_differ_the_limit_is_the_person_s_own(fleet: Fleet) -> None:
    for name in NAMES:
        fleet.drift(name)
    provision.converge(HostSelector(["inv"], "gpu0*"), ProbeOptions(), notify=fleet.output.append)
    assert fleet.ran == [[*PLAYBOOK, "--limit", "gpu0*"]]


def test_many_hosts_stand_in_a_file(fleet: Fleet, tmp_path: Path) -> None:
    names = [f"gpu{number:02}" for number in range(provision.MOST_NAMED + 1)]
    way = provision.ProvisionOptions(HostSelector(), ProbeOptions(), folder=tmp_path)
    provision.play(way, names, 100)
    assert fleet.ran[-1][-1] == f"@{tmp_path}/differ.txt"
    assert (tmp_path / "differ.txt").read_text().split() == names


def test_a_failure_that_no_provisioning_repairs_is_called_so(fleet: Fleet) -> None:
    fleet.failing["gpu03"] = "FAIL"
    done = fleet.converge()
    assert fleet.ran == []
    assert "gpu03 matches its plan, and fails gpu.count" in fleet.output[-1]
    assert "provisioning cannot repair that" in fleet.output[-1]
    assert done.status == 1


TOOLKIT = {"by": "provision", "component": "toolkit", "name": "11.8",
           "command": "./gpufleet provision --limit gpu03"}  # fmt: skip


def test_a_host_whose_remedy_is_provision_is_repaired_until_it_is_healthy(fleet: Fleet) -> None:
    """It was told: nothing to run, provisioning cannot repair that."""
    fleet.failing["gpu03"], fleet.repairs["gpu03"] = "FAIL", [TOOLKIT]
    fleet.heals["gpu03"] = "reinstall"
    done = fleet.converge()
    assert fleet.steps == [{"gpu03": {"toolkit 11.8": "contents"}},
                           {"gpu03": {"toolkit 11.8": "reinstall"}}]  # fmt: skip
    assert fleet.looks == [list(NAMES), ["gpu03"], ["gpu03"]]
    assert done.status == 0
    assert fleet.output == [
        "Ansible runs on gpu03: compare the contents of toolkit 11.8: gpu.count fails",
        "2 of 3 hosts match their plans and are left alone.",
        "gpu03 is not healthy yet: reinstall toolkit 11.8: gpu.count fails",
    ]
    assert len(done.reasons["gpu03"]) == 2


def test_where_no_step_helps_a_person_has_to_decide_and_no_remedy_is_a_circle(fleet: Fleet) -> None:
    fleet.failing["gpu03"], fleet.repairs["gpu03"] = "FAIL", [TOOLKIT]
    done = fleet.converge()
    assert [step["gpu03"]["toolkit 11.8"] for step in fleet.steps] == [
        "contents",
        "reinstall",
        "recreate",
    ]
    assert "gpu03: a person has to look" in fleet.output[-1]
    assert "gpu.count: one is gone" in fleet.output[-1]
    _, check = done.session.document["hosts"]["gpu03"]["checks"]
    assert check["repairs"][0]["by"] == "person"
    assert "provision --limit" not in check["remedy"]
    assert done.status == 1


FULL = {
    "task": "Install the toolkit",
    "message": "[Errno 28] No space left on device: '/usr/local/cuda-11.8'",
    "address": "",
}


@pytest.mark.parametrize("failed", [["gpu03"], ["localhost"], ["gpu01", "gpu03"], []])
def test_where_ansible_failed_it_is_not_run_again_and_its_last_message_is_the_cause(
    fleet: Fleet, failed: list[str]
) -> None:
    """A disk was full: three runs, 14 failures, and the cause in the middle of 200 lines."""
    fleet.failing["gpu03"], fleet.repairs["gpu03"] = "FAIL", [TOOLKIT]
    fleet.status, fleet.failed = 2, failed
    fleet.messages = [{"host": "gpu03", **FULL}]
    done = fleet.converge()
    assert [step["gpu03"]["toolkit 11.8"] for step in fleet.steps] == ["contents"]
    plan, count = done.session.document["hosts"]["gpu03"]["checks"]
    assert plan["cause"].startswith("Ansible failed in 'Install the toolkit': no space is left for")
    assert "free space (df -h /usr/local/cuda-11.8" in plan["remedy"]
    assert count["explained_by"] == "host.plan"
    assert (done.status, done.failed) == (1, ["gpu03"])


def test_what_ansible_did_elsewhere_goes_on(fleet: Fleet) -> None:
    for name in ("gpu01", "gpu03"):
        fleet.failing[name], fleet.repairs[name] = "FAIL", [TOOLKIT]
    fleet.heals["gpu01"] = "reinstall"
    fleet.status, fleet.failed = 2, ["gpu03"]
    fleet.messages = [{"host": "gpu03", **FULL}]
    done = fleet.converge()
    assert [list(step) for step in fleet.steps] == [["gpu01", "gpu03"], ["gpu01"]]
    assert done.session.document["hosts"]["gpu01"]["verdict"] == "PASS"


def test_check_mode_shows_the_step_of_a_repair(fleet: Fleet) -> None:
    fleet.failing["gpu03"], fleet.repairs["gpu03"] = "FAIL", [TOOLKIT]
    assert main(["provision", "-i", "inv,", "--check"]) == 0
    assert "--check" in fleet.ran[0]
    assert fleet.steps == [{"gpu03": {"toolkit 11.8": "contents"}}]


def test_a_playbook_that_failed_where_all_is_healthy_is_reported(fleet: Fleet) -> None:
    fleet.drift("gpu01")
    fleet.status = 2
    assert fleet.converge().status == 1
    assert fleet.output[-1].startswith("ansible-playbook returned status 2")


def test_what_documents_can_refuse_is_refused_before_any_host_is_probed(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.hosts[1] = InventoryHost("gpu02", declaration("9.9"), Connection("gpu02"))
    with pytest.raises(provision.RefusedError, match="Nothing was changed on any host") as refused:
        fleet.converge()
    assert [row["host"] for row in refused.value.problems] == ["gpu02"]
    assert main(["provision", "-i", "inv,", "--json"]) == 4
    reported = json.loads(capsys.readouterr().out)
    assert reported["problems"][0]["where"] == "gpu_stacks[0].tensorflow"
    assert (fleet.looks, fleet.ran) == ([], [])


def test_check_mode_runs_where_something_would_change_and_writes_no_report(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.drift("gpu02")
    words = ["-i", "inv,", "--check", "--tags", "cuda_install", "--report", str(tmp_path / "r")]
    assert main(["provision", *words]) == 0
    assert fleet.ran == [shlex.split(
        f"{PLAYBOOKS}/site.yml -i inv, --limit gpu02 --check --diff"
        " --tags cuda_install")]  # fmt: skip
    assert fleet.looks == [list(NAMES)]
    assert not (tmp_path / "r").exists()
    assert "Check mode: nothing was changed" in capsys.readouterr().err


def test_a_lock_that_the_run_resolved_is_seen_by_the_second_probe(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.hosts = [InventoryHost(NAMES[0], declaration("2.13.1"), Connection(NAMES[0]),
                            locks_in(tmp_path), tmp_path)]  # fmt: skip
    assert fleet.hosts[0].locks == {}

    def run(command: list[str], output: object = None, **more: object) -> int:
        (tmp_path / "tensorflow-2.13.1-py3.11.lock").write_text("tensorflow==2.13.1")
        return 0

    monkeypatch.setattr(provision, "run", run)
    (host,) = fleet.converge(force=True).session.hosts
    assert host.plan["stacks"][0]["lock_sha256"] is not None


@pytest.mark.parametrize(
    "words", [["--fanout", "0"], ["--deadline", "soon"], ["--tagz", "driver"], ["gpu01"]]
)
def test_mistakes_in_the_call_are_status_4(fleet: Fleet, words: list[str]) -> None:
    assert main(["provision", "-i", "inv,", *words]) == 4
    assert fleet.looks == []


def test_what_is_ansible_s_goes_there(fleet: Fleet, tmp_path: Path) -> None:
    fleet.drift("gpu01")
    words = ["--tags", "cuda_toolkit", "-vv", "--become-user=root"]
    assert main(["provision", "-i", "inv,", "--report", str(tmp_path), *words]) == 0
    assert fleet.ran[0][-4:] == words


def test_what_a_killed_run_left_is_cleared_away(fleet: Fleet) -> None:
    snapshot = fleet.snapshots["gpu01"]
    assert snapshot
    section(snapshot, "receipts")["caches"] = ["/var/cache/gpufleet/gpufleet-python"]
    assert fleet.converge().ran == ["gpu01"]


def test_where_ansible_could_not_become_root_nothing_is_run(fleet: Fleet) -> None:
    for name in NAMES[:2]:
        fleet.drift(name)
    snapshot = fleet.snapshots[NAMES[0]]
    assert snapshot
    snapshot["euid"] = 1000
    done = fleet.converge()
    assert (done.ran, done.status) == ([NAMES[1]], 1)
    assert [dict(pairwise(words))["--limit"] for words in fleet.ran] == [NAMES[1]]
    (line,) = [line for line in fleet.output if line.startswith("Nothing is run on")]
    assert line.startswith(f"Nothing is run on {NAMES[0]}: provisioning needs root, and")


@pytest.fixture
def command(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """`gpufleet provision` on the fleet."""
    monkeypatch.setattr(provision_verb, "checked_hosts", lambda _: fleet.hosts)
    monkeypatch.setattr(provision_verb, "require", lambda _: None)
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("gpu_hosts: {hosts: {gpu01: , gpu02: , gpu03: }}")
    return lambda *words: main(
        ["provision", "-i", str(inventory), "--report", str(tmp_path / "reports"), *words]
    )


def test_a_host_that_cannot_be_compared_is_named_in_check_mode(
    command: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def defect(*_: object, **__: object) -> list[str]:
        raise ValueError("a defect")

    monkeypatch.setattr(provision.differences, "why", defect)
    assert command("--check") == 3
    printed = "".join(capsys.readouterr())
    assert "No host differs" not in printed
    assert "gpu01: gpufleet failed while it compared this host with its plan" in printed


def test_a_host_that_the_report_could_not_show_is_not_healthy(
    command: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = junit._cases

    def defect(session: Session) -> Any:
        (checks,) = [host.result["checks"] for host in session.hosts if host.name == "gpu02"] or [
            []
        ]
        if any(check["id"] != "host.probe" for check in checks):
            raise ValueError("a defect")
        return shown(session)

    monkeypatch.setattr(junit, "_cases", defect)
    assert command("--json") == 3
    assert json.loads(capsys.readouterr().out)["hosts"]["gpu02"]["verdict"] == "INCONCLUSIVE"
