"""cuDNN: the planned version, its links, its files, readable by every user."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.catalog import versions
from gpufleet.components.base import subjects
from gpufleet.components.base.paths import beside, directory_of, name_of
from gpufleet.components.base.registry import (
    Evidence,
    Finding,
    check,
    files_unchanged,
    found_locally,
    no_cudnn,
    timed_out,
    unreadable_paths,
)
from gpufleet.components.base.remedies import cudnn, cudnn_in, person, provision, then, toolkit_at
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan, PlannedCudnn
from gpufleet.documents.sections.cuda import CudnnTree
from gpufleet.documents.verdict import Verdict


def planned_trees(plan: Plan, observed: Sections) -> Iterator[tuple[list[PlannedCudnn], CudnnTree]]:
    """Each toolkit's tree that must contain cuDNN, with its planned cuDNNs."""
    trees = {tree["toolkit"]: tree for tree in observed.data["cudnn"]["trees"]}
    for path in dict.fromkeys(entry["toolkit_path"] for entry in plan["cudnn"]):
        wanted = [entry for entry in plan["cudnn"] if entry["toolkit_path"] == path]
        yield (
            wanted,
            trees.get(path)
            or {
                "toolkit": path,
                "headers": [],
                "libraries": [],
                "links": [],
                "loaded": [],
                "closed": [],
            },
        )


