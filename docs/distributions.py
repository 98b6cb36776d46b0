# Apache-2.0, see LICENSE
"""The pages about distributions, from distributions.yml: what ran, where and when."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

MATRIX = """\
Each cell says where an area ran and when that was recorded; an empty cell did not run. No host had
a GPU. A distribution marked with * is a stand-in. [The log](distributions-log.md) lists the single
steps, and what was real.

"""
LOG = """\
[The matrix](distributions.md) is the summary. Nothing ran on a host with a GPU.
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
    drivers, ran = [], []
    for name, row in data["distributions"].items():
        drivers.append([name, row["own"], row["nvidia"], row["aarch64"]])
        mark = "\\*" if row.get("stand_in") else ""
        ran.append([name + mark, *(cells.get((name, area), "") for area in data["areas"])])
    return (
        f"# Distributions\n{source}\n{MATRIX}"
        + table(["", *data["areas"].values()], ran)
        + "\n## Drivers\n\n"
        + table(["", "the distribution's own driver", "NVIDIA's repository", "aarch64"], drivers)
    )


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
