"""One host of each distribution, for a module of tests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from tests.support.distribution_host import DistributionHost
from tests.support.lab_fleet import fresh, lab


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Where the machine is busy, sudo on a host answers later than the 10 s that Ansible waits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANSIBLE_TIMEOUT", "60")
        yield


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest) -> Iterator[DistributionHost]:
    """A fresh server of the suite that the module parametrizes."""
    suite: str = request.param
    module = hashlib.sha256(request.module.__name__.encode()).hexdigest()[:2]
    name = f"{suite.replace('.', '').replace('-', '')[:8]}{module}"
    with fresh(name) as fleet:
        lab(fleet, "up", "--hosts", "lab1", "--suite", suite)
        yield DistributionHost(fleet, suite, {"nvidia_driver_space": {"/usr": 50},
                                              "nvidia_driver_patience": 5})  # fmt: skip
