"""A proof of the past never stands for the present: certificates of hosts that are sick now."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.campaign.commission.ages import too_old
from gpufleet.campaign.commission.decision import burned
from gpufleet.campaign.commission.identity import other_parts, parts_of
from gpufleet.campaign.commission.stages import (
    BURN,
    COLLECTIVES,
    PREFLIGHT,
    PROVISION,
    contradicted,
)
from tests.support.commission_site import Site
from tests.support.healthy_host import data, document, with_cards
from tests.support.host_parts import event
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


def another_serial(found: Any) -> None:
    for name in ("smi", "smi_after"):
        card = data(found, name)["devices"][0]
        card["elements"]["serial"], card["uuid"] = "1650009999999", "GPU-other"
    data(found, "compute")["runs"][0]["devices"][0]["uuid"] = "GPU-other"


def another_chip(found: Any) -> None:
    for name in ("smi", "smi_after"):
        data(found, name)["devices"][0]["uuid"] = "GPU-other"
    data(found, "compute")["runs"][0]["devices"][0]["uuid"] = "GPU-other"


def another_board(found: Any) -> None:
    data(found, "os")["hardware"]["serial"] = "A99999999999"


def another_drive(found: Any) -> None:
    data(found, "os")["hardware"]["drives"][0]["serial"] = "S9999"


def drive_gone(found: Any) -> None:
    del data(found, "os")["hardware"]["drives"][0]


def another_module(found: Any) -> None:
    data(found, "os")["hardware"]["modules"][1]["serial"] = "ffffffff"


def same_parts(found: Any) -> None:
    data(found, "os")["hardware"]["firmware"] = "2.2"


def nothing_read(found: Any) -> None:
    data(found, "os")["hardware"]["modules"] = None


def with_drives_and_modules(found: Any) -> None:
    hardware = data(found, "os")["hardware"]
    hardware["drives"] = [
        {
            "name": f"nvme{at}",
            "model": "MZ",
            "serial": f"S{at}",
            "firmware": "1",
            "address": f"0000:0{at}:00.0",
        }
        for at in range(2)
    ]
    hardware["modules"] = [
        {
            "slot": f"DIMM_{at}",
            "bank": None,
            "maker": "S",
            "part": "M",
            "mib": 65536,
            "serial": f"abc{at}",
        }
        for at in range(2)
    ]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (another_serial, "GPU 0 is another one: serial number 1650009999999, certified was"),
        (another_chip, "GPU 0 is another one: serial number"),
        (another_board, "gpu01 is another one: serial number A99999999999, certified was serial"),
        (
            another_drive,
            "nvme0 is another one: serial number S9999, certified was serial number S0",
        ),
        (drive_gone, "nvme0 (serial number S0) is gone"),
        (another_module, "DIMM_1 is another one: serial number ffffffff, certified was"),
        (same_parts, ""),
        (nothing_read, ""),
    ],
)
def test_parts_are_told_apart_by_their_numbers(
    site: Site, change: Callable[[Any], None], cause: str
) -> None:
    found = site.hosts.recorded("gpu01", READ)
    with_drives_and_modules(found)
    certified = parts_of("gpu01", found)
    assert other_parts(certified, certified) == []
    changed = deepcopy(found)
    change(changed)
    others = other_parts(certified, parts_of("gpu01", changed))
    assert (len(others) == 1 and cause in others[0]) if cause else others == []


@pytest.mark.parametrize("change", [another_serial, another_board, same_parts])
def test_a_certificate_of_another_machine_is_withdrawn_in_production(
    site: Site, capsys: pytest.CaptureFixture[str], change: Callable[[Any], None]
) -> None:
    assert site.run() == 0
    site.hosts.change("gpu01", change)
    capsys.readouterr()
    assert site.run("--json") == 3
    row = json.loads(capsys.readouterr().out)["hosts"]["gpu01"]
    assert row["outcome"] == "not-judged"
    [why] = row["reasons"]
    assert "It is in production" in why["cause"]
    kept = change is same_parts
    assert ("is another one: serial number" in why["cause"]) != kept
    assert ("withdrawn" in why["cause"]) != kept
    assert (site.state / "certificates/gpu01.json").exists() == kept
    assert ("certificate" in site.record("gpu01")) == kept
    if not kept:
        site.set_state("gpu01", "new", "another part")
        site.hosts.forget()
        assert site.run() == 0
        assert site.hosts.probes("gpu01")[-4:] == WHOLE[-4:]


def uncomputed(found: Any) -> None:
    """Leave the results of a reading without work: only the log and nvidia-smi's report."""
    data(found, "compute")["runs"] = []


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("code", [48, 62, 79, 95, 119])
def test_a_failed_card_in_the_log_refuses_however_far_the_log_reaches(
    site: Site, code: int, complete: bool
) -> None:
    site.hosts.change("gpu01", uncomputed, READ)
    assert site.run() == 0

    def failed(found: Any) -> None:
        address = data(found, "gpus")["pci"][0]["address"]
        event(found, "xid", code=code, address=address, text=f"NVRM: Xid (PCI:{address}): {code}, ")
        data(found, "kernel_log")["complete"] = complete

    site.hosts.change("gpu01", failed)
    assert site.run() == 1
    assert not (site.state / "certificates/gpu01.json").exists()
    [why] = site.issued("refusals", "gpu01")["reasons"]
    assert why["check"] == "kernel.log"
    assert f"Xid {code} of" in why["cause"]


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
