"""Measure a release: find its wheel on the index and read what it says of its CUDA."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from functools import cache
from typing import Any

from gpufleet.catalog import facts
from gpufleet.frameworks import FRAMEWORKS, FrameworkId

from . import index, jax_wheel, pytorch_wheel, remote, tensorflow_wheel
from .errors import MeasureError

READERS = {
    "tensorflow": tensorflow_wheel.contents,
    "pytorch": pytorch_wheel.contents,
    "jax": jax_wheel.contents,
}


@cache
def listed(distribution: str, address: str, arch: str = facts.X86_64) -> list[index.File]:
    """A project's wheels for Linux on a machine, requested once."""
    return index.files(distribution, address, arch)


def measure(
    framework: FrameworkId, version: str, address: str, largest: int | None = None
) -> dict[str, Any]:
    """Measure one release; raises MeasureError when its wheel cannot be read."""
    build = facts.build(framework, version)
    if build is None:
        raise MeasureError(f"no GPU build of {FRAMEWORKS[framework].title} {version} is known")
    if build.unavailable:
        return {"absent": build.unavailable, "date": date.today().isoformat()}
    # The CUDA may be in a plugin, a project of its own.
    project, _, release = build.row.get("plugin", f"{build.distribution}=={version}").partition(
        "=="
    )
    wheels = [each for each in listed(project, address) if str(each.version) == release]
    if not wheels:
        return {
            "absent": f"{project} {release} is not on the index",
            "date": date.today().isoformat(),
        }
    # The wheel that the facts are from, so that its checksum is held against theirs.
    known = next((each["file"] for each in build.wheels), None)
    chosen = next((each for each in wheels if each.name == known), wheels[-1])
    return read(framework, chosen, wheels, largest)


def read(
    framework: FrameworkId,
    chosen: index.File,
    wheels: Sequence[index.File],
    largest: int | None = None,
    arch: str = facts.X86_64,
) -> dict[str, Any]:
    """The measurement of one wheel, with the Pythons and platforms of all of the release."""
    try:
        with remote.remote(chosen.url) as stream:
            found = READERS[framework](stream, largest, arch)
    except (zipfile.BadZipFile, ValueError) as error:
        raise MeasureError(f"{chosen.name}: {error}") from None
    return {
        "wheel": chosen.name,
        "sha256": chosen.sha256,
        "date": date.today().isoformat(),
        "python": list(dict.fromkeys(each.python for each in wheels)),
        "platform": sorted({each.platform for each in wheels}),
        **asdict(found),
    }
