"""Component a host lacks of its planned toolkits, cuDNN and default link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufleet.components.base.change import altered, change, unfinished, unobserved, without_receipt
from gpufleet.components.base.host import Host, mapping, mappings
from gpufleet.components.cuda import cudnn, ownership, toolkit
from gpufleet.documents.plan import (
    Artifact,
    Component,
    Patch,
    PlanChange,
    PlannedCudnn,
    PlannedLink,
    PlannedToolkit,
)
from gpufleet.documents.types import Row


def toolkit_change(host: Host, row: PlannedToolkit, adopt: bool) -> PlanChange | None:
    identity = row["short"]
    if found := unobserved(host, "toolkit", identity, "receipts", "toolkits"):
        return found
    if found := unfinished(host, "toolkit", identity):
        return found
    receipt, tree = host.receipt("toolkit", identity), host.tree(row["path"])
    if receipt is None and (tree is not None or host.occupied(row["path"])):
        wrong = toolkit.differences(host, row)
        if ownership.foreign_toolkit(host, row) or (adopt and not wrong):
            return _foreign("toolkit", identity, f"{row['path']} exists and", adopt, wrong)
        return without_receipt(host, "toolkit", identity, row["path"])
    if receipt is None:
        return change("toolkit", identity, "install", f"{row['path']} is missing")
    if tree is None:
        because = f"{row['path']} is missing, but it has a receipt"
        return change("toolkit", identity, "repair", because)
    return _first_whole(
        altered(receipt, "toolkit", identity, row["version"]),
        _other_source(receipt, "toolkit", identity, row["artifact"]),
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


def cudnn_change(host: Host, row: PlannedCudnn, adopt: bool) -> PlanChange | None:
    identity = row["id"]
    if found := unobserved(host, "cudnn", identity, "receipts", "cudnn"):
        return found
    if found := unfinished(host, "cudnn", identity):
        return found
    there = f"{row['soname']} in {row['toolkit_path']}"
    receipt = host.receipt("cudnn", identity)
    if receipt is None and cudnn.is_there(host, row):
        wrong = cudnn.differences(host, row)
        if ownership.foreign_cudnn(host, row, adopt) or (adopt and not wrong):
            return _foreign("cudnn", identity, there, adopt, wrong)
        return without_receipt(host, "cudnn", identity, there)
    if receipt is None:
        because = f"{row['soname']} is not in {row['toolkit_path']}"
        return change("cudnn", identity, "install", because)
    if receipt.get("default", row["default"]) != row["default"]:
        state = "becomes" if row["default"] else "is no longer"
        because = f"it {state} the default of {row['toolkit_path']}"
        return change("cudnn", identity, "repair", because)
    return _first_whole(
        altered(receipt, "cudnn", identity, row["version"]),
        _other_source(receipt, "cudnn", identity, row["artifact"]),
    )


def default_link_change(host: Host, row: PlannedLink | None) -> PlanChange | None:
    if row is None:
        return None
    path, target = row["path"], row["target"]
    link = host.default_link
    if link is None:
        return unobserved(host, "default_link", path, "toolkits")
    if ownership.foreign_default(host):
        because = f"{path} is a {link['state']}, not gpufleet's link"
        return change("default_link", path, "refuse", because)
    if link["state"] != "link":
        return change("default_link", path, "install", f"{path} is missing")
    parent = path.rpartition("/")[0]
    if link["target"] in {target, f"{parent}/{target}"}:
        return None
    because = f"{path} points to {link['target']}, not to {target}"
    return change("default_link", path, "install", because)


def _first_whole(*found: PlanChange | None) -> PlanChange | None:
    """The first change; one of links only where there is no other, which restores them too."""
    rows = [row for row in found if row]
    return next((row for row in rows if row.get("step") != "links"), rows[0] if rows else None)


def _foreign(
    kind: Component, identity: str, there: str, adopt: bool, wrong: list[str]
) -> PlanChange:
    """Component becomes of something that we did not install."""
    if adopt and not wrong:
        because = f"{there} was not installed by gpufleet, and is what is planned (gpu_cuda_adopt)"
        return change(kind, identity, "adopt", because)
    reasons = wrong if adopt else []
    because = "; ".join([f"{there} was not installed by gpufleet", *reasons])
    return change(kind, identity, "refuse", because)


def _other_source(
    receipt: Row, kind: Component, identity: str, artifact: Artifact | None
) -> PlanChange | None:
    """A repair, when it was installed from another file than the planned one."""
    checksum = artifact["checksum"] if artifact else None
    algorithm, _, wanted = (checksum or "").partition(":")
    have = mapping(receipt.get("source")).get(algorithm)
    if not have or have == wanted:
        return None
    because = f"installed from a file with {algorithm} {str(have)[:16]}..., not the planned one"
    return change(kind, identity, "repair", because)
