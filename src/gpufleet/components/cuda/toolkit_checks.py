"""The checks of toolkits: which faults each shows, and where the default link points."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gpufleet.components.base.fault import Judged, shown
from gpufleet.components.base.registry import (
    INSPECT,
    Evidence,
    Finding,
    check,
    files_unchanged,
    found_locally,
    no_toolkits,
    not_executable,
    required,
)
from gpufleet.components.base.remedies import Component, person, provision, then, toolkit_at
from gpufleet.components.base.remedies import toolkit as component_of
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan

from . import toolkit


def _judged(plan: Plan, observed: Sections) -> Judged:
    return toolkit.faults(plan["toolkits"], observed.data["toolkits"]["trees"])


@check("toolkit.present", reads=("toolkits",), skip_reason=no_toolkits)
def present(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each planned CUDA toolkit is installed, and version file, nvcc and libraries agree."""
    return shown(plan, _judged(plan, observed), toolkit.RELEASE)


@check(
    "toolkit.files",
    reads=("receipts",),
    deep=True,
    skip_reason=lambda plan: no_toolkits(plan) or found_locally(plan, "toolkits"),
)
def files(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every toolkit file is unchanged since installation, and the planned patches are applied."""
    receipts = {r["id"]: r for r in observed.data["receipts"]["receipts"] if r["kind"] == "toolkit"}
    for row in plan["toolkits"]:
        short, path = row["short"], row["path"]
        yield from files_unchanged(plan, observed.data["receipts"], "toolkit", short, path)
        other = short in receipts and toolkit.other_patches(receipts[short], short, row["patches"])
        if other:
            yield Finding(f"{path}: {other['because']}", provision(plan, component_of(row)))


@check(
    "toolkit.readable",
    reads=("toolkits", "disks"),
    repair=INSPECT,
    severity="major",
    skip_reason=no_toolkits,
)
def readable(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every user can enter each toolkit, and read and load its libraries."""
    yield from shown(plan, _judged(plan, observed), toolkit.ACCESS)
    found = {tree["path"] for tree in observed.data["toolkits"]["trees"]}
    yield from not_executable(
        observed, [row["path"] for row in plan["toolkits"] if row["path"] in found]
    )


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
