"""GPUs and the log of the kernel: models, resets, kinds of GPUs, and what is only reported."""

from __future__ import annotations

import pytest

from gpufleet.judge import judge
from lab.gpus.smi_text import CONSUMER, OLD
from tests.support.healthy_host import Document, data, verdicts, with_cards
from tests.support.host_parts import (
    DISPLAY_ADDRESS,
    GT_710,
    LINK,
    NEWER_THAN_THE_CATALOG,
    WORKING,
    card,
    display_card,
    event,
    printed,
)


@pytest.mark.parametrize(
    ("model", "name", "same"),
    [
        ("RTX 3080", "NVIDIA GeForce RTX 3080", True),
        ("H100", "NVIDIA H100 PCIe", True),
        ("RTX 3080", "NVIDIA GeForce RTX 3080 Ti", False),
        ("RTX 3080", "NVIDIA GeForce RTX 3080 Laptop GPU", False),
        ("RTX 4090", "NVIDIA GeForce RTX 4090 D", False),
        ("RTX 4090 D", "NVIDIA GeForce RTX 4090 D", True),
    ],
)
def test_another_kind_of_a_model_is_another_model(
    plan: Document, snapshot: Document, model: str, name: str, same: bool
) -> None:
    with_cards(plan, snapshot)
    plan["expect"]["model"] = model
    for at in (0, 1):
        card(snapshot, at)["name"] = name
    assert verdicts(plan, snapshot)["gpu.identity"] == ("PASS" if same else "FAIL")


@pytest.mark.parametrize(
    ("reason", "verdict", "words"),
    [
        ("hw_thermal_slowdown", "FAIL", "heat at 80"),
        ("hw_power_brake_slowdown", "FAIL", "brake"),
        # It may also have been a change of clocks.
        ("hw_slowdown", "INCONCLUSIVE", "its hardware"),
    ],
)
def test_hardware_that_slows_a_card_down_is_named(
    plan: Document, snapshot: Document, reason: str, verdict: str, words: str
) -> None:
    with_cards(plan, snapshot)
    name = f"clocks_event_reasons/clocks_event_reason_{reason}"
    printed(snapshot, {**WORKING, name: "Active"}, {})
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}
    assert (found["gpu.throttle"]["verdict"], words in found["gpu.throttle"]["cause"]) == (
        verdict,
        True,
    )
    # A laptop on its battery is slowed down by design.
    plan["expect"]["model"] = "NVIDIA RTX A5000 Laptop GPU"
    for at in (0, 1):
        card(snapshot, at)["name"] = plan["expect"]["model"]
    assert verdicts(plan, snapshot)["gpu.throttle"] == "PASS"


@pytest.mark.parametrize("kind", ["consumer", "old", "virtual", "mig"])
def test_healthy_cards_of_other_kinds_pass(plan: Document, snapshot: Document, kind: str) -> None:
    with_cards(plan, snapshot)
    virtual: dict[str, str | None] = dict.fromkeys(
        (
            LINK + "pcie_gen/max_link_gen",
            LINK + "pcie_gen/current_link_gen",
            LINK + "link_widths/max_link_width",
            LINK + "link_widths/current_link_width",
            "temperature/gpu_temp",
            "gpu_power_readings/current_power_limit",
            "ecc_mode/current_ecc",
            "ecc_mode/pending_ecc",
            "utilization/gpu_util",
        ),
        "N/A",
    )
    virtual["gpu_virtualization_mode/virtualization_mode"] = "VGPU"
    mig = {
        "mig_mode/current_mig": "Enabled",
        "utilization/gpu_util": "N/A",
        "mig_devices": "<mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id><fb_memory_usage>"
        "<total>40192 MiB</total></fb_memory_usage><ecc_error_count><volatile_count>"
        "<sram_uncorrectable>0</sram_uncorrectable></volatile_count></ecc_error_count>"
        "</mig_device>",
    }
    texts = {"consumer": CONSUMER, "old": OLD, "virtual": virtual, "mig": mig}[kind]
    plan["expect"].update(model=None, memory_mib=None, ecc="off" if kind == "consumer" else None)
    plan["driver"]["mig"] = None
    printed(snapshot, texts, texts)
    found = judge.judge(plan, snapshot)["checks"]
    assert {
        each["id"]: each["cause"]
        for each in found
        if each["id"].startswith("gpu.") and each["verdict"] not in {"PASS", "NOT-DECLARED"}
    } == {}


def test_a_declaration_that_names_no_card_excuses_identity(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    plan["expect"].update(model=None, memory_mib=None)
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}
    assert (found["gpu.identity"]["verdict"], found["gpu.identity"]["cause"]) == (
        "NOT-DECLARED",
        "gpu_expect: {count: 2} (no model, memory_mib or uuids)",
    )


def test_a_refused_module_is_reported_where_no_driver_runs(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    event(snapshot, "key-rejected")
    for each in data(snapshot, "gpus")["pci"]:
        each["driver"] = None
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}["kernel.log"]
    assert (found["verdict"], "mokutil --import" in found["remedy"]) == ("FAIL", True)


def test_without_a_card_and_a_word_of_it_nothing_is_asked_of_cuda(
    plan: Document, snapshot: Document
) -> None:
    plan["expect"]["count"] = None
    found = verdicts(plan, snapshot)
    assert (found["driver.cuda"], found["driver.access"]) == ("PASS", "PASS")


