"""Checks of the driver: when they apply, and which sections they read."""

from __future__ import annotations

import pytest

from gpufleet.components.base.host import Host
from gpufleet.components.checks import CHECKS, Sections
from gpufleet.judge import judge
from tests.support.healthy_host import (
    DRIVER,
    OF_SITES,
    Document,
    data,
    verdicts,
    with_cards,
    with_driver,
)
from tests.support.host_parts import PROVISION, later_kernel

OF_A_CARD = {
    "driver.loaded",
    "driver.nodes",
    "driver.persistence",
    "driver.fabric",
    "driver.secure-boot",
    "driver.cuda",
    "driver.access",
    "gpu.smi",
    "gpu.identity",
    "gpu.visible",
    "gpu.memory-errors",
    "gpu.pcie",
    "gpu.throttle",
    "gpu.settings",
    "gpu.nvlink",
    "gpu.peer-access",
    "gpu.after-load",
    "gpu.host-copies",
    "gpu.throughput",
    "gpu.bandwidth",
    "gpu.sustained",
    "gpu.peer",
    "gpu.recovery",
    "gpu.fabric",
    "gpu.formats",
    "gpu.consensus",
}
MANAGED = {"driver.files", "driver.packages", "driver.held", "driver.modules", "driver.nouveau"}


def excused(plan: Document, snapshot: Document) -> dict[str, str]:
    """The declarations that excuse driver's checks, by check, without those of some sites."""
    return {
        check["id"]: check["cause"]
        for check in judge.judge(plan, snapshot)["checks"]
        if check["verdict"] == "NOT-DECLARED"
        and check["id"].startswith(("driver.", "gpu."))
        and check["id"] not in OF_SITES
    }


def test_without_a_gpu_only_what_needs_a_card_is_excused(
    plan: Document, snapshot: Document
) -> None:
    with_driver(plan, snapshot)
    found = excused(plan, snapshot)
    assert {name for name, why in found.items() if why == "gpu_expect: {count: 0}"} == OF_A_CARD
    assert found.pop("gpu.mig") == "gpu_mig: not set"
    assert MANAGED.isdisjoint(found)
    plan["driver"]["mig"] = {"all": []}
    assert excused(plan, snapshot)["gpu.mig"] == "gpu_expect: {count: 0}"


