"""`gpufleet measure`: compare the catalog with TensorFlow's wheels, and record what they contain.

Writes the catalog's measurements in the checkout. A release without a wheel on the index is
recorded as such. The index is the one that uv or pip is set to (UV_DEFAULT_INDEX, PIP_INDEX_URL,
`pip config list`), else PyPI.
"""

from __future__ import annotations

import argparse
import zipfile
from dataclasses import asdict
from datetime import date
from functools import cache
from typing import Any

from gpufleet.catalog import facts
from gpufleet.catalog_check import compare, index, record, remote, wheel
from gpufleet.catalog_check.errors import MeasureError
from gpufleet.errors import ConfigurationError

from .developer import require_checkout
from .parser import Parser

AGREES, DIFFERS, UNREAD = 0, 1, 3


@cache
def listed(distribution: str, address: str) -> list[index.File]:
    """A project's wheels, requested once."""
    return index.files(distribution, address)


def measure(version: str, address: str, largest: int | None = None) -> dict[str, Any]:
    """Measure one release; raises MeasureError when its wheel cannot be read."""
    build = facts.build("tensorflow", version)
    if build is None:
        raise MeasureError(f"TensorFlow {version} has no GPU build that the fact base knows")
    today = date.today().isoformat()
    wheels = [each for each in listed(build.distribution, address) if str(each.version) == version]
    if not wheels:
        return {"absent": f"{build.distribution} {version} is not on the index", "date": today}
    # The wheel that the facts were gathered from, so that its checksum is held against theirs.
    gathered = build.row.get("wheel", {}).get("file")
    chosen = next((each for each in wheels if each.name == gathered), wheels[-1])
    try:
        with remote.remote(chosen.url) as stream:
            found = wheel.contents(stream, largest)
    except (zipfile.BadZipFile, ValueError) as error:
        raise MeasureError(f"{chosen.name}: {error}") from None
    return {
        "wheel": chosen.name,
        "sha256": chosen.sha256,
        "date": today,
        "python": list(dict.fromkeys(each.python for each in wheels)),
        "platform": sorted({each.platform for each in wheels}),
        **asdict(found),
    }


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "measure", ("measure 2.13.1", "measure --all --largest 50"),
        usage="[VERSION ...] [options]",
        exit_status="Exit status: 0 the catalog agrees, 1 a wheel differs, 3 a wheel could not be"
        " read,\n4 usage or configuration.")
    group = verb.add_argument_group("Releases")
    group.add_argument("versions", nargs="*", metavar="VERSION",
                       help="Releases such as 2.13.1 (default: those that were never measured)")
    group.add_argument("--all", action="store_true", help="Measure every release again")
    group.add_argument("--largest", type=int, metavar="MIB",
                       help="Leave out libraries that are larger in the wheel than this")
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Measure the releases and record them; the exit status."""
    require_checkout("measure")
    known = facts.build_versions("tensorflow")
    if unknown := set(options.versions) - set(known):
        raise ConfigurationError(f"No TensorFlow GPU release: {', '.join(sorted(unknown))}.",
                                 remedy="gpufleet measure --help lists the options.")
    measured = record.load()
    versions = options.versions or [each for each in known if options.all or each not in measured]
    address = index.address()
    status = AGREES
    for version in versions:
        try:
            row = measure(version, address, options.largest and options.largest << 20)
        except MeasureError as error:
            print(f"{version}: could not be measured: {error}", flush=True)
            status = max(status, UNREAD)
            continue
        record.save(version, row)
        differences = [row["absent"]] if "absent" in row else compare.differences(
            compare.expected(version), row
        )
        print(f"{version}: {'; '.join(differences) or 'agrees'}", flush=True)
        if differences and "absent" not in row:
            status = max(status, DIFFERS)
    return status
