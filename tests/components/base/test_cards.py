"""Which GPUs on the bus a host's driver has to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpufleet.components.base import cards
from gpufleet.components.base.cards import of_driver
from gpufleet.components.base.host import Host
from gpufleet.judge import judge
from gpufleet.on_host.host import Host as ProbedHost
from gpufleet.on_host.smi_document import on_bus, pci_address
from tests.support.harmful_remedies import harmful
from tests.support.healthy_host import data, document, with_cards

Document = dict[str, Any]

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


# -- a card that another driver holds ---------------------------------------------------------------

# linux: drivers/vfio/pci, drivers/pci/pci-stub.c, drivers/xen/xen-pciback.
GIVING = (
    "vfio-pci",
    "nvgrace_gpu_vfio_pci",
    "nvidia_vgpu_vfio",
    "pci-stub",
    "pciback",
    "xen-pciback",
)
# Framebuffers, free drivers and a driver of other devices that was bound by hand.
HOLDING = ("nouveau", "nvidiafb", "nova_core", "nova-core", "simple-framebuffer", "uio_pci_generic")
HARMS = ("reseat", "replace", "power the host off", "Xid 79")


def judged(*drivers: str | None, listed: int, **driver: object) -> dict[str, Document]:
    """A healthy host whose GPUs are held so, the first ones listed by nvidia-smi."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot, len(drivers))
    plan["driver"]["mig"] = None
    bus = data(snapshot, "gpus")["pci"]
    assert len(bus) == len(drivers)
    for card, holder in zip(bus, drivers, strict=True):
        card["driver"] = holder
    smi = data(snapshot, "smi")
    smi["devices"] = smi["devices"][:listed]
    smi["nvml"]["count"] = listed
    if "attached" in smi:
        smi["attached"] = listed
    data(snapshot, "driver").update(driver)
    checks: Any = judge.judge(plan, snapshot)["checks"]
    return {row["id"]: row for row in checks}


@pytest.mark.parametrize("driver", GIVING)
@pytest.mark.parametrize("left", [1, 0])
def test_a_card_that_is_given_to_a_virtual_machine_is_named_with_its_holder(
    driver: str, left: int
) -> None:
    checks = judged(*["nvidia"] * left, *[driver] * (2 - left), listed=left)
    row = checks["gpu.count"]
    assert row["verdict"] == "FAIL"
    given = f"{2 - left} of 2 declared GPUs {'is' if left else 'are'} on the PCI bus, and held by"
    assert row["cause"].startswith(given)
    assert f"0000:01:00.0 ({driver})" in row["cause"]
    assert f"gpu_expect: {{count: {left}}}" in row["remedy"]
    assert harmful({"gpu.count": row, "gpu.visible": checks["gpu.visible"]}, HARMS) == []


@pytest.mark.parametrize("driver", HOLDING)
@pytest.mark.parametrize("left", [1, 0])
def test_a_card_of_another_driver_is_there_and_not_lost(driver: str, left: int) -> None:
    checks = judged(*["nvidia"] * left, *[driver] * (2 - left), listed=left)
    assert checks["gpu.count"]["verdict"] == "PASS"
    row = checks["driver.loaded"]
    assert row["verdict"] == "FAIL"
    assert row["cause"].startswith(f"{driver} is bound to ")
    assert "0000:01:00.0" in row["cause"]
    assert f"blacklist {driver}" in row["remedy"]
    shown = {name: checks[name] for name in ("driver.loaded", "gpu.visible", "gpu.count")}
    assert harmful(shown, HARMS) == []


@pytest.mark.parametrize(
    ("driver", "command"),
    [
        ("nvidiafb", "blacklist nvidiafb "),
        ("nova-core", "blacklist nova-core "),
        ("a; rm -rf /", "blacklist that driver "),
        ("$(reboot)", "blacklist that driver "),
        ("two words", "blacklist that driver "),
        ("-o", "blacklist that driver "),
    ],
)
def test_a_holders_name_is_no_part_of_a_command(driver: str, command: str) -> None:
    assert command in cards.release(driver)
    assert cards.held_by_another([{"driver": driver, "address": "0000:01:00.0"}]) == {
        driver: ["0000:01:00.0"]
    }


