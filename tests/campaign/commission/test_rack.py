"""A tray is commissioned beside the other trays of its rack, which are only read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.components.faults.rack import OTHER, RACK
from tests.support.commission_site import Site
from tests.support.healthy_host import data

TRAYS = ["gpu01", "gpu02", "gpu03"]


def in_domain(uuid: str) -> Any:
    """A change: the GPUs of a host are in this NVLink domain."""

    def change(snapshot: Any) -> None:
        for section in ("smi", "smi_after"):
            for device in data(snapshot, section)["devices"]:
                device["elements"] |= {
                    "fabric/state": "Completed",
                    "fabric/clusterUuid": uuid,
                    "fabric/cliqueId": "7",
                }

    return change


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Three trays of a rack."""
    site = Site(tmp_path, TRAYS)
    site.hosts.variables["gpu_expect"]["fabric"] = {"rack": "r12"}
    site.hosts.write_inventory()
    for name in TRAYS:
        site.hosts.change(name, in_domain(RACK))
    return site


def verify_causes(site: Site) -> list[str]:
    """Why the first tray did not pass its verification."""
    return [why["cause"] for why in site.record("gpu01")["stages"]["verify"]["reasons"]]


def test_a_tray_in_the_domain_of_its_rack_is_certified_and_no_other_tray_computes(
    site: Site,
) -> None:
    assert site.run("--limit", "gpu01") == 0
    assert site.hosts.probes("gpu02") == site.hosts.probes("gpu03") == ["read"]
    assert not (site.state / "gpu02.json").exists()


def test_a_tray_in_another_domain_than_its_rack_is_refused(site: Site) -> None:
    """It was certified where it was commissioned alone."""
    site.hosts.change("gpu01", in_domain(OTHER))
    assert site.run("--limit", "gpu01") == 1
    [cause] = verify_causes(site)
    assert f"in NVLink domain {OTHER}; 2 of 3 hosts of rack r12 are in {RACK}" in cause


def test_a_tray_that_is_compared_with_nobody_is_not_judged(site: Site) -> None:
    site.hosts.write_inventory(
        **{name: {"gpu_expect": {"count": 1}} for name in ("gpu02", "gpu03")}
    )
    assert site.run("--limit", "gpu01") == 3
    [cause] = verify_causes(site)
    assert cause.startswith("no other host of rack r12 was read")
    assert site.hosts.probes("gpu02") == []
