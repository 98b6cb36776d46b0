"""CUDA toolkits: there, of the planned release, whole, and the default where it should be."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gpufleet.components.base import subjects
from gpufleet.components.base.registry import (
    INSPECT,
    Evidence,
    Finding,
    check,
    files_unchanged,
    found_locally,
    is_hung,
    no_toolkits,
    not_executable,
    numbers,
    required,
    timed_out,
    unreadable_paths,
)
from gpufleet.components.base.remedies import Component, person, provision, then, toolkit_at
from gpufleet.components.base.remedies import toolkit as component_of
from gpufleet.components.base.sections import Sections
from gpufleet.components.cuda.change import other_patches
from gpufleet.documents.plan import Plan, PlannedToolkit
from gpufleet.documents.sections.cuda import ToolkitTree
from gpufleet.documents.text import brief
from gpufleet.documents.verdict import Verdict

# Below 12.2.1 the third number of version.json may be a date (11.8.20220929).
DATES_START = 10000


@check("toolkit.present", reads=("toolkits",), skip_reason=no_toolkits)
def present(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each planned CUDA toolkit is installed, and version file, nvcc and libraries agree."""
    trees = {tree["path"]: tree for tree in observed.data["toolkits"]["trees"]}
    for toolkit in plan["toolkits"]:
        tree = trees.get(toolkit["path"])
        if tree is None:
            yield Finding(
                f"{toolkit['path']} does not exist",
                provision(plan, component_of(toolkit)),
                about=(toolkit["path"],),
            )
            continue
        if slow := timed_out(f"{toolkit['path']}/bin/nvcc", tree, "nvcc_"):
            yield slow
        yield from (
            Finding(
                f"{toolkit['path']} should be CUDA {toolkit['short']}, but {reason}",
                provision(plan, component_of(toolkit)),
                brief(tree),
                about=(subjects.noexec(toolkit["path"]),) if tree["nvcc_error"] else (),
            )
            for reason in _mismatches(toolkit, tree)
        )
        yield Evidence(
            f"{toolkit['path']}: {tree['version_source'] or 'no version file'}"
            f" {tree['version'] or ''}, nvcc {tree['nvcc'] or 'absent'},"
            f" cudart {', '.join(tree['cudart'])}".replace(" ,", ",")
        )


def _mismatches(toolkit: PlannedToolkit, tree: ToolkitTree) -> Iterator[str]:
    wanted = numbers(toolkit["version"])
    found = numbers(tree["version"])
    if tree["version_source"] and not found:
        yield f"its {tree['version_source']} cannot be read"
    elif found and found[:2] != wanted[:2]:
        yield f"its {tree['version_source']} reports {tree['version']}"
    elif (
        tree["version_source"] == "version.json"
        and len(found) > 2
        and len(wanted) > 2
        and found[2] < DATES_START
        and found[2] != wanted[2]
    ):
        yield f"its version.json reports {tree['version']} where {toolkit['version']} is planned"
    if tree["nvcc_error"] and not is_hung(tree, "nvcc_"):
        yield f"its nvcc does not run: {tree['nvcc_error']}"
    elif tree["nvcc"] and numbers(tree["nvcc"])[:2] != wanted[:2]:
        yield f"its nvcc reports {tree['nvcc']}"
    for library in tree.get("unfit", []):
        yield f"its {library['path'].rpartition('/')[2]} cannot be loaded: {library['error']}"
    for header in tree["headers"]:
        if numbers(header["version"])[:2] != wanted[:2]:
            yield f"its {header['path'].rpartition('/')[2]} reports {header['version']}"
    if not tree["cudart"]:
        yield "it has no libcudart"
    for version in tree["cudart"]:
        if numbers(version)[:2] != wanted[:2]:
            yield f"its libcudart is {version}"


@check(
    "toolkit.files",
    reads=("receipts",),
    deep=True,
    skip_reason=lambda plan: no_toolkits(plan) or found_locally(plan, "toolkits"),
)
def files(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every toolkit file is unchanged since installation, and the planned patches are applied."""
    receipts = {r["id"]: r for r in observed.data["receipts"]["receipts"] if r["kind"] == "toolkit"}
    for toolkit in plan["toolkits"]:
        short = toolkit["short"]
        yield from files_unchanged(
            plan, observed.data["receipts"], "toolkit", short, toolkit["path"]
        )
        other = short in receipts and other_patches(receipts[short], short, toolkit["patches"])
        if other:
            yield Finding(
                f"{toolkit['path']}: {other['because']}", provision(plan, component_of(toolkit))
            )


@check(
    "toolkit.readable",
    reads=("toolkits", "disks"),
    repair=INSPECT,
    severity="major",
    skip_reason=no_toolkits,
)
def readable(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every user can enter each toolkit, and read and load its libraries."""
    trees = {tree["path"]: tree for tree in observed.data["toolkits"]["trees"]}
    for toolkit in plan["toolkits"]:
        if toolkit["path"] not in trees:
            yield Finding(
                f"{toolkit['path']} does not exist: no permissions were checked",
                provision(plan, component_of(toolkit)),
                verdict=Verdict.INCONCLUSIVE,
                about=(toolkit["path"],),
            )
    planned = [toolkit["path"] for toolkit in plan["toolkits"] if toolkit["path"] in trees]
    yield from unreadable_paths((path, trees[path]["closed"]) for path in planned)
    yield from not_executable(observed, planned)


@check(
    "toolkit.default-link",
    reads=("toolkits",),
    severity="major",
    skip_reason=lambda plan: None if plan["default_link"] else "gpu_cuda_default: not set",
)
def default_link(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The default CUDA path is a symlink to the declared toolkit."""
    link = observed.data["toolkits"]["default"]
    wanted = required(plan["default_link"], "the plan's default_link")
    target = f"{wanted['path'].rpartition('/')[0]}/{wanted['target']}"
    repair = provision(plan, Component("default_link", wanted["path"]), *toolkit_at(plan, target))
    if link["state"] != "link":
        state = (
            "is missing" if link["state"] == "missing" else f"is a {link['state']}, not a symlink"
        )
        # gpufleet removes nothing that it did not create.
        yield Finding(
            f"{wanted['path']} {state}; it must point to {target}",
            repair
            if link["state"] == "missing"
            else then(
                person(
                    "on the host: " + shlex.join(["mv", wanted["path"], f"{wanted['path']}.old"])
                ),
                repair,
            ),
        )
    elif link["realpath"] is None:
        yield Finding(
            f"{wanted['path']} is a dangling symlink to {link['target']}",
            repair,
            about=(target,) if link["target"] in {wanted["target"], target} else (),
        )
    elif link["realpath"] != target and link["target"] not in {wanted["target"], target}:
        yield Finding(
            f"{wanted['path']} points to {link['realpath']}, declared is {target}", repair
        )
    yield Evidence(f"{link['path']} -> {link['target']}")
