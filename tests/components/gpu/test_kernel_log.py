"""The kernel's log against what the driver and the probe's own work say of the cards now."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.catalog import facts
from gpufleet.components.checks import CHECKS, Finding, Sections
from gpufleet.documents.verdict import Verdict
from gpufleet.judge import judge
from tests.support.healthy_host import Document, data, verdicts, with_cards
from tests.support.host_parts import event

CARD = "0000:00:00.0"
NONE = {"gpu_recovery_action": "None"}


def result(plan: Document, snapshot: Document) -> dict[str, Any]:
    found: dict[str, Any] = next(
        check for check in judge.judge(plan, snapshot)["checks"] if check["id"] == "kernel.log"
    )
    return found


def printed(snapshot: Document, driver: str, elements: dict[str, str]) -> None:
    """The driver's version, and what nvidia-smi prints of each card."""
    data(snapshot, "driver")["loaded"] = driver
    for name in ("smi", "smi_after"):
        data(snapshot, name)["driver_version"] = driver
        for each in data(snapshot, name)["devices"]:
            each["elements"] = {**each.get("elements", {}), **elements}


def not_computed(snapshot: Document) -> None:
    data(snapshot, "compute")["runs"] = []


def wrong(snapshot: Document) -> None:
    data(snapshot, "compute")["runs"][0]["cublas"][0]["wrong"] = 3


def test_a_card_that_was_reset_since_needs_nothing_more(plan: Document, snapshot: Document) -> None:
    with_cards(plan, snapshot)
    not_computed(snapshot)
    event(snapshot, "xid", code=95, address="0000:00:00.0", text="NVRM: Xid: 95, uncontained")
    assert verdicts(plan, snapshot)["kernel.log"] == "FAIL"
    event(
        snapshot,
        "xid",
        code=154,
        address="0000:00:00.0",
        uptime_s=900.0,
        text="NVRM: Xid: 154, GPU recovery action changed from 0x1 (GPU Reset) to 0x0 (None)",
    )
    assert verdicts(plan, snapshot)["kernel.log"] == "PASS"
    event(
        snapshot,
        "xid",
        code=79,
        address="0000:00:00.0",
        uptime_s=1000.0,
        text="NVRM: Xid: 79, fallen off the bus",
    )
    assert verdicts(plan, snapshot)["kernel.log"] == "FAIL"


def test_what_programs_did_is_reported_with_their_names(plan: Document, snapshot: Document) -> None:
    with_cards(plan, snapshot)
    event(snapshot, "xid", code=31, address="0000:00:00.0", pid=4567, process="python", count=3)
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}
    reported = found["kernel.application-errors"]
    assert (reported["verdict"], reported["evidence"]) == (
        "PASS",
        "Xid 31 of 0000:00:00.0, 3 times, last by python 4567: a program touched memory"
        " that is not its own",
    )


# -- what was cleared since ------------------------------------------------------------------------


NOW = [
    # The driver prints what it asks for, and would ask for more after these.
    ("570.124.06", NONE, 95, "PASS"),
    ("570.124.06", NONE, 79, "PASS"),
    ("570.124.06", NONE, 109, "PASS"),
    ("570.124.06", NONE, 154, "PASS"),
    # It would not after these, or is of a branch that does not.
    ("570.124.06", NONE, 119, "INCONCLUSIVE"),
    ("560.35.03", NONE, 109, "INCONCLUSIVE"),
    # It asks for something, or prints nothing of it.
    ("570.124.06", {"gpu_recovery_action": "Reset"}, 95, "FAIL"),
    ("570.124.06", {"gpu_recovery_action": "Unknown Error"}, 95, "FAIL"),
    ("535.261.03", {"gpu_reset_status/reset_required": "Yes"}, 95, "FAIL"),
    ("535.261.03", {"gpu_reset_status/reset_required": "No"}, 95, "INCONCLUSIVE"),
    ("535.261.03", {}, 62, "INCONCLUSIVE"),
    ("570.124.06", {}, 154, "FAIL"),
]


