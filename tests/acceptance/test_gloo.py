"""PyTorch and JAX between two hosts, on their processors: NCCL needs GPUs, which the lab lacks.

Each host gives its own name to an address of its own, as Debian's installer does. The tests of
this module are one story on the same two hosts, and run in their order.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.lab_fleet import DEADLINE_S, Fleet
from tests.support.lab_pairs import HOSTS, closed_ports, gone, half_met

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ARTIFACTS = ("--cuda", "11.8")
UP = ("--hosts", "lab1,lab2")

STACKS = ("pytorch-2.6.0", "jax-0.5.3")
WHERE = (
    "-i",
    "inventory/frameworks",
    "-e",
    json.dumps({"gpu_stacks": [dict([name.split("-")]) for name in STACKS], "gpu_toolkits": []}),
)
PAIR = (*WHERE, "--pair", "lab1,lab2")
GRAPH, REDUCE, NCCL = "pair.parameter-server", "pair.all-reduce", "pair.nccl"

Verdicts = dict[str, dict[str, dict[str, Any]]]


def exact(verdicts: Verdicts) -> None:
    """Both hosts, in both frameworks."""
    for host, peer in (HOSTS, HOSTS[::-1]):
        check = verdicts[host][REDUCE]
        assert check["verdict"] == "PASS", check
        for name in STACKS:
            assert f"{name} with {peer}: GLOO, 2 replicas, exact" in check["evidence"]


def test_two_hosts_compute_together_in_both_frameworks(fleet: Fleet) -> None:
    fleet.gpufleet("provision", *WHERE)
    for host in HOSTS:
        # In place: it is mounted.
        fleet.on(
            host,
            'grep -v "$(hostname)" /etc/hosts >/tmp/hosts;'
            " printf '127.0.1.1 %s\\n' \"$(hostname)\" >>/tmp/hosts;"
            " cat /tmp/hosts >/etc/hosts",
        )
        assert fleet.on(host, "getent hosts $(hostname)").split()[0] == "127.0.1.1"
    verdicts = fleet.verdicts(0, *PAIR)
    exact(verdicts)
    for checks in verdicts.values():
        assert (checks[NCCL]["verdict"], checks[NCCL]["cause"]) == (
            "NOT-DECLARED",
            "gpu_expect: {count: 0}",
        )
        assert "has no parameter servers" in checks[GRAPH]["cause"]
    assert gone(fleet) == ""


def blamed(verdicts: Verdicts, cause: str) -> None:
    """The check of lab2 fails by this cause in both frameworks, and lab1 sends there."""
    mine, theirs = (verdicts[host][REDUCE] for host in HOSTS)
    assert theirs["verdict"] == "FAIL", theirs
    assert cause in theirs["cause"], theirs
    for name in STACKS:
        assert f"{name} with lab1: " in theirs["cause"], theirs
    assert (mine["verdict"], mine["remedy"]) == ("INCONCLUSIVE", f"see {REDUCE} of lab2"), mine
    assert not [name for name, check in verdicts["lab1"].items() if check["verdict"] == "FAIL"]


def test_a_closed_port_is_named_with_both_hosts(fleet: Fleet) -> None:
    with closed_ports(fleet):
        verdicts = fleet.verdicts(1, *PAIR)
    for checks in verdicts.values():
        failed = {name for name, check in checks.items() if check["verdict"] == "FAIL"}
        assert failed == {REDUCE}
        assert "lab2 cannot reach lab1 (" in checks[REDUCE]["cause"]
        assert "lab1 cannot reach" not in checks[REDUCE]["cause"]
        assert "allow TCP ports 20000 to 32767 from lab2 to lab1" in checks[REDUCE]["remedy"]
    assert gone(fleet) == ""


def test_the_host_whose_stacks_are_broken_is_blamed_and_not_the_other(fleet: Fleet) -> None:
    packages = [
        f"/opt/gpufleet/stacks/{name}/lib/python3.11/site-packages/numpy" for name in STACKS
    ]
    fleet.on("lab2", "; ".join(f"mv {path} {path}.away" for path in packages))
    verdicts = fleet.verdicts(1, *PAIR)
    fleet.on("lab2", "; ".join(f"mv {path}.away {path}" for path in packages))
    blamed(verdicts, "No module named 'numpy'")
    assert gone(fleet) == ""


@pytest.mark.parametrize("stack", STACKS)
def test_the_host_whose_side_is_killed_is_blamed_and_not_the_other(
    fleet: Fleet, stack: str
) -> None:
    process = f"[s]tacks/{stack}.* -I -c"
    with half_met(fleet, (*PAIR, "--pair-stack", stack), process) as run:
        fleet.on("lab2", f"pkill -KILL -f '{process}'")
        output = json.loads(run.communicate(timeout=DEADLINE_S)[0])
    verdicts = {
        host: {check["id"]: check for check in output["hosts"][host]["checks"]} for host in HOSTS
    }
    mine, theirs = (verdicts[host][REDUCE] for host in HOSTS)
    assert run.returncode == 1
    assert theirs["verdict"] == "FAIL"
    assert "it was killed (SIGKILL)" in theirs["cause"], theirs
    assert "see in the kernel log what killed it" in theirs["remedy"]
    assert (mine["verdict"], mine["remedy"]) == ("INCONCLUSIVE", f"see {REDUCE} of lab2"), mine
    assert gone(fleet) == ""


def test_afterwards_all_is_well(fleet: Fleet) -> None:
    exact(fleet.verdicts(0, *PAIR))
