"""A pending restart is named, with its reason, its age and what to do; also one in vain."""

from __future__ import annotations

import pytest

from gpufleet.judge import judge
from tests.support.healthy_host import Document, data
from tests.support.host_parts import with_gpus

OLD, NEW = "535.261.03", "550.163.01"
HELD = {"pid": 77, "user": "ada", "command": "python", "nodes": ["/dev/nvidia0"]}
MARKER = {"schema": 1, "boot_id": "boot-1", "because": f"driver {NEW} is being installed",
          "since": "2026-11-20T12:00:00Z", "tried": False, "failed": None}  # fmt: skip
TRIED = {**MARKER, "tried": True}
REFUSED = {"boot_id": "boot-2", "said": "could not insert 'nvidia': Key was rejected by service"}


def judged(
    plan: Document, snapshot: Document, policy: str = "auto", boot: str = "boot-1", **driver: object
) -> Document:
    """driver.pending of a host with GPUs whose driver is managed."""
    with_gpus(plan, snapshot)
    plan["driver"] = {**(plan["driver"] or {}), "managed": True, "reboot": policy}
    data(snapshot, "kernel").update(boot_id=boot, next_boot="6.1", running="6.1", installed=[])
    data(snapshot, "driver").update(
        {"loaded": NEW, "on_disk": NEW, "library": NEW, "holders": [], "reboot_pending": None,
         **driver})  # fmt: skip
    checks: list[Document] = judge.judge(plan, snapshot)["checks"]
    return next(check for check in checks if check["id"] == "driver.pending")


@pytest.mark.parametrize("marker", [None, MARKER])
def test_a_driver_that_runs_as_installed_passes(
    plan: Document, snapshot: Document, marker: Document | None
) -> None:
    assert judged(plan, snapshot, reboot_pending=marker)["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("policy", "boot_id", "driver", "cause", "remedy"),
    [
        ("auto", "boot-1", {"loaded": OLD}, "modules must be reloaded", "provision"),
        (
            "auto", "boot-1", {"loaded": OLD, "holders": [HELD], "reboot_pending": MARKER},
            f"A reboot for the driver is pending, since 2026-11-20T12:00:00Z: driver {NEW} is being"
            f" installed. The loaded kernel module is {OLD}, on disk is {NEW}, the libraries are"
            f" {NEW}; the GPU is held by python (pid 77 of ada)", "--limit gpu01 (it reboots)",
        ),
        (
            "never", "boot-1", {"loaded": OLD, "holders": [HELD], "reboot_pending": MARKER},
            "provisioning does not reboot, since 2026-11-20T12:00:00Z",
            "reboot gpu01 at a suitable time",
        ),
        (
            "auto", "boot-2", {"loaded": None, "reboot_pending": {**TRIED, "failed": REFUSED}},
            "and no other restart is tried, since 2026-11-20T12:00:00Z",
            "fix that, and reboot gpu01 yourself",
        ),
        (
            "auto", "boot-2", {"loaded": None, "reboot_pending": {**TRIED, "failed": REFUSED}},
            "Key was rejected by service", "journalctl -k",
        ),
    ],
)  # fmt: skip
def test_a_restart_is_named(
    plan: Document, snapshot: Document, *, policy: str, boot_id: str, driver: Document, cause: str,
    remedy: str,
) -> None:  # fmt: skip
    found = judged(plan, snapshot, policy, boot_id, **driver)
    assert found["verdict"] == "FAIL"
    assert cause in found["cause"]
    assert remedy in found["remedy"]


def test_what_no_restart_repairs_is_left_to_other_checks(
    plan: Document, snapshot: Document
) -> None:
    found = judged(plan, snapshot, library=None)
    assert found["verdict"] == "PASS"
    assert "no restart fixes that" in found["evidence"]


def test_a_driver_that_is_not_managed_is_nobody_s_to_restart(
    plan: Document, snapshot: Document
) -> None:
    judged(plan, snapshot, loaded=OLD)
    plan["driver"]["managed"] = False
    checks = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert checks["driver.pending"]["verdict"] == "NOT-DECLARED"
