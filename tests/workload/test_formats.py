"""Exact products in the number formats that people compute with, on stand-ins that compute."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.workload.formats import FORMATS, not_applicable
from tests.support.toolkit_run import Document, run

NAMES = ["fp64", "fp16", "int8", "tf32", "bf16", "fp8-e4m3", "fp8-e5m2"]
HOPPER = {"capability": 90}


def rows(libraries: tuple[Path, Path], **reported: str | int) -> dict[str, Document]:
    """The result of each format on the first GPU."""
    found = run(libraries, "--stage", "formats", "--gpu", "0", **reported)["formats"]
    return {row["format"]: row for row in found}


def test_each_format_is_exact_in_a_whole_run(libraries: tuple[Path, Path]) -> None:
    """Only float32 was tried: a broken path of the tensor cores passed."""
    found = run(libraries, **HOPPER)
    assert found["state"] == "ok"
    assert [(row["gpu"], row["format"]) for row in found["formats"]] == [
        (gpu, name) for gpu in (0, 1) for name in NAMES
    ]
    assert all(
        (row["wrong"], row["checked"], row["error"], row["not_applicable"], row["busy"])
        == (0, 5, None, None, None)
        for row in found["formats"]
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (0, "tf32"),
        (1, "fp64"),
        (2, "fp16"),
        (3, "int8"),
        (14, "bf16"),
        (28, "fp8-e4m3"),
        (29, "fp8-e5m2"),
    ],
)
def test_one_broken_format_is_counted_alone(
    libraries: tuple[Path, Path], kind: int, name: str
) -> None:
    found = rows(libraries, broken=kind, **HOPPER)
    assert {row: entry["wrong"] for row, entry in found.items()} == {
        **dict.fromkeys(NAMES, 0),
        name: 5,
    }


def test_before_cublas_11_the_type_of_the_computation_is_another_number(
    libraries: tuple[Path, Path],
) -> None:
    found = rows(libraries, version=900, capability=70)
    assert [found[name]["wrong"] for name in ("fp64", "fp16", "int8")] == [0, 0, 0]
    assert found["bf16"]["not_applicable"] == ("it needs compute capability 8.0, the GPU has 7.0")
    assert (found["bf16"]["wrong"], found["bf16"]["checked"], found["bf16"]["error"]) == (
        None,
        0,
        None,
    )


def test_what_cublas_refuses_or_lacks_is_reported(libraries: tuple[Path, Path]) -> None:
    found = rows(libraries, unsupported=14, lt=1, **HOPPER)
    assert found["bf16"]["error"] == "cublasGemmEx returned 15 CUBLAS_STATUS_NOT_SUPPORTED"
    assert found["fp8-e4m3"]["error"] == ("cublasLtCreate returned 1 CUBLAS_STATUS_NOT_INITIALIZED")
    assert found["tf32"]["wrong"] == 0


def test_a_full_gpu_is_busy(libraries: tuple[Path, Path]) -> None:
    assert all(
        row["busy"] == {"free_mib": 300, "wanted_mib": 1024}
        for row in rows(libraries, free_mib=300, **HOPPER).values()
    )


@pytest.mark.parametrize(
    ("capability", "version", "applicable"),
    [
        ((3, 7), (8, 0), ["fp64"]),
        ((5, 2), (8, 0), ["fp64", "fp16"]),
        ((6, 0), (9, 2), ["fp64", "fp16"]),
        ((6, 1), (8, 0), ["fp64", "fp16", "int8"]),
        ((6, 2), (10, 2, 3), ["fp64", "fp16"]),
        ((7, 0), (11, 11, 3), ["fp64", "fp16", "int8"]),
        ((7, 0), (8, 0), ["fp64"]),
        ((7, 5), (9, 0, 0), ["fp64", "fp16", "int8"]),
        ((8, 0), (10, 2, 2), ["fp64"]),
        ((8, 0), (11, 1, 0), NAMES[:5]),
        ((8, 9), (12, 1, 0), NAMES[:5]),
        ((8, 9), (12, 1, 3), NAMES),
        ((9, 0), (11, 10, 1), ["fp64"]),
        ((9, 0), (11, 11, 3), NAMES),
        ((10, 0), (12, 4, 5), ["fp64"]),
        ((10, 0), (12, 8, 3), NAMES),
        ((10, 3), (12, 8, 3), NAMES[:5]),
        ((12, 1), (13, 0, 0), NAMES),
    ],
)
def test_which_formats_a_gpu_and_a_cublas_have(
    capability: tuple[int, int], version: tuple[int, ...], applicable: list[str]
) -> None:
    reasons = {each.name: not_applicable(each, capability, version) for each in FORMATS}
    assert [name for name, reason in reasons.items() if reason is None] == applicable


def test_the_reason_names_what_is_lacking() -> None:
    fp8 = FORMATS[-1]
    assert not_applicable(fp8, (8, 6), (12, 4, 5)) == (
        "it needs compute capability 8.9, the GPU has 8.6"
    )
    assert not_applicable(fp8, (8, 9), (12, 1, 0)) == (
        "it needs cuBLAS 12.1.3 on compute capability 8.9, this is 12.1.0"
    )
