"""The identity of a host that was proven: its plan, its parts by serial number, its software.

Pure. Each part of the identity is a digest: a record is compared with the host of today.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from gpufleet.documents.commission import HostState, Part
from gpufleet.documents.plan import Plan
from gpufleet.documents.receipt import ReceiptFields
from gpufleet.documents.sections.gpu import SmiDevice
from gpufleet.documents.sections.host import Hardware
from gpufleet.documents.sections.network import Network
from gpufleet.documents.snapshot import SectionData, Snapshot
from gpufleet.documents.validator import section_data

# The parts of an identity, and how messages name them.
PLAN, MACHINE, MEMORY, SLOTS, PORTS = "plan", "machine", "memory", "slots", "ports"
DISKS = "disks"
CARDS, DRIVER, INSTALLED, BURN_IN = "cards", "driver", "installed", "burn-in"
KERNEL = "kernel"
STATE = "state"
PROCESSORS, UUIDS = "processors", "uuids"
# Parts of the identity that records of earlier releases lack: a stage is compared by what it has.
LATER = (PROCESSORS, UUIDS)
NAMES = {
    STATE: "its state, set by a person,",
    PLAN: "its declaration",
    MACHINE: "the machine",
    MEMORY: "its memory modules",
    SLOTS: "the cards on its PCI bus",
    PORTS: "its network adapters",
    DISKS: "its disks",
    CARDS: "its GPUs",
    UUIDS: "the UUIDs of its GPUs",
    PROCESSORS: "its processors, the size of its memory or its BIOS",
    KERNEL: "its kernel",
    DRIVER: "its driver",
    INSTALLED: "what is installed",
    BURN_IN: "the time of the burn-in",
}
# The keys of a plan that are no declaration.
OF_STATE = ("changes", "notes", "problems")
# The key of a planned stack that is none: provisioning itself resolves and writes a lock.
LOCK: Final = "lock_sha256"


def digest(value: object) -> str:
    """A digest of a document's value, the same for equal values."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def plan_digest(declared: Plan) -> str:
    """The digest of what a plan declares; the plan is made without a snapshot."""
    found = {key: value for key, value in declared.items() if key not in OF_STATE}
    stacks = [
        {key: value for key, value in stack.items() if key != LOCK} for stack in declared["stacks"]
    ]
    return digest({**found, "stacks": stacks})


def identity_of(
    declared: Plan, snapshot: Snapshot | None, set_by_person: HostState | None = None
) -> dict[str, str]:
    """The digest of each part of a host's identity; none of what was not read.

    `declared`: its plan, made without a snapshot: what was found on the host changes no digest.
    `set_by_person`: the last state that a person set. Who takes a host out of production, or
    returns it, knows more of it than what was proven before.
    """
    found = {PLAN: plan_digest(declared)}
    if set_by_person:
        found[STATE] = digest(set_by_person)
    if snapshot is None:
        return found
    data = section_data(snapshot)
    found |= {name: digest(value) for name, value in _read(data)}
    if "receipts" in data:
        found[INSTALLED] = digest(_installed(declared, data["receipts"]["receipts"]))
    return found


def _installed(declared: Plan, receipts: Sequence[ReceiptFields]) -> list[list[str | None]]:
    """The installed components with their locks, then those that wait for another lock.

    A lock is compared with its receipt alone. So the lock that provisioning resolves voids nothing,
    and one that somebody changes has its stack installed again.
    """
    locks = {row["name"]: row[LOCK] for row in declared["stacks"]}
    rows: list[list[str | None]] = []
    waiting: list[list[str | None]] = []
    for receipt in sorted(receipts, key=lambda each: (each["kind"], each["id"])):
        used = receipt.get(LOCK)
        row = [receipt["kind"], receipt["id"], receipt["version"]]
        rows.append([*row, used] if used else [*row])
        wanted = locks.get(receipt["id"]) if receipt["kind"] == "stack" else None
        if wanted and wanted != used:
            waiting.append(["lock", receipt["id"], wanted])
    return [*rows, *waiting]


def _read(data: SectionData) -> Iterator[tuple[str, object]]:
    if hardware := _hardware(data):
        numbers = (hardware["serial"], hardware["serial_board"])
        yield MACHINE, [hardware["product"], *numbers, hardware["firmware"]]
        if found := modules(data):
            yield MEMORY, sorted(_proven(part) for part in found)
        yield DISKS, sorted(_proven(part) for part in drives(data))
    if "gpus" in data:
        yield SLOTS, sorted((card["address"], card["device"]) for card in data["gpus"]["pci"])
    if (network := data.get("network")) and network["devices"] is not None:
        yield PORTS, sorted(_proven(part) for part in adapters(network))
    if "kernel" in data:
        yield KERNEL, data["kernel"]["running"]
    if "driver" in data:
        yield DRIVER, data["driver"]["loaded"] or data["driver"]["library"]
    if cards := gpus(data):
        yield CARDS, sorted(_proven(part) for part in cards)
        yield UUIDS, sorted(part["id"] or "" for part in cards)
    if machine := data.get("machine"):
        cpus = machine["cpus"]
        # The kernel's own part of the memory differs between its releases.
        sizes = [round(node["mib"] / 4096) for node in machine["numa"] if node["mib"]]
        version = machine["firmware"].get("bios_version")
        yield PROCESSORS, [sorted(cpus["models"].items()), cpus["packages"], sizes, version]


