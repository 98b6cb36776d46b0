"""`gpufleet measure`: hold the fact base against TensorFlow's wheels, and keep what was seen.

Exit status 0 when the facts agree, 1 when a wheel says otherwise, 3 when one could not be read,
4 when called wrongly. A release without a wheel on the index is recorded as such. The index is the
one that uv or pip is set to (UV_DEFAULT_INDEX, PIP_INDEX_URL, `pip config list`), else PyPI.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from dataclasses import asdict
from datetime import date
from functools import cache
from typing import Any, NoReturn

from gpufleet.catalog import facts
from gpufleet.catalog_check import compare, index, record, remote, wheel
from gpufleet.catalog_check.errors import MeasureError

AGREES, DIFFERS, UNREAD, USAGE = 0, 1, 3, 4


class Parser(argparse.ArgumentParser):
    """One status for every mistake in how a command was called, as in all of gpufleet."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"error: {message}\n")


@cache
def listed(distribution: str, place: str) -> list[index.File]:
    """A project's wheels, asked for once."""
    return index.files(distribution, place)


def measure(version: str, place: str, largest: int | None = None) -> dict[str, Any]:
    """Measure one release; raises MeasureError when its wheel cannot be read."""
    build = facts.build(version)
    if build is None:
        raise MeasureError(f"TensorFlow {version} has no GPU build that the fact base knows")
    today = date.today().isoformat()
    wheels = [each for each in listed(build.distribution, place) if str(each.version) == version]
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


def main(words: list[str]) -> int:
    """Measure what is asked for; returns the exit status."""
    parser = Parser(prog="measure", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION",
                        help="releases such as 2.13.1; without any, those never measured")
    parser.add_argument("--all", action="store_true", help="every release, again")
    parser.add_argument("--largest", type=int, metavar="MIB",
                        help="leave out libraries that are larger in the wheel than this")
    options = parser.parse_args(words)
    known = facts.build_versions()
    if unknown := set(options.versions) - set(known):
        parser.error(f"no TensorFlow GPU release: {', '.join(sorted(unknown))}")
    measured = record.load()
    chosen = options.versions or [each for each in known if options.all or each not in measured]
    place = index.address()
    status = AGREES
    for version in chosen:
        try:
            row = measure(version, place, options.largest and options.largest << 20)
        except MeasureError as error:
            print(f"{version}: could not be measured: {error}", flush=True)
            status = max(status, UNREAD)
            continue
        record.save(version, row)
        told = [row["absent"]] if "absent" in row else compare.differences(
            compare.expected(version), row
        )
        print(f"{version}: {'; '.join(told) or 'agrees'}", flush=True)
        if told and "absent" not in row:
            status = max(status, DIFFERS)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
