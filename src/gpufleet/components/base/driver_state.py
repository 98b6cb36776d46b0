"""The state of a host's driver: what the modules that judge a part of it share.

`packages`, `kernels` and `running` of the driver are pure functions from plan and host to faults,
used by `change` (what to do) and by the checks (what is wrong). A kernel without a module, or a
package that is not held, is a fault before the next boot or upgrade makes it an outage.

On a host declared without GPU everything is judged but what needs a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from gpufleet.documents.plan import Action, Plan
from gpufleet.documents.text import gpufleet
from gpufleet.documents.types import Row

from .host import Host, mapping, mappings

RECEIPT: tuple[Literal["driver"], str] = ("driver", "driver")  # kind and id
SECTIONS = ("kernel", "gpus", "driver", "packages")  # of the snapshot, that are read here
PACKAGED = ("distro", "nvidia_repo")  # sources whose files belong to packages

# Packages of the driver that have a version of their own, or a firmware's version in their name.
_OWN_VERSION = re.compile(r"nvidia-(modprobe|persistenced|settings|xconfig|firmware-.*)")
_UPSTREAM = re.compile(r"(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)(?![.\d])")


@dataclass(frozen=True)
class Fault:
    """Something that differs from the plan. `action`: what a run does about it, as in a plan's
    changes; empty where only a restart or a person can help."""

    cause: str
    remedy: str
    action: Action | Literal[""] = "repair"


Judge = Callable[[Plan, Host], Iterator[Fault]]


def managed(plan: Plan) -> Row | None:
    """The plan's driver where gpufleet installs it, else None."""
    driver = mapping(plan.get("driver"))
    return driver if driver.get("managed") else None


def without_card(plan: Plan, host: Host) -> bool:
    """Return whether no driver has to run: no GPU is declared, or none is found where it may be."""
    count = mapping(plan.get("expect")).get("count")
    return count == 0 or (count is None and not host.gpus)


def provision(plan: Plan) -> str:
    """The remedy: the command, or whoever maintains a driver that gpufleet does not manage."""
    if managed(plan):
        return gpufleet("provision", "--limit", plan["host"])
    return f"ask whoever installs the driver of {plan['host']} to repair it"


def upstream(version: Any) -> str | None:
    """NVIDIA's version in a package's: 535.261.03 in 3:535.261.03-1.el9; None for others."""
    match = _UPSTREAM.match(str(version or ""))
    return match[1] if match else None


def package_rows(host: Host) -> dict[str, Row]:
    """The driver's packages by name, whatever their state."""
    return {str(row.get("name")): row for row in mappings(part(host, "packages").get("driver"))}


def core(host: Host) -> dict[str, str]:
    """The driver's version in each package that must be of one version, by package."""
    return {
        name: version
        for name, row in package_rows(host).items()
        if (version := upstream(row.get("version"))) and not _OWN_VERSION.match(name)
    }


def installed(plan: Plan, host: Host) -> str | None:
    """The installed version: of the packages, or of libraries that no package installed.

    Where packages are of several versions, that of the kernel module's counts.
    """
    packages = core(host)
    by_weight = sorted(packages, key=lambda name: ("dkms" not in name, "kernel" not in name, name))
    if by_weight:
        return packages[by_weight[0]]
    return None if mapping(plan["driver"]).get("source") in PACKAGED else host.driver_library


def part(host: Host, section: str) -> Row:
    """A section's data; empty where the section could not be read."""
    return mapping(host.section(section))


def texts(value: Any) -> list[str]:
    """A list's parts as text, nothing for anything else."""
    return [str(each) for each in value] if isinstance(value, list) else []


def listed(names: Iterable[str], most: int = 4) -> str:
    """`a, b and 12 more`."""
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more
