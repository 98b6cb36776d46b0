"""What a host lacks of its planned stacks, and of the small files of their environment."""

from __future__ import annotations

from gpufleet.catalog import versions
from gpufleet.host_state import ownership
from gpufleet.host_state.host import Host, mapping
from gpufleet.model.frameworks import is_in_no_toolkit
from gpufleet.model.plan import EnvironmentFile, PlanChange, PlannedStack
from gpufleet.resolver import environment

from .row import Row, altered, change, unfinished, unobserved, without_receipt


def stack_change(host: Host, row: PlannedStack) -> PlanChange | None:
    name = row["name"]
    if found := unobserved(host, "stack", name, "receipts", "stacks"):
        return found
    if found := unfinished(host, "stack", name):
        return found
    if ownership.foreign_stack(host, row):
        because = f"{row['venv']} exists and was not installed by gpufleet"
        return change("stack", name, "refuse", because)
    receipt, stack = host.receipt("stack", name), host.stack(name)
    if receipt is None and (stack is not None or host.occupied(row["venv"])):
        return without_receipt(host, "stack", name, row["venv"])
    if receipt is None:
        return change("stack", name, "install", f"{row['venv']} is missing")
    if stack is None:
        return change("stack", name, "repair", f"{row['venv']} is missing, but it has a receipt")
    if found := altered(receipt, "stack", name, row["version"]):
        return found
    return next(
        (change("stack", name, "repair", because) for because in _drift(receipt, stack, row)),
        None,
    )


def _drift(receipt: Row, stack: Row, row: PlannedStack) -> list[str]:
    """How an environment differs from its receipt, and its receipt from the plan.

    Packages that the receipt does not name are somebody's own, and none of this comparison's.
    """
    found = []
    python = versions.short(str(receipt.get("python") or ""))
    if row["python"] and python != row["python"]:
        found.append(f"it was created with Python {python or 'unknown'}, not {row['python']}")
    if receipt.get("activation") != row["activation"]:
        found.append(f"its activation does not read {row['activation']}")
    lock = row.get("lock_sha256")
    if receipt.get("lock_sha256") != lock:
        state = "has changed" if lock else "is missing, and will be resolved again"
        found.append(f"its lock {row['lock']} {state}")
    have, want = mapping(stack.get("packages")), mapping(receipt.get("packages"))
    found += [
        f"package {name} is {have.get(name) or 'missing'}, not {want[name]}"
        for name in sorted(want)
        if have.get(name) != want[name]
    ]
    bound = receipt.get("binding")
    paths = [str(path) for path in bound] if isinstance(bound, list) else []
    if bool(paths) != bool(row["sonames"]) or not all(_is_own(path, row) for path in paths):
        root = row["toolkit_path"] or row["venv"]
        found.append(f"it is bound to other libraries than those of {root}")
    return found


def _is_own(path: str, row: PlannedStack) -> bool:
    """Whether a library is where the stack's own ones are: in its toolkit, or in its packages."""
    packaged = row["toolkit_path"] is None or is_in_no_toolkit(path.rpartition("/")[2])
    return path.startswith(f"{row['venv'] if packaged else row['toolkit_path']}/")


def environment_change(host: Host, rows: list[EnvironmentFile]) -> PlanChange | None:
    """The small files, all under one receipt; none is needed where none is planned."""
    kind, identity = environment.RECEIPT
    if found := unobserved(host, kind, identity, "receipts"):
        return found if rows else None
    if found := unfinished(host, kind, identity):
        return found
    receipt = host.receipt(kind, identity)
    if receipt is None:
        first = f"{rows[0]['path']} is missing" if rows else ""
        return change(kind, identity, "install", first) if rows else None
    have = {path: mapping(row) for path, row in mapping(receipt.get("texts")).items()}
    want = environment.digests(rows)
    off = [f"{path} is missing" for path in want if path not in have]
    off += [f"{path} is no longer declared" for path in have if path not in want]
    off += [
        f"{row['path']} differs from the plan"
        for row in rows
        if row["path"] in have
        and (have[row["path"]].get("sha256"), have[row["path"]].get("for"))
        != (want[row["path"]], row["for"])
    ]
    if off:
        more = f" and {len(off) - 1} more" if len(off) > 1 else ""
        return change(kind, identity, "repair", f"{off[0]}{more}")
    return altered(receipt, kind, identity, environment.RECEIPT_VERSION)
