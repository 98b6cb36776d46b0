"""The judge of cuDNN: all that differs from the planned cuDNN in a toolkit's tree. Pure.

`faults` reads the section `cudnn` alone; a change comes of the receipt and the journal, and of
`differences` where there is no receipt.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpufleet.catalog import versions
from gpufleet.components.base import subjects
from gpufleet.components.base.change import (
    altered,
    change,
    first_whole,
    not_ours,
    other_source,
    unfinished,
    unobserved,
    without_receipt,
)
from gpufleet.components.base.fault import Fault, Judged, causes
from gpufleet.components.base.host import Host
from gpufleet.components.base.paths import beside, directory_of, name_of
from gpufleet.components.base.registry import Evidence, timed_out, unreadable_paths
from gpufleet.components.base.remedies import Component
from gpufleet.components.base.remedies import cudnn as component_of
from gpufleet.documents.plan import PlanChange, PlannedCudnn
from gpufleet.documents.sections.cuda import CudnnTree
from gpufleet.documents.verdict import Verdict

from . import ownership

RELEASE = "cudnn.release"  # missing, of another version, or no library at all
LINK = "cudnn.link"
ACCESS = "cudnn.access"


def faults(planned: Iterable[PlannedCudnn], trees: Iterable[CudnnTree]) -> Judged:
    """Each difference between the planned cuDNNs and the trees of their toolkits."""
    found, rows = {tree["toolkit"]: tree for tree in trees}, list(planned)
    for path in dict.fromkeys(row["toolkit_path"] for row in rows):
        wanted = [row for row in rows if row["toolkit_path"] == path]
        tree = found.get(path) or CudnnTree(
            toolkit=path, headers=[], libraries=[], links=[], loaded=[], closed=[]
        )
        yield from _release_faults(wanted, tree)
        yield from _link_faults(wanted, tree)
        yield from _access_faults(wanted, tree)


def is_there(host: Host, row: PlannedCudnn) -> bool:
    """Return whether the toolkit's tree has a library with the planned SONAME."""
    return any(
        library["soname"] == row["soname"]
        for tree in host.cudnn_trees
        if tree["toolkit"] == row["toolkit_path"]
        for library in tree["libraries"]
    )


def differences(host: Host, row: PlannedCudnn) -> list[str]:
    """Why the cuDNN in a toolkit's tree is not the planned one, or not installed correctly."""
    return causes(faults([row], host.cudnn_trees))


def is_foreign(host: Host, row: PlannedCudnn, adopting: bool = False) -> bool:
    """Return whether gpufleet's toolkit has libraries of that cuDNN that others installed.

    `adopting`: a foreign toolkit counts as well, since it is adopted. In gpufleet's own toolkit the
    planned release is gpufleet's, its receipt lost: whoever put it there loses nothing by it.
    """
    if not ownership.foreign(host, "cudnn", row["id"], is_there(host, row)):
        return False
    if host.receipt("toolkit", row["toolkit"]) is None:
        return adopting
    return adopting or bool(differences(host, row))


def cudnn_change(host: Host, row: PlannedCudnn, adopt: bool) -> PlanChange | None:
    identity = row["id"]
    unknown = unobserved(host, "cudnn", identity, "receipts", "cudnn")
    if found := unknown or unfinished(host, "cudnn", identity):
        return found
    there = f"{row['soname']} in {row['toolkit_path']}"
    receipt = host.receipt("cudnn", identity)
    if receipt is None and is_there(host, row):
        wrong = differences(host, row)
        if is_foreign(host, row, adopt) or (adopt and not wrong):
            return not_ours("cudnn", identity, there, adopt, wrong)
        return without_receipt(host, "cudnn", identity, there)
    if receipt is None:
        because = f"{row['soname']} is not in {row['toolkit_path']}"
        return change("cudnn", identity, "install", because)
    if receipt.get("default", row["default"]) != row["default"]:
        state = "becomes" if row["default"] else "is no longer"
        because = f"it {state} the default of {row['toolkit_path']}"
        return change("cudnn", identity, "repair", because)
    return first_whole(
        altered(receipt, "cudnn", identity, row["version"]),
        other_source(receipt, "cudnn", identity, row["artifact"]),
    )


def _release_faults(wanted: list[PlannedCudnn], tree: CudnnTree) -> Judged:
    for row in wanted:
        yield from _library_faults(row, tree)
        if row["default"]:
            yield from _header_faults(row, tree)
    for library in tree["libraries"]:
        if library["error"] or not library["soname"]:
            reason = library["error"] or "it has no SONAME"
            cause = f"{library['path']} is not a valid library: {reason}"
            yield Fault(RELEASE, cause, _components(wanted))


