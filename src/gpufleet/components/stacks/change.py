"""The changes that bring a host to its planned stacks, and to the files of their environment."""

from __future__ import annotations

from gpufleet.catalog import versions
from gpufleet.components.base.change import altered, change, unfinished, unobserved, without_receipt
from gpufleet.components.base.host import Host, mapping
from gpufleet.components.cuda import ownership
from gpufleet.components.stacks import environment_plan as environment
from gpufleet.documents.plan import EnvironmentFile, PlanChange, PlannedStack
from gpufleet.documents.types import Row
from gpufleet.frameworks import is_in_no_toolkit


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
        declared = "is missing: its packages are resolved again (gpu_stacks, gpu_jupyter_kernels)"
        found.append(f"its lock {row['lock']} {'has changed' if lock else declared}")
    have, want = mapping(stack.get("packages")), mapping(receipt.get("packages"))
    found += [
        f"package {name} is {have.get(name) or 'missing'}, not {want[name]}"
        for name in sorted(want)
        if have.get(name) != want[name]
    ]
    if not _bound(receipt.get("binding"), row):
        root = row["toolkit_path"] or row["venv"]
        found.append(f"it is bound to other libraries than those of {root}")
    return found


def _bound(binding: object, row: PlannedStack) -> bool:
    """Return whether a stack is bound to libraries of its toolkit, or of its environment.

    On a toolkit, what no toolkit has (NCCL, for JAX) is of the environment. Where all libraries are
    optional, the environment may have none of them.
    """
    paths = [str(path) for path in binding] if isinstance(binding, list) else []
    beside = [name for name in row["sonames"] if row["toolkit_path"] and is_in_no_toolkit(name)]
    packages = f"{row['venv']}/"
    rest = [
        path
        for path in paths
        if not (path.startswith(packages) and path.rpartition("/")[2] in beside)
    ]
    root = row["toolkit_path"] or row["venv"]
    complete = bool(rest) == bool(row["sonames"]) or (
        not row["sonames"] and bool(row["sonames_optional"])
    )
    return complete and all(path.startswith(f"{root}/") for path in rest)


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
    off += [
        f"{path} is no longer declared ({environment.variable(path)})"
        for path in have
        if path not in want
    ]
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