@check("cudnn.present", reads=("cudnn",), skip_reason=no_cudnn)
def present(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Declared version, header and cudnnGetVersion() agree."""
    for wanted, tree in planned_trees(plan, observed):
        for entry in wanted:
            yield from _library(plan, entry, tree)
            if entry["default"]:
                yield from _header(plan, entry, tree)
        for library in tree["libraries"]:
            if library["error"] or not library["soname"]:
                reason = library["error"] or "it has no SONAME"
                yield Finding(
                    f"{library['path']} is not a valid library: {reason}",
                    provision(plan, *cudnn_in(plan, tree["toolkit"])),
                )


def _library(plan: Plan, entry: PlannedCudnn, tree: CudnnTree) -> Iterator[Finding | Evidence]:
    opened = [found for found in tree["loaded"] if found["soname"] == entry["soname"]]
    if not opened:
        yield Finding(
            f"cuDNN {entry['short']} is missing in {tree['toolkit']}: no library is named"
            f" {entry['soname']}",
            provision(plan, cudnn(entry)),
            about=(subjects.library(tree["toolkit"], entry["soname"]),),
        )
    # The library that is queried opens the others by their SONAME alone, whatever version they are.
    for library in tree["libraries"]:
        version = library["path"].rpartition(".so.")[2]
        if (
            (library["soname"] or "").endswith(f".so.{entry['major']}")
            and "." in version
            and (not versions.has_prefix(version, entry["short"]))
        ):
            yield Finding(
                f"{library['path']} is of another version than cuDNN {entry['short']}",
                then(person("on the host: move it away"), provision(plan, cudnn(entry))),
            )
    for found in opened:
        if found["error"]:
            yield timed_out(found["path"], found) or Finding(
                f"{found['path']} cannot be opened: {found['error']}",
                provision(plan, cudnn(entry), *toolkit_at(plan, tree["toolkit"])),
            )
        # Old archives are named 6.0, while their libraries report 6.0.21.
        elif not versions.has_prefix(str(found["version"]), entry["short"]):
            yield Finding(
                f"{found['path']} reports cuDNN {found['version']}, declared is {entry['short']}",
                provision(plan, cudnn(entry)),
            )
        yield Evidence(f"{found['path']}: cudnnGetVersion {found['version']}")


def _header(plan: Plan, entry: PlannedCudnn, tree: CudnnTree) -> Iterator[Finding | Evidence]:
    if not tree["headers"]:
        yield Finding(
            f"{tree['toolkit']}/include has no cuDNN header",
            provision(plan, cudnn(entry)),
            about=(f"{tree['toolkit']}/include",),
        )
    for header in tree["headers"]:
        if not versions.has_prefix(str(header["version"]), entry["short"]):
            phrase = f"reports {header['version']}" if header["version"] else "reports no version"
            yield Finding(
                f"{header['path']} {phrase}, declared is {entry['short']}: programs compiled with"
                " it expect another cuDNN than is installed",
                provision(plan, cudnn(entry)),
            )
        yield Evidence(f"{header['path']}: {header['version']}")


@check(
    "cudnn.files",
    reads=("receipts",),
    deep=True,
    skip_reason=lambda plan: no_cudnn(plan) or found_locally(plan, "cudnn"),
)
def files(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every cuDNN file is unchanged since installation."""
    for entry in plan["cudnn"]:
        yield from files_unchanged(
            plan,
            observed.data["receipts"],
            "cudnn",
            f"{entry['toolkit']}-{entry['major']}",
            entry["toolkit_path"],
        )


@check("cudnn.links", reads=("cudnn",), skip_reason=no_cudnn)
def links(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each cuDNN library has a symlink matching its SONAME."""
    for wanted, tree in planned_trees(plan, observed):
        dangling = tuple(
            subjects.library(tree["toolkit"], link["path"])
            for link in tree["links"]
            if not link["exists"]
        )
        for cause, missing in _bad_links(wanted, tree):
            yield Finding(
                cause,
                provision(plan, *map(cudnn, wanted), note="it recreates the symlinks"),
                about=(subjects.library(tree["toolkit"], missing),) if missing else (),
                entails=dangling,
            )
        yield Evidence(
            f"{tree['toolkit']}: {len(tree['libraries'])} libraries, {len(tree['links'])} links"
        )


def _bad_links(wanted: list[PlannedCudnn], tree: CudnnTree) -> Iterator[tuple[str, str | None]]:
    """The fault of each wrong symlink, and the library that cannot be found because of it."""
    targets = {link["path"]: link["target"] for link in tree["links"]}
    files = {library["path"]: library for library in tree["libraries"]}
    for link in tree["links"]:
        if not link["exists"]:
            yield (
                f"{link['path']} is a symlink to itself"
                if link["target"] in {link["path"], link["path"].rpartition("/")[2]}
                else f"{link['path']} is a dangling symlink to {link['target']}",
                _link_target(link["path"], targets),
            )
    for path, library in files.items():
        soname = library["soname"]
        name = beside(path, soname) if soname else path
        if name == path:
            continue
        if name in files:
            yield (f"{name} is a copy, not a symlink to {name_of(path)}: the two can differ"), None
        elif name not in targets:
            yield (f"{name} is missing: no symlink of that name points to {name_of(path)}"), name
        elif _link_target(name, targets) not in files and any(
            link["path"] == name and link["exists"] for link in tree["links"]
        ):
            yield f"{name} points outside its directory, to {targets[name]}", None
    for entry in wanted:
        if not files:
            yield (
                f"{entry['soname']} is missing: {tree['toolkit']} contains no cuDNN library",
                entry["soname"],
            )
        # The compiler's -lcudnn uses it: it belongs to the default of this toolkit.
        directories = {directory_of(path) for path in files}
        for directory in sorted(directories if entry["default"] else ()):
            default = files.get(_link_target(f"{directory}/libcudnn.so", targets))
            if default is None or default["soname"] != entry["soname"]:
                end = _link_target(f"{directory}/libcudnn.so", targets)
                yield (
                    f"{directory}/libcudnn.so is not a symlink to {entry['soname']}",
                    None if end in files else end,
                )


def _link_target(path: str, targets: dict[str, str]) -> str:
    """The last target of a chain of symlinks."""
    for _ in range(len(targets)):
        if path not in targets:
            break
        target = targets[path]
        path = target if target.startswith("/") else beside(path, target)
    return path


@check("cudnn.readable", reads=("cudnn",), severity="major", skip_reason=no_cudnn)
def readable(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every user can read the cuDNN libraries and headers."""
    for wanted, tree in planned_trees(plan, observed):
        if not tree["libraries"]:
            yield Finding(
                f"{tree['toolkit']} contains no cuDNN library: no permissions were checked",
                provision(plan, *map(cudnn, wanted)),
                verdict=Verdict.INCONCLUSIVE,
                about=tuple(subjects.library(tree["toolkit"], entry["soname"]) for entry in wanted),
            )
        yield from unreadable_paths([(f"cuDNN in {tree['toolkit']}", tree["closed"])])