@pytest.mark.parametrize("now", NOW)
def test_a_reset_that_the_log_does_not_show_is_seen_in_the_card(
    plan: Document, snapshot: Document, now: tuple[str, dict[str, str], int, str]
) -> None:
    """A card kept its failure until the next boot, though the remedy was done."""
    driver, elements, code, verdict = now
    with_cards(plan, snapshot)
    printed(snapshot, driver, elements)
    event(snapshot, "xid", code=code, address=CARD, text="changed from 0x0 (None) to 0x1 (PF FLR)")
    found = result(plan, snapshot)
    assert found["verdict"] == verdict
    assert f"Xid {code} of {CARD}" in found["evidence" if verdict == "PASS" else "cause"]
    assert bool(found["remedy"]) is (verdict != "PASS")


@pytest.mark.parametrize("elements", [NONE, {}])
def test_nothing_is_cleared_on_a_card_that_computes_wrong(
    plan: Document, snapshot: Document, elements: dict[str, str]
) -> None:
    with_cards(plan, snapshot)
    printed(snapshot, "570.124.06", elements)
    wrong(snapshot)
    event(snapshot, "xid", code=95, address=CARD)
    assert result(plan, snapshot)["verdict"] == "FAIL"


@pytest.mark.parametrize(("elements", "verdict"), [(NONE, "INCONCLUSIVE"), ({}, "FAIL")])
def test_nothing_is_cleared_on_a_card_that_did_not_compute(
    plan: Document, snapshot: Document, elements: dict[str, str], verdict: str
) -> None:
    with_cards(plan, snapshot)
    printed(snapshot, "570.124.06", elements)
    not_computed(snapshot)
    event(snapshot, "xid", code=95, address=CARD)
    assert result(plan, snapshot)["verdict"] == verdict


@pytest.mark.parametrize(
    "change",
    [
        {"ecc_uncorrected_volatile": 1},
        {"retired_pending": True},
        {"remap": {"pending": True, "failure": False, "correctable": 0, "uncorrectable": 1}},
    ],
)
def test_nothing_is_cleared_on_a_card_whose_counters_are_not_clean(
    plan: Document, snapshot: Document, change: dict[str, Any]
) -> None:
    with_cards(plan, snapshot)
    printed(snapshot, "570.124.06", NONE)
    for name in ("smi", "smi_after"):
        data(snapshot, name)["devices"][0].update(change)
    event(snapshot, "xid", code=48, address=CARD)
    assert result(plan, snapshot)["verdict"] == "FAIL"


def test_what_happens_while_the_probe_runs_is_never_cleared(
    plan: Document, snapshot: Document
) -> None:
    """An error that the probe's own load provoked came after the driver was asked."""
    with_cards(plan, snapshot)
    printed(snapshot, "570.124.06", NONE)
    event(snapshot, "xid", code=48, address=CARD)
    data(snapshot, "kernel_log_after")["events"] = data(snapshot, "kernel_log")["events"]
    data(snapshot, "kernel_log")["events"] = []
    found = verdicts(plan, snapshot)
    assert (found["kernel.log"], found["kernel.after-load"]) == ("PASS", "FAIL")


