"""A proof of the past never stands for the present: certificates of hosts that are sick now."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.commission.ages import too_old
from gpufleet.commission.decision import burned
from gpufleet.commission.stages import BURN, COLLECTIVES, PREFLIGHT, PROVISION, contradicted
from tests.support.commission_site import Site
from tests.support.healthy_host import data, document, with_cards
from tests.support.recorded_hosts import BURN_IN, READ

WHOLE = ["read", "full", "deep", "burn-in", "full"]
KINDS = (READ, "full", "deep", BURN_IN)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, ["gpu01"])


def remap_failure(snapshot: Any) -> None:
    for name in ("smi", "smi_after"):
        data(snapshot, name)["devices"][0]["remap"].update(failure=True)


def read_only(snapshot: Any) -> None:
    data(snapshot, "disks")["readonly"] = ["/tmp"]


def no_cards(snapshot: Any) -> None:
    data(snapshot, "gpus")["pci"] = []


def driver_differs(snapshot: Any) -> None:
    data(snapshot, "driver")["loaded"] = "470.1"


SICK = [remap_failure, read_only, no_cards, driver_differs]


@pytest.mark.parametrize("sick", SICK, ids=lambda each: each.__name__)
def test_no_certificate_is_kept_by_a_host_that_is_sick_now(
    site: Site, sick: Callable[[Any], None]
) -> None:
    assert site.run() == 0
    site.hosts.change("gpu01", sick)
    assert site.run() == 1
    assert not (site.state / "certificates/gpu01.json").exists()
    assert site.issued("refusals", "gpu01")["reasons"]
    # An intermittent fault is what commissioning is for: one healthy reading certifies nothing.
    for kind in KINDS:
        site.hosts.record("gpu01", kind, site.hosts.healthy("gpu01", 0))
    site.hosts.forget()
    assert site.run() == 0
    assert site.hosts.probes("gpu01")[-4:] == WHOLE[-4:]


def test_no_certificate_is_issued_late_to_a_host_that_is_sick_now(site: Site) -> None:
    """Its stages had passed, and nothing could be written then."""
    site.state.mkdir()
    (site.state / "certificates").write_text("in the way")
    assert site.run() == 3
    (site.state / "certificates").unlink()
    site.hosts.change("gpu01", remap_failure)
    assert site.run() == 1
    assert not list(site.state.glob("certificates/*.json"))


@pytest.mark.parametrize(
    ("stage", "hours", "old"),
    [("cool-down", 23, False), ("cool-down", 25, True), ("deep", 25, False)],
)
def test_a_day_after_the_cool_down_it_is_repeated(stage: str, hours: int, old: bool) -> None:
    now = datetime.now(UTC)
    row: Any = {"finished": f"{now - timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}"}
    record: Any = {}
    assert bool(too_old(stage, row, record, f"{now:%Y-%m-%dT%H:%M:%SZ}")) == old


def test_a_failure_voids_what_it_contradicts() -> None:
    assert contradicted(PREFLIGHT.name)[0] == contradicted(BURN.name)[0] == "verify"
    assert contradicted(COLLECTIVES.name) == ("collectives", "cool-down")
    assert contradicted(PROVISION.name)[0] == "provision"


@pytest.mark.parametrize("share", [0.0003, 0.1])
def test_a_load_of_few_products_is_no_burn_in(share: float) -> None:
    found: Any = document("snapshot.json")
    with_cards(document("plan.json"), found, 2)
    entries = data(found, "compute")["runs"][0]["sustained"]
    for entry in entries:
        rate = sorted(each["tflops"] for each in entry["samples"])[len(entry["samples"]) // 2]
        whole = rate * 1e12 * 120 / (2 * entry["n"] ** 3)
        entry.update(seconds=120.0, checked=int(whole * 0.6))
    assert burned(found, len(entries), 120) == []
    entries[0]["checked"] = max(1, int(entries[0]["checked"] * share))
    [why] = burned(found, len(entries), 120)
    assert why["cause"] == "GPU 0 compared fewer products than its time and speed give"
