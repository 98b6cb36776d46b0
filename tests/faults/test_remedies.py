"""Each fault's remedy is run as it is printed: the host is healthy afterwards, or it named a
person. Nothing else is a remedy.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults import damaged, environment, libraries, tensorflow
from tests.faults.catalogue import Fault, verdicts
from tests.support.fault_proof import Checks, Healthy

pytestmark = [pytest.mark.lab, pytest.mark.slow]
UP, ARTIFACTS = ("--hosts", "lab1"), ()
FAULTS = [*damaged.FAULTS, *libraries.ONE_STACK, *environment.ANYWHERE, *tensorflow.PACKAGES]


def remedies(found: Checks) -> list[dict[str, str]]:
    """The parts of the remedies of what fails, each cause once."""
    return [
        part
        for check in found.values()
        if check["verdict"] not in {"PASS", "NOT-DECLARED"} and "explained_by" not in check
        for part in check["repairs"]
    ]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_printed_remedy_repairs_the_host(
    one_stack: Healthy, fault: Fault, record_property: Callable[[str, object], None]
) -> None:
    assert isinstance(fault.inject, str)
    one_stack.on(f"set -e\n{fault.inject}")
    found = one_stack.verify()
    assert fault.says(found[fault.check]), found[fault.check]
    parts = remedies(found)
    # A person who comes after a command is for where that does not help.
    named = [part["act"] for part in parts[:1] if part["by"] == "person"]
    commands = list(dict.fromkeys(part["command"] for part in parts if "command" in part))
    reported: dict[str, Any] = {
        "fault": fault.name,
        "person": bool(named),
        "ran": [],
        "healthy": False,
    }
    # What a person has to do comes first; the fault's own repair stands for it.
    if named and fault.repair:
        one_stack.on(f"set -e\n{fault.repair}")
    for command in [] if named and fault.repair else commands:
        words = shlex.split(command)
        assert words[0] == "./gpufleet", command
        done = one_stack.fleet.gpufleet(*words[1:], status=None)
        reported["ran"].append([command, done.returncode])
    after = one_stack.verify()
    reported["healthy"] = verdicts(after) == verdicts(one_stack.before)
    record_property("remedy", reported)
    assert reported["healthy"], {name: check for name, check in after.items()
                             if check["verdict"] not in {"PASS", "NOT-DECLARED"}}  # fmt: skip
