"""Cards, drivers and values that no table has: none of them is healthy for that reason alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gpufleet.catalog import facts, pci, smi
from gpufleet.documents.verdict import Verdict
from lab.gpus.smi_text import Texts
from tests.support import healthy_host, smi_corpus
from tests.support.smi_judged import GPU_CHECKS, SECOND, host_of_cards, judged, verdict

SAMPLES = list(smi_corpus.samples())
H100, GB200, L40S = "h100@580.105", "gb200@580.173", "l40s@595.91"
# A card of tomorrow: neither its id nor its name nor its architecture is in a table.
NEW: Texts = {
    "product_name": "NVIDIA R100",
    "product_architecture": "Rubin",
    "pci/pci_device_id": "3FFF10DE",
}


@pytest.fixture(scope="module")
def host() -> tuple[dict[str, Any], dict[str, Any]]:
    return host_of_cards()


def new(sample: str, **changes: str | None) -> Texts:
    """The sample's card as a model that no table has."""
    have = smi_corpus.card(sample)
    return {**{path: text for path, text in NEW.items() if path in have}, **changes}


def whole_cards() -> list[str]:
    """Samples of cards in a data centre that answer for everything that is judged."""
    return [
        sample
        for sample in SAMPLES
        if "+mig" not in sample
        and smi_corpus.samples()[sample]["generation"] in {"Hopper", "Blackwell"}
        and smi_corpus.card(sample)["ecc_mode/current_ecc"] == "Enabled"
    ]


def test_the_new_card_is_in_no_table() -> None:
    assert pci.device("3fff") is None
    assert smi.generation({path: text or "" for path, text in NEW.items()}, "13.0") is None


def test_a_whole_card_of_an_unknown_model_passes(host: Any) -> None:
    assert len(whole_cards()) >= 4
    for sample in whole_cards():
        found = judged(host, sample, {}, new(sample))
        assert {name: each for name, each in found.items() if each} == {}, sample


def test_what_an_unknown_model_does_not_print_or_answer_is_not_healthy(host: Any) -> None:
    """With another name for a block, or N/A in it, a card of an unknown generation passed."""
    tried = 0
    for sample in whole_cards():
        driver, have = smi_corpus.samples()[sample]["driver"], smi_corpus.card(sample)
        for rule in smi.all_rules():
            if rule.row.get("each") or rule.row.get("only"):
                continue
            paths = [path for shape in rule.shapes for path in shape if path in have]
            needs = rule.row.get("needs")
            for text in (None, "N/A"):
                wanted = smi.demanded(rule, None, driver) if text is None else bool(needs)
                if not paths or not wanted or have[paths[0]] in {None, "N/A"}:
                    continue
                changes = dict.fromkeys(paths, text)
                findings = judged(host, sample, {}, new(sample, **changes), checks=(rule.check,))
                assert verdict(findings[rule.check]) is Verdict.INCONCLUSIVE, (sample, paths, text)
                assert all(each.cause.find(SECOND) >= 0 for each in findings[rule.check])
                tried += 1
    assert tried > 150, tried


@pytest.mark.parametrize("block", ["ecc_errors", "remapped_rows", "clocks_event_reasons", "fabric"])
def test_a_block_with_another_name_is_not_healthy(host: Any, block: str) -> None:
    for sample in whole_cards():
        renamed = {
            path: text
            for old, text in smi_corpus.card(sample).items()
            if old.startswith(f"{block}/")
            for path, text in ((old, None), (f"new_{old}", text))
        }
        found = judged(host, sample, {}, new(sample, **renamed))
        assert Verdict.INCONCLUSIVE in map(verdict, found.values()), sample


# -- data centre cards by their id -----------------------------------------------------------------


DATA_CENTRE = [
    (row["chip"], number)
    for row in facts.document("pci.yml")["chips"]
    if row["chip"] in {"GA100", "GH100", "GB100", "GB110"}
    for number in row["devices"]
]


