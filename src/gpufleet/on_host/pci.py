"""Devices on the PCI bus, by the kernel's files and the standard part of their configuration."""

import os
import re
import struct

from .text import natural

BUS = "/sys/bus/pci/devices"
NVME = "/sys/class/nvme"
MOST_DRIVES = 64
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$")
# More than any of the files that are read here has.
MOST_BYTES = 4096
PORT = ("vendor", "current_link_width", "current_link_speed", "max_link_width", "max_link_speed")
# The standard part of the configuration, which is all that is needed and what every bus has.
CONFIG_BYTES = 256
STATUS, FIRST_CAPABILITY, HAS_CAPABILITIES, EXPRESS, DEVICE_CONTROL = 0x06, 0x34, 0x10, 0x10, 8
# The extended part begins here; a capability's header has its number and the place of the next one.
EXTENDED, ACCESS_CONTROL = 0x100, 0x0D
MOST_CAPABILITIES = 64
RELAXED_ORDERING, READ_REQUEST_SHIFT, LEAST_READ_REQUEST = 0x10, 12, 128


def content(host, name, denied=None):
    """The bytes of a small file of sysfs; None where it cannot be read.

    A file that this account may not read is added to `denied`.
    """
    try:
        # A pipe in its place, in somebody's tree, is not waited for.
        opened = os.open(host.path(name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        if denied is not None:
            denied.append(name)
        return None
    except OSError:
        return None
    try:
        return os.read(opened, MOST_BYTES)
    except OSError:  # what the device does not have, or does not tell now
        return None
    finally:
        os.close(opened)


def word(host, name, denied=None):
    """The text of such a file; None where it is empty or cannot be read."""
    found = content(host, name, denied)
    return found.decode("utf-8", "replace").strip() or None if found else None


def number(host, name, denied=None):
    """The decimal number in such a file; None where there is none."""
    found = word(host, name, denied)
    return int(found) if found and re.match(r"-?[0-9]{1,20}$", found) else None


def link_name(host, name):
    """The last part of a link's target; None where it is no link."""
    try:
        return os.path.basename(os.readlink(host.path(name))) or None
    except OSError:
        return None


def bridges_above(directory):
    """The addresses of the ports above a device, the root port first, of its real directory."""
    return [part for part in directory.split("/")[:-1] if ADDRESS.match(part)]


def port_of(host, directory):
    """The port above a device: its address, vendor and link, as the kernel prints them."""
    above = os.path.dirname(host.realpath(directory))
    if not ADDRESS.match(os.path.basename(above)):
        return None
    found = {"address": os.path.basename(above)}
    for key in PORT:
        found[key] = word(host, above + "/" + key)
    return found


def express_settings(config):
    """The "max_read_request" and "relaxed_ordering" of a device's configuration; null: not read."""
    found = {"max_read_request": None, "relaxed_ordering": None}
    # Without rights the kernel gives the first 64 bytes; a device that is gone answers with ones.
    if not config or len(config) < CONFIG_BYTES or config[:4] == b"\xff\xff\xff\xff":
        return found
    if not config[STATUS] & HAS_CAPABILITIES:
        return found
    at, left = config[FIRST_CAPABILITY] & 0xFC, 48
    while at >= 0x40 and left:
        if config[at] == EXPRESS and at + DEVICE_CONTROL + 2 <= CONFIG_BYTES:
            control = struct.unpack_from("<H", config, at + DEVICE_CONTROL)[0]
            found["max_read_request"] = LEAST_READ_REQUEST << (control >> READ_REQUEST_SHIFT & 7)
            found["relaxed_ordering"] = bool(control & RELAXED_ORDERING)
            break
        at, left = config[at + 1] & 0xFC, left - 1
    return found


def access_control(host, name):
    """The control word of a port's access control services (ACS), 0 where it has none.

    None where it cannot be read: without rights the kernel gives the first 64 bytes.
    """
    try:
        opened = os.open(host.path(name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        at, left = EXTENDED, MOST_CAPABILITIES
        while at >= EXTENDED and left:
            data = os.pread(opened, 8, at)
            if len(data) < 8 or data == b"\xff" * 8:
                return None
            header, _, control = struct.unpack("<IHH", data)
            if header & 0xFFFF == ACCESS_CONTROL:
                return control
            at, left = header >> 20 & 0xFFC, left - 1
        return 0
    except OSError:
        return None
    finally:
        os.close(opened)


def iommu_type(host, directory):
    """How the IOMMU treats a device, such as `identity` or `DMA`; `none` where it has no group."""
    if not host.exists(directory + "/iommu_group"):
        return "none"
    return word(host, directory + "/iommu_group/type")


def nvme_controllers(host):
    """The directory of each NVMe drive; one reached over a network belongs to another machine."""
    return [
        name
        for name in sorted(host.glob(NVME + "/nvme*"), key=natural)[:MOST_DRIVES]
        if (word(host, name + "/transport") or "pcie") == "pcie"
    ]
