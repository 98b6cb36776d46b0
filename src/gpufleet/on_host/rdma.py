"""RDMA devices (InfiniBand, RoCE, EFA) and their ports, each read in a process of its own.

A bridge to the NVSwitches looks like an adapter. Its firmware refuses what an adapter answers, and
each refusal is a line of the kernel's log: of a bridge, and of what may be one, nothing is read
that asks the firmware.
"""

import re
import time

from .pci import (
    ADDRESS,
    bridges_above,
    content,
    express_settings,
    iommu_type,
    link_name,
    number,
    port_of,
    word,
)
from .processes import Child, await_all
from .text import is_number, natural

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)

CLASS = "/sys/class/infiniband"
NVIDIA_ADAPTERS = "0x15b3"
# The part of the product data that names a bridge.
BRIDGE = b"SW_MNG"
# Bridges are ConnectX-7 functions: where the product data cannot be read, these devices and later
# ones may be bridges, and the older ones and BlueField are none.
POSSIBLE_BRIDGES = range(0x1021, 0x2000)
BITS_PER_WORD = 32
# More devices, ports, GIDs and counters than a host has. Each costs time.
MOST_DEVICES, MOST_PORTS, MOST_GIDS, MOST_KEYS, MOST_COUNTERS = 256, 8, 1024, 128, 128
# A subnet manager fills the table of keys from its begin: after so many empty ones nothing follows.
EMPTY_KEYS = 4
LINK = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
UNREAD = {
    "type": None,
    "firmware": None,
    "board": None,
    "guid": None,
    "driver": None,
    "vendor": None,
    "device": None,
    "address": None,
    "path": [],
    "numa": None,
    "iommu": None,
    "bridge": None,
    "link": None,
    "above": None,
    "max_read_request": None,
    "relaxed_ordering": None,
    "traffic_gb_s": None,
    "ports": None,
    "error": None,
    "hung": False,
}


def rdma_devices(host):
    """Every RDMA device; one that gives no answer has `error`, and costs no other one its rows."""
    names = [
        name[len(CLASS) + 1 :]
        for name in sorted(host.glob(CLASS + "/*"), key=natural)
        if host.exists(name) and not is_virtual_function(host, name)
    ]
    children = [
        Child(read_device, (host, name), host.inner_s / 4, patient=True)
        for name in names[:MOST_DEVICES]
    ]
    found = []
    for name, (state, answer, error, _) in zip(names, await_all(children)):
        row, denied = answer if state == "ok" else ({}, [])
        for each in denied:
            host.miss(each)
        failed = {"error": error or state, "hung": state == "hung"}
        found.append(dict(UNREAD, name=name, **(row or failed)))
    if len(names) > MOST_DEVICES:
        found.append(
            dict(UNREAD, name=names[MOST_DEVICES], error="more than %d devices" % MOST_DEVICES)
        )
    return found


def is_virtual_function(host, name):
    """Return whether a device belongs to a virtual machine or a container of this host.

    A host may have a thousand of them. In the virtual machine it is like any other device.
    """
    return host.exists(host.realpath(name + "/device") + "/physfn")


def read_device(host, name):
    """The values of a device, and the files that this account may not read."""
    directory, denied = host.realpath(CLASS + "/" + name), []
    place = host.realpath(directory + "/device")
    address = place.rpartition("/")[2]
    row = {
        "type": word(host, directory + "/hca_type"),
        "firmware": word(host, directory + "/fw_ver"),
        "board": word(host, directory + "/board_id"),
        "guid": word(host, directory + "/node_guid"),
        "driver": link_name(host, place + "/driver"),
        "vendor": word(host, place + "/vendor"),
        "device": word(host, place + "/device"),
        "address": address if ADDRESS.match(address) else None,
        "path": bridges_above(place),
        "numa": number(host, place + "/numa_node"),
        "iommu": iommu_type(host, place),
    }
    row["bridge"] = is_bridge(host, place, row, denied)
    row.update(express_settings(content(host, place + "/config")))
    if row["address"]:
        row["link"] = {key: word(host, place + "/" + key) for key in LINK}
        row["above"] = port_of(host, place)
    silent = row["bridge"] or (row["bridge"] is None and possible_bridge(row))
    row["ports"], begin = None, time.monotonic()
    if not silent:
        before = moved(host, directory)
        row["ports"] = ports_of(host, directory, denied)
        now = moved(host, directory)
        if None not in (before, now):
            bits = (now - before) * BITS_PER_WORD
            row["traffic_gb_s"] = round(bits / 1e9 / (time.monotonic() - begin), 3)
    return row, denied