@pytest.mark.parametrize(
    "drivers",
    [
        ("nvidia", "nvidia"),
        ("nvidia", "vfio-pci"),
        ("pci-stub", "nvidia"),
        ("nvidia", "xen-pciback"),
        ("nvidia", "nvidia", "nvidia", "vfio-pci"),
    ],
)
def test_a_loaded_nouveau_without_a_card_harms_nobody(drivers: tuple[str | None, ...]) -> None:
    state = {"loaded": True, "blacklisted": True}
    row = judged(*drivers, listed=drivers.count("nvidia"), nouveau=state, cuinit=0)[
        "driver.nouveau"
    ]
    assert row["verdict"] == "PASS"
    assert "holds no GPU" in row["evidence"]


@pytest.mark.parametrize(
    ("drivers", "cuinit"),
    [
        (("nvidia", "nouveau"), 0),
        (("nvidia", None), 0),
        (("nouveau", "nouveau"), 100),
        (("nvidia", "nvidia"), 100),
        (("nvidia", "nvidia"), None),
        (("vfio-pci", "nouveau"), 0),
    ],
)
def test_a_loaded_nouveau_with_a_card_or_without_cuda_is_a_fault(
    drivers: tuple[str, ...], cuinit: int | None
) -> None:
    state = {"loaded": True, "blacklisted": True}
    found = judged(*drivers, listed=drivers.count("nvidia"), nouveau=state, cuinit=cuinit)
    row = found["driver.nouveau"]
    assert row["verdict"] == "FAIL"
    assert "the module nouveau is loaded" in row["cause"].lower()


# -- addresses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "kernel"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("3B:00.0", "0000:3b:00.0"),
        # Intel's VMD has domains from 10000 on: the kernel writes five digits.
        ("00010000:01:00.0", "10000:01:00.0"),
        ("00010001:E1:00.0", "10001:e1:00.0"),
        # Azure's cards: 32 bits of the driver, of which the kernel has 16.
        ("03F8CFDD:00:00.0", "cfdd:00:00.0"),
        ("0002BEEF:00:00.0", "beef:00:00.0"),
        ("00000009:01:00.0", "0009:01:00.0"),
    ],
)
def test_an_address_is_the_kernels_however_nvidia_smi_writes_its_domain(
    tmp_path: Path, printed: str, kernel: str
) -> None:
    (tmp_path / "sys/bus/pci/devices" / kernel).mkdir(parents=True)
    assert on_bus(ProbedHost({"root": str(tmp_path)}), pci_address(printed)) == kernel


@pytest.mark.parametrize(
    ("printed", "others", "found"),
    [
        # Both are on the bus: each is itself.
        ("0001CFDD:00:00.0", ["1cfdd:00:00.0", "cfdd:00:00.0"], "1cfdd:00:00.0"),
        ("00010000:01:00.0", ["0000:01:00.0", "10000:01:00.0"], "10000:01:00.0"),
        # Neither is: the card is gone, and keeps its address.
        ("03F8CFDD:00:00.0", ["0000:00:00.0"], "3f8cfdd:00:00.0"),
        ("00000000:3B:00.0", [], "0000:3b:00.0"),
        ("00000000:3B:00.0", ["0001:3b:00.0"], "0000:3b:00.0"),
    ],
)
def test_a_domain_is_shortened_to_a_card_that_is_there_alone(
    tmp_path: Path, printed: str, others: list[str], found: str
) -> None:
    for name in others:
        (tmp_path / "sys/bus/pci/devices" / name).mkdir(parents=True)
    assert on_bus(ProbedHost({"root": str(tmp_path)}), pci_address(printed)) == found
