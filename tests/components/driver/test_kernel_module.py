"""Flavour: which branch and which kernel modules real GPUs get, told by their PCI ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.catalog import facts, pci
from gpufleet.components.resolver import resolve
from tests.support.host_documents import codes, gpu_host

HERE = Path(__file__).parent
TABLE = yaml.safe_load((HERE / "flavour_table.yml").read_text(encoding="utf-8"))
SOURCES = {"ubuntu-24.04": "distro", "debian-12": "distro", "rocky-9": "nvidia_repo"}
CASES = [
    (device, group, system)
    for group, part in TABLE.items()
    for device in part["devices"]
    for system in SOURCES
]


def driver(system: str, *devices: str, **declaration: Any) -> dict[str, Any]:
    """The plan of a host with these GPUs that only wants its driver managed."""
    return resolve(
        {"gpu_driver": {"source": SOURCES[system], **declaration}}, gpu_host(system, *devices)
    )


@pytest.mark.parametrize(("device", "group", "system"), CASES)
def test_a_real_gpu(device: str, group: str, system: str) -> None:
    expected = TABLE[group]["expected"][system]
    plan = driver(system, device)
    row = plan["driver"]
    if expected.startswith("refused"):
        assert codes(plan)[0] == expected.split()[1]
        assert plan["problems"][0]["remedy"]
        assert (row["branch"], row["module"]) == (None, None)
    else:
        assert codes(plan) == []
        assert [row["branch"], row["module"]] == expected.split()
        assert row["module_because"]


@pytest.mark.parametrize(
    ("device", "group"), [(device, group) for device, group, at in CASES if at == "ubuntu-24.04"]
)
def test_the_chosen_branch_s_own_packages_list_the_gpu(device: str, group: str) -> None:
    listed = TABLE[group]["devices"][device]["listed"].split()
    row = driver("ubuntu-24.04", device)["driver"]
    if row["branch"] is None:
        assert max(map(int, listed)) < 418  # the oldest that is offered there
    else:
        assert row["branch"] + ("-open" if row["module"] == "open" else "") in listed


def test_the_table_is_large_and_of_every_architecture() -> None:
    devices = [each for part in TABLE.values() for each in part["devices"]]
    assert len(set(devices)) == len(devices) >= 40
    known = {each.name for each in facts.architectures()} - {"Rubin"}
    assert known <= set(TABLE)
    for part in TABLE.values():
        for device, row in part["devices"].items():
            found = pci.device(device)
            assert found is not None
            assert found.name == row["name"]


@pytest.mark.parametrize("system", SOURCES)
@pytest.mark.parametrize(("old", "new"), [("1db4", "2bb5"), ("15f8", "2901"), ("13f2", "2342")])
def test_a_gpu_that_needs_open_modules_beside_one_that_cannot(
    system: str, old: str, new: str
) -> None:
    plan = driver(system, old, new)
    (problem,) = plan["problems"]
    assert (problem["code"], problem["where"]) == ("module-clash", "GPU 0000:01:00.0")
    assert "needs the open kernel modules" in problem["message"]
    assert "GPU 0000:02:00.0" in problem["remedy"]
    assert "another host" in problem["remedy"]


def test_declared_gpus_can_clash_before_the_host_is_reached() -> None:
    plan = resolve({"gpu_driver": {}, "gpu_gpus": ["V100", "B200"]})
    assert codes(plan) == ["module-clash"]
    assert plan["problems"][0]["where"] == "gpu_gpus[0]"


def test_gpus_that_no_single_branch_knows() -> None:
    plan = driver("debian-12", "102d", "2330")
    assert plan["problems"]
    assert all("move some of them" in problem["remedy"] for problem in plan["problems"])


@pytest.mark.parametrize(
    ("device", "declaration", "code"),
    [
        ("1db4", {"branch": "580", "module": "open"}, "gpu-too-old"),
        ("2bb5", {"branch": "580", "module": "proprietary"}, "gpu-too-new"),
        ("2342", {"branch": "580", "module": "proprietary"}, "gpu-too-new"),
        ("1db4", {"module": "open"}, "gpu-too-old"),
        ("20b0", {"branch": "470", "module": "open"}, "driver-unknown"),
        ("20b0", {"branch": "580", "module": "proprietary"}, None),
        ("2330", {"branch": "580", "module": "open"}, None),
        ("1db4", {"branch": "595"}, "gpu-too-old"),
        ("102d", {"branch": "580"}, "gpu-too-old"),
        ("2bb5", {"branch": "470"}, "gpu-too-new"),
    ],
)
def test_what_is_pinned_is_checked_not_overridden(
    device: str, declaration: dict[str, str], code: str | None
) -> None:
    plan = driver("ubuntu-24.04", device, **declaration)
    assert (codes(plan) or [None])[0] == code
    assert all(problem["remedy"] for problem in plan["problems"])
    if code is None:
        assert plan["driver"]["branch"] == declaration["branch"]
        assert plan["driver"]["module"] == declaration["module"]
        assert plan["driver"]["module_because"] == "declared in gpu_driver"


def test_why_the_modules_are_what_they_are() -> None:
    def because(system: str, *devices: str) -> str:
        return str(driver(system, *devices)["driver"]["module_because"])

    assert "V100" in because("ubuntu-24.04", "1db4")
    assert "from branch 560 on" in because("ubuntu-24.04", "20b0")
    assert "only from branch 560 on" in because("debian-12", "20b0")
    assert because("ubuntu-24.04").startswith("no GPU is known")


def test_the_host_s_gpus_go_after_those_that_are_declared() -> None:
    host = gpu_host("ubuntu-24.04", "1db4")
    reported = {"gpu_driver": {}, "gpu_expect": {"count": 1, "model": "NVIDIA H100 80GB HBM3"}}
    declared = resolve(reported, host)
    assert declared["driver"]["module"] == "open"
    assert any("Tesla V100 PCIe 16GB" in note and "unchecked" in note for note in declared["notes"])
    unheard = {"gpu_driver": {}, "gpu_expect": {"count": 1, "model": "NVIDIA Something"}}
    assert resolve(unheard, host)["driver"]["module"] == "proprietary"


def test_an_id_that_nobody_knows_is_a_note() -> None:
    plan = driver("ubuntu-24.04", "2399", "0001")
    assert plan["problems"] == []
    assert any("is the GH100" in note for note in plan["notes"])
    assert any("10de:0001) is not known" in note for note in plan["notes"])


def test_a_branch_that_does_not_list_the_device_is_a_note() -> None:
    plan = driver("debian-12", "2335")
    assert plan["problems"] == []
    assert any("does not list H200 SXM 141GB" in note for note in plan["notes"])


@pytest.mark.parametrize(
    ("written", "chip", "capability"),
    [
        ("0x2330", "GH100", "9.0"),
        ("2BB5", "GB202", "12.0"),
        ("10de:1db4", "GV100", "7.0"),
        ("0x6d1", "GF100", "2.0"),
        ("20a1", "GA100", "8.0"),
        ("2b99", "GB202", "12.0"),
    ],
)
def test_a_device_id_as_it_is_written(written: str, chip: str, capability: str) -> None:
    found = pci.device(written)
    assert found is not None
    assert (found.chip, found.capability) == (chip, capability)


@pytest.mark.parametrize("number", ["22a3", "1af1", "ffff", "", "None"])
def test_what_is_no_gpu(number: str) -> None:
    assert pci.device(number) is None


def test_pci_ids_are_reported_once_and_by_their_chip_s_range() -> None:
    table = facts.document("pci.yml")
    numbers = [number for row in table["chips"] for number in row["devices"]]
    assert len(set(numbers)) == len(numbers) >= 60
    assert not set(table["nvswitches"]) & set(numbers)
    for row in table["chips"]:
        ranges = [each.split("-") for each in row["ranges"]]
        for number in row["devices"] if ranges else ():
            assert any(first <= number <= last for first, last in ranges), number
    for key in ("fabric", "grace_hopper"):
        assert set(table[key]) <= set(numbers)
    for branch, members in table["listed_from"].items():
        assert branch in facts.branches()
        assert set(members) <= set(numbers)


def test_an_old_display_card_beside_other_gpus_has_a_way_out() -> None:
    """A GT 710 (Kepler) shows the console of a host with an H100, which it does not compute in."""
    declared = {"gpu_toolkits": [{"cuda": "12.8"}], "gpu_accept_nvidia_eula": True}
    host = gpu_host("debian-12", "0x128b", "0x2330")
    (problem,) = resolve(declared, host)["problems"]
    assert problem["code"] == "gpu-too-old"
    assert "declare gpu_expect.model" in problem["remedy"]
    assert codes(resolve({**declared, "gpu_expect": {"model": "H100"}}, host)) == []
    (alone,) = resolve(declared, gpu_host("debian-12", "0x128b"))["problems"]
    assert "gpu_expect" not in alone["remedy"]
