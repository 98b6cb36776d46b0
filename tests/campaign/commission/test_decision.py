"""The meaning of verdicts for a stage, and the part of a host that is at fault."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.campaign.commission import attempts
from gpufleet.campaign.commission.decision import (
    Decision,
    burned,
    decided,
    faulty_parts,
    reason,
    wrong_moments,
)
from gpufleet.campaign.commission.identity import parts_of
from gpufleet.campaign.commission.stages import BURN, PREFLIGHT, VERIFY
from gpufleet.components.base.machine import manifest_of
from gpufleet.components.driver.restart_checks import PENDING
from gpufleet.documents.validator import section_data
from gpufleet.documents.verdict import Verdict
from gpufleet.fleet.session import HostRun
from gpufleet.judge import judge
from gpufleet.report.certificate_page import named
from tests.support.healthy_host import Document, data, document, with_cards
from tests.support.nightly_sessions import fabric_test, group_test


@pytest.fixture
def host() -> tuple[Document, Document]:
    """A whole host with two GPUs."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    plan["stacks"] = []
    with_cards(plan, snapshot, 2)
    return plan, snapshot


def decision(stage: Any, host: tuple[Document, Document]) -> Any:
    return decided(stage, judge.judge(*host))  # type: ignore[arg-type]


def checks(found: Any) -> list[str]:
    return [each["check"] for each in found.reasons]


@pytest.mark.parametrize("stage", [PREFLIGHT, VERIFY, BURN])
def test_a_whole_host_passes(stage: Any, host: tuple[Document, Document]) -> None:
    found = decision(stage, host)
    assert (found.outcome, found.reasons) == ("passed", [])


def test_a_slow_card_fails_and_the_preflight_does_not_judge_it(
    host: tuple[Document, Document],
) -> None:
    data(host[1], "compute")["runs"][0]["cublas"][1]["tflops"] = 11.2
    found = decision(VERIFY, host)
    assert (found.outcome, checks(found)) == ("failed", ["gpu.throughput"])
    assert decision(PREFLIGHT, host).outcome == "passed"


def test_a_load_that_was_not_run_is_not_judged(host: tuple[Document, Document]) -> None:
    data(host[1], "compute")["deep"] = False
    found = decision(BURN, host)
    assert found.outcome == "not-judged"
    assert checks(found) == ["gpu.sustained", "gpu.bandwidth"]
    assert "was not run" in found.reasons[0]["cause"]


def test_a_host_without_a_declared_gpu_proves_nothing() -> None:
    found = decision(VERIFY, (document("plan.json"), document("snapshot.json")))
    assert found.outcome == "not-judged"
    assert set(checks(found)) == set(VERIFY.required)


def test_an_unreachable_host_is_not_judged_in_any_stage() -> None:
    result = judge.unreachable("No route to host", "see the cable")
    for stage in (PREFLIGHT, VERIFY, BURN):
        found = decided(stage, result)
        assert found.outcome == "not-judged"
        assert checks(found) == ["host.reachable"]


@pytest.mark.parametrize(
    "change", [{"seconds": 119.0}, {"checked": 0}, {"gpu": 7}, {"seconds": None}]
)
def test_a_burn_in_is_of_every_gpu_and_of_all_its_time(
    host: tuple[Document, Document], change: Document
) -> None:
    snapshot: Any = host[1]
    entries = data(snapshot, "compute")["runs"][0]["sustained"]
    for entry in entries:
        entry["seconds"] = 120.0
    assert burned(snapshot, 2, 120) == []
    entries[1].update(change)
    [why] = burned(snapshot, 2, 120)
    assert why["cause"] == "GPU 1 did not compute for 120 s"
    assert why["verdict"] == "INCONCLUSIVE"


def test_no_load_at_all_is_no_burn_in() -> None:
    assert burned(None, 1, 60)
    assert burned(document("snapshot.json"), 1, 60)  # type: ignore[arg-type]


def test_the_moment_of_the_first_wrong_product_is_named() -> None:
    sample = {"temperature_c": 71, "clock_sm_mhz": 1755}
    entries: Any = [
        {"gpu": 0, "samples": [{**sample, "at_s": 1.0}, {**sample, "at_s": 2.0, "wrong": 0}]},
        {
            "gpu": 1,
            "samples": [{**sample, "at_s": at, "wrong": int(at > 5)} for at in (5.0, 10.0, 15.0)],
        },
    ]
    assert wrong_moments(entries) == [
        "GPU 1: the first wrong product was computed between 5 s and 10 s of the load"
        " (71 degrees, 1755 MHz)"
    ]


NO_SPACE = "No space is left in /tmp (3 MiB, 90 files)"
READ_ONLY = "/tmp cannot be written: the file system is read-only"


