"""Restart: nothing, a reload, a reboot, or none of ours to do; and never a second reboot."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest

from gpufleet.components.base.host import Host
from gpufleet.components.changes import changes
from gpufleet.components.driver.restart_change import decide
from gpufleet.components.resolver import resolve
from tests.support.host_documents import section
from tests.support.restart_hosts import BEFORE, HELD, NEW, NOW, OLD, OURS, Row, host, marker, plan

DCGM = [{"pid": 5, "user": "root", "command": "nv-hostengine", "unit": "nvidia-dcgm.service"}]
MIG: Row = {**plan(), "driver": {**plan()["driver"], "mig": {"all": ["3g.40gb"]}}}


def mig_plan(reboot: str) -> Row:
    """The plan of a host with MIG and one value of gpu_driver_reboot."""
    return {**MIG, "driver": {**MIG["driver"], "reboot": reboot}}


def mig_host(mode: str, pending: str | None, holders: Sequence[Row] = DCGM, **driver: Any) -> Host:
    """A host whose GPU has one MIG mode, and another one from its next reset on."""
    document: Any = host(holders=list(holders), **driver).snapshot
    row = {"gpu": 0, "mode": mode, "pending": pending, "instances": []}
    document["sections"]["gpus"]["data"]["mig"] = [row]
    return Host(document)


CUT = {"modules": ["nvidia_peermem"], "services": ["nvidia-dcgm"]}
REFUSED = {"boot_id": NOW, "said": "No such device"}
ENGINE = [{"pid": 9, "user": "root", "command": "nv-hostengine", "unit": "docker-1.scope"}]
# {what it is: (plan, host, action, words of because)}
CASES: dict[str, tuple[Row, Host, str, str]] = {
    "right": (plan(), host(), "none", NEW),
    "right, a marker stands": (plan(), host(reboot_pending=marker()), "none", NEW),
    "right, and the kernel has no module any more": (plan(), host(on_disk=None), "none", NEW),
    "not managed": (plan(managed=False), host(loaded=OLD), "none", "not managed"),
    "declared without a GPU": (plan(0), host(None, cards=()), "none", "count: 0"),
    "nothing declared, no card": (plan(None), host(None, cards=()), "none", "PCI bus"),
    "nothing declared, all cards given away": (
        plan(None), host(None, cards=("vfio-pci", "vfio-pci")), "none", "virtual machines"),
    "nothing declared, one card given away": (
        plan(None), host(None, cards=("vfio-pci", None)), "reload", "not loaded"),
    "a card declared, all given away": (
        plan(), host(None, cards=("vfio-pci",)), "reload", "not loaded"),
    "nothing declared, a card": (plan(None), host(None), "reload", "not loaded"),
    "upgraded, nothing holds": (plan(), host(OLD), "reload", f"module is {OLD}, on disk is {NEW}"),
    "our daemons hold": (plan(), host(OLD, holders=OURS), "reload", OLD),
    "somebody holds": (plan(), host(OLD, holders=OURS + HELD), "reboot", "python (pid 77 of ada)"),
    "a driver's daemon in a container holds": (
        plan(), host(OLD, holders=ENGINE), "reboot", "nv-hostengine (pid 9 of root)"),
    "a driver's daemon in a container holds, never": (
        plan(reboot="never"), host(OLD, holders=ENGINE), "wait", "nv-hostengine (pid 9 of root)"),
    "not loaded": (plan(), host(None), "reload", "not loaded"),
    "not loaded, a reload failed": (
        plan(), host(None, reboot_pending=marker(failed=REFUSED)), "reboot", "No such device"),
    "a reload failed in another boot": (
        plan(), host(None, reboot_pending=marker(failed={**REFUSED, "boot_id": BEFORE})), "reload",
        "not loaded"),
    "nouveau holds the card": (plan(), host(None, cards=("nouveau",)), "reboot", "nouveau holds"),
    "nouveau is not kept away": (
        plan(), host(None, cards=("nouveau",), nouveau={"blacklisted": False}), "stuck",
        "nouveau is not blacklisted"),
    "nouveau is not kept away, and not there": (
        plan(), host(None, nouveau={"blacklisted": False}, holders=HELD), "reboot", "not loaded"),
    "only the next kernel has it": (
        plan(), host(None, None, next_boot="6.2"), "reboot", "not loaded"),
    "no kernel has it": (
        plan(), host(None, None, next_boot="6.2", next_module=None), "stuck",
        "kernel 6.2 has module none"),
    "the libraries alone were upgraded": (
        plan(), host(OLD, OLD, NEW), "stuck", f"has module {OLD}, the libraries are {NEW}"),
    "no libraries": (plan(), host(None, NEW, None), "stuck", "libraries are missing"),
    "a killed run had asked for a reboot": (
        plan(), host(OLD, holders=HELD, reboot_pending=marker(True)), "reboot", OLD),
    "rebooted, still held by nouveau": (
        plan(), host(None, cards=("nouveau",), reboot_pending=marker(True, BEFORE)), "stuck",
        "nouveau holds 0000:01:00.0, after the reboot"),
    "rebooted, not loaded by itself": (
        plan(), host(None, reboot_pending=marker(True, BEFORE)), "reload", "not loaded"),
    "rebooted, cannot be loaded": (
        plan(), host(None, reboot_pending=marker(True, BEFORE, REFUSED)), "stuck",
        "after the reboot that should have fixed it; loading it reports: No such device"),
    "rebooted by hand since": (
        plan(), host(None, reboot_pending=marker(False, BEFORE, REFUSED)), "reboot", "No such"),
    "a reload was killed": (
        plan(), host(reboot_pending={**marker(), "reload": {**CUT, "boot_id": NOW}}), "reload",
        "a reload of the kernel modules was interrupted"),
    "a reload was killed, and what it left cannot be loaded": (
        plan(),
        host(reboot_pending={**marker(failed=REFUSED), "reload": {**CUT, "boot_id": NOW}}),
        "reload", "loading it reports: No such device"),
    "a reload was killed in another boot": (
        plan(), host(reboot_pending={**marker(), "reload": {**CUT, "boot_id": BEFORE}}), "none",
        NEW),
    "a reload was killed while the modules went": (
        plan(), host(None, reboot_pending={**marker(), "reload": {**CUT, "boot_id": NOW}}),
        "reload", "not loaded"),
    "never, a reload would do": (plan(reboot="never"), host(OLD), "reload", OLD),
    "never, somebody holds": (
        plan(reboot="never"), host(OLD, holders=HELD), "wait", "gpu_driver_reboot: never"),
    "a declared MIG mode is pending": (
        MIG, mig_host("off", "on"), "reboot",
        "MIG mode of GPU 0 is pending until the GPU is reset; the GPU is held by nv-hostengine"),
    "a declared MIG mode is pending, and never": (
        mig_plan("never"), mig_host("off", "on"), "wait", "gpu_driver_reboot: never"),
    "a declared MIG mode is pending, and somebody uses a GPU": (
        MIG, mig_host("off", "on", DCGM + HELD), "wait",
        "a reboot would end python (pid 77 of ada)"),
    "a declared MIG mode is pending, and DCGM runs in a container": (
        MIG, mig_host("off", "on", ENGINE), "wait", "a reboot would end nv-hostengine (pid 9"),
    "a declared MIG mode is pending, somebody uses a GPU, always": (
        mig_plan("always"), mig_host("off", "on", HELD), "reboot", "python (pid 77 of ada)"),
    "a declared MIG mode is pending, somebody uses a GPU, and the driver was upgraded": (
        MIG, mig_host("off", "on", HELD, loaded=OLD), "reboot", OLD),
    "MIG is to be off, and that is pending": (
        {**MIG, "driver": {**MIG["driver"], "mig": {"0": []}}}, mig_host("on", "off"), "reboot",
        "MIG mode of GPU 0 is pending"),
    "a MIG mode that nobody declared is pending": (
        plan(), mig_host("off", "on"), "none", NEW),
    "another MIG mode than the declared one is pending": (
        MIG, mig_host("on", "off"), "none", NEW),
    "the declared MIG mode is applied": (MIG, mig_host("on", "on"), "none", NEW),
    "no MIG mode is known to be pending": (MIG, mig_host("off", None), "none", NEW),
    "rebooted, the MIG mode is still pending": (
        MIG, mig_host("off", "on", reboot_pending=marker(True, BEFORE)), "stuck",
        "after the reboot that should have fixed it"),
    "always, and it changed": (
        plan(reboot="always"), host(reboot_pending=marker()), "reboot", "is being installed"),
    "always, and it was rebooted": (
        plan(reboot="always"), host(reboot_pending=marker(True, BEFORE)), "none", NEW),
    "always, and nothing changed": (plan(reboot="always"), host(), "none", NEW),
    "always, without a GPU": (
        plan(0, "always"), host(None, cards=(), reboot_pending=marker()), "reboot", "is being"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_host_needs(case: str) -> None:
    given, seen, action, because = CASES[case]
    decision = decide(given, seen)
    assert decision["action"] == action, decision
    assert because in decision["because"]
    assert bool(decision["remedy"]) == (action != "none")


def test_a_mig_mode_that_a_reboot_did_not_apply_is_left_to_a_person_with_the_command() -> None:
    decision = decide(MIG, mig_host("off", "on", reboot_pending=marker(True, BEFORE)))
    assert "nvidia-smi --gpu-reset -i 0" in decision["remedy"]
    assert "modprobe" not in decision["remedy"]


def test_a_mig_mode_that_waits_for_a_job_is_left_to_a_person_with_both_ways() -> None:
    remedy = decide(MIG, mig_host("off", "on", HELD))["remedy"]
    assert remedy.startswith("end them, then ")
    assert remedy.endswith("; or reboot gpu01 at a suitable time")


def test_a_driver_that_does_not_run_comes_before_a_pending_mig_mode() -> None:
    document: Any = mig_host("off", "on", reboot_pending=marker(True, BEFORE)).snapshot
    document["sections"]["driver"]["data"].update(loaded=None, on_disk=None)
    decision = decide(MIG, Host(document))
    assert "not loaded" in decision["because"]
    assert "modprobe nvidia" in decision["remedy"]


@pytest.mark.parametrize("name", ["kernel", "gpus", "driver"])
def test_a_host_that_was_not_probed_is_not_rebooted(name: str) -> None:
    document: Any = host(OLD, holders=HELD).snapshot
    document["sections"][name] = {"state": "hung", "data": None, "error": "deadline"}
    decision = decide(plan(), Host(document))
    assert decision["action"] == "wait"
    assert f"the host's {name} could not be read" in decision["because"]


def test_the_host_that_ansible_runs_on_is_reloaded_and_never_rebooted() -> None:
    assert decide(plan(), host(OLD), control_node=True)["action"] == "reload"
    for policy in ("auto", "always"):
        decision = decide(plan(reboot=policy), host(OLD, holders=HELD), control_node=True)
        assert decision["action"] == "wait"
        assert "Ansible itself runs on this host" in decision["because"]


LATE, JOB = "nvidia-smi (pid 99 of root)", "python (pid 77 of ada)"


@pytest.mark.parametrize("reboot", ["auto", "never", "always"])
@pytest.mark.parametrize("holders", [(), HELD])
def test_a_holder_that_began_after_the_probe_is_named_and_no_reason_to_reboot(
    reboot: str, holders: Sequence[Row]
) -> None:
    decision = decide(plan(reboot=reboot), host(OLD, holders=list(holders)), held=[LATE])
    assert decision["action"] == "reload"
    assert decision["because"].endswith(f"; since the probe of this run the GPU is held by {LATE}")
    assert decision["remedy"].endswith("provision --limit gpu01")


@pytest.mark.parametrize(("reboot", "action"), [("auto", "reboot"), ("never", "wait")])
def test_a_holder_that_stays_is_one_for_which_a_reboot_is_needed(reboot: str, action: str) -> None:
    decision = decide(plan(reboot=reboot), host(OLD, holders=HELD + ENGINE), held=[LATE, JOB])
    assert decision["action"] == action
    assert f"; the GPU is held by {JOB}" in decision["because"]
    assert "pid 9 " not in decision["because"]


def test_a_holder_that_is_gone_leaves_a_reload() -> None:
    assert decide(plan(), host(OLD, holders=HELD), held=())["action"] == "reload"


@pytest.mark.parametrize(
    ("case", "row"),
    [
        ("right", False),
        ("right, a marker stands", True),
        ("not managed", False),
        ("upgraded, nothing holds", True),
        ("somebody holds", True),
        ("never, somebody holds", False),
        ("a reload was killed", True),
        ("rebooted, cannot be loaded", False),
        ("no kernel has it", False),
    ],
)
def test_a_host_that_needs_a_restart_is_not_left_alone(case: str, row: bool) -> None:
    given, seen, _, because = CASES[case]
    whole = {**resolve({}), **given, "driver": {**given["driver"], "source": "runfile"}}
    # All else of the driver is as it should be.
    document = deepcopy(dict(seen.snapshot or {}))
    section(document, "kernel")["container"] = "podman"
    section(document, "driver")["nouveau"] = {"blacklisted": True}
    section(document, "receipts")["receipts"] = [
        {"kind": "driver", "id": "driver", "version": NEW, "source": "runfile"}]  # fmt: skip
    rows = changes(whole, document)
    assert all(each["action"] == "restart" for each in rows)
    assert len(rows) == row
    for each in rows:
        assert (each["what"], each["id"]) == ("driver", "driver")
        assert because in each["because"]
