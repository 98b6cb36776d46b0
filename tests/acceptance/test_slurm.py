"""With a real Slurm: the probe as a job step, bad nodes drained and given back, rollouts.

The tests are one story on the same three hosts, and run in their order.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.documents.verdict import LETTERS, Verdict
from gpufleet.fleet.inventory import HostSelector
from gpufleet.fleet.schedulers import PROMISE
from gpufleet.watch.drain import after_night
from tests.support import slurm_hosts as slurm
from tests.support.fleet_stand_ins import RunHistory
from tests.support.lab_fleet import ROOT, Fleet

pytestmark = [pytest.mark.lab, pytest.mark.slow]

HOSTS = ("lab1", "lab2", "lab3")
UP = ("--hosts", ",".join(HOSTS))
ARTIFACTS = ("--cuda", "8.0")
# Nothing to install, so that what takes time is Slurm.
DECLARED = {"gpu_stacks": [], "gpu_expect": {"count": 0}, "gpu_scheduler_host": "lab1"}
JOURNAL = "/var/lib/gpufleet/journal"
HALF = f"mkdir -p {JOURNAL}; echo '{{}}' >{JOURNAL}/toolkit-1.0.json"
HEALTH = "/usr/local/sbin/gpufleet-health"


class Nights(RunHistory):
    """Nights as the history has them, a day apart, of real verdicts."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(defaultdict(lambda: defaultdict(str)))
        self.fleet = fleet

    def night(self) -> list[str]:
        """One more night; what it did."""
        output = self.fleet.gpufleet("verify", "--json", *declared(), status=None).stdout
        hosts = json.loads(output)["hosts"]
        for name, host in hosts.items():
            for check in host["checks"]:
                self.checks[name][check["id"]] += LETTERS[Verdict(check["verdict"])]
        selector = HostSelector(
            [str(ROOT / "inventory" / "lab")], extra_vars=[json.dumps(DECLARED)]
        )
        done: list[str] = []
        settings = {"hook": "slurm", "selector": selector, "most_percent": 50}
        assert after_night(self, settings, done.append).failed == []
        return done


def declared() -> list[str]:
    return ["-e", json.dumps(DECLARED)]


def rollout(fleet: Fleet, folder: Path, *words: str, status: int = 0) -> str:
    return fleet.gpufleet(
        "rollout",
        *declared(),
        "--hook",
        "slurm",
        "--state",
        str(folder),
        "--report",
        str(folder),
        *words,
        status=status,
    ).stdout