@pytest.mark.parametrize(
    ("check", "cause", "outcome"),
    [
        ("host.disk", NO_SPACE, "not-judged"),
        ("host.disk", f"{NO_SPACE}. {READ_ONLY}", "failed"),
        ("host.temporary", "/dev/shm is full: 0.5 of 64 MiB are free", "not-judged"),
        ("host.temporary", "/dev/shm is mounted read-only", "failed"),
        ("driver.pending", f"{PENDING['wait']}. 535.1 is installed", "not-judged"),
        ("driver.pending", f"{PENDING['reload']}. 535.1 is installed", "not-judged"),
        ("driver.pending", f"{PENDING['stuck']}. 535.1 is installed", "failed"),
    ],
)
def test_a_full_disk_and_a_pending_restart_refuse_no_host(
    check: str, cause: str, outcome: str
) -> None:
    found = Decision([failing(check, cause)])
    assert found.outcome == outcome
    found.reasons.append(failing("gpu.throughput", "GPU 0 is slow"))
    assert found.outcome == "failed"


# -- the part at fault -----------------------------------------------------------------------------


def blamed(host: tuple[Document, Document], *reasons: Any) -> list[tuple[str, list[str]]]:
    snapshot: Any = host[1]
    return [
        (entry["part"]["name"], [each["check"] for each in entry["reasons"]])
        for entry in faulty_parts(parts_of("gpu01", snapshot), reasons)
    ]


def failing(check: str, cause: str, verdict: Verdict = Verdict.FAIL) -> Any:
    return reason(check, verdict, cause, "replace it")


def test_a_card_is_named_by_its_number_uuid_or_address(host: tuple[Document, Document]) -> None:
    uuid = data(host[1], "smi")["devices"][1]["uuid"]
    address = data(host[1], "smi")["devices"][0]["address"]
    assert blamed(host, failing("gpu.sustained", "GPU 1 is slow")) == [("GPU 1", ["gpu.sustained"])]
    assert blamed(host, failing("kernel.log", f"Xid 79 of {address}: off the bus")) == [
        ("GPU 0", ["kernel.log"])
    ]
    assert blamed(
        host, failing("gpu.recovery", f"{uuid} needs a reset"), failing("gpu.pcie", "GPU 1: x8")
    ) == [("GPU 1", ["gpu.recovery", "gpu.pcie"])]


def test_an_adapter_is_named_by_its_device(host: tuple[Document, Document]) -> None:
    name = data(host[1], "network")["devices"][1]["name"]
    assert blamed(host, failing("network.ports", f"{name} port 1 is down")) == [
        (name, ["network.ports"])
    ]
    assert blamed(host, failing("network.ports", f"{name}0 port 1 is down")) == [
        ("gpu01", ["network.ports"])
    ]


def test_hardware_that_no_finding_names_is_the_host_and_software_is_no_part(
    host: tuple[Document, Document],
) -> None:
    assert blamed(host, failing("gpu.count", "1 of 2 cards is on the bus")) == [
        ("gpu01", ["gpu.count"])
    ]
    assert blamed(host, failing("toolkit.files", "bin/nvcc is missing")) == []
    assert blamed(host, failing("provision", "Ansible failed on this host")) == []
    assert blamed(host, failing("kernel.application-errors", "Xid 31 of GPU 0, by python")) == []
    # A limit that somebody has set on a card is no fault of the card.
    assert blamed(host, failing("gpu.settings", "GPU 0 has a limit of 300 W, declared 700")) == []


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("memory.modules", ["gpu01"]),
        ("bios", ["gpu01"]),
        ("network.adapters", ["gpu01"]),
        ("gpu.models", ["gpu01"]),
        ("cpu.microcode", []),
        ("kernel.release", []),
    ],
)
def test_a_manifest_whose_hardware_differs_blames_the_host(
    host: tuple[Document, Document], name: str, parts: list[str]
) -> None:
    """A host with a missing memory module was refused without a part, and without its serial."""
    plan, snapshot = host
    here = manifest_of(section_data(snapshot)).value(name)  # type: ignore[arg-type]
    assert here
    plan["manifest"] = {name: [f"{here}, 1 x another"]}
    [found] = [
        each
        for each in decided(PREFLIGHT, judge.judge(plan, snapshot)).reasons  # type: ignore[arg-type]
        if each["check"] == "host.manifest"
    ]
    assert blamed(host, found) == [(part, ["host.manifest"]) for part in parts]
    assert f"{name}, here: {here}" in found["evidence"]


def test_collectives_blame_the_host_and_show_the_rates(host: tuple[Document, Document]) -> None:
    slow = {"kind": "member", "hosts": ["gpu01"], "rails": [0], "statement": "gpu01 is slow"}
    test = {**group_test(1, "slow", 210.0, "gpu01", "gpu02"), "least_gb_per_s": 342.0}
    found = attempts.blamed_hosts(fabric_test(1, "all", test, culprits=[slow]))["gpu01"]
    assert blamed(host, found) == [("gpu01", ["collectives"])]
    assert found["evidence"].splitlines()[0] == (
        "test 1, round 1, gpu01, gpu02: slow, 210 GB/s (at least 342)"
    )


def test_collectives_blame_the_adapter_that_they_name(host: tuple[Document, Document]) -> None:
    name = data(host[1], "network")["devices"][1]["name"]
    found = failing("collectives", f"{name} of gpu01 is slow")
    assert blamed(host, found) == [(name, ["collectives"])]