def test_of_a_driver_that_is_not_managed_nothing_of_packages_is_demanded(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    plan["driver"].update(managed=False, source=None, branch=None, module=None)
    assert excused(plan, snapshot) == dict.fromkeys(
        {*MANAGED, "driver.persistence", "driver.secure-boot", "driver.pending"},
        "gpu_driver: not set",
    )


def test_a_preinstalled_driver_is_checked_for_every_kernel_and_never_touched(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    plan["driver"].update(managed=False, source="preinstalled", branch=None, module=None)
    assert excused(plan, snapshot) == dict.fromkeys(
        {
            *MANAGED - {"driver.modules"},
            "driver.persistence",
            "driver.secure-boot",
            "driver.pending",
        },
        "gpu_driver: {source: preinstalled}",
    )
    later_kernel(snapshot)
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["driver.modules"]["verdict"] == "FAIL"
    assert "whoever installs the driver of gpu01" in found["driver.modules"]["remedy"]
    for row in data(snapshot, "kernel")["installed"]:
        row["modules"] = []
    assert verdicts(plan, snapshot)["driver.modules"] == "INCONCLUSIVE"


def test_a_runfile_s_driver_is_held_by_nobody(plan: Document, snapshot: Document) -> None:
    with_driver(plan, snapshot)
    plan["driver"]["source"] = "runfile"
    data(snapshot, "packages").update(driver=[], pins=[])
    data(snapshot, "receipts")["receipts"][-1].update(packages={}, source="runfile")
    found = verdicts(plan, snapshot)
    assert (found["driver.packages"], found["driver.modules"]) == ("PASS", "PASS")
    assert excused(plan, snapshot)["driver.held"] == "gpu_driver: {source: runfile}"


def test_persistence_may_be_declared_away(plan: Document, snapshot: Document) -> None:
    with_cards(plan, snapshot)
    plan["driver"]["persistence"] = False
    assert excused(plan, snapshot) == {"driver.persistence": "gpu_driver: {persistence: false}"}


@pytest.mark.parametrize("section", ["kernel", "driver", "packages", "gpus"])
def test_a_section_that_hung_never_makes_the_driver_healthy(
    plan: Document, snapshot: Document, section: str
) -> None:
    with_cards(plan, snapshot)
    readers = {
        name
        for name, check in CHECKS.items()
        if section in check.reads and not check.skip_reason(plan)
    }
    snapshot["sections"][section] = {
        "state": "hung",
        "seconds": 20,
        "error": "no answer within 20 s",
        "data": None,
    }
    found = verdicts(plan, snapshot)
    assert {name for name, verdict in found.items() if verdict == "HUNG"} == {
        "host.probe",
        *readers,
    }


def test_a_fabric_manager_of_a_driver_that_nobody_declares_runs_where_a_switch_is(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    plan["driver"] = None
    running = {
        "unit": "nvidia-fabricmanager.service",
        "enabled": True,
        "active": True,
        "version": DRIVER,
    }
    data(snapshot, "driver")["fabric"] = running
    # A fabric manager that runs has found NVSwitches, whether or not the probe sees them.
    assert verdicts(plan, snapshot)["driver.fabric"] == "PASS"
    data(snapshot, "gpus")["nvswitches"] = ["0000:07:00.0"]
    assert verdicts(plan, snapshot)["driver.fabric"] == "PASS"
    running["active"] = False
    assert verdicts(plan, snapshot)["driver.fabric"] == "FAIL"


def hgx_b200(plan: Document, snapshot: Document, device: str = "0x2901") -> Document:
    """Only gpu_expect is declared; the NVSwitches of these GPUs are on no PCI bus."""
    with_cards(plan, snapshot)
    plan["driver"] = None
    for each in data(snapshot, "gpus")["pci"]:
        each["device"] = device
    driver: Document = data(snapshot, "driver")
    driver.update(
        nvlsm={"program": "/opt/nvidia/nvlsm/sbin/nvlsm", "running": True},
        fabric={
            "unit": "nvidia-fabricmanager.service",
            "enabled": True,
            "active": True,
            "version": DRIVER,
        },
    )
    return driver


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ("PASS", "", "")),
        ({"fabric": {"active": False}}, ("FAIL", "does not run", "systemctl status")),
        (
            {"fabric": {"unit": None, "enabled": None, "active": None}},
            ("FAIL", "is not installed", ""),
        ),
        (
            {"nvlsm": {"running": False}},
            ("INCONCLUSIVE", "nvlsm), by which the fabric manager reaches", "ib_umad"),
        ),
        (
            {"nvlsm": {"running": False}, "cuinit": 802},
            ("FAIL", "does not run", "end all programs on the GPUs"),
        ),
        (
            {"nvlsm": {"running": False, "program": None}, "cuinit": 802},
            ("FAIL", "is not installed", "install the package nvlsm"),
        ),
        ({"nvlsm": {"running": None}}, ("INCONCLUSIVE", "unknown", "snapshot")),
        ({"nvlsm": None}, ("INCONCLUSIVE", "unknown", "snapshot")),
    ],
)
def test_the_fabric_of_an_hgx_b200_needs_its_manager_and_the_subnet_manager(
    plan: Document, snapshot: Document, change: Document, expected: tuple[str, str, str]
) -> None:
    """The manager that runs and is needed failed, with the remedy to disable it."""
    driver = hgx_b200(plan, snapshot)
    for key, values in change.items():
        driver[key] = {**driver[key], **values} if isinstance(values, dict) else values
    if driver["nvlsm"] is None:
        del driver["nvlsm"]
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}["driver.fabric"]
    verdict, cause, remedy = expected
    assert (found["verdict"], cause in found["cause"], remedy in found["remedy"]) == (
        verdict,
        True,
        True,
    )
    assert "disable" not in found["remedy"]


