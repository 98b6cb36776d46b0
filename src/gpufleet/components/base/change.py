"""The rows of a host's changes: their parts that components share."""

from __future__ import annotations

from gpufleet.components.base.host import Host, mapping, mappings
from gpufleet.documents.plan import Action, Artifact, Component, PlanChange, Step
from gpufleet.documents.types import Row

# The components whose links are restored without an artifact.
LINKED: tuple[Component, ...] = ("toolkit", "cudnn")


def change(
    what: Component, identity: str, action: Action, because: str, step: Step | None = None
) -> PlanChange:
    """A row of `changes`."""
    row: PlanChange = {"what": what, "id": identity, "action": action, "because": because}
    if step:
        row["step"] = step
    return row


def unobserved(host: Host, what: Component, identity: str, *sections: str) -> PlanChange | None:
    """A row "unread" for a component, when a section that it depends on is not `ok`."""
    names = host.unobserved(sections)
    if not names:
        return None
    return change(what, identity, "unread", host.unread(names))


def unfinished(host: Host, kind: Component, identity: str) -> PlanChange | None:
    entry = host.journal(kind, identity)
    if entry is None and (error := host.damaged("journal", kind, identity)):
        return change(kind, identity, "finish", f"its journal entry cannot be used: {error}")
    if entry is None:
        return None
    because = f"the journal records {entry.get('state')} since {entry.get('started')}"
    return change(kind, identity, "finish", because)


def without_receipt(host: Host, kind: Component, identity: str, path: str) -> PlanChange:
    """A repair of what gpufleet installed, and whose receipt is lost or cannot be used."""
    error = host.damaged("receipts", kind, identity)
    because = f"its receipt cannot be used: {error}" if error else f"the receipt of {path} is lost"
    return change(kind, identity, "repair", because, "reinstall")


def altered(receipt: Row, kind: Component, identity: str, version: str) -> PlanChange | None:
    """A repair, when files changed since the receipt or it is of another version."""
    if receipt.get("version") != version:
        because = f"{receipt.get('version')} is installed, {version} is planned"
        return change(kind, identity, "repair", because)
    if not receipt.get("changed"):
        return None
    changed = mappings(receipt["changed"]) or [{}]
    first = f"{changed[0].get('path')} ({changed[0].get('what')})"
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    if kind in LINKED and all(each.get("link") is True for each in changed):
        because = f"only links changed since it was installed: {first}{more}"
        return change(kind, identity, "repair", because, "links")
    return change(kind, identity, "repair", f"changed since it was installed: {first}{more}")


def first_whole(*found: PlanChange | None) -> PlanChange | None:
    """The first change; one of links only where there is no other, which restores them too."""
    rows = [row for row in found if row]
    return next((row for row in rows if row.get("step") != "links"), rows[0] if rows else None)


def not_ours(
    kind: Component, identity: str, there: str, adopt: bool, wrong: list[str]
) -> PlanChange:
    """Adopt what gpufleet did not install, or refuse it: `wrong` is why it is not as planned."""
    if adopt and not wrong:
        because = f"{there} was not installed by gpufleet, and is what is planned (gpu_cuda_adopt)"
        return change(kind, identity, "adopt", because)
    reasons = wrong if adopt else []
    because = "; ".join([f"{there} was not installed by gpufleet", *reasons])
    return change(kind, identity, "refuse", because)


def other_source(
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
