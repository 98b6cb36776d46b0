"""PyTorch and JAX between two hosts, on their processors: NCCL needs GPUs, which the lab lacks.

Each host gives its own name to an address of its own, as Debian's installer does.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.lab_fleet import Fleet
from tests.support.lab_pairs import HOSTS, gone

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ARTIFACTS = ("--cuda", "11.8")
UP = ("--hosts", "lab1,lab2")

STACKS = ("pytorch-2.6.0", "jax-0.5.3")
WHERE = ("-i", "inventory/frameworks", "-e", json.dumps(
    {"gpu_stacks": [dict([name.split("-")]) for name in STACKS], "gpu_toolkits": []}))
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
        fleet.on(host, "grep -v \"$(hostname)\" /etc/hosts >/tmp/hosts;"
                       " printf '127.0.1.1 %s\\n' \"$(hostname)\" >>/tmp/hosts;"
                       " cat /tmp/hosts >/etc/hosts")
        assert fleet.on(host, "getent hosts $(hostname)").split()[0] == "127.0.1.1"
    verdicts = fleet.verdicts(0, *PAIR)
    exact(verdicts)
    for checks in verdicts.values():
        assert (checks[NCCL]["verdict"], checks[NCCL]["cause"]) == (
            "NOT-DECLARED", "gpu_expect: {count: 0}")
        assert "has no parameter servers" in checks[GRAPH]["cause"]
    assert gone(fleet) == ""
