"""A host's manifest: one line of text for each name of `model.manifest`, read from a snapshot.

What has no order on a host has none in a line: eight drives of a model are `8 x MODEL`, whatever
the kernel calls them. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpufleet.catalog import network as facts
from gpufleet.documents.manifest import MOST_TEXT, MOUNT, NAMES, NONE
from gpufleet.documents.sections.machine import Machine, PciLink
from gpufleet.documents.sections.network import Network
from gpufleet.documents.snapshot import SectionData
from gpufleet.documents.text import natural, one_line

# Kernels keep some of the memory for themselves, each a little more or less.
TOLERANCE = 0.02
_SIZE = re.compile(r"([0-9]{1,9}) GiB")
NOT_READ = "not read"


@dataclass
class Manifest:
    """The values of a host by name, and the reasons why names could not be read.

    `unread` also has the beginning of names, such as `mount `.
    """

    values: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    def value(self, name: str) -> str | None:
        """The value of a name; `none` for what the host does not have, None: not read."""
        if self.reason(name) is not None:
            return None
        return self.values.get(name, NONE)

    def reason(self, name: str) -> str | None:
        """Why a name could not be read; None where it was."""
        area = f"{name.partition(' ')[0]} " if name.startswith(MOUNT) else name
        return self.unread.get(area)


def same(one: str, other: str) -> bool:
    """Return whether two values are the same: sizes of memory may differ by 2 %."""
    if one == other:
        return True
    sizes = [[int(number) for number in _SIZE.findall(text)] for text in (one, other)]
    return (
        _SIZE.sub("GiB", one) == _SIZE.sub("GiB", other)
        and len(sizes[0]) > 0
        and all(abs(a - b) <= TOLERANCE * max(a, b) for a, b in zip(*sizes, strict=True))
    )


def counted(items: Iterable[str]) -> str:
    """`8 x MODEL, 2 x OTHER`, whatever the order; `none` without any."""
    return _counts(Counter(items))


def _counts(counts: Mapping[str, int]) -> str:
    rows = sorted(counts.items(), key=lambda row: natural(row[0]))
    return ", ".join(f"{number} x {item}" for item, number in rows) or NONE


def manifest_of(data: SectionData) -> Manifest:
    """The manifest in the sections of a snapshot that were read."""
    found = Manifest()
    machine = data.get("machine")
    if machine is None:
        found.unread = dict.fromkeys((*NAMES, MOUNT), "the section machine was not read")
        return found
    _machine(found, machine)
    _memory(found, machine, data)
    _pci(found, machine)
    _drives(found, machine)
    _gpus(found, machine, data)
    network = data.get("network")
    if network is None:
        _unread(found, "network.", "the section network was not read")
    else:
        _network(found, network)
    _kernel(found, machine, data)
    for name, value in found.values.items():
        if NOT_READ in value:
            found.unread[name] = "a part of it was not read"
        elif len(value) > MOST_TEXT:
            found.unread[name] = f"it has more than {MOST_TEXT} characters"
    found.values = {name: one_line(value) for name, value in found.values.items() if value != NONE}
    return found


def _unread(found: Manifest, beginning: str, why: str) -> None:
    found.unread.update((name, why) for name in NAMES if name.startswith(beginning))


def _joined(*parts: str | None) -> str:
    return " ".join(part for part in parts if part) or NONE


def _machine(found: Manifest, machine: Machine) -> None:
    firmware, cpus, why = machine["firmware"], machine["cpus"], machine["unread"]
    found.values["system"] = _joined(firmware.get("sys_vendor"), firmware.get("product_name"))
    found.values["board"] = _joined(firmware.get("board_vendor"), firmware.get("board_name"))
    date = firmware.get("bios_date")
    found.values["bios"] = _joined(
        firmware.get("bios_vendor"), firmware.get("bios_version"), f"({date})" if date else None
    )
    if machine["bmc"] is None or None in machine["bmc"]:
        found.unread["bmc"] = why.get("bmc", "it does not answer")
    else:
        found.values["bmc"] = ", ".join(sorted(filter(None, machine["bmc"]))) or NONE
    packages, cores, threads = cpus["packages"], cpus["cores"], sum(cpus["models"].values())
    if len(cpus["models"]) == 1:
        (model,) = cpus["models"]
        found.values["cpu.model"] = f"{packages} x {model}" if packages else model
    else:
        found.values["cpu.model"] = _counts(cpus["models"])
    if not threads:
        _unread(found, "cpu.model", "no CPU is listed in /proc/cpuinfo")
    if packages and cores:
        found.values["cpu.topology"] = f"sockets {packages}, cores {cores}, threads {threads}"
    else:
        found.unread["cpu.topology"] = "/sys has no topology of the CPUs"
    found.values["cpu.microcode"] = ", ".join(sorted(cpus["microcode"])) or NONE
    found.values["numa.cpus"] = (
        "; ".join(f"node {node['node']}: {node['cpus'] or NONE}" for node in machine["numa"])
        or NONE
    )
    _sizes(found, "numa.memory", [node["mib"] for node in machine["numa"]])


def _sizes(found: Manifest, name: str, sizes: list[int | None]) -> None:
    if None in sizes:
        found.unread[name] = NOT_READ
    else:
        found.values[name] = ", ".join(f"{round((size or 0) / 1024)} GiB" for size in sizes) or NONE


def _memory(found: Manifest, machine: Machine, data: SectionData) -> None:
    slots = machine["memory"]
    if slots is None:
        found.unread["memory.modules"] = machine["unread"].get("memory", NOT_READ)
    else:
        found.values["memory.modules"] = counted(
            _joined(
                "size not known" if slot["mib"] is None else _size(slot["mib"]),
                f"{slot['mt_s']} MT/s" if slot["mt_s"] else None,
                slot["maker"],
                slot["part"],
            )
            for slot in slots
            if slot["mib"] != 0
        )
    if disks := data.get("disks"):
        _sizes(found, "memory.total", [disks.get("memory_mib")])
    else:
        found.unread["memory.total"] = "the section disks was not read"


def _size(mib: int) -> str:
    # Not in GiB with a blank: a module's size has no tolerance.
    return f"{mib // 1024}GiB" if mib % 1024 == 0 else f"{mib}MiB"


# The names of classes of the PCI bus, by their first digits.
CLASSES = {"0x0108": "NVMe", "0x02": "network", "0x0680": "bridge"}


def _pci(found: Manifest, machine: Machine) -> None:
    found.values["pci.functions"] = _counts(machine["pci"]["kinds"])
    found.values["pci.links"] = counted(map(link_text, machine["pci"]["links"]))


def link_text(link: PciLink) -> str:
    """`NVMe 16 GT/s x4`, from what kernels print as `16 GT/s` or as `16.0 GT/s PCIe`."""
    kind = next((name for code, name in CLASSES.items() if link["class"].startswith(code)), None)
    number = re.match(r"[0-9]{1,4}(\.[0-9]{1,4})?", link["speed"])
    speed = f"{float(number[0]):g} GT/s" if number else link["speed"]
    return f"{kind or link['class']} {speed} x{link['width'] or NOT_READ}"


def _drives(found: Manifest, machine: Machine) -> None:
    drives = machine["drives"]
    found.values["nvme.drives"] = counted(
        f"{drive['model'] or 'model not read'} {drive['gb']} GB"
        f" firmware {drive['firmware'] or NOT_READ}"
        for drive in drives
    )
    errors = [drive["health"]["media_errors"] for drive in drives if drive["health"]]
    if len(errors) < len(drives):
        reasons = sorted({drive["error"] or NOT_READ for drive in drives if not drive["health"]})
        found.unread["nvme.media_errors"] = ", ".join(reasons)
    else:
        found.values["nvme.media_errors"] = str(sum(errors)) if drives else NONE


def _gpus(found: Manifest, machine: Machine, data: SectionData) -> None:
    found.values["gpu.models"] = counted(gpu["model"] or NOT_READ for gpu in machine["gpus"])
    versions = [gpu["vbios"] for gpu in machine["gpus"]]
    smi = data.get("smi")
    if None in versions and smi and len(smi["devices"]) == len(versions):
        # A driver that does not keep the GPUs started has not read it; nvidia-smi starts them.
        texts = [device.get("elements", {}).get("vbios_version") for device in smi["devices"]]
        versions = [text.lower() if text and text[0].isdigit() else None for text in texts]
    if None in versions:
        found.unread["gpu.vbios"] = "the driver has not started the GPUs"
    else:
        found.values["gpu.vbios"] = counted(filter(None, versions))


def _network(found: Manifest, network: Network) -> None:
    devices = network["devices"]
    if devices is None or any(device["error"] for device in devices):
        for name in ("network.adapters", "network.ports"):
            found.unread[name] = "an adapter was not read"
    else:
        # Not every maker's adapters have the id of a board.
        boards = any(device["board"] for device in devices)
        found.values["network.adapters"] = counted(
            _joined(
                device["type"] or device["device"] or NOT_READ,
                f"board {device['board'] or NOT_READ}" if boards else None,
                f"firmware {device['firmware'] or NOT_READ}",
            )
            for device in devices
        )
        found.values["network.ports"] = counted(
            f"{port['link_layer'] or NOT_READ} {_rate(port['state'], port['rate'])}"
            for device in devices
            for port in device["ports"] or []
        )
    if network["interfaces"] is None:
        found.unread["network.interfaces"] = "the interfaces were not read"
    else:
        found.values["network.interfaces"] = counted(
            f"{interface['driver'] or NOT_READ} {_speed(interface['carrier'], interface['speed'])}"
            for interface in network["interfaces"]
            if interface["type"] == 1
        )


def _rate(state: str | None, rate: str | None) -> str:
    number = facts.state_number(state)
    if number is None or not rate:
        return NOT_READ
    return rate if number == facts.state("active") else "not active"


def _speed(carrier: int | None, speed: int | None) -> str:
    if carrier is None:
        return "not set up"
    if not carrier:
        return "without a carrier"
    return f"{speed} Mb/s" if speed and speed > 0 else "of an unknown speed"


def _kernel(found: Manifest, machine: Machine, data: SectionData) -> None:
    why, kernel = machine["unread"], data.get("kernel")
    if kernel:
        found.values["kernel.release"] = kernel["running"]
        frequency = kernel.get("frequency")
        if frequency is None or any(row["governor"] is None for row in frequency):
            found.unread["cpu.governor"] = "it was not read of each CPU"
        else:
            found.values["cpu.governor"] = _alike(row["governor"] for row in frequency)
    else:
        for name in ("kernel.release", "cpu.governor"):
            found.unread[name] = "the section kernel was not read"
    _text(found, "kernel.command_line", machine["command_line"], why.get("command_line"))
    if machine["mounts"] is None:
        found.unread[MOUNT] = why.get("mounts", NOT_READ)
    for mount in machine["mounts"] or []:
        found.values[MOUNT + mount["path"]] = f"{mount['type']} {','.join(mount['options'])}"
    clock = machine["clock"]
    if clock["unsynchronised"] is None:
        found.unread["clock.synchronised"] = "the kernel does not say it"
    else:
        found.values["clock.synchronised"] = "yes" if _synchronised(machine) else "no"
    found.values["clock.services"] = ", ".join(clock["services"]) or NONE
    limits = machine["limits"]
    for name, lines in (
        ("limits.logins", limits["logins"] if limits else None),
        ("limits.defaults", limits["services"] if limits else None),
    ):
        text = None if lines is None else "; ".join(lines) or NONE
        _text(found, name, text, why.get("limits"))
    for service, has in machine["inherited"].items():
        name = f"limits.{service}"
        if None in has.values():
            found.unread[name] = NOT_READ
        else:
            found.values[name] = f"nofile {has['nofile']}, memlock {has['memlock']}"


def _text(found: Manifest, name: str, text: str | None, why: str | None) -> None:
    if text is None:
        found.unread[name] = why or NOT_READ
    else:
        found.values[name] = text or NONE


def _alike(items: Iterable[str | None]) -> str:
    """The value that all have, or how many have which."""
    found = [item for item in items if item]
    return found[0] if len(set(found)) == 1 else counted(found)


# Where chrony runs without `rtcsync`, the kernel's flag stays set, and the greatest error is kept
# low. An error that nothing corrects grows to this within nine hours (kernel/time/ntp.c).
GREATEST_ERROR_US = 16_000_000


def _synchronised(machine: Machine) -> bool:
    clock = machine["clock"]
    error = clock["max_error_us"]
    return not clock["unsynchronised"] or (error is not None and error < GREATEST_ERROR_US)


def split(manifests: Mapping[str, Manifest], name: str) -> dict[str | None, list[str]]:
    """The hosts that have each value, the most frequent value first; None: it was not read."""
    groups: dict[str | None, list[str]] = {}
    for host, manifest in manifests.items():
        value = manifest.value(name)
        known = next(
            (key for key in groups if value is not None and key is not None and same(key, value)),
            value,
        )
        groups.setdefault(known, []).append(host)
    return dict(sorted(groups.items(), key=lambda row: (-len(row[1]), row[0] or "")))


def names(manifests: Iterable[Manifest]) -> Iterator[str]:
    """Every name that one of the hosts has a value of, in the order of the reference."""
    found = {name for manifest in manifests for name in (*manifest.values, *manifest.unread)}
    yield from (name for name in NAMES if name in found)
    yield from sorted((name for name in found if name.startswith(f"{MOUNT}/")), key=natural)
