"""What a night measured, by name: as much as was read, and nothing that was not."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.judge import judge
from gpufleet.nightly.measures import measured, measures
from gpufleet.verification.session import HostRun, Session
from tests.support.healthy_host import DRIVER, data, document, nvlinks, with_cards

Document = dict[str, Any]


@pytest.fixture
def cards() -> tuple[Document, Document]:
    """A plan and a snapshot of a host with two cards, whole."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot)
    for number, card in enumerate(data(snapshot, "smi")["devices"]):
        card.update(
            index=number,
            uuid=f"GPU-{number}",
            address=f"0000:0{number}:00.0",
            name="NVIDIA L4",
            temperature_c=31 + number,
        )
    matmul = data(snapshot, "stacks")["stacks"][0]["framework"]["matmul"]
    matmul.append({**matmul[0], "requested": "/GPU:1", "tflops": 30.5, "first_s": 2.5})
    return plan, snapshot


def test_speeds_are_named_by_card_and_by_what_computed(cards: tuple[Document, Document]) -> None:
    found = measures(cards[1], cards[0])
    assert found["gpu.GPU-0.toolkit.11.8.tflops"] == 34.4
    assert found["gpu.GPU-1.toolkit.11.8.first_op_s"] == 0.4
    assert found["gpu.GPU-1.stack.tensorflow-2.13.1.tflops"] == 30.5
    assert found["gpu.GPU-1.stack.tensorflow-2.13.1.first_op_s"] == 2.5
    assert found["gpu.GPU-1.stack.tensorflow-2.13.1.wrong"] == 0
    assert found["gpu.GPU-1.temperature_c"] == 32
    assert found["gpu.GPU-0.bandwidth_gib_s"] == 1600
    # The processor's speed is measured only on a host that is declared to have no GPU.
    assert not [name for name in found if name.startswith("cpu.")]


def test_the_error_counters_of_nvlinks_are_named_by_the_uuid_of_their_gpu(
    cards: tuple[Document, Document],
) -> None:
    smi = data(cards[1], "smi")
    smi["nvlink"][1]["errors"] = {"replay": 3}
    found, uuid = measures(cards[1], cards[0]), smi["devices"][1]["uuid"]
    assert found[f"nvlink.{uuid}.replay.reading"] == 3
    load = found[f"nvlink.{uuid}.load.reading"]
    data(cards[1], "kernel")["boot_id"] = "another boot"
    assert measures(cards[1], cards[0])[f"nvlink.{uuid}.load.reading"] != load


def test_the_error_counters_of_a_port_are_named_by_its_guid(
    cards: tuple[Document, Document],
) -> None:
    port = data(cards[1], "network")["devices"][1]["ports"][0]
    port["counters"]["symbol_error"] = 7
    found = measures(cards[1], cards[0])
    assert found["port.a088c20300ab0001.symbol_error.reading"] == 7
    assert found["port.a088c20300ab0000.link_downed.reading"] == 0
    assert "port.a088c20300ab0000.port_xmit_data.reading" not in found
    load = found["port.a088c20300ab0000.load.reading"]
    data(cards[1], "kernel")["boot_id"] = "another boot"
    assert measures(cards[1], cards[0])["port.a088c20300ab0000.load.reading"] != load
    cards[0]["expect"]["network"][0]["role"] = "unused"
    assert not [name for name in measures(cards[1], cards[0]) if name.startswith("port.")]


def test_a_card_with_half_a_number_is_measured_by_its_uuid(
    cards: tuple[Document, Document],
) -> None:
    data(cards[1], "smi")["devices"][0]["index"] = 0.5
    assert measures(cards[1], cards[0])["gpu.GPU-0.temperature_c"] == 31


