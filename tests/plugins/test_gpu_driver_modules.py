"""Building the driver's modules: what the module reports of the host to the role."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.host_state import cards as cards_of
from gpufleet.probe.host import Host
from tests.support.ansible_modules import load
from tests.support.planted_host import put


@pytest.mark.parametrize(
    ("drivers", "cards"),
    [((), 0), ((None, "nvidia"), 2), (("vfio-pci", "nvidia"), 1), (("vfio-pci", "vfio-pci"), 0)],
)
def test_cards_given_to_virtual_machines_are_not_counted(
    tmp_path: Path, drivers: tuple[str | None, ...], cards: int
) -> None:
    """The role starts the persistence daemon by this number, which fails without a card."""
    for at, driver in enumerate(drivers):
        place = f"sys/bus/pci/devices/0000:0{at}:00.0"
        for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
            put(tmp_path, f"{place}/{name}", text)
        if driver:
            (tmp_path / place / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")
    module = load("gpu_driver_modules")
    assert module.GIVEN_AWAY == cards_of.GIVEN_AWAY
    assert module.own_cards(Host({"root": str(tmp_path), "mode": "full"})) == cards
