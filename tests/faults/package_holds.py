"""A driver that nothing holds: upgrades at night would exchange it under running programs."""

from __future__ import annotations

from tests.faults.catalogue import Fault
from tests.faults.libraries import PROVISION

FAULTS = [
    Fault(
        "60",
        "the driver's packages are not held: `apt upgrade` replaces the driver",
        "host",
        "driver.held",
        "Packages are not held, and can be upgraded under the running driver: .*",
        PROVISION,
        "apt-mark unhold $(apt-mark showhold)",
    ),
    Fault(
        "60",
        "the pin of the driver's version is missing",
        "host",
        "driver.held",
        "No pin of the driver's version is in /etc/apt/preferences.d/gpufleet-driver",
        PROVISION,
        "rm /etc/apt/preferences.d/gpufleet-driver",
        also=("driver.files",),
    ),
    Fault(
        "60",
        "unattended upgrades do not exclude the driver",
        "host",
        "driver.held",
        "Unattended upgrades do not exclude the driver's packages",
        PROVISION,
        "rm /etc/apt/apt.conf.d/52gpufleet-driver",
        also=("driver.files",),
    ),
]