def test_a_guest_whose_fabric_the_machine_below_manages_needs_no_manager(
    plan: Document, snapshot: Document
) -> None:
    driver = hgx_b200(plan, snapshot)
    driver["fabric"] = {"unit": None, "enabled": None, "active": None, "version": None}
    data(snapshot, "gpus")["hypervisor"] = True
    assert verdicts(plan, snapshot)["driver.fabric"] == "PASS"
    driver["cuinit"] = 802
    assert verdicts(plan, snapshot)["driver.fabric"] == "FAIL"


STOPPED = {"unit": "nvidia-fabricmanager.service", "enabled": True, "active": False}


@pytest.mark.parametrize(
    ("guest", "verdict"),
    [
        ({}, "PASS"),
        ({"enabled": False}, "PASS"),
        ({"cards": 2, "enabled": False}, "PASS"),
        # The guest may have the whole board, and its fabric manager failed after CUDA started.
        ({"cards": 2}, "FAIL"),
        ({"cuinit": 802}, "FAIL"),
        ({"hypervisor": False}, "FAIL"),
        ({"hypervisor": None}, "FAIL"),
    ],
)
def test_a_fabric_manager_that_a_guest_does_not_use_may_be_stopped(
    plan: Document, snapshot: Document, guest: Document, verdict: str
) -> None:
    driver = hgx_b200(plan, snapshot)
    driver["fabric"] = {**STOPPED, "enabled": guest.get("enabled", True), "version": DRIVER}
    driver["cuinit"] = guest.get("cuinit", 0)
    gpus = data(snapshot, "gpus")
    gpus["hypervisor"] = guest.get("hypervisor", True)
    del gpus["pci"][guest.get("cards", 1) :]
    assert verdicts(plan, snapshot)["driver.fabric"] == verdict


@pytest.mark.parametrize(
    ("driver", "cuinit", "verdict"),
    [
        (None, 0, "PASS"),
        ({"managed": False, "source": "preinstalled"}, 0, "PASS"),
        (None, 802, "FAIL"),
        ({"managed": True}, 0, "FAIL"),
    ],
)
def test_an_image_may_have_a_fabric_manager_that_its_machine_does_not_use(
    plan: Document, snapshot: Document, driver: Document | None, cuinit: int, verdict: str
) -> None:
    with_cards(plan, snapshot)
    plan["driver"] = {**plan["driver"], **driver} if driver else None
    data(snapshot, "driver").update(fabric={**STOPPED, "version": DRIVER}, cuinit=cuinit)
    assert verdicts(plan, snapshot)["driver.fabric"] == verdict


def test_a_compute_tray_of_a_rack_has_its_fabric_manager_elsewhere(
    plan: Document, snapshot: Document
) -> None:
    driver = hgx_b200(plan, snapshot, "0x2941")
    driver["fabric"]["active"] = False
    assert verdicts(plan, snapshot)["driver.fabric"] == "PASS"


@pytest.mark.parametrize("count", [None, 2])
def test_a_check_uses_no_section_that_it_does_not_name(
    plan: Document, snapshot: Document, count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cards(plan, snapshot)
    plan["expect"]["count"] = count
    data(snapshot, "gpus")["nvswitches"] = ["0000:07:00.0"]
    used: set[str] = set()
    found = Host.section

    def reported(host: Host, name: str) -> Document | None:
        used.add(name)
        return found(host, name)

    monkeypatch.setattr(Host, "section", reported)
    for check in CHECKS.values():
        used.clear()
        if not check.skip_reason(plan):
            list(check.function(plan, Sections(snapshot, check.reads)))
        assert used <= {*check.reads}, check.id


def test_a_driver_begun_and_not_finished_is_named(plan: Document, snapshot: Document) -> None:
    with_driver(plan, snapshot)
    data(snapshot, "receipts")["journal"] = [
        {
            "schema": 1,
            "kind": "driver",
            "id": "driver",
            "path": "/",
            "version": "550.163.01",
            "state": "installing",
            "fresh": False,
            "started": "now",
        }
    ]
    remedies = {}
    for managed in (True, False):
        plan["driver"]["managed"] = managed
        found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
        remedies[managed] = found["install.complete"]["remedy"]
    assert remedies[True].startswith(PROVISION)
    assert remedies[False].startswith("restore gpu_driver; then")
