"""Which GPUs on the bus a host's driver has to run."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.host_state import cards
from gpufleet.host_state.cards import of_driver
from gpufleet.host_state.host import Host

H100, GT_710, QUADRO_K600, P100, UNKNOWN = "0x2330", "0x128b", "0x0ffa", "0x15f8", "0x0001"


def host(loaded: str | None, *on_bus: tuple[str, str | None], library: str | None = None) -> Host:
    pci = [
        {"address": f"0000:0{at}:00.0", "vendor": "0x10de", "device": device, "driver": driver}
        for at, (device, driver) in enumerate(on_bus)
    ]
    sections: dict[str, Any] = {
        "gpus": {"state": "ok", "data": {"pci": pci}},
        "driver": {"state": "ok", "data": {"loaded": loaded, "library": library}},
    }
    return Host({"sections": sections})


def unsupported(found: Host) -> dict[str, str]:
    return cards.unsupported(found.gpus, found.driver or found.driver_library)


@pytest.mark.parametrize(
    ("loaded", "device"),
    [("580.65.06", GT_710), ("580.65.06", QUADRO_K600), ("595.45.04", P100)],
)
def test_a_card_that_the_branch_no_longer_supports_is_not_of_the_driver(
    loaded: str, device: str
) -> None:
    found = host(loaded, (H100, "nvidia"), (device, None))
    (why,) = unsupported(found).values()
    assert f"not supported by branch {loaded[:3]}" in why
    assert [row["device"] for row in of_driver(found)] == [H100]


@pytest.mark.parametrize(
    ("loaded", "device", "driver"),
    [
        ("470.256.02", GT_710, None),
        ("580.65.06", P100, None),
        ("580.65.06", UNKNOWN, None),
        ("580.65.06", H100, None),
        ("580.65.06", GT_710, "nouveau"),
        (None, GT_710, None),
    ],
)
def test_any_other_card_is_one_of_the_driver(
    loaded: str | None, device: str, driver: str | None
) -> None:
    found = host(loaded, (H100, "nvidia"), (device, driver))
    assert unsupported(found) == {}
    assert len(of_driver(found)) == 2


def test_the_installed_libraries_name_the_branch_while_no_driver_is_loaded() -> None:
    assert unsupported(host(None, (H100, None), (GT_710, None), library="580.65.06"))


def test_an_old_card_without_another_gpu_is_not_for_display() -> None:
    assert unsupported(host("580.65.06", (GT_710, None), (GT_710, None))) == {}
    assert unsupported(host("580.65.06", (GT_710, None), (H100, "vfio-pci"))) == {}


def test_a_card_of_a_virtual_machine_is_not_of_the_driver() -> None:
    assert len(of_driver(host("580.65.06", (H100, "nvidia"), (H100, "vfio-pci")))) == 1