@pytest.fixture(scope="module")
def cluster(fleet: Fleet) -> Iterator[Fleet]:
    slurm.install(fleet, HOSTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUFLEET_LAB", fleet.instance)
        yield fleet


@pytest.fixture(scope="module")
def nights(cluster: Fleet) -> Nights:
    return Nights(cluster)


def test_the_probe_runs_as_a_job_step_on_every_node(cluster: Fleet) -> None:
    output = cluster.gpufleet("verify", "--launcher", "slurm", "--json", *declared()).stdout
    assert {host["verdict"] for host in json.loads(output)["hosts"].values()} == {"PASS"}
    jobs = cluster.on("lab1", "scontrol show jobs --oneliner").splitlines()
    assert len(jobs) == len(HOSTS)
    for job, host in zip(
        sorted(jobs, key=lambda line: line.split(" NodeList=")[1]), HOSTS, strict=True
    ):
        assert " JobName=gpufleet " in job
        assert " UserId=deploy(" in job
        assert " JobState=COMPLETED " in job
        assert f" NodeList={host} " in job


def test_a_node_that_is_bad_for_two_nights_is_drained_with_the_reason(nights: Nights) -> None:
    fleet = nights.fleet
    assert nights.night() == []
    fleet.on("lab2", HALF)
    assert nights.night() == []
    assert slurm.node(fleet, "lab2") == ("idle", "none")
    output = nights.night()
    assert len(output) == 1
    assert output[0].startswith("lab2 is drained: install.complete")
    state, reason = slurm.node(fleet, "lab2")
    assert state == "drained"
    assert reason.startswith("gpufleet nightly: install.complete")
    assert reason.endswith(f"2 nights in a row{PROMISE}")
    assert fleet.on("lab1", "srun --immediate=1 -w lab2 true 2>&1", status=None) != ""


def test_a_job_step_says_that_its_node_is_drained(cluster: Fleet) -> None:
    verdicts = cluster.verdicts(
        1, "--launcher", "slurm", "--limit", "lab2", "--deadline", "8", *declared()
    )
    row = verdicts["lab2"]["host.reachable"]
    assert row["verdict"] == "UNREACHABLE"
    assert "srun" in row["cause"]
    assert "--nodelist=lab2" in row["remedy"]


def test_what_a_person_drained_stays_and_what_we_drained_is_given_back_once_repaired(
    nights: Nights,
) -> None:
    fleet = nights.fleet
    fleet.on("lab1", "scontrol update NodeName=lab3 State=DRAIN Reason='broken fan'")
    fleet.on("lab2", f"rm {JOURNAL}/toolkit-1.0.json")
    assert nights.night() == ["lab2 is healthy again and resumed: gpufleet had drained it."]
    assert slurm.node(fleet, "lab2") == ("idle", "none")
    assert fleet.on("lab1", "srun -w lab2 hostname") == "lab2\n"
    assert slurm.node(fleet, "lab3") == ("drained", "broken fan")


def test_a_rollout_waits_for_jobs_and_gives_back_only_its_own(
    cluster: Fleet, tmp_path: Path
) -> None:
    cluster.on("lab1", "cd /tmp && sbatch -w lab1 --output=/dev/null --wrap 'sleep 12'")
    cluster.on("lab1", "timeout 20 sh -c 'until squeue -h -t R | grep -q lab1; do :; done'")
    output = rollout(cluster, tmp_path, "--batch", "100%")
    assert "jobs still run on lab1" in output
    assert "lab3 is already out of service, not by gpufleet (broken fan)" in output
    assert [slurm.node(cluster, host)[0] for host in HOSTS] == ["idle", "idle", "drained"]
    assert slurm.node(cluster, "lab3")[1] == "broken fan"


def test_an_unhealthy_batch_stays_drained_until_it_is_resumed(
    cluster: Fleet, tmp_path: Path
) -> None:
    # What provisioning cannot repair, since it needs it itself.
    cluster.on("lab2", "mv /usr/bin/python3 /usr/bin/python3.away")
    output = rollout(cluster, tmp_path, "--canary", "lab2", "--batch", "2", status=1)
    assert "Stopped: lab2 not healthy" in output
    state, reason = slurm.node(cluster, "lab2")
    assert state == "drained"
    assert reason.startswith("gpufleet rollout: UNREACHABLE: host.reachable")
    assert slurm.node(cluster, "lab1") == ("idle", "none")
    cluster.on("lab2", "mv /usr/bin/python3.away /usr/bin/python3")
    rollout(cluster, tmp_path, "--resume")
    assert [slurm.node(cluster, host)[0] for host in HOSTS] == ["idle", "idle", "drained"]


def test_slurm_s_own_health_check_drains_and_gives_back(cluster: Fleet) -> None:
    text = (ROOT / "contrib" / "slurm" / "gpufleet-health").read_text(encoding="utf-8")
    for host in HOSTS:
        cluster.on(host, f"cat >{HEALTH} <<'END'\n{text}END\nchmod 755 {HEALTH}")
        cluster.on(
            host,
            "cat >/usr/local/sbin/health <<'END'\n#!/bin/sh\n"
            f"exec {HEALTH} --drain\nEND\nchmod 755 /usr/local/sbin/health",
        )
        cluster.on(
            host,
            "printf 'HealthCheckProgram=/usr/local/sbin/health\\n"
            "HealthCheckInterval=2\\nHealthCheckNodeState=ANY\\n' >>/etc/slurm/slurm.conf",
        )
    cluster.on("lab1", "scontrol reconfigure")
    awaited = "timeout 60 sh -c 'until sinfo -hN -n {} -o %T | grep -qx {}; do sleep 0.3; done'"
    cluster.on("lab2", HALF)
    cluster.on("lab1", awaited.format("lab2", "drained"))
    assert slurm.node(cluster, "lab2")[1] == (
        f"gpufleet health: half installed: toolkit-1.0{PROMISE}"
    )
    cluster.on("lab2", f"rm {JOURNAL}/toolkit-1.0.json")
    cluster.on("lab1", awaited.format("lab2", "idle"))
    assert slurm.node(cluster, "lab3") == ("drained", "broken fan")


def test_as_a_prolog_it_keeps_a_job_from_a_node_that_is_not_fit(cluster: Fleet) -> None:
    for host in HOSTS:
        cluster.on(
            host,
            "sed -i '/^HealthCheck/d' /etc/slurm/slurm.conf;"
            f" echo Prolog={HEALTH} >>/etc/slurm/slurm.conf",
        )
    cluster.on("lab1", "scontrol reconfigure")
    assert cluster.on("lab1", "srun -w lab2 hostname") == "lab2\n"
    cluster.on("lab2", HALF)
    cluster.on("lab1", "timeout 20 srun -w lab2 hostname", status=None)
    state, reason = slurm.node(cluster, "lab2")
    assert state.startswith("drain")
    assert reason == "Prolog error"
