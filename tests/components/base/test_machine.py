"""A host's manifest: the lines of its hardware, firmware and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpufleet.components.base.machine import Manifest, counted, manifest_of, names, same, split
from gpufleet.documents.manifest import MOUNT, NAMES, known
from tests.support import rdma_host
from tests.support.healthy_host import document


@pytest.fixture
def sections() -> Any:
    """The data of the healthy host's sections."""
    return {name: row["data"] for name, row in document("snapshot.json")["sections"].items()}


def test_the_lines_of_the_healthy_host(sections: Any) -> None:
    sections["kernel"]["frequency"] = [
        {"cpu": cpu, "governor": "performance", "driver": None} for cpu in range(2)
    ]
    found = manifest_of(sections)
    assert found.unread == {}
    assert found.values == {
        "system": "Example Inc. G8000",
        "board": "Example Inc. G8-MB",
        "bios": "Example BIOS 2.4 (03/05/2025)",
        "bmc": "1.74 0x00 0x00 0x00 0x0b",
        "cpu.model": "2 x Example CPU 9654 96-Core Processor",
        "cpu.topology": "sockets 2, cores 192, threads 384",
        "cpu.microcode": "0xa10113e",
        "cpu.governor": "performance",
        "memory.modules": "2 x 512GiB 4800 MT/s Example EX128X72R",
        "memory.total": "1006 GiB",
        "numa.cpus": "node 0: 0-95,192-287; node 1: 96-191,288-383",
        "numa.memory": "503 GiB, 503 GiB",
        "nvme.drives": "2 x EXAMPLE PM9 3.84TB 3841 GB firmware GDC5602Q",
        "pci.functions": "2 x 0x010802 0x144d:0xa824, 1 x 0x020000 0x8086:0x10d3, 6 x 0x060400 0x1022:0x14ab",
        "pci.links": "2 x NVMe 16 GT/s x4, 1 x network 2.5 GT/s x1",
        "nvme.media_errors": "0",
        "network.interfaces": "1 x e1000e 1000 Mb/s",
        "kernel.release": "6.1.0-27-amd64",
        "kernel.command_line": "ro quiet iommu=pt",
        "mount /": "ext4 relatime,rw",
        "mount /scratch": "nfs4 hard,relatime,rw,vers=4.2",
        "clock.synchronised": "yes",
        "clock.services": "chronyd",
        "limits.logins": "* soft memlock unlimited; * hard memlock unlimited",
        "limits.sshd": "nofile 1024:524288, memlock 8388608:8388608",
    }
    assert found.value("gpu.models") == found.value("mount /data") == "none"


def test_every_line_has_a_known_name(sections: Any) -> None:
    assert all(map(known, manifest_of(sections).values))
    assert not known("bois")
    assert not known("mount scratch")


def test_adapters_and_ports_are_counted(sections: Any) -> None:
    devices = [rdma_host.device(number) for number in range(2)]
    sections["network"].update(rdma_host.network(devices, 2))
    found = manifest_of(sections)
    assert found.value("network.adapters") == "2 x MT4129 board MT_0000000838 firmware 28.41.1000"
    assert found.value("network.ports") == "2 x InfiniBand 400 Gb/sec (4X NDR)"
    devices[1]["ports"][0].update(state="2: INIT")
    assert manifest_of(sections).value("network.ports") == (
        "1 x InfiniBand 400 Gb/sec (4X NDR), 1 x InfiniBand not active"
    )
    devices[1]["error"] = "no answer"
    assert manifest_of(sections).reason("network.ports") == "an adapter was not read"


