"""The measures of a night, by name: as much as was read, and nothing that was not."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge import judge
from gpufleet.watch.measures import measured, measures
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
    monkeypatch.setattr("gpufleet.watch.measures._gpus", lambda data, names: 1 // 0)
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
    assert found["gpus.declared"] == plan["expect"]["count"] == 2
    assert measures(None, plan) == measures({}, plan) == {}
    assert measures(snapshot, {}) | {"toolkits": ""}


def test_every_section_may_be_missing(cards: tuple[Document, Document]) -> None:
    plan, snapshot = cards
    whole = measures(snapshot, plan)
    for name in list(snapshot["sections"]):
        rest = {key: it for key, it in snapshot["sections"].items() if key != name}
        found = measures({**snapshot, "sections": rest}, plan)
        assert len(found) <= len(whole)


def counted(cards: tuple[Document, Document], **elements: str) -> dict[str, float | str]:
    """The counts of a card that prints these elements; `__` stands for `/`."""
    card = data(cards[1], "smi")["devices"][0]
    card["elements"] = {name.replace("__", "/"): text for name, text in elements.items()}
    found = measures(cards[1], cards[0])
    return {
        name.removeprefix("gpu.GPU-0.").removesuffix(".errors"): value
        for name, value in found.items()
        if name.startswith("gpu.GPU-0.") and name.endswith(".errors")
    }


def test_corrected_errors_are_counted_as_each_generation_prints_them(
    cards: tuple[Document, Document],
) -> None:
    assert counted(
        cards,
        ecc_errors__volatile__dram_correctable="3",
        ecc_errors__volatile__sram_correctable="4",
        ecc_errors__aggregate__single_bit__total="11",
        remapped_rows__remapped_row_corr="1",
        remapped_rows__remapped_row_unc="0",
        pci__replay_counter="174",
    ) == {
        "ecc_corrected_volatile": 7,
        "ecc_corrected_aggregate": 11,
        "remapped_rows": 1,
        "pcie_replays": 174,
    }


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("N/A", {"ecc_corrected_volatile": 3}),
        ("[Unknown Error]", {}),
        ("4294967295", {}),
        ("9" * 5000, {}),
    ],
)
def test_a_counter_that_was_not_read_is_not_counted(
    cards: tuple[Document, Document], text: str, count: dict[str, float]
) -> None:
    assert (
        counted(
            cards,
            ecc_errors__volatile__dram_correctable="3",
            ecc_errors__volatile__sram_correctable=text,
        )
        == count
    )


def test_sensors_are_read_under_load_and_copies_by_card(cards: tuple[Document, Document]) -> None:
    run = data(cards[1], "compute")["runs"][-1]
    run["peer"][0]["gib_s"] = 10.0
    found = measures(cards[1], cards[0])
    assert found["gpu.GPU-0.load.temperature_c"] == 67
    assert found["gpu.GPU-0.load.clock_mhz"] == 1700
    assert found["gpu.GPU-0.load.power_w"] == 340
    assert found["gpu.GPU-0.to_device_gib_s"] == 51.2
    assert found["gpu.GPU-0.from_device_gib_s"] == 50.9
    assert found["gpu.GPU-0.peer_gib_s"] == 15


def test_a_load_that_failed_or_was_short_tells_no_temperature(
    cards: tuple[Document, Document],
) -> None:
    first, second = data(cards[1], "compute")["runs"][-1]["sustained"][:2]
    first["error"] = "it failed"
    second["samples"] = second["samples"][:12]
    found = measures(cards[1], cards[0])
    assert not [name for name in found if name.startswith("gpu.") and ".load." in name]


def test_the_time_of_a_driver_start_is_one_of_the_host(cards: tuple[Document, Document]) -> None:
    driver = data(cards[1], "compute")["runs"][0]["driver"]
    assert "toolkit.11.8.cuinit_s" not in measures(cards[1], cards[0])
    driver["cuinit_s"] = 0.31
    assert measures(cards[1], cards[0])["toolkit.11.8.cuinit_s"] == 0.31
    driver["cuinit"] = 803
    assert "toolkit.11.8.cuinit_s" not in measures(cards[1], cards[0])


def test_the_time_of_an_import_is_one_of_the_host(cards: tuple[Document, Document]) -> None:
    framework = data(cards[1], "stacks")["stacks"][0]["framework"]
    framework["seconds"] = {"import": 3.5, "total": 9.0}
    assert measures(cards[1], cards[0])["stack.tensorflow-2.13.1.import_s"] == 3.5
    framework["seconds"] = {"import": "long"}
    assert "stack.tensorflow-2.13.1.import_s" not in measures(cards[1], cards[0])
