"""The locks that uv can make of releases, as `gpufleet catalog locks` recorded them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gpufleet.documents.plan import CudaSource
from gpufleet.documents.types import Row
from gpufleet.frameworks import FrameworkId

from . import facts, versions
from .records import Build

OK = "ok"


@dataclass(frozen=True)
class Failure:
    """A lock that uv could not make, and where it can: for which Pythons and which release."""

    date: str
    reason: str
    pythons: list[str]  # of the same release, oldest first
    releases: list[str]  # the others with a lock for that Python

    @property
    def final(self) -> bool:
        """True if no set of packages meets the requirements: no other attempt makes the lock."""
        return self.reason.startswith("error: No solution found")


def cuda_key(build: Build, source: CudaSource) -> str:
    """The key of a build's CUDA in the results."""
    return f"{build.variant} {source}" if build.variant else source


def failure(build: Build, source: CudaSource, python: str) -> Failure | None:
    """Why the lock of a build could not be made; None where it could, or where it is not recorded.

    A result for other requirements than the build has now says nothing about these.
    """
    results, key = _results(build.framework), cuda_key(build, source)
    rows = [row for row in results.get(build.version, ()) if row["cuda"] == key]
    row = next((row for row in rows if row["python"] == python), None)
    needs = [*build.requirements(source), *build.ceilings(python)]
    if row is None or row["lock"] in {OK, None} or row["requirements"] != needs:
        return None
    made = [each["python"] for each in rows if each["lock"] == OK]
    others = [
        version
        for version, found in results.items()
        if not versions.key(version).is_prerelease
        and any((r["cuda"], r["python"], r["lock"]) == (key, python, OK) for r in found)
    ]
    return Failure(row["date"], row["lock"], made, others)


@cache
def _results(framework: FrameworkId) -> dict[str, list[Row]]:
    """The recorded results of every release; empty where none is recorded."""
    name = f"locks/{framework}.yml"
    if not files(facts.__package__).joinpath("data", name).is_file():
        return {}
    return facts.document(name)