def test_a_pair_blames_no_card_and_what_was_not_judged_blames_nobody(
    host: tuple[Document, Document],
) -> None:
    assert blamed(host, failing("gpu.sustained", "GPU 0 to GPU 1 is slow")) == [
        ("gpu01", ["gpu.sustained"])
    ]
    assert blamed(host, failing("gpu.sustained", "GPU 1 is busy", Verdict.INCONCLUSIVE)) == []


MODULE = {
    **{"bank": "P0_Node0_Channel1_Dimm0", "mib": 65536, "maker": "Samsung"},
    "part": "M321R8GA0BB0-CQKZJ",
}
UNCORRECTED = "EDAC MC0: 1 UE memory read error on {} (channel:1 slot:0 page:0x12 offset:0x0)"


def with_modules(snapshot: Document, *slots: str | None) -> None:
    data(snapshot, "os")["hardware"] = {
        **dict.fromkeys(("vendor", "product", "serial", "serial_board", "firmware")),
        "modules": [
            {**MODULE, "slot": slot, "serial": f"80CE0123{at:02}"} for at, slot in enumerate(slots)
        ],
        "drives": [],
    }


@pytest.mark.parametrize(
    ("named", "parts"),
    [
        ("DIMM_B1", ["DIMM_B1"]),
        # The kernel's own numbering says nothing of slots.
        ("CPU_SrcID#0_MC#0_Chan#1_DIMM#0", ["gpu01"]),
        ("DIMM_B10", ["gpu01"]),
        # Two slots have this name.
        ("DIMM_C1", ["gpu01"]),
    ],
)
def test_a_memory_module_is_named_by_its_slot(
    host: tuple[Document, Document], named: str, parts: list[str]
) -> None:
    with_modules(host[1], "DIMM_A1", "DIMM_B1", "DIMM_C1", "DIMM_C1", "0")
    found = failing("kernel.log", "The machine had an uncorrectable memory or processor error")
    found["evidence"] = UNCORRECTED.format(named)
    assert [name for name, _ in blamed(host, found)] == parts


def test_a_memory_module_has_its_serial_number_and_its_slot(
    host: tuple[Document, Document],
) -> None:
    with_modules(host[1], "DIMM_A1", None)
    snapshot: Any = host[1]
    parts = [part for part in parts_of("gpu01", snapshot) if part["kind"] == "module"]
    assert parts[0] == {
        "kind": "module",
        "name": "DIMM_A1",
        "model": "Samsung M321R8GA0BB0-CQKZJ",
        "serial": "80CE012300",
        "id": None,
        "slot": "DIMM_A1, P0_Node0_Channel1_Dimm0",
        "firmware": None,
    }
    assert [part["name"] for part in parts] == ["DIMM_A1", "memory module 1"]


def test_parts_have_what_a_vendor_asks_for(host: tuple[Document, Document]) -> None:
    snapshot: Any = host[1]
    data(snapshot, "smi")["devices"][1]["elements"] = {
        "serial": "1650023000101",
        "vbios_version": "96.00.74.00.01",
    }
    parts = {part["name"]: part for part in parts_of("gpu01", snapshot)}
    assert parts["GPU 1"] == {
        "kind": "gpu",
        "name": "GPU 1",
        "model": data(snapshot, "smi")["devices"][1]["name"],
        "serial": "1650023000101",
        "id": data(snapshot, "smi")["devices"][1]["uuid"],
        "slot": "0000:01:00.0, below 0000:81:01.0",
        "firmware": "96.00.74.00.01",
    }
    assert [part["kind"] for part in parts_of("gpu01", snapshot)] == [
        "host",
        "gpu",
        "gpu",
        "adapter",
        "adapter",
    ]
    assert [part["kind"] for part in parts_of("gpu01", None)] == ["host"]


def test_a_host_that_drops_off_while_ansible_runs_is_not_judged(
    host: tuple[Document, Document],
) -> None:
    plan: Any = host[0]
    gone = HostRun("gpu01", None, plan, judge.unreachable("no answer", "see ssh"))
    found = Decision(attempts.unprovisioned(gone, failed=True))
    assert (found.outcome, checks(found)) == ("not-judged", ["host.reachable"])
    whole = HostRun("gpu01", host[1], plan, judge.judge(*host))  # type: ignore[arg-type]
    # Nor is one on which Ansible fails: its mirror may not answer.
    assert Decision(attempts.unprovisioned(whole, failed=True)).outcome == "not-judged"


def test_a_host_without_a_serial_number_is_named_as_a_whole() -> None:
    [host] = parts_of("gpu01", None)
    assert named(host) == "the whole host gpu01, which reports no serial number"
    assert named({**host, "serial": "A2612345"}) == "the whole host gpu01, serial number A2612345"
    card = {**host, "kind": "gpu", "name": "GPU 3", "serial": "1650023"}
    assert named(card) == "GPU 3, serial number 1650023"
