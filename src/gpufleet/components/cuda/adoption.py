"""Adoption: whether a foreign toolkit is what is planned, by the host's snapshot.

Only versions, links and access are compared here; the module `gpu_adoption` checks each file on the
host before it writes a receipt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpufleet.catalog import facts, versions
from gpufleet.components.base.host import Host, mappings
from gpufleet.documents.plan import PlannedToolkit

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


def _closed(tree: Row) -> Iterator[str]:
    for entry in mappings(tree.get("closed"))[:1]:
        yield f"other users cannot read {entry.get('path')} (mode {entry.get('mode')})"