def test_a_vbios_that_the_driver_has_not_read_is_nvidia_smi_s(sections: Any) -> None:
    sections["machine"]["gpus"] = [{"model": "NVIDIA H100", "vbios": None}] * 2
    assert manifest_of(sections).reason("gpu.vbios") == "the driver has not started the GPUs"
    sections["smi"]["devices"] = [{"elements": {"vbios_version": "96.00.4D.00.01"}}] * 2
    found = manifest_of(sections)
    assert found.value("gpu.vbios") == "2 x 96.00.4d.00.01"
    assert found.value("gpu.models") == "2 x NVIDIA H100"
    sections["smi"]["devices"] = [{"elements": {"vbios_version": "N/A"}}] * 2
    assert manifest_of(sections).value("gpu.vbios") is None


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("machine", "bios"),
        ("machine", "mount /scratch"),
        ("kernel", "kernel.release"),
        ("kernel", "cpu.governor"),
        ("disks", "memory.total"),
        ("network", "network.ports"),
    ],
)
def test_what_was_not_read_has_a_reason_and_no_value(
    sections: Any, section: str, name: str
) -> None:
    del sections[section]
    found = manifest_of(sections)
    assert found.value(name) is None
    assert found.reason(name)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"bmc": [None]}, "bmc"),
        ({"memory": None}, "memory.modules"),
        ({"mounts": None}, "mount /"),
        ({"limits": None}, "limits.logins"),
        ({"command_line": None}, "kernel.command_line"),
        (
            {"clock": {"unsynchronised": None, "max_error_us": None, "services": []}},
            "clock.synchronised",
        ),
        ({"inherited": {"sshd": {"nofile": None, "memlock": None}}}, "limits.sshd"),
        ({"numa": [{"node": 0, "cpus": "0", "mib": None}]}, "numa.memory"),
    ],
)
def test_a_part_that_was_not_read_has_no_value(
    sections: Any, change: dict[str, Any], name: str
) -> None:
    sections["machine"].update(change)
    assert manifest_of(sections).value(name) is None


def test_a_drive_s_model_that_was_not_read_is_not_compared(sections: Any) -> None:
    sections["machine"]["drives"][0]["model"] = None
    sections["machine"]["drives"][1]["health"] = None
    found = manifest_of(sections)
    assert found.value("nvme.drives") is None
    assert found.value("nvme.media_errors") is None


def test_the_order_of_enumeration_does_not_matter() -> None:
    assert counted(["b", "a", "b"]) == counted(["b", "b", "a"]) == "1 x a, 2 x b"
    assert counted([]) == "none"


def test_sizes_of_memory_are_the_same_within_two_percent() -> None:
    assert same("1006 GiB", "1000 GiB")
    assert same("503 GiB, 504 GiB", "504 GiB, 503 GiB")
    assert not same("1006 GiB", "975 GiB")
    assert not same("503 GiB", "503 GiB, 503 GiB")
    assert not same("2 x 512GiB", "2 x 510GiB")


def test_hosts_are_grouped_by_value() -> None:
    hosts = {
        "a": Manifest({"bios": "1", "memory.total": "100 GiB"}),
        "b": Manifest({"bios": "2", "memory.total": "101 GiB"}),
        "c": Manifest({"bios": "2", MOUNT + "/x": "xfs rw"}, {"memory.total": "why"}),
    }
    assert split(hosts, "bios") == {"2": ["b", "c"], "1": ["a"]}
    assert split(hosts, "memory.total") == {"100 GiB": ["a", "b"], None: ["c"]}
    assert list(names(hosts.values())) == ["bios", "memory.total", "mount /x"]
    assert set(NAMES) >= {"bios", "memory.total"}


def test_the_guide_has_every_name() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/manifest.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []


def test_no_number_or_length_of_a_host_costs_much(sections: Any) -> None:
    machine = sections["machine"]
    machine["cpus"]["models"] = {"a": 1 << 62, "b": 2}
    machine["pci"]["links"][0]["speed"] = "1.2.3.4 GT/s"
    machine["command_line"] = "x" * 5000
    found = manifest_of(sections)
    assert found.value("cpu.model") == f"{1 << 62} x a, 2 x b"
    assert "1 x NVMe 1.2 GT/s x4, 1 x NVMe 16 GT/s x4" in (found.value("pci.links") or "")
    assert found.reason("kernel.command_line") == "it has more than 4096 characters"
    assert not same("1 GiB", "1 GiB1 GiB")
    assert not same(f"{'9' * 5000} GiB", "1 GiB")
