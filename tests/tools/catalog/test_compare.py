"""A wrong fact is seen and named; what a wheel does not say is not held against the plan."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from gpufleet.catalog import facts
from gpufleet.frameworks import FRAMEWORKS
from tools.catalog import compare, record

Row = dict[str, Any]

RECORDED = {framework: record.load(framework) for framework in FRAMEWORKS}
MEASURED = {version: row for version, row in RECORDED["tensorflow"].items() if "absent" not in row}


@pytest.mark.parametrize(
    ("framework", "version"),
    [
        (framework, version)
        for framework, rows in RECORDED.items()
        for version, row in rows.items()
        if "absent" not in row and not getattr(facts.build(framework, version), "unavailable", None)
    ],
)
def test_the_catalog_agrees_with_each_measurement(framework: str, version: str) -> None:
    row = RECORDED[framework][version]
    assert compare.differences(compare.expected(framework, version), row) == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_release_was_measured(framework: str) -> None:
    assert list(RECORDED[framework]) == facts.build_versions(framework)


@pytest.mark.parametrize(
    ("version", "key", "right", "wrong", "difference"),
    [
        ("1.4.0", "sonames", "libcudnn.so.6", "libcudnn.so.7", "the plan has libcudnn.so.7"),
        ("1.4.0", "sonames", "libcudnn.so.6", "libcudnn.so.7", "the wheel has libcudnn.so.6"),
        ("2.13.1", "sonames", "libcublas.so.11", "libcublas.so.12", "has libcublas.so.12"),
        ("2.13.1", "python", "3.11", "3.12", "Python: the plan says 3.12"),
        ("2.13.1", "sass", "3.5", "3.7", "machine code: the wheel says 3.5"),
        ("2.18.1", "ptx", "9.0", "10.0", "PTX: the plan says 10.0"),
        (
            "2.18.1",
            "pins",
            "nvidia-cudnn-cu12==9.3.0.75",
            "nvidia-cudnn-cu12==9.1.0",
            "the CUDA packages that it asks for: the plan says nvidia-cudnn-cu12==9.1.0",
        ),
        (
            "2.18.1",
            "platform",
            "manylinux_2_17_x86_64.manylinux2014_x86_64",
            "manylinux1_x86_64",
            "platform tags: the plan says manylinux1_x86_64",
        ),
    ],
)
def test_a_wrong_fact_is_named(
    version: str, key: str, right: str, wrong: str, difference: str
) -> None:
    plan = deepcopy(compare.expected("tensorflow", version))
    assert right in plan[key]
    plan[key] = [wrong if each == right else each for each in plan[key]]
    assert any(difference in each for each in compare.differences(plan, MEASURED[version]))


@pytest.mark.parametrize(
    ("key", "wrong", "difference"),
    [
        ("cuda", "11.2", "CUDA: the plan says 11.2, the wheel was built with 11.8"),
        ("cudnn", "9.1", "cuDNN: the plan says 9.1, the wheel was built with 8"),
    ],
)
def test_a_wrong_version_is_named(key: str, wrong: str, difference: str) -> None:
    plan = {**compare.expected("tensorflow", "2.13.1"), key: wrong}
    assert compare.differences(plan, MEASURED["2.13.1"]) == [difference]


def test_another_file_under_the_same_name_is_named() -> None:
    row = {**MEASURED["1.4.0"], "sha256": "0" * 64}
    (difference,) = compare.differences(compare.expected("tensorflow", "1.4.0"), row)
    assert "the index says 0000" in difference


def test_a_name_without_version_fits_any_and_counts_as_unmeasured() -> None:
    row = MEASURED["1.0.0"]
    assert "libcudnn.so" in row["opened"]
    assert any("libcudnn.so" in each for each in compare.not_measured(row))
    partly = {**row, "unread": ["libtensorflow_cc.so.2"]}
    assert "what libtensorflow_cc.so.2 is linked to (not read)" in compare.not_measured(partly)
    whole = compare.expected("tensorflow", "1.0.0")
    lacking = {**row, "opened": [], "unread": ["libtensorflow_cc.so.2"]}
    assert compare.differences(whole, lacking) == []
    assert compare.differences(whole, {**lacking, "unread": []}) != []
    plan = compare.expected("tensorflow", "1.0.0")
    plan["sonames"] = [each for each in plan["sonames"] if "cufft" not in each]
    assert compare.differences(plan, row) == [
        "sonames: the wheel has libcufft.so, the plan does not"
    ]


def test_requirements_are_compared_in_one_form() -> None:
    plan, row = compare.expected("tensorflow", "2.13.1"), deepcopy(MEASURED["2.13.1"])
    plan["pins"] = ["nvidia-cublas-cu12(<13.0,>=12.5)"]
    row["pins"] = ["nvidia-cublas-cu12>=12.5,<13.0"]
    assert compare.differences(plan, row) == []


def test_a_library_that_only_others_need_is_not_expected_in_the_wheel() -> None:
    """libnvJitLink, which cuSPARSE needs: PyTorch loads it, and none of its files is linked to it."""
    plan = compare.expected("pytorch", "2.15.0")
    assert "libnvJitLink.so.13" in plan["sonames"]
    found = {
        "linked": [name for name in plan["sonames"] if not name.startswith("libnvJitLink")],
        "opened": [],
        "unread": [],
    }
    assert list(compare._sonames(plan, found)) == []
    found["linked"] = ["libcudart.so.13"]
    assert "sonames: the plan has libnvJitLink.so.13, the wheel does not" in list(
        compare._sonames(plan, found)
    )
