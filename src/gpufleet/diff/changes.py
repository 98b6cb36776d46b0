"""Changes: what a host lacks of its plan. A pure comparison of two documents.

A section of the snapshot that could not be looked at never counts as converged: what depends on
it is to be installed, and the reason says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpufleet.catalog import versions
from gpufleet.host_state import (
    adoption,
    containers,
    driver_kernels,
    driver_packages,
    driver_running,
    driver_state,
    leftovers,
)
from gpufleet.host_state.host import Host, mapping, mappings
from gpufleet.resolver import environment, ownership
from gpufleet.resolver.linker import FILE as LINKER_FILE

from . import restart

Row = dict[str, Any]

UNSEEN = "could not be looked at"

# In the order in which they matter, and in which a run sets them right. Whether the driver that
# is installed also runs is for `restart`.
DRIVER: tuple[driver_state.Judge, ...] = (
    driver_packages.packages,
    driver_packages.holds,
    driver_kernels.modules,
    driver_kernels.nouveau,
    driver_running.persistence,
    driver_running.fabric,
    driver_running.mig,
)


def changes(plan: Mapping[str, Any], snapshot: Mapping[str, Any] | None) -> list[Row]:
    """What to do on a host, in the order of the roles: `what`, `id`, `action`, `because`.

    `what` is driver, toolkit, cudnn, driver_library, stack, environment, linker or default_link;
    `id` is the receipt's id, the library's name, the linker file's or the link's path; `action` is
    install, upgrade, repair, finish, restart, adopt, remove or refuse. An empty list means that the
    host is what the plan says, as far as documents can tell.
    """
    host, adopt = Host(snapshot), bool(plan.get("adopt"))
    rows = [_driver(host, plan) or _restart(plan, host)]
    rows += [_toolkit(host, row, adopt) for row in plan["toolkits"]]
    rows += [_cudnn(host, row, adopt) for row in plan["cudnn"]]
    rows.append(_driver_library(host, plan))
    rows.append(containers.change(plan, host))
    rows += [_stack(host, row) for row in plan["stacks"]]
    rows.append(_environment(host, plan["environment"]))
    rows += leftovers.removals(plan, host)
    rows.append(_default_link(host, plan["default_link"]))
    rows.append(_linker(host, plan))
    return [row for row in rows if row is not None]


def _change(what: str, identity: str, action: str, because: str) -> Row:
    return {"what": what, "id": identity, "action": action, "because": because}


def _unseen(host: Host, what: str, identity: str, *sections: str) -> Row | None:
    """An installation to be sure, when a section that matters is not `ok`."""
    names = host.unseen(sections)
    if not names:
        return None
    return _change(what, identity, "install", f"the host's {' and '.join(names)} {UNSEEN}")


def _unfinished(host: Host, kind: str, identity: str) -> Row | None:
    entry = host.journal(kind, identity)
    if entry is None:
        return None
    because = f"the journal says {entry.get('state')} since {entry.get('started')}"
    return _change(kind, identity, "finish", because)


def _altered(receipt: Row, kind: str, identity: str, version: str) -> Row | None:
    """A repair, when files changed since the receipt or it is of another version."""
    if receipt.get("version") != version:
        because = f"{receipt.get('version')} is installed, {version} is planned"
        return _change(kind, identity, "repair", because)
    if not receipt.get("changed"):
        return None
    changed = mappings(receipt["changed"]) or [{}]
    first = f"{changed[0].get('path')} ({changed[0].get('what')})"
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return _change(kind, identity, "repair", f"changed since it was installed: {first}{more}")


def _other_source(
    receipt: Row, kind: str, identity: str, artifact: Mapping[str, Any]
) -> Row | None:
    """A repair, when it was installed from another file than the planned one."""
    algorithm, _, wanted = str(artifact["checksum"] or "").partition(":")
    have = mapping(receipt.get("source")).get(algorithm)
    if not have or have == wanted:
        return None
    because = f"installed from a file with {algorithm} {str(have)[:16]}..., not the planned one"
    return _change(kind, identity, "repair", because)


def _foreign(
    kind: str, identity: str, there: str, adopt: bool, wrong: Iterable[str]
) -> Row:
    """What becomes of something that we did not install."""
    reasons = list(wrong) if adopt else []
    if adopt and not reasons:
        because = f"{there} was not installed by gpufleet, and is what is planned (gpu_cuda_adopt)"
        return _change(kind, identity, "adopt", because)
    because = "; ".join([f"{there} was not installed by gpufleet", *reasons])
    return _change(kind, identity, "refuse", because)


def _driver(host: Host, plan: Mapping[str, Any]) -> Row | None:
    """The driver where it is managed: from its receipt, then from what it lacks."""
    kind, identity = driver_state.RECEIPT
    if driver_state.managed(plan) is None:
        return None
    if found := _unseen(host, kind, identity, *driver_state.SECTIONS, "receipts"):
        return found
    if found := _unfinished(host, kind, identity):
        return found
    receipt = host.receipt(kind, identity)
    faults = [each for judge in DRIVER for each in judge(plan, host) if each.action]
    faults.sort(key=lambda each: each.action != "refuse")
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    if faults and (receipt or faults[0].action == "refuse"):
        return _change(kind, identity, faults[0].action, faults[0].cause + more)
    if receipt is None:
        because = faults[0].cause + more if faults else "the one that is there has no receipt"
        return _change(kind, identity, "install", because)
    return _altered(receipt, kind, identity, str(receipt.get("version")))


def _restart(plan: Mapping[str, Any], host: Host) -> Row | None:
    """A driver that is installed and does not run yet, or does and its marker still stands."""
    decision = restart.decide(plan, host)
    marker = mapping(plan["driver"]).get("managed") and host.reboot_pending
    if decision["action"] not in {"reload", "reboot"} and not (
        decision["action"] == "none" and marker
    ):
        return None
    return _change("driver", "driver", "restart", decision["because"])


def _toolkit(host: Host, row: Mapping[str, Any], adopt: bool) -> Row | None:
    identity = row["short"]
    if found := _unseen(host, "toolkit", identity, "receipts", "toolkits"):
        return found
    if found := _unfinished(host, "toolkit", identity):
        return found
    if ownership.foreign_toolkit(host, row):
        wrong = adoption.toolkit(host, row)
        return _foreign("toolkit", identity, f"{row['path']} is there and", adopt, wrong)
    receipt, tree = host.receipt("toolkit", identity), host.tree(row["path"])
    if receipt is None:
        return _change("toolkit", identity, "install", f"{row['path']} is not there")
    if tree is None:
        return _change("toolkit", identity, "repair", f"{row['path']} is gone, its receipt is not")
    return (
        _altered(receipt, "toolkit", identity, row["version"])
        or _other_source(receipt, "toolkit", identity, row["artifact"])
        or other_patches(receipt, identity, row["patches"])
    )


def other_patches(
    receipt: Row, identity: str, planned: list[Mapping[str, Any]]
) -> Row | None:
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
    return _change("toolkit", identity, "repair", because)


def _cudnn(host: Host, row: Mapping[str, Any], adopt: bool) -> Row | None:
    identity = row["id"]
    if found := _unseen(host, "cudnn", identity, "receipts", "cudnn"):
        return found
    if found := _unfinished(host, "cudnn", identity):
        return found
    if ownership.foreign_cudnn(host, row, adopt):
        wrong = adoption.cudnn(host, row)
        there = f"{row['soname']} in {row['toolkit_path']}"
        return _foreign("cudnn", identity, there, adopt, wrong)
    receipt = host.receipt("cudnn", identity)
    if receipt is None:
        because = f"{row['soname']} is not in {row['toolkit_path']}"
        return _change("cudnn", identity, "install", because)
    if receipt.get("default", row["default"]) != row["default"]:
        state = "becomes" if row["default"] else "is no longer"
        because = f"it {state} the default of {row['toolkit_path']}"
        return _change("cudnn", identity, "repair", because)
    return _altered(receipt, "cudnn", identity, row["version"]) or _other_source(
        receipt, "cudnn", identity, row["artifact"]
    )


def _driver_library(host: Host, plan: Mapping[str, Any]) -> Row | None:
    """The library alone; a driver that is managed brings its own."""
    row = plan["driver_library"]
    if row is None or driver_state.managed(plan):
        return None
    if found := _unseen(host, "driver_library", row["soname"], "driver"):
        return found
    if host.driver_library:
        return None
    because = f"{', '.join(row['because'])} cannot be imported without it"
    return _change("driver_library", row["soname"], "install", because)


def _stack(host: Host, row: Mapping[str, Any]) -> Row | None:
    name = row["name"]
    if found := _unseen(host, "stack", name, "receipts", "stacks"):
        return found
    if found := _unfinished(host, "stack", name):
        return found
    if ownership.foreign_stack(host, row):
        because = f"{row['venv']} is there and was not installed by gpufleet"
        return _change("stack", name, "refuse", because)
    receipt, stack = host.receipt("stack", name), host.stack(name)
    if receipt is None:
        return _change("stack", name, "install", f"{row['venv']} is not there")
    if stack is None:
        return _change("stack", name, "repair", f"{row['venv']} is gone, its receipt is not")
    if found := _altered(receipt, "stack", name, row["version"]):
        return found
    return next(
        (_change("stack", name, "repair", because) for because in _drift(receipt, stack, row)),
        None,
    )


def _drift(receipt: Row, stack: Row, row: Mapping[str, Any]) -> list[str]:
    """How an environment differs from its receipt, and its receipt from the plan.

    Packages that the receipt does not name are somebody's own, and none of this comparison's.
    """
    found = []
    python = versions.short(str(receipt.get("python") or ""))
    if row["python"] and python != row["python"]:
        found.append(f"it was made with Python {python or 'unknown'}, not {row['python']}")
    if receipt.get("activation") != row["activation"]:
        found.append(f"its activation does not read {row['activation']}")
    lock = row.get("lock_sha256")
    if receipt.get("lock_sha256") != lock:
        state = "has changed" if lock else "is gone, and will be resolved anew"
        found.append(f"its lock {row['lock']} {state}")
    have, want = mapping(stack.get("packages")), mapping(receipt.get("packages"))
    found += [
        f"package {name} is {have.get(name) or 'missing'}, not {want[name]}"
        for name in sorted(want)
        if have.get(name) != want[name]
    ]
    root = row["toolkit_path"] or row["venv"]
    bound = receipt.get("binding")
    paths = bound if isinstance(bound, list) else []
    if not paths or not all(str(path).startswith(f"{root}/") for path in paths):
        found.append(f"it is bound to other libraries than those of {root}")
    return found


def _environment(host: Host, rows: list[Row]) -> Row | None:
    """The small files, all under one receipt; none is needed where none is planned."""
    kind, identity = environment.RECEIPT
    if found := _unseen(host, kind, identity, "receipts"):
        return found if rows else None
    if found := _unfinished(host, kind, identity):
        return found
    receipt = host.receipt(kind, identity)
    if receipt is None:
        first = f"{rows[0]['path']} is not there" if rows else ""
        return _change(kind, identity, "install", first) if rows else None
    have = {path: mapping(row) for path, row in mapping(receipt.get("texts")).items()}
    want = environment.digests(rows)
    off = [f"{path} is not there" for path in want if path not in have]
    off += [f"{path} is no longer declared" for path in have if path not in want]
    off += [
        f"{row['path']} says something else than planned"
        for row in rows
        if row["path"] in have
        and (have[row["path"]].get("sha256"), have[row["path"]].get("for"))
        != (want[row["path"]], row["for"])
    ]
    if off:
        more = f" and {len(off) - 1} more" if len(off) > 1 else ""
        return _change(kind, identity, "repair", f"{off[0]}{more}")
    return _altered(receipt, kind, identity, environment.RECEIPT_VERSION)


def _default_link(host: Host, row: Mapping[str, Any] | None) -> Row | None:
    if row is None:
        return None
    path, target = row["path"], row["target"]
    if found := _unseen(host, "default_link", path, "toolkits"):
        return found
    link = host.default_link or {}
    state = link.get("state")
    if ownership.foreign_default(host):
        because = f"{path} is a {state}, not a link of ours"
        return _change("default_link", path, "refuse", because)
    if state != "link":
        return _change("default_link", path, "install", f"{path} is not there")
    parent = path.rpartition("/")[0]
    if str(link.get("target")) in {target, f"{parent}/{target}"}:
        return None
    because = f"{path} points to {link.get('target')}, not to {target}"
    return _change("default_link", path, "install", because)


def _linker(host: Host, plan: Mapping[str, Any]) -> Row | None:
    """The linker's file must list our directories, and its cache must have read them."""
    wanted = plan["linker"]["directories"]
    path = plan["linker"].get("file", LINKER_FILE)
    if found := _unseen(host, "linker", path, "linker"):
        return found
    files = [row for row in host.linker_files if row.get("path") == path]
    listed = files[0].get("directories") or [] if files else None
    if listed is None and not wanted:
        return None
    if listed != wanted:
        because = f"{path} is not there" if listed is None else f"{path} lists other directories"
        return _change("linker", path, "install", because)
    off = [f"still has {each}" for each in _stale(host, wanted)]
    off += [f"lacks {each}" for each in _lacking(host, plan)]
    return _change("linker", path, "install", f"the linker cache {off[0]}") if off else None


def _cached(host: Host, directory: str) -> list[Row]:
    """The cache's entries from a toolkit's library directory.

    ldconfig reads a directory once, under the first name that any file gives it, so an entry also
    counts when it only leads into the same toolkit.
    """
    root = directory.removesuffix("/lib64")
    return [
        row
        for row in host.linker_cache
        if str(row.get("path")).startswith(f"{directory}/")
        or str(row.get("realpath")).startswith(f"{root}/")
    ]


def _stale(host: Host, directories: list[str]) -> list[str]:
    """Entries from our directories whose file is gone."""
    rows = [row for directory in directories for row in _cached(host, directory)]
    return [str(row["path"]) for row in rows if row.get("exists") is False]


def _lacking(host: Host, plan: Mapping[str, Any]) -> list[str]:
    """Directories of which the cache has nothing, and cuDNN that it has not in a registered one."""
    found = []
    for directory in plan["linker"]["directories"]:
        cached = {str(row.get("soname")) for row in _cached(host, directory)}
        root = directory.removesuffix("/lib64")
        planned = [row["soname"] for row in plan["cudnn"] if row["toolkit_path"] == root]
        found += [] if cached else [directory]
        found += [f"{directory}/{soname}" for soname in planned if soname not in cached]
    return found
