"""TensorFlow of a stack multiplies inside a container, on a host without a GPU on the CPU."""

from __future__ import annotations

import pytest

from tests.support.gpu_containers import containers, declared, words
from tests.support.lab_fleet import Fleet

pytestmark = [pytest.mark.lab, pytest.mark.slow]
UP = ("--hosts", "lab1,lab2")  # of which the second is for the other tests' fixture
__all__ = ["declared"]


def test_a_stack_computes_in_a_container(fleet: Fleet, declared: dict[str, object]) -> None:
    stack = {"gpu_stacks": [{"tensorflow": "2.13.1"}]}
    fleet.gpufleet("provision", *words(declared, **stack))
    found = containers(fleet, declared, 0, **stack)
    assert found["containers.matmul"]["verdict"] == "PASS"
    evidence = found["containers.matmul"]["evidence"]
    assert "tensorflow-2.13.1 in a container on /CPU:0" in evidence
    assert "exact" in evidence
    # With the engine gone, nothing is proven.
    fleet.on("lab1", "mv /usr/bin/docker /usr/bin/docker.away")
    assert containers(fleet, declared, 1, **stack)["containers.matmul"]["verdict"] == "INCONCLUSIVE"
    fleet.on("lab1", "mv /usr/bin/docker.away /usr/bin/docker")
