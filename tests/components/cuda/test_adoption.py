"""Adoption: a toolkit made by hand is adopted where it is the planned one, else refused."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.changes import changes
from gpufleet.components.resolver import resolve
from tests.support.host_documents import (
    codes,
    converged,
    cudnn_library,
    cudnn_tree,
    declaration,
    receipt,
    section,
    snapshot,
    toolkit_tree,
)

Row = dict[str, Any]

ROOT = "/usr/local/cuda-11.8"
LIB = f"{ROOT}/targets/x86_64-linux/lib"
ADOPT = declaration("2.13.1", gpu_cuda_adopt=True)


@pytest.fixture
def host() -> Row:
    """CUDA 11.8 with cuDNN 8.6, as somebody installs them with care and without gpufleet."""
    tree = toolkit_tree(
        ROOT,
        short="11.8",
        version="11.8.20220929",
        version_source="version.json",
        nvcc="11.8.89",
        cudart=["11.8.89"],
    )
    header = {"path": f"{ROOT}/include/cudnn_version.h", "version": "8.6.0", "mode": "0644"}
    loaded = {"soname": "libcudnn.so.8", "path": f"{LIB}/libcudnn.so.8", "version": "8.6.0"}
    cudnn = cudnn_tree(
        ROOT,
        headers=[header],
        libraries=[cudnn_library(f"{LIB}/libcudnn.so.8.6.0")],
        links=[
            {"path": f"{LIB}/libcudnn.so", "target": "libcudnn.so.8", "exists": True},
            {"path": f"{LIB}/libcudnn.so.8", "target": "libcudnn.so.8.6.0", "exists": True},
        ],
        loaded=[{**loaded, "error": None}],
    )
    return snapshot(toolkits={"trees": [tree]}, cudnn={"trees": [cudnn]})


def actions(declared: Row, host: Row) -> dict[tuple[str, str], str]:
    rows = changes(resolve(declared, host), host)
    return {(row["what"], row["id"]): row["action"] for row in rows}


def test_what_is_planned_is_adopted_and_needs_no_room(host: Row) -> None:
    section(host, "disks")["free_mib"] = {"/usr/local": 10, "/tmp": 10, "/opt": 500_000}
    assert codes(resolve(ADOPT, host)) == []
    found = actions(ADOPT, host)
    assert found["toolkit", "11.8"] == "adopt"
    assert found["cudnn", "11.8-8"] == "adopt"


def test_cudnn_that_is_not_there_is_installed_into_it(host: Row) -> None:
    section(host, "cudnn")["trees"] = []
    assert actions(ADOPT, host)["cudnn", "11.8-8"] == "install"


def test_without_the_declaration_the_refusal_names_it(host: Row) -> None:
    (problem,) = resolve(declaration("2.13.1"), host)["problems"]
    assert problem["code"] == "foreign-tree"
    assert problem["remedy"].endswith("adopt it: gpu_cuda_adopt: true")
    assert actions(declaration("2.13.1"), host)["toolkit", "11.8"] == "refuse"


def test_the_declaration_does_not_reach_stacks_or_the_default_link(host: Row) -> None:
    venv = "/opt/gpufleet/stacks/tensorflow-2.13.1"
    section(host, "stacks")["stacks"] = [{"name": "tensorflow-2.13.1", "venv": venv}]
    (problem,) = resolve(ADOPT, host)["problems"]
    assert problem["code"] == "foreign-tree"
    assert "adopt" not in problem["remedy"]


TOOLKIT_FAULTS: list[tuple[Row, str]] = [
    ({"version": "11.7.1"}, "its version.json reports 11.7.1"),
    ({"nvcc": "11.7.99"}, "its nvcc reports 11.7.99"),
    ({"cudart": ["11.8.89", "11.7.99"]}, "its libcudart is 11.7.99"),
    ({"cudart": []}, "it has no libcudart"),
    ({"nvcc_error": "Permission denied"}, "its nvcc does not run: Permission denied"),
    ({"headers": [{"path": f"{ROOT}/include/cuda.h", "version": "11.7"}]}, "its cuda.h reports 11"),
    ({"unfit": [{"path": f"{LIB}/libnpp.so.11", "error": "for aarch64"}]}, "for aarch64"),
    ({"closed": [{"path": ROOT, "mode": "0700"}]}, f"Some users cannot read {ROOT} (mode 0700)"),
]


@pytest.mark.parametrize(("fault", "reported"), TOOLKIT_FAULTS)
def test_another_toolkit_or_a_damaged_one_is_refused(host: Row, fault: Row, reported: str) -> None:
    section(host, "toolkits")["trees"][0].update(fault)
    (problem,) = resolve(ADOPT, host)["problems"]
    assert (problem["code"], problem["where"]) == ("not-adoptable", "gpu_stacks[0]")
    assert reported in problem["message"]
    assert f"mv {ROOT} {ROOT}.old" in problem["remedy"]
    assert actions(ADOPT, host)["toolkit", "11.8"] == "refuse"


def test_another_patch_release_is_refused_with_the_declaration_that_would_have_it() -> None:
    tree = toolkit_tree(
        "/usr/local/cuda-12.4",
        version_source="version.json",
        version="12.4.0",
        cudart=["12.4.99"],
    )
    host = snapshot(toolkits={"trees": [tree]})
    (problem,) = resolve(declaration(gpu_toolkits=["12.4"], gpu_cuda_adopt=True), host)["problems"]
    assert "it is CUDA 12.4.0, and 12.4.1 is planned" in problem["message"]
    assert 'gpu_toolkits: ["12.4.0"]' in problem["message"]
    assert codes(resolve(declaration(gpu_toolkits=["12.4.0"], gpu_cuda_adopt=True), host)) == []


def test_a_link_in_its_place_is_no_toolkit() -> None:
    host = snapshot(toolkits={"occupied": [ROOT]})
    (problem,) = resolve(ADOPT, host)["problems"]
    assert "it is not a directory of its own" in problem["message"]


CUDNN_FAULTS: list[tuple[str, Any, str]] = [
    ("loaded", {"version": "8.5.0"}, "reports cuDNN 8.5.0"),
    ("loaded", {"error": "cannot open"}, "cannot be opened: cannot open"),
    ("headers", {"version": "8.9.7"}, "cudnn_version.h reports 8.9.7"),
    ("headers", None, f"{ROOT}/include has no cuDNN header"),
    ("libraries", {"error": "truncated: 10 bytes"}, "is not a valid library: truncated"),
    ("links", None, f"{LIB}/libcudnn.so.8 is missing: no symlink of that name points to"),
    ("links", {"target": "libcudnn.so.7"}, "libcudnn.so is not a symlink to libcudnn.so.8"),
]


@pytest.mark.parametrize(("key", "fault", "reported"), CUDNN_FAULTS)
def test_another_cudnn_or_a_damaged_one_is_refused(
    host: Row, key: str, fault: Any, reported: str
) -> None:
    tree = section(host, "cudnn")["trees"][0]
    if fault is None:
        tree[key] = []
    else:
        tree[key][0].update(fault)
    (problem,) = resolve(ADOPT, host)["problems"]
    assert problem["code"] == "not-adoptable"
    assert reported in problem["message"]
    assert "the next run then installs cuDNN 8.6.0.163" in problem["remedy"]
    assert actions(ADOPT, host)["cudnn", "11.8-8"] == "refuse"


def test_in_our_own_toolkit_the_planned_cudnn_without_a_receipt_is_installed_again(
    host: Row,
) -> None:
    """It was refused, and a person had to move it away."""
    tree = section(host, "cudnn")["trees"][0]
    ours = converged(resolve(declaration("2.13.1")))
    section(ours, "cudnn")["trees"] = [tree]
    section(ours, "receipts")["receipts"].remove(receipt(ours, "cudnn", "11.8-8"))
    plan = resolve(declaration("2.13.1"), ours)
    assert codes(plan) == []
    (row,) = changes(plan, ours)
    assert (row["action"], row["step"]) == ("repair", "reinstall")
    assert "the receipt of libcudnn.so.8 in /usr/local/cuda-11.8 is lost" in row["because"]
    tree["loaded"][0]["version"] = "8.9.7"
    assert [row["action"] for row in changes(resolve(declaration("2.13.1"), ours), ours)] == [
        "refuse"
    ]


def test_a_copy_where_a_link_belongs_is_refused(host: Row) -> None:
    tree = section(host, "cudnn")["trees"][0]
    tree["links"] = tree["links"][:1]
    tree["libraries"].append(cudnn_library(f"{LIB}/libcudnn.so.8"))
    (problem,) = resolve(ADOPT, host)["problems"]
    assert (
        f"{LIB}/libcudnn.so.8 is a copy, not a symlink to libcudnn.so.8.6.0" in problem["message"]
    )


def test_an_adopted_toolkit_is_verified_and_repaired_like_ours(host: Row) -> None:
    plan = resolve(ADOPT, host)
    receipts = [
        {
            "kind": "toolkit",
            "id": "11.8",
            "path": ROOT,
            "version": "11.8.0",
            "source": {"adopted": True},
            "changed": [],
        },
        {
            "kind": "cudnn",
            "id": "11.8-8",
            "path": ROOT,
            "version": "8.6.0.163",
            "default": True,
            "source": {"adopted": True},
            "changed": [],
        },
    ]
    section(host, "receipts")["receipts"] = receipts
    assert not {("toolkit", "11.8"), ("cudnn", "11.8-8")} & set(actions(ADOPT, host))
    receipts[0]["changed"] = [{"path": "bin/nvcc", "what": "missing"}]
    assert actions(ADOPT, host)["toolkit", "11.8"] == "repair"
    assert plan["adopt"] is True


def test_an_adopted_toolkit_stays_as_it_is_for_nothing_tells_its_patches() -> None:
    declared = declaration(gpu_toolkits=["8.0"], gpu_allow_md5=True, gpu_cuda_adopt=True)
    (planned,) = resolve(declared)["toolkits"]
    assert planned["patches"]
    path = planned["path"]
    host = snapshot(
        toolkits={
            "trees": [
                toolkit_tree(
                    path, version="8.0.61", version_source="version.txt", cudart=["8.0.61"]
                )
            ]
        },
        receipts={
            "receipts": [
                {
                    "kind": "toolkit",
                    "id": "8.0",
                    "path": path,
                    "version": "8.0.61",
                    "source": {"adopted": True},
                    "changed": [],
                }
            ]
        },
    )
    assert ("toolkit", "8.0") not in actions(declared, host)