def test_a_defect_of_ours_in_measuring_costs_the_host_its_verdict_and_nothing_else(
    plan: Document, snapshot: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpufleet.nightly.measures._gpus", lambda data, names: 1 // 0)
    run = HostRun("gpu01", snapshot, plan, judge.judge(plan, snapshot))
    assert run.result["verdict"] == "PASS"
    found = measured(Session([run]))
    assert found.values == {"gpu01": {}}
    assert run.result["verdict"] == "PASS", "the session that was given is not changed"
    [host] = found.session.hosts
    assert host.result["verdict"] == "INCONCLUSIVE"
    [wrong] = [check for check in host.result["checks"] if check["verdict"] == "INCONCLUSIVE"]
    assert wrong["cause"].startswith("gpufleet failed while it measured this host: ZeroDivision")
    assert "--save" in wrong["remedy"]
    assert "measures.py" in wrong["evidence"]


def test_tensorflow_may_count_cards_in_another_order(cards: tuple[Document, Document]) -> None:
    plan, snapshot = cards
    for device in data(snapshot, "stacks")["stacks"][0]["framework"]["small"]["local_devices"]:
        device["description"] = (
            device["description"]
            .replace(":01:", ":0x:")
            .replace(":00:", ":01:")
            .replace(":0x:", ":00:")
        )
    found = measures(snapshot, plan)
    assert found["gpu.GPU-0.stack.tensorflow-2.13.1.tflops"] == 30.5
    assert "gpu.GPU-1.stack.tensorflow-2.13.1.tflops" not in found


def test_versions_and_cards_are_texts(cards: tuple[Document, Document]) -> None:
    found = measures(cards[1], cards[0])
    assert {
        name: found[name]
        for name in (
            "driver.version",
            "kernel.running",
            "os.version",
            "toolkits",
            "toolkit.11.8.version",
            "stacks",
            "stack.tensorflow-2.13.1.version",
            "stack.tensorflow-2.13.1.python",
            "gpus",
            "cudnn.11.8.libcudnn.so.8.version",
            "containers.engine",
        )
    } == {
        "driver.version": DRIVER,
        "kernel.running": "6.1.0-27-amd64",
        "os.version": "debian 12",
        "toolkits": "11.8",
        "toolkit.11.8.version": "11.8.20220929",
        "stacks": "tensorflow-2.13.1",
        "stack.tensorflow-2.13.1.version": "2.13.1",
        "stack.tensorflow-2.13.1.python": "3.11.2",
        "gpus": "0000:00:00.0 GPU-0 NVIDIA L4; 0000:01:00.0 GPU-1 NVIDIA L4",
        "cudnn.11.8.libcudnn.so.8.version": "8.6.0",
        "containers.engine": "20.10.24+dfsg1",
    }


def test_active_nvlinks_are_a_text_where_all_are_known(cards: tuple[Document, Document]) -> None:
    plan, snapshot = cards
    smi = data(snapshot, "smi")
    smi["nvlink"] = [nvlinks(0, 12, active=8), nvlinks(1, 12, active=12)]
    assert measures(snapshot, plan)["nvlinks"] == "0000:00:00.0 8; 0000:01:00.0 12"
    smi["nvlink"][0]["links"][3]["active"] = None
    assert measures(snapshot, plan)["nvlinks"] == "0000:01:00.0 12"
    smi["nvlink"] = [nvlinks(0, mig=True), nvlinks(1, links=0)]
    assert "nvlinks" not in measures(snapshot, plan)


def test_a_host_without_cards_has_the_speed_of_its_processor() -> None:
    found = measures(document("snapshot.json"), document("plan.json"))
    assert found["cpu.stack.tensorflow-2.13.1.tflops"] == 0.2122
    assert "gpus" not in found  # nobody asked nvidia-smi


@pytest.mark.parametrize(
    "change",
    [
        {"wrong": 1},
        {"error": "out of memory"},
        {"busy": {"free_mib": 1, "wanted_mib": 2}},
        {"tflops": None},
    ],
)
def test_a_product_that_is_not_right_has_no_speed(
    cards: tuple[Document, Document], change: Document
) -> None:
    plan, snapshot = cards
    data(snapshot, "compute")["runs"][0]["cublas"][0].update(change)
    found = measures(snapshot, plan)
    assert "gpu.GPU-0.toolkit.11.8.tflops" not in found
    assert "gpu.GPU-1.toolkit.11.8.tflops" in found


def test_the_ports_are_one_text_where_devices_were_read(cards: tuple[Document, Document]) -> None:
    plan, snapshot = cards
    ports = str(measures(snapshot, plan)["ports"]).split("; ")
    assert ports[0] == "a088c20300ab0000 mlx5_0 compute InfiniBand up 400"
    assert len(ports) == len(data(snapshot, "network")["devices"])
    data(snapshot, "network")["devices"] = []
    assert measures(snapshot, plan)["ports"] == "none"
    data(snapshot, "network")["devices"] = None
    assert "ports" not in measures(snapshot, plan)


def test_a_failing_nvidia_smi_says_nothing_of_cards(cards: tuple[Document, Document]) -> None:
    plan, snapshot = cards
    data(snapshot, "smi").update(status=9, devices=[])
    assert "gpus" not in measures(snapshot, plan)
    data(snapshot, "smi").update(status=0)
    assert measures(snapshot, plan)["gpus"] == "none"


def test_what_was_not_read_or_is_damaged_has_no_entry(cards: tuple[Document, Document]) -> None:
    plan, snapshot = cards
    snapshot["sections"]["toolkits"] = {"state": "hung", "seconds": 9, "error": "", "data": None}
    data(snapshot, "stacks")["stacks"][0]["framework"]["matmul"] = "no list"
    data(snapshot, "smi")["devices"][0]["temperature_c"] = None
    found = measures(snapshot, plan)
    assert not {"toolkits", "toolkit.11.8.version", "stacks", "gpu.GPU-0.temperature_c"} & set(
        found
    )
    assert found["driver.version"] == DRIVER
    assert measures(None, plan) == measures({}, plan) == {}
    assert measures(snapshot, {}) | {"toolkits": ""}


def test_every_section_may_be_missing(cards: tuple[Document, Document]) -> None:
    plan, snapshot = cards
    whole = measures(snapshot, plan)
    for name in list(snapshot["sections"]):
        rest = {key: it for key, it in snapshot["sections"].items() if key != name}
        found = measures({**snapshot, "sections": rest}, plan)
        assert len(found) <= len(whole)
