"""The upper bounds that releases need beside their metadata, on each Python with a wheel."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement

from gpufleet.catalog import facts, versions
from gpufleet.components.resolver import release
from gpufleet.components.stacks import pythons

# The first version that the release cannot be imported with, by package and last release.
BROKEN_BY = {"protobuf": ("2.11.1", "4.21"), "keras": ("2.15.1", "3.0")}
PAIRS = [
    (build.version, python)
    for build in facts.builds("tensorflow")
    if versions.key("2.2") <= versions.key(build.version) < versions.key("2.12")
    for python in pythons.usable(build)
]


def allowed(requirements: list[str], package: str, version: str) -> bool:
    """Return whether a resolver may take a version of a package that is required at all."""
    found = [
        each.specifier.contains(version, prereleases=True)
        for text in requirements
        if (each := Requirement(re.sub(r"\((.*?)\)", r"\1", text))).name == package
    ]
    return bool(found) and all(found)


def asked(version: str, python: str) -> list[str]:
    """The requirements that the plan installs, and those of the release's metadata."""
    build = facts.build("tensorflow", version)
    assert build is not None
    return [
        *release("tensorflow", version, python=python)["requirements"],
        *build.row["declared_requirements"],
    ]


def test_every_release_from_2_2_to_2_11_is_covered_on_every_python() -> None:
    assert len(PAIRS) >= 120
    assert {"3.6", "3.7", "3.8", "3.9", "3.10"} == {python for _, python in PAIRS}


@pytest.mark.parametrize(("version", "python"), PAIRS)
def test_no_lock_takes_a_package_that_breaks_the_import(version: str, python: str) -> None:
    requirements = asked(version, python)
    for package, (last, broken) in BROKEN_BY.items():
        if versions.key(version) <= versions.key(last):
            assert not allowed(requirements, package, broken), package
    # The first releases of NumPy 2 and of Keras after the release have wheels for these Pythons.
    if versions.key(python) >= versions.key("3.9"):
        assert not allowed(requirements, "numpy", "2.0.2")
    series = versions.short(version)
    following = f"{series.split('.')[0]}.{int(series.split('.')[1]) + 1}.0"
    for package in ("keras", "tensorflow-estimator"):
        assert not allowed(requirements, package, following), package