@pytest.mark.parametrize("section", ["smi", "kernel_log"])
def test_a_section_that_hung_is_printed_to_hang(
    plan: Document, snapshot: Document, section: str
) -> None:
    with_cards(plan, snapshot)
    before = verdicts(plan, snapshot)
    snapshot["sections"][section] = {
        "state": "hung",
        "seconds": 96,
        "error": "nvidia-smi gave no answer",
        "data": None,
    }
    found = verdicts(plan, snapshot)
    assert {found[name] for name in found if found[name] != before[name]} == {"HUNG"}


@pytest.mark.parametrize("whole", [True, False])
def test_uuids_that_nvidia_smi_does_not_list_are_explained_by_that(
    plan: Document, snapshot: Document, whole: bool
) -> None:
    """A card that nvidia-smi does not reach was to be replaced by the declared one."""
    with_cards(plan, snapshot, 8)
    report = data(snapshot, "smi")
    plan["expect"].update(uuids=[each["uuid"] for each in report["devices"]])
    assert verdicts(plan, snapshot)["gpu.identity"] == "PASS"
    if whole:
        report["devices"].pop()
        report["nvml"]["count"] = report["attached"] = 7
    else:
        del report["devices"][5:]
        report["complete"] = False
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}
    result = found["gpu.identity"]
    assert (result["verdict"], result["explained_by"]) == (
        ("FAIL", "gpu.visible") if whole else ("INCONCLUSIVE", "gpu.smi")
    )


@pytest.mark.parametrize(("platform", "name"), [("wsl", "WSL 2"), ("jetson", "Jetson")])
def test_a_machine_whose_gpu_is_on_no_bus_is_not_supported(
    plan: Document, snapshot: Document, platform: str, name: str
) -> None:
    """It was to be powered off and on, and its GPU to be reseated."""
    with_cards(plan, snapshot, 1)
    data(snapshot, "gpus").update(pci=[], platform=platform)
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}
    for check in ("gpu.count", "gpu.visible"):
        assert found[check]["verdict"] == "INCONCLUSIVE"
        assert f"{name} is not supported" in found[check]["cause"]
        assert "power" not in found[check]["remedy"]


DISPLAY_CHECKS = ("gpu.visible", "gpu.count", "driver.nodes", "kernel.log")


def test_a_display_card_that_the_driver_no_longer_supports_is_evidence(
    plan: Document, snapshot: Document
) -> None:
    """It was a GPU to reseat or replace, beside two healthy ones."""
    with_cards(plan, snapshot)
    display_card(snapshot, GT_710)
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}
    assert {found[name]["verdict"] for name in (*DISPLAY_CHECKS, "gpu.mig")} == {"PASS"}
    for name in ("gpu.visible", "gpu.count", "kernel.log"):
        assert "GeForce GT 710 is not supported by branch 535" in found[name]["evidence"], name


def test_a_card_that_the_catalog_does_not_know_has_to_be_run(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    display_card(snapshot, NEWER_THAN_THE_CATALOG)
    found = verdicts(plan, snapshot)
    assert {found[name] for name in DISPLAY_CHECKS} == {"FAIL"}


def test_a_card_that_the_branch_supports_has_to_be_run(plan: Document, snapshot: Document) -> None:
    with_cards(plan, snapshot)
    display_card(snapshot, GT_710)
    for name in ("smi", "smi_after"):
        data(snapshot, name)["driver_version"] = "470.256.02"
    data(snapshot, "driver")["loaded"] = "470.256.02"
    found = verdicts(plan, snapshot)
    assert {found[name] for name in DISPLAY_CHECKS} == {"FAIL"}


def test_a_display_card_hides_no_gpu_that_is_missing(plan: Document, snapshot: Document) -> None:
    with_cards(plan, snapshot)
    display_card(snapshot, GT_710)
    plan["expect"]["count"] = 3
    (found,) = (each for each in judge.judge(plan, snapshot)["checks"] if each["id"] == "gpu.count")
    assert found["verdict"] == "FAIL"
    assert f"{DISPLAY_ADDRESS} is not counted" in found["cause"]
    assert "declare gpu_expect: {count: 2}" in found["remedy"]


def test_a_failed_probe_of_a_second_card_is_not_the_display_card_s(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    display_card(snapshot, GT_710)
    data(snapshot, "kernel_log")["events"][-1]["text"] = (
        "NVRM: The NVIDIA probe routine failed for 2 device(s)."
    )
    assert verdicts(plan, snapshot)["kernel.log"] == "FAIL"


def test_a_lost_card_has_one_remedy_in_the_right_order(plan: Document, snapshot: Document) -> None:
    """Draining came after the host was powered off."""
    with_cards(plan, snapshot)
    printed(snapshot, {**WORKING, "temperature/gpu_temp": "GPU is lost"}, {})
    found = next(row for row in judge.judge(plan, snapshot)["checks"] if row["id"] == "gpu.smi")
    assert found["verdict"] == "FAIL"
    assert found["remedy"].startswith("see kernel.log for Xid 79; drain the host, power it off")
    assert found["remedy"].count("power") == 1
