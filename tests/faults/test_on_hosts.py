"""Each fault of a healthy lab host is caught by the named check, with cause and remedy, and by no
other that does not state the same cause; repaired as the remedy says, the host is as before.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.faults import containers, environment, libraries, package_holds, plan, tensorflow
from tests.faults.catalogue import Fault, verdicts
from tests.support.fault_proof import Healthy, Prove

pytestmark = pytest.mark.lab
UP, ARTIFACTS = ("--hosts", "lab1"), ("--all",)
TWO_GPUS = {"gpu_expect": {"count": 2}}


def named(faults: list[Fault]) -> Any:
    """A test for each fault; of the ways to come to the same one, all but the first are slow."""
    first = {fault.number: fault.name for fault in reversed(faults)}
    return pytest.mark.parametrize(
        "fault",
        [
            pytest.param(
                fault, id=fault.name, marks=[pytest.mark.slow] * (first[fault.number] != fault.name)
            )
            for fault in faults
        ],
    )


def break_and_repair(host: Healthy, fault: Fault, prove: Prove, **more: Any) -> None:
    """Inject it, judge (with `more` variables), repair, and see that all is as it was."""
    assert isinstance(fault.inject, str)
    before = host.verify(**more) if more else host.before
    try:
        host.on(f"set -e\n{fault.inject}")
        prove(fault, before, host.verify(**more))
    finally:
        if fault.repair:
            host.on(f"set -e\n{fault.repair}")
        else:
            host.provision()
    assert verdicts(host.verify()) == verdicts(host.before)


@named([*libraries.ONE_STACK, *environment.ANYWHERE, *tensorflow.PACKAGES])
def test_with_one_stack(one_stack: Healthy, fault: Fault, prove: Prove) -> None:
    break_and_repair(one_stack, fault, prove)


@named(environment.WITH_TWO_GPUS)
def test_with_two_gpus_declared(one_stack: Healthy, fault: Fault, prove: Prove) -> None:
    break_and_repair(one_stack, fault, prove, **TWO_GPUS)


@pytest.mark.parametrize("written", environment.OWN_CHOICE)
def test_a_job_may_keep_to_one_gpu(one_stack: Healthy, written: dict[str, str]) -> None:
    before = one_stack.verify(**TWO_GPUS)
    one_stack.on(written["inject"])
    try:
        found = one_stack.verify(**TWO_GPUS)
    finally:
        one_stack.on(written["repair"])
    assert verdicts(found) == verdicts(before)
    assert "CUDA_VISIBLE_DEVICES=" in found["environment.login"]["evidence"]


@named(tensorflow.WITH_ANY_GPU)
def test_with_any_gpu(one_stack: Healthy, fault: Fault, prove: Prove) -> None:
    break_and_repair(one_stack, fault, prove, gpu_expect={})


@named(plan.FAULTS)
def test_refused_before_anything_changes(one_stack: Healthy, fault: Fault, prove: Prove) -> None:
    assert callable(fault.inject)
    variables: dict[str, Any] = {}
    fault.inject(variables)
    tmp = fault in plan.NO_EXEC_TMP
    mounts = "mount -t tmpfs -o noexec tmpfs /tmp; mount -t tmpfs -o noexec tmpfs /var/tmp"
    one_stack.on(mounts if tmp else "true")
    try:
        state = one_stack.fleet.state("lab1")
        found = one_stack.verify(**variables)
        output = one_stack.provision(status=None, **variables)
        assert one_stack.fleet.state("lab1") == state
    finally:
        one_stack.on("umount /tmp /var/tmp" if tmp else "true")
    # What is declared now is not installed yet, and other checks say so: of the plan only one does.
    prove(fault, {**found, "host.plan": one_stack.before["host.plan"]}, found)
    assert "failed=1" in output
    assert re.search(fault.remedy, " ".join(output.split()))


@pytest.mark.slow
@named(libraries.SIDE_BY_SIDE)
def test_side_by_side(two_toolkits: Healthy, fault: Fault, prove: Prove) -> None:
    break_and_repair(two_toolkits, fault, prove)


@pytest.mark.slow
@named(package_holds.FAULTS)
def test_with_a_driver(with_driver: Healthy, fault: Fault, prove: Prove) -> None:
    break_and_repair(with_driver, fault, prove)


@pytest.mark.slow
@named(containers.FAULTS)
def test_with_containers(with_cards: Healthy, fault: Fault, prove: Prove) -> None:
    break_and_repair(with_cards, fault, prove)