@pytest.mark.parametrize(("chip", "number"), DATA_CENTRE)
@pytest.mark.parametrize("name", [None, "NVIDIA Graphics Device"])
def test_a_data_centre_card_without_ecc_is_not_believed(
    host: Any, chip: str, number: str, name: str | None
) -> None:
    """GB200, GB300 and GH200 were: the pattern of names had B200, and no word begins in GB200."""
    changes: Texts = {
        "pci/pci_device_id": f"{number.upper()}10DE",
        "product_name": name or f"NVIDIA {pci.device(number)}",
        **{
            path: "N/A"
            for path in smi_corpus.card(GB200)
            if path.startswith(("ecc_mode/", "ecc_errors/", "remapped_rows/"))
        },
    }
    findings = judged(host, GB200, {}, changes, checks=("gpu.memory-errors",))
    assert verdict(findings["gpu.memory-errors"]) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("name", ["NVIDIA GB200", "NVIDIA GB300", "NVIDIA GH200 480GB"])
def test_so_is_one_of_which_only_the_name_is_known(host: Any, name: str) -> None:
    changes: Texts = {
        "pci/pci_device_id": None,
        "product_name": name,
        "ecc_mode/current_ecc": "N/A",
    }
    findings = judged(host, GB200, {}, changes, checks=("gpu.memory-errors",))
    assert verdict(findings["gpu.memory-errors"]) is Verdict.INCONCLUSIVE


def test_a_card_for_games_that_no_table_has_needs_no_ecc(host: Any) -> None:
    sample = "pro6000-maxq@590.44"
    changes: Texts = {
        **NEW,
        "product_name": "NVIDIA GeForce RTX 6090",
        "ecc_mode/current_ecc": "N/A",
        "ecc_mode/pending_ecc": "N/A",
    }
    found = judged(host, sample, changes)
    assert {name: each for name, each in found.items() if each} == {}


# -- elements and values of drivers to come --------------------------------------------------------


BLOCKS = {
    "gpu.memory-errors": ("ecc_errors", "ecc_errors/volatile", "remapped_rows", "retired_pages"),
    "gpu.fabric": ("fabric/health",),
    "gpu.recovery": ("gpu_reset_status",),
}
ELEMENTS = [
    *((check, f"{block}/new_counter") for check, blocks in BLOCKS.items() for block in blocks),
    ("gpu.memory-errors", "ecc_errors/gpc_repair_pending"),
    ("gpu.memory-errors", "ecc_errors/volatile/sram_uncorrectable_nvlink"),
    ("gpu.smi", "hbm_health"),
    ("gpu.smi", "new_block/die_repair_state"),
]


@pytest.mark.parametrize(("check", "path"), ELEMENTS)
def test_an_unknown_element_of_health_counts_unless_it_is_neutral(
    host: Any, check: str, path: str
) -> None:
    sick, sound = ("Yes", "9", "Failed", "Pending", "a word"), ("No", "0", "N/A", "Healthy", "Full")
    for sample, text in itertools.product((H100, GB200, L40S), (*sick, *sound)):
        found = judged(host, sample, {}, {path: text})
        wanted = Verdict.INCONCLUSIVE if text in sick else Verdict.PASS
        assert verdict(found[check]) is wanted, (sample, path, text)
        assert all(
            each.cause.startswith(SECOND) and f"{path}: {text}" in each.cause
            for each in found[check]
        )
        others = {name: each for name, each in found.items() if name != check and each}
        assert others == {}, (sample, text)


def test_elements_that_drivers_print_are_no_news(host: Any) -> None:
    texts: Texts = {
        "ecc_errors/aggregate/double_bit/device_memory": "4",
        "retired_pages/double_bit_retirement/retired_pagelist/retired_page/"
        "retired_page_address": "0x00000000002ce857",
        "board_id": "0x100",
    }
    found = judged(host, H100, {}, texts)
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize("block", ["processes", "accounted_processes"])
def test_what_a_list_of_processes_lacks_says_nothing_of_the_card(host: Any, block: str) -> None:
    """A Tesla M10 with driver 390 has too little room for its list, every night."""
    assert judged(host, H100, {}, {block: "Insufficient Size"})["gpu.smi"] == []
    for text in ("GPU is lost", "GPU requires reset", "Corrupted infoROM"):
        assert verdict(judged(host, H100, {}, {block: text})["gpu.smi"]) is Verdict.FAIL


