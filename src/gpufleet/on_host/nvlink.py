"""The NVLinks of each GPU as NVML reports them, and the NVLink subnet manager of the host."""

import ctypes

from .holders import process_names
from .smi_document import pci_address

# One more than any GPU has: an older library ends the row with "invalid argument".
MOST_LINKS = 36
INVALID_ARGUMENT, NOT_SUPPORTED = 2, 3
REMOTE = {0: "gpu", 1: "cpu", 2: "switch"}
# Error counters of NVLink 1 to 4, by the numbers of nvmlDeviceGetNvLinkErrorCounter.
COUNTERS = ("replay", "recovery", "crc_flit", "crc_data", "ecc_data")
# And those of NVLink 5, by the numbers of their fields.
FIELDS = {
    206: "malformed",
    207: "overrun",
    208: "rx",
    209: "rx_remote",
    210: "rx_general",
    211: "integrity",
    212: "tx_discards",
    213: "recovered",
    214: "recovery_failed",
    219: "effective",
}
# The rate of bits that are wrong after correction: the exponent in 8 bits, above it the mantissa.
EFFECTIVE_BER = 220
NVLINK_5 = 7


class PciInfo(ctypes.Structure):
    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint * 5),
        ("address", ctypes.c_char * 32),
    ]


class FieldValue(ctypes.Structure):
    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", ctypes.c_uint),
        ("status", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    ]


def query_nvlink(nvml, count):
    """The NVLinks (index, address, mig, links, errors, effective_ber) of each GPU.

    `links` is None if the library cannot report them.
    """
    rows = [gpu_links(nvml, index) for index in range(count or 0)]
    handles = [handle(nvml, row["index"]) for row in rows if row["links"]]
    linked = [row for row in rows if row["links"]]
    for at, row in enumerate(linked):
        row["peers"] = [
            peer(nvml, (handles[at], handles[other]), linked[other]["index"])
            for other in range(at + 1, len(linked))
        ]
    return rows


# The questions to nvmlDeviceGetP2PStatus, in the order of its numbers.
PEERS = ("read", "write", "nvlink")


def peer(nvml, pair, index):
    """NVML's statuses of a peer: "read", "write" and "nvlink", with its "index".

    A status is 0 where it works; None where NVML does not report it.
    """
    found = {"index": index}
    for question, name in enumerate(PEERS):
        found[name] = (
            number(nvml, "nvmlDeviceGetP2PStatus", pair[0], pair[1], question)
            if None not in pair
            else None
        )
    return found


def handle(nvml, index):
    card = ctypes.c_void_p()
    return (
        card
        if call(nvml, "nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(card)) == 0
        else None
    )


def gpu_links(nvml, index):
    found = {"index": index, "address": None, "mig": None, "links": None, "errors": {}}
    found["effective_ber"] = None
    card = ctypes.c_void_p()
    try:
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(card)) == 0:
            found["address"] = address_by(nvml, "nvmlDeviceGetPciInfo_v3", card)
            mode, pending = ctypes.c_uint(), ctypes.c_uint()
            if (
                call(nvml, "nvmlDeviceGetMigMode", card, ctypes.byref(mode), ctypes.byref(pending))
                == 0
            ):
                found["mig"] = bool(mode.value)
            found["links"] = links_of(nvml, card)
            found["errors"], found["effective_ber"] = errors_of(nvml, card, found["links"])
    except AttributeError:
        pass
    return found


def links_of(nvml, card):
    """A GPU's links (link, active, status, version, remote, remote_address); none without NVLink.

    `status` is NVML's, 0 where `active` is known.
    """
    found = []
    for link in range(MOST_LINKS):
        state = ctypes.c_uint()
        status = nvml.nvmlDeviceGetNvLinkState(card, link, ctypes.byref(state))
        if status == INVALID_ARGUMENT:
            break
        if status == NOT_SUPPORTED:
            continue
        row = {
            "link": link,
            "active": bool(state.value) if status == 0 else None,
            "status": status,
            "version": None,
            "remote": None,
            "remote_address": None,
        }
        if row["active"]:
            row["version"] = number(nvml, "nvmlDeviceGetNvLinkVersion", card, link)
            row["remote"] = REMOTE.get(
                number(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", card, link)
            )
            row["remote_address"] = address_by(
                nvml, "nvmlDeviceGetNvLinkRemotePciInfo_v2", card, link
            )
        found.append(row)
    return found


def errors_of(nvml, card, links):
    """The sums of a GPU's error counters over its active links, and its worst bit error rate.

    The rate is None if the GPU reports none.
    """
    found, rates, rows = {}, [], []
    for row in links:
        if not row["active"]:
            continue
        if (row["version"] or 0) >= NVLINK_5:
            rows += [
                FieldValue(field=field, scope=row["link"])
                for field in [*sorted(FIELDS), EFFECTIVE_BER]
            ]
            continue
        for counter, name in enumerate(COUNTERS):
            value = ctypes.c_ulonglong()
            if (
                call(
                    nvml,
                    "nvmlDeviceGetNvLinkErrorCounter",
                    card,
                    row["link"],
                    counter,
                    ctypes.byref(value),
                )
                == 0
            ):
                add(found, name, value.value)
    # One call for all links: a failing card stalls each call (NVSentinel, issue 1748).
    values = (FieldValue * len(rows))(*rows)
    if rows and call(nvml, "nvmlDeviceGetFieldValues", card, len(rows), values) == 0:
        for value in values:
            if value.status == 0 and value.field == EFFECTIVE_BER:
                rates.append((value.value >> 8 & 15) * 10.0 ** -(value.value & 255))
            elif value.status == 0:
                add(found, FIELDS[value.field], value.value)
    return found, max(rates) if rates else None


def add(found, name, value):
    # The largest number of 64 bits stands for "not counted".
    if value < 1 << 62:
        found[name] = found.get(name, 0) + value


def call(nvml, function, *arguments):
    """NVML's status; None if the library lacks the function."""
    try:
        return getattr(nvml, function)(*arguments)
    except AttributeError:
        return None


def number(nvml, function, *arguments):
    value = ctypes.c_uint()
    status = call(nvml, function, *[*arguments, ctypes.byref(value)])
    return value.value if status == 0 else None


def address_by(nvml, function, *arguments):
    info = PciInfo()
    if call(nvml, function, *[*arguments, ctypes.byref(info)]) != 0:
        return None
    return pci_address(info.address.decode("ascii", "replace"))


# The subnet manager runs beside the fabric manager, which starts it.
SUBNET_MANAGER = ("/opt/nvidia/nvlsm/sbin/nvlsm", "/usr/bin/nvlsm", "/usr/sbin/nvlsm")
# The kernel modules by which it reaches the NVSwitches. One that is built in has a directory too.
SUBNET_MODULES = ("mlx5_ib", "ib_umad")


def subnet_manager(host):
    """The state of nvlsm ("program", "running") and of the kernel "modules" that it needs.

    `running` is None where processes cannot be listed.
    """
    found = [name for name in SUBNET_MANAGER if host.exists(name)]
    names = [name for _, name in process_names(host)]
    return {
        "program": found[0] if found else None,
        "running": "nvlsm" in names if names else None,
        "modules": [name for name in SUBNET_MODULES if host.exists("/sys/module/" + name)],
    }
