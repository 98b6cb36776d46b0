"""A distributed TensorFlow between two hosts: of last decade and of today, and what stands between.

The tests of this module are one story on the same two hosts, and run in their order.
"""

from __future__ import annotations

import json
import os
import signal
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.fleet.suite import name_of_test
from lab import pythons
from lab.errors import LabError
from tests.support.lab_fleet import DEADLINE_S, ROOT, Fleet
from tests.support.lab_pairs import closed_ports, gone, meeting

try:
    pythons.find("3.6", os.environ)
except LabError as error:
    pytest.skip(error.message, allow_module_level=True)

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ARTIFACTS = ("--cuda", "8.0", "--cuda", "11.8")
UP = ("--hosts", "lab1,lab2", "--python", "3.6")

STACKS = [{"tensorflow": "1.4.0"}, {"tensorflow": "2.13.1"}]
WHERE = (
    "-i",
    "inventory/side-by-side",
    "-e",
    json.dumps({"gpu_stacks": STACKS, "gpu_toolkits": []}),
)
PAIR = (*WHERE, "--pair", "lab1,lab2")
GRAPH, REDUCE, NCCL = "pair.parameter-server", "pair.all-reduce", "pair.nccl"


@pytest.fixture
def firewall(fleet: Fleet) -> Iterator[None]:
    """Drops on lab1 whatever lab2 says to the ports on which the two meet."""
    with closed_ports(fleet):
        yield


def test_two_hosts_compute_together_in_both_releases(fleet: Fleet) -> None:
    fleet.gpufleet("provision", *WHERE)
    verdicts = fleet.verdicts(0, *PAIR)
    for host, peer in (("lab1", "lab2"), ("lab2", "lab1")):
        graph, reduce, nccl = (verdicts[host][check] for check in (GRAPH, REDUCE, NCCL))
        assert graph["verdict"] == reduce["verdict"] == "PASS"
        for release in ("1.4.0", "2.13.1"):
            assert f"tensorflow-{release} with {peer}: exact, on /job:worker" in graph["evidence"]
        assert f"tensorflow-2.13.1 with {peer}: RING, 2 replicas, exact" in reduce["evidence"]
        assert "TensorFlow 1.4.0 has no multi-worker all-reduce" in reduce["evidence"]
        assert (nccl["verdict"], nccl["cause"]) == ("NOT-DECLARED", "gpu_expect: {count: 0}")
    assert gone(fleet) == ""


def test_without_a_pair_nothing_is_printed_of_pairs(fleet: Fleet) -> None:
    for checks in fleet.verdicts(0, *WHERE).values():
        assert not {GRAPH, REDUCE, NCCL} & set(checks)


def test_pytest_itself_has_hosts_meet(fleet: Fleet, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    fleet.run(
        ROOT / ".venv/bin/pytest",
        "verify/",
        "--ansible-inventory=inventory/side-by-side",
        "--gpu-extra-vars",
        WHERE[-1],
        "--gpu-pair",
        "lab1,lab2",
        "--gpu-pair-stack",
        "tensorflow-2.13.1",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={junit}",
    )
    passed = {
        str(case.get("name"))
        for case in ET.parse(junit).getroot().iter("testcase")
        if not len(case) and case.get("classname") == "verify.test_pair"
    }
    assert passed == {
        f"{name_of_test(check)}[{host}]" for host in ("lab1", "lab2") for check in (GRAPH, REDUCE)
    }


def test_a_closed_port_is_named_with_both_hosts(fleet: Fleet, firewall: None) -> None:
    verdicts = fleet.verdicts(1, *PAIR)
    for checks in verdicts.values():
        for check in (GRAPH, REDUCE):
            assert checks[check]["verdict"] == "FAIL"
            assert "lab2 cannot reach lab1 (" in checks[check]["cause"]
            assert "timed out" in checks[check]["cause"]
            assert "lab1 cannot reach" not in checks[check]["cause"]
            assert "allow TCP ports 20000 to 32767 from lab2 to lab1" in checks[check]["remedy"]
        failed = {name for name, entry in checks.items() if entry["verdict"] == "FAIL"}
        assert failed == {GRAPH, REDUCE}
    assert gone(fleet) == ""


def test_the_host_whose_stack_is_broken_is_blamed_and_not_the_other(fleet: Fleet) -> None:
    package = "/opt/gpufleet/stacks/tensorflow-2.13.1/lib/python3.11/site-packages/google"
    fleet.on("lab2", f"mv {package} /root/")
    verdicts = fleet.verdicts(1, *PAIR, "--pair-stack", "tensorflow-2.13.1")
    fleet.on("lab2", f"mv /root/google {package}")
    for check in (GRAPH, REDUCE):
        mine, theirs = (verdicts[host][check] for host in ("lab1", "lab2"))
        assert theirs["verdict"] == "FAIL"
        assert "No module named 'google'" in theirs["cause"]
        assert mine["verdict"] == "INCONCLUSIVE"
        assert mine["remedy"] == f"see {check} of lab2"
    assert not [name for name, entry in verdicts["lab1"].items() if entry["verdict"] == "FAIL"]
    assert gone(fleet) == ""


def test_a_killed_run_leaves_no_server_on_any_host(fleet: Fleet) -> None:
    with meeting(fleet, PAIR) as killed:
        # What listened was its own, and it goes on.
        assert killed.poll() is None
        os.killpg(killed.pid, signal.SIGKILL)
    assert gone(fleet) == ""


def test_a_side_that_stands_still_is_hung_within_the_deadline(fleet: Fleet) -> None:
    stop = "pkill -STOP -f '[s]tacks/tensorflow.* -I -c'"
    more = ("--pair-stack", "tensorflow-2.13.1", "--deadline", "60")
    with meeting(fleet, (*PAIR, *more), stop) as run:
        output = json.loads(run.communicate(timeout=4 * DEADLINE_S)[0])
    fleet.on("lab2", "pkill -CONT -f '[s]tacks/tensorflow.* -I -c'; :")
    checks = {check["id"]: check for check in output["hosts"]["lab2"]["checks"]}
    assert run.returncode == 1
    assert checks[GRAPH]["verdict"] == "HUNG"
    assert "no answer within 60 s" in checks[GRAPH]["cause"]
    assert checks[REDUCE]["verdict"] == "PASS"
    assert gone(fleet) == ""


def test_afterwards_all_is_well(fleet: Fleet) -> None:
    fleet.verdicts(0, *PAIR)
