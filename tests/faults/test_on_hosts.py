"""Each fault of a healthy lab host is caught by the named check, with cause and remedy, and by no
other that does not state the same cause; repaired as the remedy says, the host is as before.
"""

from __future__ import annotations

import pytest

from . import libraries
from .catalogue import Fault
from .conftest import Healthy, Prove, verdicts

pytestmark = pytest.mark.lab
UP = ("--hosts", "lab1")


def break_and_mend(host: Healthy, fault: Fault, prove: Prove) -> None:
    """Inject it, judge, repair, and see that all is as it was."""
    assert isinstance(fault.inject, str)
    try:
        host.on(f"set -e\n{fault.inject}")
        prove(fault, host.before, host.verify())
    finally:
        if fault.repair:
            host.on(f"set -e\n{fault.repair}")
        else:
            host.provision()
    assert verdicts(host.verify()) == verdicts(host.before)


@pytest.mark.parametrize("fault", libraries.FAULTS, ids=lambda fault: fault.name)
def test_with_one_stack(one_stack: Healthy, fault: Fault, prove: Prove) -> None:
    break_and_mend(one_stack, fault, prove)