def moved(host, directory):
    """The data that a device has sent and received, in words of four octets; None: not counted.

    Whether it moves data while its PCIe link is read says what the link's speed means.
    """
    names = host.glob(directory + "/ports/*/counters/port_*_data")[: 2 * MOST_PORTS]
    values = [number(host, name) for name in names]
    return sum(values) if values and None not in values else None


def is_bridge(host, place, row, denied):
    """True if it is a bridge to the NVSwitches; None where its product data cannot be read."""
    if row["vendor"] != NVIDIA_ADAPTERS or not host.exists(place + "/vpd"):
        return False
    data = content(host, place + "/vpd", denied)
    return BRIDGE in data if data else None


def possible_bridge(row):
    """Return whether a device whose product data cannot be read may be a bridge."""
    found = re.match(r"0x([0-9a-f]{4})$", row["device"] or "")
    return not found or int(found.group(1), 16) in POSSIBLE_BRIDGES


def ports_of(host, directory, denied):
    """The ports of a device."""
    names = sorted(host.glob(directory + "/ports/[0-9]*"), key=natural)[:MOST_PORTS]
    return [read_port(host, name, denied) for name in names]


def read_port(host, directory, denied):
    gids = gids_of(host, directory)
    return {
        "port": int(re.sub(r"[^0-9]", "", directory.rpartition("/")[2])),
        "state": word(host, directory + "/state", denied),
        "phys_state": word(host, directory + "/phys_state", denied),
        "rate": word(host, directory + "/rate", denied),
        "link_layer": word(host, directory + "/link_layer", denied),
        "gids": gids,
        "pkeys": keys_of(host, directory),
        "counters": counters_of(host, directory + "/counters"),
        # Some drivers keep them at the device.
        "hw_counters": counters_of(host, directory + "/hw_counters")
        or counters_of(host, directory.rpartition("/ports/")[0] + "/hw_counters"),
    }


def numbered(host, directory, most):
    """The files of a directory whose names are numbers, as (number, name)."""
    names = host.glob(directory + "/[0-9]*")
    found = [
        (int(tail), name)
        for name, tail in ((n, n.rpartition("/")[2]) for n in names)
        if is_number(tail)
    ]
    return sorted(found)[:most]


def gids_of(host, directory):
    """The entries of the GID table that are in use; null where there is no table."""
    entries = numbered(host, directory + "/gids", MOST_GIDS)
    found = []
    for index, name in entries:
        gid = word(host, name)
        if gid and gid.strip("0:"):
            attributes = directory + "/gid_attrs/%s/" + str(index)
            found.append(
                {
                    "index": index,
                    "gid": gid,
                    "kind": kind_of(gid),
                    "type": word(host, attributes % "types"),
                    "interface": word(host, attributes % "ndevs"),
                }
            )
    return found if entries else None


def kind_of(gid):
    """The kind of address in a GID; a report may leave out the address itself."""
    if gid.startswith("fe80:"):
        return "link-local"
    return "IPv4" if gid.startswith("0000:0000:0000:0000:0000:ffff:") else "IPv6"


def keys_of(host, directory):
    """The P_Keys of a port; null where there is no table. Each is a question to the firmware."""
    entries = numbered(host, directory + "/pkeys", MOST_KEYS)
    found, empty = [], 0
    for _, name in entries:
        key = word(host, name)
        empty = empty + 1 if key in (None, "0x0000") else 0
        if not empty:
            found.append(key)
        elif empty == EMPTY_KEYS:
            break
    return found if entries else None


def counters_of(host, directory):
    """The value of each counter, null where it cannot be read; null where there are none."""
    names = host.glob(directory + "/*")[:MOST_COUNTERS]
    found = {}
    for name in names:
        text = word(host, name) or ""
        # The kernel's word for a counter that this device does not have. `lifespan` is a setting.
        if not text.startswith("N/A") and not name.endswith("/lifespan"):
            found[name.rpartition("/")[2]] = int(text) if re.match(r"[0-9]{1,20}$", text) else None
    return found if names else None
