"""The judge of toolkits: all that differs from a planned toolkit in the tree at its path. Pure.

`faults` reads the section `toolkits` alone; a change comes of the receipt and the journal, and of
`differences` where there is no receipt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpufleet.catalog import facts
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
from gpufleet.components.base.host import Host, mapping, mappings
from gpufleet.components.base.registry import (
    Evidence,
    is_hung,
    numbers,
    timed_out,
    unreadable_paths,
)
from gpufleet.components.base.remedies import toolkit as component_of
from gpufleet.documents.plan import Patch, PlanChange, PlannedLink, PlannedToolkit
from gpufleet.documents.sections.cuda import ToolkitTree
from gpufleet.documents.text import brief
from gpufleet.documents.verdict import Verdict

from . import ownership

RELEASE = "toolkit.release"  # missing, of another release, or not whole
ACCESS = "toolkit.access"

# Below 12.2.1 the third number of version.json may be a date (11.8.20220929).
DATES_START = 10000


def faults(planned: Iterable[PlannedToolkit], trees: Iterable[ToolkitTree]) -> Judged:
    """Each difference between the planned toolkits and the trees at their paths."""
    found = {tree["path"]: tree for tree in trees}
    for row in planned:
        path, component = row["path"], (component_of(row),)
        tree = found.get(path)
        if tree is None:
            yield Fault(RELEASE, f"{path} does not exist", component, about=(path,))
            yield Fault(
                ACCESS,
                f"{path} does not exist: no permissions were checked",
                component,
                verdict=Verdict.INCONCLUSIVE,
                about=(path,),
            )
            continue
        if slow := timed_out(f"{path}/bin/nvcc", tree, "nvcc_"):
            yield Fault.of(RELEASE, slow)
        for reason in _mismatches(row, tree):
            yield Fault(
                RELEASE,
                f"{path} should be CUDA {row['short']}, but {reason}",
                component,
                evidence=brief(tree),
                about=(subjects.noexec(path),) if tree["nvcc_error"] else (),
            )
        yield Evidence(
            f"{path}: {tree['version_source'] or 'no version file'}"
            f" {tree['version'] or ''}, nvcc {tree['nvcc'] or 'absent'},"
            f" cudart {', '.join(tree['cudart'])}".replace(" ,", ","),
            RELEASE,
        )
        for closed in unreadable_paths([(path, tree["closed"])]):
            yield Fault.of(ACCESS, closed)


def differences(host: Host, row: PlannedToolkit) -> list[str]:
    """Why the tree at a planned toolkit's path is not that toolkit.

    A known release of another patch level is another toolkit here, wherever the tree reports it.
    """
    tree = host.tree(row["path"])
    if tree is None:
        return ["it is not a directory of its own"]
    release = facts.toolkit(str(tree["version"]))
    if release and release.short == row["short"] and release.version != row["version"]:
        return [
            f"it is CUDA {release.version}, and {row['version']} is planned; to keep it, "
            f'set gpu_toolkits: ["{release.version}"]'
        ]
    return causes(faults([row], [tree]))


def is_there(host: Host, row: PlannedToolkit) -> bool:
    """Return whether anything exists at the toolkit's path."""
    return host.tree(row["path"]) is not None or host.occupied(row["path"])


def is_foreign(host: Host, row: PlannedToolkit) -> bool:
    """Return whether gpufleet did not install what exists at the toolkit's path."""
    foreign = ownership.foreign(host, "toolkit", row["short"], is_there(host, row))
    return foreign and not ownership.registered(host, row["path"])


def foreign_default(host: Host) -> bool:
    """Return whether a directory or file is at the path of the default link."""
    link = host.default_link
    return link is not None and link["state"] in {"directory", "file"}


def toolkit_change(host: Host, row: PlannedToolkit, adopt: bool) -> PlanChange | None:
    identity = row["short"]
    unknown = unobserved(host, "toolkit", identity, "receipts", "toolkits")
    if found := unknown or unfinished(host, "toolkit", identity):
        return found
    receipt = host.receipt("toolkit", identity)
    if receipt is None and is_there(host, row):
        wrong = differences(host, row)
        if is_foreign(host, row) or (adopt and not wrong):
            return not_ours("toolkit", identity, f"{row['path']} exists and", adopt, wrong)
        return without_receipt(host, "toolkit", identity, row["path"])
    if receipt is None:
        return change("toolkit", identity, "install", f"{row['path']} is missing")
    if host.tree(row["path"]) is None:
        because = f"{row['path']} is missing, but it has a receipt"
        return change("toolkit", identity, "repair", because)
    return first_whole(
        altered(receipt, "toolkit", identity, row["version"]),
        other_source(receipt, "toolkit", identity, row["artifact"]),
        other_patches(receipt, identity, row["patches"]),
    )


def other_patches(
    receipt: Mapping[str, object], identity: str, planned: Sequence[Patch]
) -> PlanChange | None:
    """A repair, when it was installed with other patches than the planned ones.

    A tree that was adopted stays as it was found.
    """
    have = [(each.get("file"), each.get("checksum")) for each in mappings(receipt.get("patches"))]
    want = [(each["file"], each["checksum"]) for each in planned]
    if have == want or mapping(receipt.get("source")).get("adopted"):
        return None
    names = [", ".join(str(file) for file, _ in each) or "no patch" for each in (have, want)]
    because = f"{names[0]} is applied, {names[1]} is planned"
    if names[0] == names[1]:
        because = f"{names[0]} is another file than the planned one"
    return change("toolkit", identity, "repair", because)


def default_link_change(host: Host, row: PlannedLink | None) -> PlanChange | None:
    if row is None:
        return None
    path, target = row["path"], row["target"]
    link = host.default_link
    if link is None:
        return unobserved(host, "default_link", path, "toolkits")
    if foreign_default(host):
        because = f"{path} is a {link['state']}, not gpufleet's link"
        return change("default_link", path, "refuse", because)
    if link["state"] != "link":
        return change("default_link", path, "install", f"{path} is missing")
    parent = path.rpartition("/")[0]
    if link["target"] in {target, f"{parent}/{target}"}:
        return None
    because = f"{path} points to {link['target']}, not to {target}"
    return change("default_link", path, "install", because)


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
