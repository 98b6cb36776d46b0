"""NVLinks by NVML, the PCI port above a GPU, the NVLink subnet manager."""

from __future__ import annotations

import ctypes
import errno
from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host.host import Host
from gpufleet.on_host.nvlink import FieldValue, query_nvlink, subnet_manager
from tests.support.planted_gpu_host import GpuHost

SWITCH = b"00000000:c1:00.0"


class Nvml:
    """An NVML whose links are in these states: 0, 1, or another status of the call."""

    def __init__(
        self, *states: int | None, version: int = 6, last: int = 3, rate: int = 0xFFF
    ) -> None:
        self.states, self.version, self.last, self.rate = states, version, last, rate

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, card: Any) -> int:
        return 0

    def nvmlDeviceGetPciInfo_v3(self, card: Any, info: Any) -> int:
        info._obj.address = b"00000000:3B:00.0"
        return 0

    def nvmlDeviceGetMigMode(self, card: Any, current: Any, pending: Any) -> int:
        return 3

    def nvmlDeviceGetNvLinkState(self, card: Any, link: int, state: Any) -> int:
        known = self.states[link] if link < len(self.states) else self.last
        if known in {0, 1} and link < len(self.states):
            state._obj.value = known
            return 0
        return known or self.last

    def nvmlDeviceGetNvLinkVersion(self, card: Any, link: int, version: Any) -> int:
        version._obj.value = self.version
        return 0

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, card: Any, link: int, kind: Any) -> int:
        kind._obj.value = 2
        return 0

    def nvmlDeviceGetNvLinkRemotePciInfo_v2(self, card: Any, link: int, info: Any) -> int:
        info._obj.address = SWITCH
        return 0

    def nvmlDeviceGetNvLinkErrorCounter(
        self, card: Any, link: int, counter: int, value: Any
    ) -> int:
        value._obj.value = (counter == 1) * (link + 1)
        return 3 if counter == 4 else 0

    def nvmlDeviceGetFieldValues(self, card: Any, count: int, values: Any) -> int:
        for row in values:
            row.status, row.value = {214: (0, 2), 220: (0, self.rate)}.get(row.field, (3, 0))
        return 0


def test_the_state_of_every_link_is_read_with_its_other_end() -> None:
    (found,) = query_nvlink(Nvml(1, 0, 15), 1)
    assert (found["index"], found["address"], found["mig"]) == (0, "0000:3b:00.0", None)
    active = {
        "link": 0,
        "active": True,
        "status": 0,
        "version": 6,
        "remote": "switch",
        "remote_address": "0000:c1:00.0",
    }
    none = {"version": None, "remote": None, "remote_address": None}
    assert found["links"] == [
        active,
        {"link": 1, "active": False, "status": 0, **none},
        {"link": 2, "active": None, "status": 15, **none},
    ]
    assert found["errors"] == {"replay": 0, "recovery": 1, "crc_flit": 0, "crc_data": 0}


@pytest.mark.parametrize("last", [2, 3])
def test_a_gpu_without_nvlink_has_no_link(last: int) -> None:
    assert query_nvlink(Nvml(last=last), 2)[1]["links"] == []


def test_a_link_beyond_a_gap_is_read_too() -> None:
    (found,) = query_nvlink(Nvml(1, 3, 1), 1)
    assert [row["link"] for row in found["links"]] == [0, 2]


def test_error_counters_of_nvlink_5_are_fields() -> None:
    (found,) = query_nvlink(Nvml(1, 1, version=7), 1)
    assert found["errors"] == {"recovery_failed": 4}
    # 15e-255, which stands for none.
    assert found["effective_ber"] == pytest.approx(15e-255)
    assert ctypes.sizeof(FieldValue) == 40


@pytest.mark.parametrize(("rate", "read"), [(4 << 8 | 9, 4e-9), (1 << 8 | 12, 1e-12), (9, 0.0)])
def test_the_rate_of_wrong_bits_has_a_mantissa_and_an_exponent(rate: int, read: float) -> None:
    (found,) = query_nvlink(Nvml(1, version=7, rate=rate), 1)
    assert found["effective_ber"] == pytest.approx(read)


def test_a_library_without_these_functions_reports_no_links() -> None:
    assert query_nvlink(object(), 1) == [
        {
            "index": 0,
            "address": None,
            "mig": None,
            "links": None,
            "errors": {},
            "effective_ber": None,
        }
    ]


