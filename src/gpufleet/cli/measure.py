"""`gpufleet measure`: compare the catalog with wheels, and record what they contain.

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
from gpufleet.catalog_check import (
    compare,
    index,
    jax_wheel,
    pytorch_wheel,
    record,
    remote,
    tensorflow_wheel,
)
from gpufleet.catalog_check.errors import MeasureError
from gpufleet.errors import ConfigurationError
from gpufleet.model.frameworks import FRAMEWORKS, FrameworkId

from .developer import require_checkout
from .parser import Parser

AGREES, DIFFERS, UNREAD = 0, 1, 3
READERS = {"tensorflow": tensorflow_wheel.contents, "pytorch": pytorch_wheel.contents,
           "jax": jax_wheel.contents}


@cache
def listed(distribution: str, address: str) -> list[index.File]:
    """A project's wheels, requested once."""
    return index.files(distribution, address)


def measure(
    framework: FrameworkId, version: str, address: str, largest: int | None = None
) -> dict[str, Any]:
    """Measure one release; raises MeasureError when its wheel cannot be read."""
    build = facts.build(framework, version)
    if build is None:
        raise MeasureError(f"no GPU build of {FRAMEWORKS[framework].title} {version} is known")
    today = date.today().isoformat()
    if build.unavailable:
        return {"absent": build.unavailable, "date": today}
    # JAX's CUDA is in a plugin, a project of its own.
    project, _, release = build.row.get("plugin", f"{build.distribution}=={version}").partition(
        "==")
    wheels = [each for each in listed(project, address) if str(each.version) == release]
    if not wheels:
        return {"absent": f"{project} {release} is not on the index", "date": today}
    # The wheel that the facts were gathered from, so that its checksum is held against theirs.
    gathered = next((each["file"] for each in build.wheels), None)
    chosen = next((each for each in wheels if each.name == gathered), wheels[-1])
    try:
        with remote.remote(chosen.url) as stream:
            found = READERS[framework](stream, largest)
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
        "measure", ("measure 2.13.1", "measure --framework pytorch 2.6.0 --largest 60"),
        usage="[VERSION ...] [options]",
        exit_status="Exit status: 0 the catalog agrees, 1 a wheel differs, 3 a wheel could not be"
        " read,\n4 usage or configuration.")
    group = verb.add_argument_group("Releases")
    group.add_argument("versions", nargs="*", metavar="VERSION",
                       help="Releases such as 2.13.1 (default: those that were never measured)")
    group.add_argument("--framework", choices=sorted(FRAMEWORKS), default="tensorflow",
                       help="Releases of this framework (default: tensorflow)")
    group.add_argument("--all", action="store_true", help="Measure every release again")
    group.add_argument("--largest", type=int, metavar="MIB",
                       help="Leave out libraries that are larger in the wheel than this")
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Measure the releases and record them; the exit status."""
    require_checkout("measure")
    framework = options.framework
    known = facts.build_versions(framework)
    if unknown := set(options.versions) - set(known):
        title = FRAMEWORKS[framework].title
        raise ConfigurationError(f"No {title} GPU release: {', '.join(sorted(unknown))}.",
                                 remedy="gpufleet measure --help lists the options.")
    measured = record.load(framework)
    versions = options.versions or [each for each in known if options.all or each not in measured]
    address = index.address()
    status = AGREES
    for version in versions:
        try:
            row = measure(framework, version, address, options.largest and options.largest << 20)
        except MeasureError as error:
            print(f"{version}: could not be measured: {error}", flush=True)
            status = max(status, UNREAD)
            continue
        record.save(framework, version, row)
        differences = [row["absent"]] if "absent" in row else compare.differences(
            compare.expected(framework, version), row
        )
        print(f"{version}: {'; '.join(differences) or 'agrees'}", flush=True)
        if differences and "absent" not in row:
            status = max(status, DIFFERS)
    return status