# -- heat ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", [H100, GB200, L40S, "rtx4090@535.86"])
def test_a_card_from_ada_on_has_a_margin_to_its_limit(host: Any, sample: str) -> None:
    changes: Texts = {"temperature/gpu_temp_tlimit": "N/A", "temperature/gpu_temp": "125 C"}
    findings = judged(host, sample, {}, changes)["gpu.throttle"]
    assert verdict(findings) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("degrees", "wanted"),
    [("95 C", Verdict.PASS), ("105 C", Verdict.FAIL), ("115 C", Verdict.FAIL)],
)
def test_memory_has_a_limit_also_where_the_card_prints_none(
    host: Any, degrees: str, wanted: Verdict
) -> None:
    for sample in (H100, GB200):
        findings = judged(host, sample, {}, {"temperature/memory_temp": degrees})["gpu.throttle"]
        assert verdict(findings) is wanted


# -- the NVLink fabric -----------------------------------------------------------------------------


FABRIC = [path for path in smi_corpus.card(H100) if path.startswith("fabric/")]
DOMAIN = "fabric/clusterUuid"


@pytest.mark.parametrize(
    "changes",
    [
        {"fabric/cliqueId": "1"},
        {DOMAIN: "00000001-0000-0000-0000-000000000009"},
    ],
)
def test_cards_of_one_host_are_in_one_clique_of_one_domain(host: Any, changes: Texts) -> None:
    for sample in (H100, GB200):
        findings = judged(host, sample, {}, changes, {})["gpu.fabric"]
        assert verdict(findings) is Verdict.INCONCLUSIVE
        assert SECOND in findings[0].cause
        assert judged(host, sample, changes, changes)["gpu.fabric"] == []


@pytest.mark.parametrize(
    ("sample", "switches", "wanted"),
    [
        (H100, ["0000:c1:00.0"], Verdict.INCONCLUSIVE),
        (H100, [], Verdict.PASS),
        # Their NVSwitches are on no PCI bus of the host.
        ("b200@580.105", [], Verdict.INCONCLUSIVE),
        # It is linked with NVSwitches in a rack, and directly on other boards.
        (GB200, [], Verdict.PASS),
        # The fabric of Ampere has no registration.
        ("a100-40@570.148", ["0000:c1:00.0"], Verdict.PASS),
    ],
)
def test_a_card_behind_nvswitches_that_reports_no_fabric_is_not_healthy(
    host: Any, sample: str, switches: list[str], wanted: Verdict
) -> None:
    plan, snapshot = host_of_cards()
    healthy_host.data(snapshot, "gpus")["nvswitches"] = switches
    changes: Texts = dict.fromkeys(FABRIC, "N/A")
    findings = judged((plan, snapshot), sample, changes, changes)["gpu.fabric"]
    assert verdict(findings) is wanted


def test_a_card_that_is_linked_with_a_switch_is_behind_nvswitches(host: Any) -> None:
    """Also one of a model that no table has, whose NVSwitches are on no PCI bus of the host."""
    changes = {**NEW, **dict.fromkeys(FABRIC, "N/A")}
    plan, snapshot = host_of_cards()
    rows = [healthy_host.nvlinks(at, address=f"0000:0{at + 1}:00.0") for at in (0, 1)]
    healthy_host.data(snapshot, "smi")["nvlink"] = rows
    for remote, wanted in (("switch", Verdict.INCONCLUSIVE), ("gpu", Verdict.PASS)):
        for link in (link for row in rows for link in row["links"]):
            link["remote"] = remote
        findings = judged((plan, snapshot), GB200, changes, changes)["gpu.fabric"]
        assert verdict(findings) is wanted


def test_a_registration_without_its_result_is_not_healthy(host: Any) -> None:
    findings = judged(host, H100, {}, {"fabric/status": "N/A"})["gpu.fabric"]
    assert [each.cause.startswith(SECOND) for each in findings] == [True]
    assert verdict(findings) is Verdict.INCONCLUSIVE


def test_the_checks_that_are_tried_are_all_of_nvidia_smi_s_elements() -> None:
    assert {rule.check for rule in smi.all_rules()} <= set(GPU_CHECKS)
