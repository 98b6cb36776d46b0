"""Section `network`: RDMA devices and their ports, network interfaces, and what programs need."""

import os

from ..dcb import lossless
from ..network_setup import UNIT, network_setup
from ..pci import BUS, access_control, bridges_above, iommu_type, link_name, number, word
from ..processes import in_child
from ..rdma import is_virtual_function, rdma_devices
from ..text import natural
from .driver import unit_state
from .kernel import running_kernel

NET = "/sys/class/net"
NVIDIA = "0x10de"
# The kernel's modules of RDMA and GPUDirect.
MODULES = (
    "ib_core",
    "ib_uverbs",
    "ib_umad",
    "rdma_ucm",
    "mlx5_core",
    "mlx5_ib",
    "efa",
    "nvidia_peermem",
    "nv_peer_mem",
    "gdrdrv",
)
# More interfaces than are read of a host, and masters (a bond below a bridge) above one of them.
MOST_INTERFACES, MOST_MASTERS = 256, 4


def section_network(host):
    seen = host.exists("/sys/class")
    devices = rdma_devices(host) if seen else None
    silent = {row["address"] for row in devices or [] if row["address"] and row["ports"] is None}
    # The speed of an interface is a question to its driver, which may not answer.
    answer, interfaces, _ = in_child(interfaces_of, (host, silent), host.inner_s / 4)
    adapters, gpus = pci_functions(host)
    above = {port for row in gpus + (devices or []) for port in row["path"]}
    # A device that is gone may not answer either.
    state, access, _ = in_child(access_of, (host, sorted(above)), host.inner_s / 4)
    return {
        "devices": devices,
        "interfaces": interfaces if seen and answer == "ok" else None,
        "adapters": adapters,
        "gpus": gpus,
        "access_control": access if state == "ok" else dict.fromkeys(above),
        "peermem": word(host, "/sys/module/nvidia_peermem/version"),
        "modules": (
            {name: host.exists("/sys/module/" + name) for name in MODULES}
            if host.exists("/sys/module")
            else None
        ),
        "nodes": nodes_of(host),
        "setup": dict(network_setup(host, running_kernel(host)), **unit_state(host, UNIT)),
    }


def pci_functions(host):
    """The network functions, and NVIDIA's GPUs with the ports above each, on the PCI bus."""
    adapters, gpus = [], []
    for name in host.glob(BUS + "/*"):
        kind = word(host, name + "/class") or ""
        if kind.startswith("0x02") and not host.exists(name + "/physfn"):
            adapters.append(
                {
                    "address": os.path.basename(name),
                    "vendor": word(host, name + "/vendor"),
                    "device": word(host, name + "/device"),
                    "class": kind,
                    "driver": link_name(host, name + "/driver"),
                }
            )
        elif kind.startswith("0x03") and word(host, name + "/vendor") == NVIDIA:
            gpus.append(
                {
                    "address": os.path.basename(name),
                    "path": bridges_above(host.realpath(name)),
                    "numa": number(host, name + "/numa_node"),
                    "iommu": iommu_type(host, name),
                }
            )
    return adapters, gpus


def access_of(host, addresses):
    """The control word of access control of PCI ports, by address."""
    return {name: access_control(host, BUS + "/" + name + "/config") for name in addresses}


def nodes_of(host):
    """The device files that programs open, by the devices that the kernel made them for."""
    copies = "/dev/gdrdrv"
    found = []
    if host.exists(copies):
        found.append({"path": copies, "device": None, "port": None, "exists": True})
    for kind in ("infiniband_verbs/uverbs", "infiniband_mad/umad"):
        for name in sorted(host.glob("/sys/class/%s[0-9]*" % kind), key=natural):
            node = "/dev/infiniband/" + os.path.basename(name)
            found.append(
                {
                    "path": node,
                    "device": word(host, name + "/ibdev"),
                    "port": number(host, name + "/port"),
                    "exists": host.exists(node),
                }
            )
    return found


def interfaces_of(host, silent):
    """The network interfaces that have a device, which is no bridge to the NVSwitches."""
    routes, found = default_routes(host), []
    for name in sorted(host.glob(NET + "/*"), key=natural):
        if not host.exists(name + "/device") or is_virtual_function(host, name):
            continue
        if len(found) == MOST_INTERFACES:
            break
        place = host.realpath(name + "/device")
        address = os.path.basename(place)
        asked = address not in silent
        found.append(
            {
                "name": os.path.basename(name),
                "address": address,
                "driver": link_name(host, place + "/driver"),
                "type": number(host, name + "/type"),
                "operstate": word(host, name + "/operstate"),
                "carrier": number(host, name + "/carrier"),
                "carrier_changes": number(host, name + "/carrier_changes"),
                "carrier_up_count": number(host, name + "/carrier_up_count"),
                "speed": number(host, name + "/speed") if asked else None,
                "index": number(host, name + "/ifindex"),
                "mtu": number(host, name + "/mtu"),
                "dev_port": number(host, name + "/dev_port"),
                "master": link_name(host, name + "/master"),
                "lossless": lossless(host, os.path.basename(name)) if asked else None,
                "default_route": not routes.isdisjoint(with_masters(host, name)),
            }
        )
    return found


def with_masters(host, name):
    """The names of an interface and of those that it is a part of."""
    found = [os.path.basename(name)]
    for _ in range(MOST_MASTERS):
        master = link_name(host, NET + "/" + found[-1] + "/master")
        if not master:
            break
        found.append(master)
    return found


def default_routes(host):
    """The interfaces of the default routes."""
    found = set()
    for line in (host.text_or_none("/proc/net/route") or "").splitlines():
        fields = line.split()
        if len(fields) > 7 and fields[1] == "00000000" == fields[7]:
            found.add(fields[0])
    for line in (host.text_or_none("/proc/net/ipv6_route") or "").splitlines():
        fields = line.split()
        if len(fields) == 10 and not fields[0].strip("0") and fields[1] == "00":
            found.add(fields[9])
    return found - {"lo"}
