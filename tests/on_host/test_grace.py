"""IMEX and the memory that CPU and GPU share, as a planted tree has them."""

from __future__ import annotations

from pathlib import Path

from gpufleet.on_host.host import Host
from gpufleet.on_host.sections.driver import coherent_memory, imex
from tests.support.planted_host import put

NODE = "sys/devices/system/node/node"


def host(root: Path) -> Host:
    return Host({"root": str(root)})


def test_a_tray_without_imex(tmp_path: Path) -> None:
    found = imex(host(tmp_path))
    assert found == {"unit": None, "enabled": None, "active": None, "nodes": None, "channels": 0}


def test_the_nodes_and_channels_of_imex(tmp_path: Path) -> None:
    put(tmp_path, "lib/systemd/system/nvidia-imex.service")
    put(tmp_path, "etc/nvidia-imex/nodes_config.cfg", "# rack 12\n10.0.7.1\n\n 10.0.7.2 \n")
    for number in (0, 7):
        put(tmp_path, f"dev/nvidia-caps-imex-channels/channel{number}")
    found = imex(host(tmp_path))
    assert found["nodes"] == ["10.0.7.1", "10.0.7.2"]
    assert (found["unit"], found["channels"]) == ("nvidia-imex.service", 2)
    put(tmp_path, "etc/nvidia-imex/nodes_config.cfg", "")
    assert imex(host(tmp_path))["nodes"] == []


def node(root: Path, number: int, cpus: str, kib: int) -> None:
    put(root, f"{NODE}{number}/cpulist", cpus + "\n")
    put(root, f"{NODE}{number}/meminfo", f"Node {number} MemTotal:  {kib} kB\n")


def test_the_nodes_of_the_gpus_have_memory_and_no_cpu(tmp_path: Path) -> None:
    node(tmp_path, 0, "0-71", 501_000_000)
    node(tmp_path, 1, "72-143", 501_000_000)
    node(tmp_path, 2, "", 97_000_000)
    node(tmp_path, 10, "", 97_000_000)
    # Memory nodes of MIG instances have no memory until an instance exists.
    node(tmp_path, 3, "", 0)
    put(tmp_path, "proc/driver/nvidia/params", 'EnableMSI: 1\nCoherentGPUMemoryMode: ""\n')
    assert coherent_memory(host(tmp_path)) == {"mode": None, "nodes": [2, 10]}


def test_memory_of_the_driver(tmp_path: Path) -> None:
    node(tmp_path, 0, "0-71", 501_000_000)
    put(tmp_path, "proc/driver/nvidia/params", 'CoherentGPUMemoryMode: "driver"\n')
    assert coherent_memory(host(tmp_path)) == {"mode": "driver", "nodes": []}


def test_a_driver_before_this_option(tmp_path: Path) -> None:
    put(tmp_path, "proc/driver/nvidia/params", "EnableMSI: 1\n")
    assert coherent_memory(host(tmp_path)) == {"mode": None, "nodes": []}