def test_of_texts_that_ask_for_different_things_only_the_new_one_is_of_the_load(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    for at, uptime in ((1, 200.0), (2, 100.0), (1, 300.0)):
        event(snapshot, "xid", code=74, address=CARD, uptime_s=uptime, text=f"text {at}")
    events = data(snapshot, "kernel_log")["events"]
    data(snapshot, "kernel_log_after")["events"] = [{**events.pop(), "count": 3}, events[1]]
    found = {row["id"]: row for row in judge.judge(plan, snapshot)["checks"]}["kernel.after-load"]
    assert (found["verdict"], found["evidence"]) == ("FAIL", "text 1")
    assert "(2 times)" in found["cause"]


def test_another_card_is_no_evidence(plan: Document, snapshot: Document) -> None:
    with_cards(plan, snapshot)
    printed(snapshot, "570.124.06", NONE)
    event(snapshot, "xid", code=48, address="0000:99:00.0")
    assert result(plan, snapshot)["verdict"] == "FAIL"


def test_the_remedy_is_what_the_driver_asks_for(plan: Document, snapshot: Document) -> None:
    with_cards(plan, snapshot)
    not_computed(snapshot)
    for code, text in ((48, "what"), (154, "changed from 0x0 (None) to 0x2 (OS Reboot)")):
        event(snapshot, "xid", code=code, address=CARD, text=text)
    found = result(plan, snapshot)
    assert "power it off and on" in found["remedy"]
    assert "--gpu-reset" not in found["remedy"]


# -- every number ----------------------------------------------------------------------------------


def test_every_number_fails_unjudges_or_is_reported(plan: Document, snapshot: Document) -> None:
    """Each number that was not in a table of 27 passed."""
    with_cards(plan, snapshot)
    not_computed(snapshot)
    seen = set()
    for code in [*facts.document("xids/codes.yml")["xids"], 177]:
        data(snapshot, "kernel_log")["events"] = []
        event(snapshot, "xid", code=code, address=CARD, text=f"): {code}, what")
        log, programs = (
            [
                item
                for item in CHECKS[name].function(plan, Sections(snapshot, CHECKS[name].reads))
                if f"Xid {code} of {CARD}"
                in (item.cause if isinstance(item, Finding) else item.evidence)
            ]
            for name in ("kernel.log", "kernel.application-errors")
        )
        (reported,) = [*log, *programs]
        if isinstance(reported, Finding):
            assert reported.remedy
            assert "seat" not in reported.remedy or "your own machine" in reported.remedy, code
            assert CARD in reported.about[0]
        seen.add(reported.verdict if isinstance(reported, Finding) else Verdict.PASS)
    assert seen == {Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE}


@pytest.mark.parametrize("code", [13, 32, 45, 94])
def test_a_storm_of_what_needs_no_reset_drains_no_host(
    plan: Document, snapshot: Document, code: int
) -> None:
    """94 failed the host, and so drained it; a public storm was of 672 messages of 45."""
    with_cards(plan, snapshot)
    event(snapshot, "xid", code=code, address=CARD, count=672)
    assert verdicts(plan, snapshot)["kernel.log"] == "PASS"


# -- a log that has lost its beginning -------------------------------------------------------------

NO_COUNTERS = {"ecc_uncorrected_volatile": None, "retired_pending": None, "remap": None}


@pytest.mark.parametrize(
    ("elements", "change", "verdict"),
    [
        ({}, {}, "PASS"),
        (NONE, {}, "PASS"),
        ({"gpu_recovery_action": "Drain P2P"}, {}, "INCONCLUSIVE"),
        ({}, {"ecc_uncorrected_volatile": 2}, "INCONCLUSIVE"),
        ({}, {"unanswered": ["remap: GPU is lost"], "remap": None}, "INCONCLUSIVE"),
        # A card without counters computes right: that says nothing of what was lost.
        ({}, NO_COUNTERS, "INCONCLUSIVE"),
        (NONE, NO_COUNTERS, "PASS"),
    ],
)
def test_a_log_that_does_not_reach_the_boot_is_a_note_where_the_cards_are_clean(
    plan: Document,
    snapshot: Document,
    elements: dict[str, str],
    change: dict[str, Any],
    verdict: str,
) -> None:
    """A host with months of uptime was INCONCLUSIVE until its next boot."""
    with_cards(plan, snapshot)
    printed(snapshot, "570.124.06", elements)
    data(snapshot, "kernel_log")["complete"] = False
    for name in ("smi", "smi_after"):
        data(snapshot, name)["devices"][0].update(change)
    found = result(plan, snapshot)
    assert found["verdict"] == verdict
    assert "does not reach back to the boot" in found["evidence" if verdict == "PASS" else "cause"]


def test_a_lost_beginning_is_no_note_where_nothing_is_known_of_the_cards(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    data(snapshot, "kernel_log")["complete"] = False
    for name in ("smi", "smi_after"):
        data(snapshot, name)["devices"] = []
    not_computed(snapshot)
    assert result(plan, snapshot)["verdict"] == "INCONCLUSIVE"


def test_a_card_of_a_virtual_machine_is_no_evidence_against_a_lost_beginning(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    data(snapshot, "kernel_log")["complete"] = False
    data(snapshot, "gpus")["pci"][1]["driver"] = "vfio-pci"
    for name in ("smi", "smi_after"):
        data(snapshot, name)["devices"].pop()
    data(snapshot, "compute")["runs"][0]["cublas"].pop()
    assert result(plan, snapshot)["verdict"] == "PASS"


# -- messages that are no Xid ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("elements", "computed", "verdict"),
    [(NONE, True, "PASS"), ({}, True, "INCONCLUSIVE"), (NONE, False, "INCONCLUSIVE")],
)
def test_a_reset_that_the_driver_asked_for_was_done_where_each_card_needs_nothing(
    plan: Document, snapshot: Document, elements: dict[str, str], computed: bool, verdict: str
) -> None:
    with_cards(plan, snapshot)
    printed(snapshot, "570.124.06", elements)
    if not computed:
        not_computed(snapshot)
    event(snapshot, "driver-error")
    assert result(plan, snapshot)["verdict"] == verdict


def test_an_xid_that_is_logged_itself_counts_once(plan: Document, snapshot: Document) -> None:
    with_cards(plan, snapshot)
    event(snapshot, "xid", code=48, address=CARD)
    named = "NVRM: Xid (PCI:0000:00:00): 45, Ch 00000001 caused by previous Xid 48"
    event(snapshot, "xid", code=45, address=CARD, text=named)
    assert "Xid 45" not in result(plan, snapshot)["cause"]
    event(snapshot, "xid", code=45, address="0000:01:00.0", text=named)
    assert "Xid 45 of 0000:01:00.0" in result(plan, snapshot)["cause"]


@pytest.mark.parametrize(
    "reason", ["needs-open-module", "needs-proprietary-module", "no-memory-region"]
)
def test_a_card_whose_refusal_has_a_reason_has_one_remedy(
    plan: Document, snapshot: Document, reason: str
) -> None:
    """Seat and power were the remedy for a card that needs other modules."""
    with_cards(plan, snapshot)
    event(snapshot, "init-failed")
    event(snapshot, "init-failed", address=CARD)
    assert "seat" in result(plan, snapshot)["remedy"]
    event(snapshot, reason, address=CARD)
    assert result(plan, snapshot)["verdict"] == "FAIL"
    assert "initialise" not in result(plan, snapshot)["cause"]
    event(snapshot, "init-failed", address="0000:01:00.0")
    assert "could not initialise 0000:01:00.0" in result(plan, snapshot)["cause"]


def test_a_reason_of_a_card_of_a_virtual_machine_hides_no_failure(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    event(snapshot, "needs-open-module", address="0000:99:00.0")
    event(snapshot, "init-failed")
    assert "could not initialise an unnamed card" in result(plan, snapshot)["cause"]


def test_every_kind_of_message_has_sources() -> None:
    table = facts.document("kernel_log.yml")
    for kind, row in table["kinds"].items():
        assert set(row["source"]) <= set(table["sources"]), kind
        assert row["effect"] in {"fail", "inconclusive"}, kind


LEGACY = (
    "NVRM: The NVIDIA Tesla V100-SXM2-16GB GPU installed in this system is supported through the"
    " NVIDIA 580.xx Legacy drivers. Please visit http://www.nvidia.com/object/unix.html for more"
)


def branch_ended(snapshot: Document, version: str, *, loaded: bool = True) -> None:
    """Cards of Volta under a driver of that version."""
    for card in data(snapshot, "gpus")["pci"]:
        card |= {"device": "0x1db1", "driver": None}
    found = data(snapshot, "driver")
    found |= {"loaded": version if loaded else None, "on_disk": version, "library": version}
    found["cuinit"] = 100
    event(snapshot, "needs-older-branch", code=580, text=LEGACY)
    event(snapshot, "init-failed", text="NVRM: No NVIDIA GPU found.")


@pytest.mark.parametrize("loaded", [True, False])
def test_a_driver_whose_branch_ended_for_the_cards(
    plan: Document, snapshot: Document, loaded: bool
) -> None:
    with_cards(plan, snapshot)
    plan["driver"] = None
    branch_ended(snapshot, "595.58.03", loaded=loaded)
    rows = {row["id"]: row for row in judge.judge(plan, snapshot)["checks"]}
    assert "Driver branch 595 does not support Tesla V100" in rows["driver.loaded"]["cause"]
    assert "install driver branch 580" in rows["driver.loaded"]["remedy"]
    assert "Tesla V100-SXM2-16GB: branch 580 is the last" in rows["kernel.log"]["cause"]
    assert "seat" not in rows["kernel.log"]["remedy"]
    assert rows["kernel.log"]["explained_by"]


def test_an_old_display_card_beside_others_is_no_fault(plan: Document, snapshot: Document) -> None:
    with_cards(plan, snapshot)
    data(snapshot, "driver")["loaded"] = "595.58.03"
    old = {**data(snapshot, "gpus")["pci"][0], "address": "0000:99:00.0"}
    data(snapshot, "gpus")["pci"].append({**old, "device": "0x1db1", "driver": None})
    event(snapshot, "needs-older-branch", code=580, text=LEGACY)
    assert result(plan, snapshot)["verdict"] == "PASS"
