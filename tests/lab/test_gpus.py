"""Stand-in GPUs of lab hosts: each says what it is, and shows what a real one shows."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gpufleet.catalog import performance
from gpufleet.on_host.smi_document import parse_smi
from lab.gpus import cards
from lab.gpus.planting import MODEL, PLACE, Cards, faults, packed, record
from lab.gpus.tree import TEXTS
from lab.settings import Lab
from tests.support import real_gpus
from tests.support.healthy_host import data
from tests.support.lab_command import call
from tests.support.planted_host import probe_tree
from tests.support.stand_in_gpus import extracted


def shown(root: Path) -> list[dict[str, Any]]:
    """The cards that nvidia-smi prints."""
    found: list[dict[str, Any]] = parse_smi((root / TEXTS / "smi.xml").read_text())["devices"]
    return found


def test_each_card_says_that_it_is_a_stand_in(tmp_path: Path) -> None:
    found = shown(extracted(tmp_path, Cards(2)))
    assert [card["name"] for card in found] == [MODEL, MODEL]
    assert "stand-in" in MODEL
    assert [card["elements"]["serial"] for card in found] == ["STAND-IN-0100", "STAND-IN-0101"]
    assert {card["elements"]["vbios_version"] for card in found} == {"stand-in"}


def test_cards_of_two_hosts_are_different_ones(tmp_path: Path) -> None:
    found = [
        card
        for name in ("lab1", "lab2")
        for card in shown(extracted(tmp_path / name, Cards(2), name))
    ]
    assert len({card["uuid"] for card in found}) == 4
    assert len({card["elements"]["serial"] for card in found}) == 4


def test_its_model_has_the_bounds_of_the_recorded_one() -> None:
    """The name says stand-in, and the figures are judged as those of the card that was recorded."""
    recorded = record()["compute"]["devices"][0]["name"]
    assert performance.floors(MODEL) == performance.floors(recorded) is not None


def test_the_record_is_that_of_a_real_card() -> None:
    snapshot = real_gpus.documents("h100-deep")["snapshot"]
    run, played = data(snapshot, "compute")["runs"][0], record()["compute"]
    assert played == {
        **{name: run[name] for name in played},
        "nvrtc": run["nvrtc"]["ran"],
    }
    [card] = data(snapshot, "smi")["devices"]
    assert record()["smi"].items() <= card["elements"].items()


def test_the_record_names_no_card() -> None:
    assert {"uuid", "serial", "pdi"}.isdisjoint(record()["smi"])


def test_the_archive_belongs_to_root_and_changes_no_directory() -> None:
    with tarfile.open(fileobj=io.BytesIO(packed("lab1", Cards(1)))) as archive:
        entries = archive.getmembers()
    assert {(entry.uid, entry.gid) for entry in entries} == {(0, 0)}
    assert [entry.name for entry in entries if entry.isdir()] == []


def test_what_stands_outside_of_the_directory_is_listed_for_its_removal(tmp_path: Path) -> None:
    root = extracted(tmp_path, Cards(1))
    listed = (root / TEXTS / "files").read_text().split()
    outside = [path.relative_to(root) for path in root.rglob("*") if not path.is_dir()]
    assert sorted(listed) == sorted(str(path) for path in outside if TEXTS not in str(path))
    assert "usr/bin/nvidia-smi" in listed


def test_the_probe_finds_the_cards_in_the_mounted_tree(tmp_path: Path) -> None:
    found = probe_tree(extracted(tmp_path, Cards(2)) / TEXTS / "tree")["gpus"]
    assert [(card["address"], card["driver"]) for card in found["pci"]] == [
        ("0000:01:00.0", "nvidia"),
        ("0000:02:00.0", "nvidia"),
    ]


def test_a_card_that_fell_off_the_bus_is_only_in_the_kernels_log(tmp_path: Path) -> None:
    root = extracted(tmp_path, Cards(2, "off-the-bus"))
    assert [card["elements"]["serial"] for card in shown(root)] == ["STAND-IN-0100"]
    log = (root / TEXTS / "tree/dmesg.txt").read_text()
    assert "NVRM: Xid (PCI:0000:02:00): 79," in log
    assert (root / TEXTS / "tree/sys/bus/pci/devices/0000:02:00.0").is_dir()


def test_nvidia_smi_of_a_host_without_another_card_says_that_it_is_lost(tmp_path: Path) -> None:
    root = extracted(tmp_path, Cards(1, "off-the-bus"))
    assert "GPU 0000:01:00.0: GPU is lost." in (root / TEXTS / "smi.xml").read_text()
    assert "exit 15" in (root / "usr/bin/nvidia-smi").read_text()


def test_a_row_that_cannot_be_replaced_is_one_of_the_last_card(tmp_path: Path) -> None:
    found = shown(extracted(tmp_path, Cards(2, "memory")))
    assert [card["remap"]["failure"] for card in found] == [False, True]


@pytest.mark.parametrize("name", sorted(faults()))
def test_each_fault_changes_what_a_host_is_given(name: str) -> None:
    assert packed("lab1", Cards(1, name)) != packed("lab1", Cards(1))
    assert set(faults()[name]) <= {"about", "listed", "log", "smi", "played"}


def test_the_inventory_is_told_what_the_hosts_have(tmp_path: Path) -> None:
    lab = Lab("unit", tmp_path)
    assert cards.load(lab) == {}
    given = {"lab2": Cards(1, "slow"), "lab10": Cards(2)}
    cards.save(lab, given)
    assert cards.load(lab) == given
    document = json.loads(cards.path_of(lab).read_text())
    written = document["hosts"]["lab10"]["variables"]
    assert written["gpu_expect"] == {"count": 2, "model": MODEL, "nvlinks": 0}
    assert written["ansible_python_interpreter"] == f"{PLACE}/python"
    # The first host by its number has the stand-in for the scheduler.
    assert document["variables"] == {"gpu_scheduler_host": "lab2"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--count", "9"), "a host cannot have 9 stand-in GPUs"),
        (("--count", "-1"), "a host cannot have -1 stand-in GPUs"),
        (("--fault", "rust"), "no card can have the fault 'rust'"),
        (("--fault", "slow", "--count", "0"), "a host without a card has none that could fail"),
        (("--hosts", ","), "no host was named"),
    ],
)
@pytest.mark.skipif(os.getuid() != 0, reason="all others are told first that root is needed")
def test_a_mistake_is_explained(words: tuple[str, ...], message: str) -> None:
    done = call("gpus", *words, GPUFLEET_LAB="unit-gpus")
    assert done.returncode == 1
    assert message in done.stderr
