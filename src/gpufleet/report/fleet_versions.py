"""The versions of each component across the fleet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.fleet.host_versions import NONE, HostVersions, versions_of
from gpufleet.fleet.session import Session


@dataclass(frozen=True)
class Versions:
    """A component and its versions, each with its hosts; the most common version first."""

    component: str
    versions: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def differs(self) -> bool:
        """True if hosts have different versions."""
        return len(self.versions) > 1


def read_versions(session: Session) -> dict[str, HostVersions]:
    """The versions of each host; the page reads a snapshot only where it was not read before."""
    return {
        host.name: host.versions or versions_of(host.snapshot, host.plan) for host in session.hosts
    }


def compare_versions(host_versions: Mapping[str, HostVersions]) -> list[Versions]:
    """The versions of each component; those in which hosts differ come first."""
    hosts: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, host in host_versions.items():
        for component, version in host.versions.items():
            hosts[component][version].append(name)
    found = [
        Versions(
            component,
            tuple(
                sorted(
                    ((version, tuple(names)) for version, names in by.items()),
                    key=lambda row: -len(row[1]),
                )
            ),
        )
        for component, by in hosts.items()
        if set(by) != {NONE}
    ]
    return sorted(found, key=lambda row: not row.differs)


def describe(versions: Mapping[str, str]) -> str:
    """One line of a host's versions: GPUs, driver, kernel, operating system."""
    driver = f"driver {versions['Driver']}" if versions.get("Driver", NONE) != NONE else ""
    kernel = f"Linux {versions['Kernel']}" if "Kernel" in versions else ""
    parts = [versions.get("GPUs", ""), driver, kernel, versions.get("Operating system", "")]
    return ", ".join(part for part in parts if part and part != NONE)
