# Apache-2.0, see LICENSE
"""Plant a network adapter in the /sys of a lab host, which has none and may not write its own.

The adapter is that of `rdma_tree`. A stand-in for `systemd-detect-virt`, and a /proc/cpuinfo without the
flag of a hypervisor, make the host one of bare metal, wherever the tests run.
"""

from __future__ import annotations

import base64
import io
import tarfile
from pathlib import Path

from tests.support.lab_fleet import Fleet
from tests.support.rdma_tree import Tree, config, modules, port_config

PLACE = "/root/planted"
ADDRESS = "0000:21:00.0"
PORTS = ("0000:00:01.0", "0000:02:01.0")
# A write to the kernel's file goes through; one to the machine's own /sys, which is read-only, fails.
MOUNTS = f"""
set -e
mkdir -p {PLACE}/sys/fs/cgroup {PLACE}/sys/kernel
mount --bind /sys/fs/cgroup {PLACE}/sys/fs/cgroup
mount --rbind {PLACE}/sys /sys
printf '#!/bin/sh\\necho none\\nexit 1\\n' >/usr/local/bin/systemd-detect-virt
chmod 755 /usr/local/bin/systemd-detect-virt
sed 's/ hypervisor//' /proc/cpuinfo >{PLACE}/cpuinfo
mount --bind {PLACE}/cpuinfo /proc/cpuinfo
"""


def plant(fleet: Fleet, host: str, root: Path) -> None:
    """Plant a machine with one adapter, which makes small reads below ports that redirect copies."""
    tree = Tree(root)
    modules(tree)
    place = tree.mlx("mlx5_0", 0, "01")
    tree.put(f"{place}/config", config(512))
    for port in PORTS:
        tree.put(f"sys/bus/pci/devices/{port}/config", port_config(0x1D))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(root / "sys", "sys")
    text = base64.b64encode(packed.getvalue()).decode()
    fleet.on(host, f"mkdir -p {PLACE} && echo {text} | base64 -d | tar -xz -C {PLACE}")
    fleet.on(host, MOUNTS)


def registers(fleet: Fleet, host: str) -> tuple[str, list[str]]:
    """Device Control of the adapter, and the ACS control word of each port, as hexadecimal digits."""

    def word(address: str, offset: int) -> str:
        path = f"/sys/bus/pci/devices/{address}/config"
        return fleet.on(host, f"od -An -tx2 -j{offset} -N2 {path}").strip()

    return word(ADDRESS, 0x68), [word(port, 0x14E) for port in PORTS]
