# Apache-2.0, see LICENSE
"""The pages about distributions: what ran, where and when, and which drivers each has.

The runs are in distributions.yml; the drivers are the catalog's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from gpufleet.catalog import facts
from gpufleet.components.driver.sources import System

# The columns of the drivers: heading, source, architecture.
COLUMNS = [
    (f"{title}, {arch}", source, arch)
    for arch in facts.machines()
    for title, source in (("its own", "distro"), ("NVIDIA's repository", "nvidia_repo"))
]
MATRIX = """\
Each cell says where an area ran and when that was recorded; an empty cell did not run. No host had
a GPU. A distribution marked with * is a stand-in. The log, `tests/evidence/distributions.md` in
the checkout, lists the single steps, and what was real.

"""
DRIVERS = """
## Drivers

The driver branches in each distribution's own packages, of Ubuntu the server branches, and in
NVIDIA's repository; NVIDIA's runfile is offered on all. What is not known is not planned. NVIDIA's
repository was not read for aarch64: its branches are those of x86_64. The data and its sources:
`src/gpufleet/catalog/data/driver_offers.yml`.

"""
LOG_FILE = "tests/evidence/distributions.md"
LOG = """\
[The matrix](../../docs/reference/distributions.md) is the summary. Nothing ran on a host with a
GPU.
"""


def load() -> dict[str, Any]:
    """The data of both pages."""
    data: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text())
    return data


def matrix(table: Callable[[list[str], list[list[str]]], str], source: str) -> str:
    """A row for each distribution and a column for each area."""
    data = load()
    cells = {
        (name, run["area"]): f"{run['where']}, {run['date']}"
        for family in data["families"].values()
        for run in family["runs"]
        for name in run["hosts"]
    }
    systems = {row["name"]: System(row) for row in facts.document("driver_offers.yml")["systems"]}
    drivers, ran = [], []
    for name, row in data["distributions"].items():
        system = systems[row.get("system", name)]
        drivers.append([name, *(_branches(system, *place) for _, *place in COLUMNS)])
        mark = "\\*" if row.get("stand_in") else ""
        ran.append([name + mark, *(cells.get((name, area), "") for area in data["areas"])])
    return (
        f"# Distributions\n{source}\n{MATRIX}"
        + table(["", *data["areas"].values()], ran)
        + DRIVERS
        + table(["", *(title for title, _, _ in COLUMNS)], drivers)
    )


def _branches(system: System, source: str, arch: str) -> str:
    """The branches that a source has for a system: each one, or the range of a repository."""
    if not system.is_read(source, arch):
        return "not known"
    if source == "nvidia_repo":
        first, last = system.row[source]["from"], system.row[source]["to"]
        return f"{first} to {last}" if last else f"{first} and newer"
    return ", ".join(each.branch.number for each in system.offers(source, arch)) or "none"


def log(source: str) -> str:
    """Each run with its steps, by family."""
    data = load()
    parts = [f"# What ran on each distribution\n{source}\n{LOG}"]
    for title, family in data["families"].items():
        parts.append(f"\n## {title}\n\n{family['about']}\n")
        for heading, key in (("Real", "real"), ("Stand-ins", "stand_in"), ("Notes", "notes")):
            if key in family:
                parts.append(f"\n**{heading}**\n\n{_items(family[key])}")
        for run in family["runs"]:
            parts.append(
                f"\n### {title}: {data['areas'][run['area']]}\n\n"
                f"On {', '.join(run['hosts'])}, in a {run['where']}, recorded {run['date']}"
                f" ({run['tests']}).\n\n{_items(run['ran'])}"
            )
            if "not_run" in run:
                parts.append(f"\nDid not run:\n\n{_items(run['not_run'])}")
    return "".join(parts)


def _items(lines: list[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)