def _library_faults(row: PlannedCudnn, tree: CudnnTree) -> Judged:
    component, short = component_of(row), row["short"]
    opened = [found for found in tree["loaded"] if found["soname"] == row["soname"]]
    if not opened:
        yield Fault(
            RELEASE,
            f"cuDNN {short} is missing in {tree['toolkit']}: no library is named {row['soname']}",
            (component,),
            about=(subjects.library(tree["toolkit"], row["soname"]),),
        )
    # The library that is queried opens the others by their SONAME alone, whatever version they are.
    for library in tree["libraries"]:
        name = library["path"].rpartition(".so.")[2]
        own = (library["soname"] or "").endswith(f".so.{row['major']}")
        if own and "." in name and not versions.has_prefix(name, short):
            cause = f"{library['path']} is of another version than cuDNN {short}"
            yield Fault(RELEASE, cause, (component,), act="on the host: move it away")
    for found in opened:
        path, version = found["path"], found["version"]
        if slow := timed_out(path, found):
            yield Fault.of(RELEASE, slow)
        elif found["error"]:
            toolkit = Component("toolkit", row["toolkit"])
            cause = f"{path} cannot be opened: {found['error']}"
            yield Fault(RELEASE, cause, (component, toolkit))
        # Old archives are named 6.0, while their libraries report 6.0.21.
        elif not versions.has_prefix(str(version), short):
            cause = f"{path} reports cuDNN {version}, declared is {short}"
            yield Fault(RELEASE, cause, (component,))
        yield Evidence(f"{path}: cudnnGetVersion {version}", RELEASE)


def _header_faults(row: PlannedCudnn, tree: CudnnTree) -> Judged:
    include = f"{tree['toolkit']}/include"
    if not tree["headers"]:
        cause = f"{include} has no cuDNN header"
        yield Fault(RELEASE, cause, (component_of(row),), about=(include,))
    for header in tree["headers"]:
        if not versions.has_prefix(str(header["version"]), row["short"]):
            phrase = f"reports {header['version']}" if header["version"] else "reports no version"
            yield Fault(
                RELEASE,
                f"{header['path']} {phrase}, declared is {row['short']}: programs compiled with"
                " it expect another cuDNN than is installed",
                (component_of(row),),
            )
        yield Evidence(f"{header['path']}: {header['version']}", RELEASE)


def _link_faults(wanted: list[PlannedCudnn], tree: CudnnTree) -> Judged:
    targets = {link["path"]: link["target"] for link in tree["links"]}
    files = {library["path"]: library for library in tree["libraries"]}
    missing = [link["path"] for link in tree["links"] if not link["exists"]]
    root, dangling = tree["toolkit"], {*missing}
    entails = tuple(subjects.library(root, path) for path in missing)

    def fault(cause: str, absent: str = "") -> Fault:
        """`absent`: the library that cannot be found for it."""
        return Fault(
            LINK,
            cause,
            _components(wanted),
            note="it recreates the symlinks",
            about=(subjects.library(root, absent),) if absent else (),
            entails=entails,
        )

    for path in missing:
        to_itself = targets[path] in {path, path.rpartition("/")[2]}
        state = "symlink to itself" if to_itself else f"dangling symlink to {targets[path]}"
        yield fault(f"{path} is a {state}", _link_target(path, targets))
    for path, library in files.items():
        name = beside(path, library["soname"]) if library["soname"] else path
        if name == path:
            continue
        if name in files:
            yield fault(f"{name} is a copy, not a symlink to {name_of(path)}: the two can differ")
        elif name not in targets:
            cause = f"{name} is missing: no symlink of that name points to {name_of(path)}"
            yield fault(cause, name)
        elif name not in dangling and _link_target(name, targets) not in files:
            yield fault(f"{name} points outside its directory, to {targets[name]}")
    for row in wanted:
        if not files:
            cause = f"{row['soname']} is missing: {root} contains no cuDNN library"
            yield fault(cause, row["soname"])
        # The compiler's -lcudnn uses it: it belongs to the default of this toolkit.
        directories = {directory_of(path) for path in files}
        for directory in sorted(directories if row["default"] else ()):
            end = _link_target(f"{directory}/libcudnn.so", targets)
            if end not in files or files[end]["soname"] != row["soname"]:
                cause = f"{directory}/libcudnn.so is not a symlink to {row['soname']}"
                yield fault(cause, "" if end in files else end)
    yield Evidence(f"{root}: {len(files)} libraries, {len(tree['links'])} links", LINK)


def _link_target(path: str, targets: dict[str, str]) -> str:
    """The last target of a chain of symlinks."""
    for _ in range(len(targets)):
        if path not in targets:
            break
        target = targets[path]
        path = target if target.startswith("/") else beside(path, target)
    return path


def _access_faults(wanted: list[PlannedCudnn], tree: CudnnTree) -> Judged:
    if not tree["libraries"]:
        yield Fault(
            ACCESS,
            f"{tree['toolkit']} contains no cuDNN library: no permissions were checked",
            _components(wanted),
            verdict=Verdict.INCONCLUSIVE,
            about=tuple(subjects.library(tree["toolkit"], row["soname"]) for row in wanted),
        )
    for found in unreadable_paths([(f"cuDNN in {tree['toolkit']}", tree["closed"])]):
        yield Fault.of(ACCESS, found)


def _components(wanted: list[PlannedCudnn]) -> tuple[Component, ...]:
    return tuple(map(component_of, wanted))
