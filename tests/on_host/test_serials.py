"""The identification of a machine for its vendor, as its firmware and its drives have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host.host import Host
from gpufleet.on_host.serials import hardware_of
from tests.support.smbios import smbios_module

DMI = "sys/class/dmi/id"


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def read(root: Path) -> Any:
    return hardware_of(Host({"root": str(root)}))


def test_the_system_its_board_and_its_drives(tmp_path: Path) -> None:
    for name, text in {
        "sys_vendor": "Supermicro",
        "product_name": "SYS-821GE-TNHR",
        "product_serial": "A261234X5678",
        "board_serial": "UM234S012345",
        "bios_version": "2.1",
    }.items():
        put(tmp_path, f"{DMI}/{name}", f"{text}\n")
    for name, serial in {"nvme10": "S64FNE0R1", "nvme2": "S64FNE0R2"}.items():
        drive = f"sys/class/nvme/{name}"
        put(tmp_path, f"{drive}/model", "SAMSUNG MZQL27T6HBLA-00A07   \n")
        put(tmp_path, f"{drive}/serial", f"{serial}   \n")
        put(tmp_path, f"{drive}/firmware_rev", "GDC5602Q\n")
    put(tmp_path, "sys/class/nvme/nvme3/transport", "rdma\n")
    found = read(tmp_path)
    drives = found.pop("drives")
    assert found == {
        "vendor": "Supermicro",
        "product": "SYS-821GE-TNHR",
        "serial": "A261234X5678",
        "serial_board": "UM234S012345",
        "firmware": "2.1",
        "modules": None,
    }
    assert [(drive["name"], drive["serial"]) for drive in drives] == [
        ("nvme2", "S64FNE0R2"),
        ("nvme10", "S64FNE0R1"),
    ]
    assert drives[0]["model"] == "SAMSUNG MZQL27T6HBLA-00A07"


@pytest.mark.parametrize(
    "text",
    ["To be filled by O.E.M.", "0123456789", "Default string", "XXXXXXX", "00000000", "None", " "],
)
def test_what_nobody_has_written_is_no_serial_number(tmp_path: Path, text: str) -> None:
    put(tmp_path, f"{DMI}/product_serial", text)
    assert read(tmp_path)["serial"] is None


def test_a_machine_without_these_files_has_none(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert found.pop("drives") == []
    assert set(found.values()) == {None}


def test_memory_modules_have_their_serial_numbers_and_empty_slots_are_left_out(
    tmp_path: Path,
) -> None:
    table = tmp_path / "sys/firmware/dmi/tables/DMI"
    table.parent.mkdir(parents=True)
    table.write_bytes(
        smbios_module(16384, serial="80CE0123")
        + smbios_module(0)
        + smbios_module(16384, serial="00000000")
    )
    found = read(tmp_path)["modules"]
    assert found == [
        {
            **{"slot": "DIMM_A1", "bank": "BANK 0", "mib": 16384, "part": "PART-1"},
            **{"maker": "Maker", "serial": serial},
        }
        for serial in ("80CE0123", None)
    ]