def _proven(part: Part) -> list[str]:
    """The identity of a proven part: its number, its slot and its firmware."""
    return [
        part["serial"] or part["id"] or part["name"],
        part["slot"] or "",
        part["firmware"] or "",
    ]


def _hardware(data: SectionData) -> Hardware | None:
    """The identification of the machine; None where the probe is of an earlier release."""
    return data["os"].get("hardware") if "os" in data else None


# -- parts -----------------------------------------------------------------------------------------


def parts_of(name: str, snapshot: Snapshot | None) -> list[Part]:
    """The host itself, then GPUs, adapters, drives and memory, each as its vendor identifies it."""
    data: SectionData = section_data(snapshot) if snapshot else {}
    network = data.get("network")
    return [
        host_part(name, data),
        *gpus(data),
        *(adapters(network) if network else ()),
        *drives(data),
        *modules(data),
    ]


def other_parts(certified: Sequence[Part], now: Sequence[Part]) -> list[str]:
    """Sentences on parts that are not certified ones, and on certified parts that are gone.

    Slots and firmware may change. A kind of which nothing was read now says nothing.
    """
    found = []
    for kind in dict.fromkeys(part["kind"] for part in certified):
        before, after = (
            [part for part in parts if part["kind"] == kind and (part["serial"] or part["id"])]
            for parts in (certified, now)
        )
        new = [part for part in after if not any(_same(part, known) for known in before)]
        gone = {p["name"]: p for p in before if not any(_same(p, each) for each in after)}
        if not after:
            continue
        for part in new:
            known = gone.pop(part["name"], None)
            was = f"certified was {_number(known)}" if known else "it was not certified"
            found.append(f"{part['name']} is another one: {_number(part)}, {was}")
        found += [f"{part['name']} ({_number(part)}) is gone" for part in gone.values()]
    return found


def _same(one: Part, other: Part) -> bool:
    """Return whether two parts are one by all of their numbers that both have."""
    both = [(one[key], other[key]) for key in ("serial", "id") if one[key] and other[key]]
    return bool(both) and all(mine == its for mine, its in both)


def _number(part: Part) -> str:
    return f"serial number {part['serial']}" if part["serial"] else str(part["id"])


def host_part(name: str, data: SectionData) -> Part:
    """The host as a whole."""
    known = _hardware(data)
    names = (known["vendor"], known["product"]) if known else ()
    return {
        "kind": "host",
        "name": name,
        "model": " ".join(filter(None, names)) or None,
        "serial": known and (known["serial"] or known["serial_board"]),
        "id": None,
        "slot": None,
        "firmware": known and known["firmware"],
    }


def drives(data: SectionData) -> list[Part]:
    """The NVMe drives."""
    known = _hardware(data)
    return [
        {
            "kind": "drive",
            "name": drive["name"],
            "model": drive["model"],
            "serial": drive["serial"],
            "id": None,
            "slot": drive["address"],
            "firmware": drive["firmware"],
        }
        for drive in (known["drives"] if known else ())
    ]


def modules(data: SectionData) -> list[Part]:
    """The memory modules, named by their slots."""
    known = _hardware(data)
    return [
        {
            "kind": "module",
            "name": module["slot"] or f"memory module {number}",
            "model": " ".join(filter(None, (module["maker"], module["part"]))) or None,
            "serial": module["serial"],
            "id": None,
            "slot": ", ".join(filter(None, (module["slot"], module["bank"]))) or None,
            "firmware": None,
        }
        for number, module in enumerate((known and known.get("modules")) or ())
    ]


def gpus(data: SectionData) -> list[Part]:
    """The GPUs that nvidia-smi lists, in the order of their numbers."""
    smi = data.get("smi")
    above = {
        card["address"]: port["address"]
        for card in (data["gpus"]["pci"] if "gpus" in data else ())
        if (port := card.get("port"))
    }
    devices = smi["devices"] if smi and smi["status"] == 0 else []
    return [_gpu(device, above) for device in sorted(devices, key=lambda each: each["index"])]


def _gpu(device: SmiDevice, above: Mapping[str, str]) -> Part:
    elements = device.get("elements") or {}
    port = above.get(device["address"])
    return {
        "kind": "gpu",
        "name": f"GPU {device['index']}",
        "model": device["name"],
        "serial": _known(elements.get("serial")),
        "id": device["uuid"],
        "slot": f"{device['address']}, below {port}" if port else device["address"],
        "firmware": _known(elements.get("vbios_version")),
    }


def _known(text: str | None) -> str | None:
    """A text of nvidia-smi, if it is one."""
    return text if text and text not in {"N/A", "[N/A]", "0"} else None


def adapters(network: Network) -> list[Part]:
    """The RDMA adapters, in the order of their names; a bridge to the NVSwitches is none."""
    return [
        {
            "kind": "adapter",
            "name": device["name"],
            "model": device["type"],
            "serial": _known(cast(Mapping[str, Any], device).get("serial")),
            "id": device["guid"],
            "slot": device["address"],
            "firmware": device["firmware"],
        }
        for device in sorted(network["devices"] or (), key=lambda each: each["name"])
        if device["bridge"] is not True
    ]
