"""Adoption: whether a foreign toolkit or cuDNN is what is planned, by the host's snapshot.

Only versions, links and access are compared here; the module `gpu_adoption` checks each file on the
host before it writes a receipt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from gpufleet.catalog import facts, versions
from gpufleet.components.base.host import Host, mappings
from gpufleet.documents.plan import PlannedCudnn, PlannedToolkit

Row = Mapping[str, Any]


def toolkit(host: Host, row: PlannedToolkit) -> Iterator[str]:
    """Why the tree at a planned toolkit's path is not that toolkit.

    X.Y must agree wherever the tree reports it; the patch level only where it is a known release's:
    some trees report a date or a build instead (11.8.20220929).
    """
    tree = host.tree(row["path"])
    if tree is None:
        yield "it is not a directory of its own"
        return
    reported = [(str(tree.get("version_source")), tree.get("version")), ("nvcc", tree.get("nvcc"))]
    reported += [("libcudart", version) for version in tree.get("cudart") or []]
    for source, version in reported:
        if version and not versions.has_prefix(str(version), row["short"]):
            yield f"its {source} reports {version}"
    release = facts.toolkit(str(tree.get("version")))
    if release and release.short == row["short"] and release.version != row["version"]:
        yield (
            f"it is CUDA {release.version}, and {row['version']} is planned; to keep it, "
            f'set gpu_toolkits: ["{release.version}"]'
        )
    if not tree.get("cudart"):
        yield "it has no lib64/libcudart.so.X.Y.Z"
    if tree.get("nvcc_error"):
        yield f"its nvcc does not run: {tree['nvcc_error']}"
    yield from _closed(tree)


def cudnn(host: Host, row: PlannedCudnn) -> Iterator[str]:
    """Why the cuDNN in a toolkit's tree is not the planned one, or not installed correctly.

    Header and unversioned link must be its own where it is the toolkit's default.
    """
    tree, soname = host.cudnn(row["toolkit_path"]), row["soname"]
    for found in mappings(tree.get("loaded")):
        if found.get("soname") != soname:
            continue
        if found.get("error"):
            yield f"{found.get('path')} cannot be opened: {found['error']}"
        elif not versions.has_prefix(str(found.get("version")), row["short"]):
            yield f"{found.get('path')} reports cuDNN {found.get('version')}"
    headers = mappings(tree.get("headers")) if row["default"] else []
    for header in headers:
        if not versions.has_prefix(str(header.get("version")), row["short"]):
            yield f"{header.get('path')} reports {header.get('version')}"
    if row["default"] and not headers:
        yield f"{row['toolkit_path']}/include has no cuDNN header"
    yield from _links(tree, row)
    yield from _closed(tree)


def _links(tree: Row, row: PlannedCudnn) -> Iterator[str]:
    """Libraries whose SONAME is a copy, or has no link."""
    libraries = {str(each.get("path")): each for each in mappings(tree.get("libraries"))}
    links = {str(each.get("path")): str(each.get("target")) for each in mappings(tree.get("links"))}
    for path, library in libraries.items():
        soname = str(library.get("soname"))
        if library.get("error"):
            yield f"{path} is not a complete library: {library['error']}"
            continue
        if not soname.endswith(f".so.{row['major']}"):
            continue
        name = str(PurePosixPath(path).with_name(soname))
        if name != path and name in libraries:
            yield f"{name} is a copy, not a link to {PurePosixPath(path).name}"
        elif name != path and name not in links:
            yield f"no link {name} points to {PurePosixPath(path).name}"
    bare = [target for path, target in links.items() if path.endswith("/libcudnn.so")]
    if row["default"] and not any(PurePosixPath(t).name.startswith(row["soname"]) for t in bare):
        yield f"{row['toolkit_path']}/lib64/libcudnn.so is not a link to {row['soname']}"


def _closed(tree: Row) -> Iterator[str]:
    for entry in mappings(tree.get("closed"))[:1]:
        yield f"other users cannot read {entry.get('path')} (mode {entry.get('mode')})"