@pytest.fixture
def host(tmp_path: Path) -> GpuHost:
    tmp_path.chmod(0o755)
    return GpuHost(tmp_path / "host")


def test_the_port_above_a_gpu_and_the_subnet_manager_are_read(host: GpuHost) -> None:
    first, second = (
        f"sys/bus/pci/devices/{address}" for address in ("0000:01:00.0", "0000:02:00.0")
    )
    tree, inside = host.root / "sys/devices/pci0000:00", "0000:00:01.0/0000:01:00.0"
    (tree / "0000:00:01.0").mkdir(parents=True)
    (host.root / first).rename(tree / inside)
    (host.root / second).rename(tree / "0000:02:00.0")
    for at, place in ((inside, first), ("0000:02:00.0", second)):
        host.link(place, f"../../../devices/pci0000:00/{at}")
    port = {
        "vendor": "0x8086",
        "current_link_width": "8",
        "current_link_speed": "2.5 GT/s PCIe",
        "max_link_width": "8",
        "max_link_speed": "16.0 GT/s PCIe",
    }
    for name, text in port.items():
        host.put(f"sys/devices/pci0000:00/0000:00:01.0/{name}", text + "\n")
    host.put("proc/cpuinfo", "processor : 0\nflags\t\t: fpu vme hypervisor avx\n")
    host.put("proc/812/comm", "nvlsm\n")
    host.put("opt/nvidia/nvlsm/sbin/nvlsm", mode=0o755)
    host.put("sys/module/ib_umad/version", "1.0\n")
    found = host.snapshot()["sections"]
    assert [card["port"] for card in found["gpus"]["data"]["pci"]] == [
        {"address": "0000:00:01.0", **port},
        None,
    ]
    assert found["gpus"]["data"]["hypervisor"] is True
    assert found["driver"]["data"]["nvlsm"] == {
        "program": "/opt/nvidia/nvlsm/sbin/nvlsm",
        "running": True,
        "modules": ["ib_umad"],
    }


def test_a_process_that_ends_while_processes_are_listed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files in /proc are still there, and to read them fails."""
    for pid, name in ((812, "bash"), (813, "nvlsm")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/comm").write_text(f"{name}\n")
    read = Host.text

    def text(host: Host, name: str) -> str:
        if name == "/proc/812/comm":
            raise ProcessLookupError(errno.ESRCH, "No such process")
        return str(read(host, name))

    monkeypatch.setattr(Host, "text", text)
    host = Host({"root": str(tmp_path)}, 20)
    assert subnet_manager(host) == {"program": None, "running": True, "modules": []}


class PeerNvml(Nvml):
    """An NVML whose GPUs have this peer access, by the number of the question."""

    def __init__(self, answers: dict[int, tuple[int, int]]) -> None:
        super().__init__(1, 1)
        self.answers = answers

    def nvmlDeviceGetP2PStatus(self, first: Any, second: Any, question: int, status: Any) -> int:
        returned, status._obj.value = self.answers[question]
        return returned


def test_peer_access_is_read_once_for_each_pair() -> None:
    found = query_nvlink(PeerNvml({0: (0, 0), 1: (0, 5), 2: (3, 0)}), 3)
    row = {"read": 0, "write": 5, "nvlink": None}
    assert [gpu["peers"] for gpu in found] == [
        [{"index": 1, **row}, {"index": 2, **row}],
        [{"index": 2, **row}],
        [],
    ]


def test_an_older_library_reports_no_peer_access_and_gpus_without_nvlink_are_not_asked() -> None:
    found = query_nvlink(Nvml(1), 2)
    assert found[0]["peers"] == [{"index": 1, "read": None, "write": None, "nvlink": None}]
    assert "peers" not in query_nvlink(Nvml(last=3), 1)[0]


def test_the_counters_of_all_links_are_asked_in_one_call() -> None:
    calls: list[int] = []

    class Counting(Nvml):
        def nvmlDeviceGetFieldValues(self, card: Any, count: int, values: Any) -> int:
            calls.append(count)
            return super().nvmlDeviceGetFieldValues(card, count, values)

    query_nvlink(Counting(1, 1, 1, version=7), 1)
    assert calls == [33]
