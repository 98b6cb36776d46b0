"""Device code: machine code counts for a GPU where every container has it."""

from __future__ import annotations

import pytest

from gpufleet.catalog import device_code, facts
from gpufleet.frameworks import FRAMEWORKS
from tools.catalog import record

KNOWN = ["7.5", "8.0", "8.6", "9.0", "10.0"]


@pytest.mark.parametrize(
    ("containers", "native", "ptx"),
    [
        (["sm_80 sm_90 compute_90/8.3"], ["8.0", "8.6", "9.0"], ["10.0"]),
        (["sm_80 sm_90", "sm_80 compute_90/8.3"], ["8.0", "8.6"], ["9.0", "10.0"]),
        (["sm_80", "compute_75/7.8"], [], KNOWN),
        # Kernels for one GPU alone take nothing from the others.
        (["sm_80 compute_80/7.8", "sm_90"], ["8.0", "8.6"], ["9.0", "10.0"]),
        (["sm_75", "sm_90"], ["7.5", "9.0"], []),
        ([], [], []),
    ],
)
def test_a_capability_is_native_where_no_container_leaves_it_to_ptx(
    containers: list[str], native: list[str], ptx: list[str]
) -> None:
    read = [device_code.read(each) for each in containers]
    assert device_code.split(read, KNOWN) == (native, ptx)


def test_the_newest_version_of_ptx_counts() -> None:
    read = [device_code.read(each) for each in ("sm_80 compute_80/7.8", "compute_90/8.10")]
    assert device_code.language(read) == "8.10"
    assert device_code.language([device_code.read("sm_80")]) is None


COUNTED = [
    (framework, version, row["containers"])
    for framework in FRAMEWORKS
    for version, row in record.load(framework).items()
    if row.get("containers")
]


def test_wheels_were_counted() -> None:
    assert len(COUNTED) >= 10


@pytest.mark.parametrize(("framework", "version", "containers"), COUNTED)
def test_the_catalog_has_what_was_counted(
    framework: str, version: str, containers: dict[str, int]
) -> None:
    build = facts.build(framework, version)  # type: ignore[arg-type]
    assert build is not None
    read = [device_code.read(each) for each in containers]
    known = sorted({*build.native, *build.jit}, key=facts.versions.key)
    assert device_code.split(read, known) == (build.native, build.jit)
    assert build.ptx_language == device_code.language(read)
    assert facts.cuda_of_ptx(build.ptx_language)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_capability_is_native_and_compiled(framework: str) -> None:
    for version in facts.build_versions(framework):  # type: ignore[arg-type]
        for build in facts.variants(framework, version):  # type: ignore[arg-type]
            if not build.unavailable:
                assert not {*build.native} & {*build.jit}, build.name
