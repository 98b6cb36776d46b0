"""Which versions run across the fleet, and who is odd. From snapshots: the hosts' own word."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpufleet.verification.session import Session

NONE = "none"


@dataclass(frozen=True)
class Versions:
    """One thing, and its versions: the usual one first, each with its hosts."""

    what: str
    found: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def odd(self) -> bool:
        return len(self.found) > 1


@dataclass(frozen=True)
class HostVersions:
    """What a host said of itself: its versions, and {UUID: number} of its cards."""

    versions: Mapping[str, str]
    numbers: Mapping[str, int]


def read_versions(session: Session) -> dict[str, HostVersions]:
    """By host. Of all that reads snapshots for the page this is the one: each is unpacked once."""
    found = {}
    for host in session.hosts:
        snapshot = host.snapshot or {}
        found[host.name] = HostVersions(dict(_of(snapshot, host.plan)), _gpu_numbers(snapshot))
    return found


def compare_versions(hosts_told: Mapping[str, HostVersions]) -> list[Versions]:
    """Of everything that a host has or should have; that in which hosts differ comes first."""
    hosts: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, host in hosts_told.items():
        for what, version in host.versions.items():
            hosts[what][version].append(name)
    found = [
        Versions(what, tuple(sorted(
            ((version, tuple(names)) for version, names in by.items()),
            key=lambda row: -len(row[1]))))
        for what, by in hosts.items()
        if set(by) != {NONE}
    ]
    return sorted(found, key=lambda each: not each.odd)


def describe(told: Mapping[str, str]) -> str:
    """A host in a line by its versions: GPUs, driver, kernel, operating system."""
    driver = f"driver {told['Driver']}" if told.get("Driver", NONE) != NONE else ""
    kernel = f"Linux {told['Kernel']}" if "Kernel" in told else ""
    words = [told.get("GPUs", ""), driver, kernel, told.get("Operating system", "")]
    return ", ".join(word for word in words if word and word != NONE)


def _gpu_numbers(snapshot: Mapping[str, Any]) -> dict[str, int]:
    """{UUID: number}, from everybody who was asked for it."""
    runs = _rows(_section(snapshot, "compute"), "runs")
    cards = [device for run in runs for device in _rows(run, "devices")]
    cards += _rows(_section(snapshot, "smi"), "devices")
    return {card["uuid"]: card["index"] for card in cards if card.get("uuid") and "index" in card}


def _of(snapshot: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(what, version) of a host that was looked at; of what is planned and absent it is `none`."""
    if not snapshot:
        return
    system, kernel = _section(snapshot, "os"), _section(snapshot, "kernel")
    if system.get("id"):
        yield "Operating system", f"{system['id']} {system.get('version_id') or ''}".strip()
    if kernel.get("running"):
        yield "Kernel", str(kernel["running"])
    driver = _section(snapshot, "driver")
    if driver:
        yield "Driver", str(driver.get("loaded") or NONE)
    cards = Counter(str(card.get("name")) for card in _rows(_section(snapshot, "smi"), "devices"))
    if _section(snapshot, "smi").get("asked"):
        yield "GPUs", ", ".join(f"{count} × {name}" for name, count in cards.items()) or NONE
    yield from _planned(plan, "toolkits", "short", "CUDA {}", {
        tree.get("short"): tree.get("version")
        for tree in _rows(_section(snapshot, "toolkits"), "trees")})
    for tree in _rows(_section(snapshot, "cudnn"), "trees"):
        said = sorted({str(library["version"]) for library in _rows(tree, "loaded")
                       if library.get("version")})
        if said:
            yield f"cuDNN in {tree.get('toolkit')}", ", ".join(said)
    yield from _planned(plan, "stacks", "name", "{}", {
        stack.get("name"): _stack(stack)
        for stack in _rows(_section(snapshot, "stacks"), "stacks")})
    containers = _section(snapshot, "containers")
    for what, key in (("Container engine", "engine"), ("NVIDIA container toolkit", "toolkit")):
        about = containers.get(key)
        if isinstance(about, Mapping) and about.get("version"):
            yield what, f"{about.get('name') or ''} {about['version']}".strip()


def _stack(stack: Mapping[str, Any]) -> str:
    packages = stack.get("packages")
    release = packages.get("tensorflow") or packages.get("tensorflow-gpu") \
        if isinstance(packages, Mapping) else None
    return f"{release or NONE}, Python {stack.get('python')}"


def _planned(
    plan: Mapping[str, Any], where: str, key: str, title: str, there: dict[Any, Any]
) -> Iterator[tuple[str, str]]:
    names = [each.get(key) for each in _rows(plan, where)]
    for name in dict.fromkeys([*names, *there]):
        yield title.format(name), str(there.get(name) or NONE)


def _section(snapshot: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section's data; nothing where it could not be read or is damaged."""
    sections = snapshot.get("sections")
    section = sections.get(name) if isinstance(sections, Mapping) else None
    found = section.get("data") if isinstance(section, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _rows(within: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    rows = within.get(name)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
