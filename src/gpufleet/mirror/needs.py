"""The files and locks that the hosts of an inventory need, from their plans; reaches no host."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpufleet.documents.plan import NeededArtifact, PlannedStack, ProblemEntry
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import InventoryHost
from gpufleet.fleet.judging import plan_of
from gpufleet.on_host.addresses import public_addresses

WHEELS = "wheels"


class MirrorError(Exception):
    """Something that cannot be fetched: why, and what to do.

    The message may quote another program, which prints the addresses that it was given: it repeats
    no secret of an address.
    """

    def __init__(self, message: str, remedy: str) -> None:
        self.message, self.remedy = map(public_addresses, (message, remedy))
        super().__init__(self.message)


@dataclass(frozen=True)
class File:
    """One file of the mirror.

    `path` is relative to the mirror, `checksum` is ALGORITHM:HEX, `url` is the page with the
    download if a login is required. `size_bytes` is None if unknown.
    """

    path: str
    kind: str
    checksum: str
    url: str
    size_bytes: int | None = None
    login_required: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name, without the directory."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Lock:
    """A stack's lock, existing or not; `index_url` is the declared package index, or ''.

    `index` is the stack's own extra index, or ''; `arch` the machine architecture of its hosts.

    Without `requirements` it belongs to another Python version, and is only read.
    """

    path: Path
    python: str
    requirements: tuple[str, ...] = ()
    index_url: str = ""
    index: str = ""
    arch: str = "x86_64"


@dataclass
class Needs:
    """The needs of an inventory; `sources`: its values of gpu_artifacts_source; `addresses`: those
    that it declares for artifacts.
    """

    hosts: int = 0
    artifacts: dict[str, File] = field(default_factory=dict)
    locks: dict[Path, Lock] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    addresses: set[str] = field(default_factory=set)
    problems: list[ProblemEntry] = field(default_factory=list)


def needs_of(hosts: Iterable[InventoryHost]) -> Needs:
    """Return what these hosts need together, with the problems of plans that are refused."""
    needs = Needs()
    for host in hosts:
        needs.hosts += 1
        plan = plan_of(host, None)
        needs.problems += [
            {**problem, "where": f"{host.name}: {problem['where']}"} for problem in plan["problems"]
        ]
        source = str(host.variables.get("gpu_artifacts_source") or "")
        if source and source not in needs.sources:
            needs.sources.append(source)
        needs.addresses.update(row["url"] for row in host.spec.artifacts.values() if "url" in row)
        for row in plan["artifacts"]:
            _add_artifact(needs, row, host.name)
        # A refused plan's stacks may be incomplete.
        for stack in plan["stacks"] if not plan["problems"] else ():
            _add_locks(needs, stack, host, plan["arch"])
    return needs


def _add_artifact(needs: Needs, row: NeededArtifact, host: str) -> None:
    # A refused plan may lack both.
    file, checksum = row["file"] or "", row["checksum"] or ""
    known = needs.artifacts.get(file)
    if known and known.checksum != checksum:
        raise ConfigurationError(
            f"{file} is declared with {checksum}, but for another host with "
            f"{known.checksum}: one directory cannot hold both.",
            f"{host}: gpu_artifacts",
            "Create a mirror for each, with --limit.",
        )
    reasons = tuple(dict.fromkeys((*(known.reasons if known else ()), row["for"])))
    needs.artifacts[file] = File(
        file,
        "artifact",
        checksum,
        row["url"] or "",
        row["size_bytes"],
        bool(row["login_required"]),
        reasons,
    )


def _add_locks(needs: Needs, stack: PlannedStack, host: InventoryHost, arch: str) -> None:
    """Add the existing locks of all Python versions and GPUs; without any, the lock of the plan.

    The plan does not know the hosts' Python versions: unless one is declared, it assumes the
    newest. Nor their GPUs: unless older ones are declared, it assumes none.
    """
    same_stack = re.compile(_lock_names(stack["lock"]))
    pythons = {name: found[1] for name in host.locks if (found := same_stack.fullmatch(name))}
    if not pythons or _python_is_declared(stack, host):
        pythons[stack["lock"]] = stack["python"]
    for name, python in pythons.items():
        path = host.locks_dir / name
        # The role's requirements. Locks of other Python versions are only read.
        requirements = (*stack["requirements"], "pip") if name == stack["lock"] else ()
        index = str(host.variables.get("gpu_pip_index_url") or "")
        extra = stack.get("index") or ""
        needs.locks.setdefault(path, Lock(path, python, requirements, index, extra, arch))


def _lock_names(lock: str) -> str:
    """The pattern of a lock's names on any Python and GPU (resolver.stacks); a group: Python."""
    name, _, _ = lock.rpartition("-py")
    plain = name.removesuffix("-jupyter")
    return f"{re.escape(plain)}(?:-older-gpu)?{name[len(plain) :]}" + r"-py(\d+\.\d+)\.lock"


def _python_is_declared(stack: PlannedStack, host: InventoryHost) -> bool:
    return any(spec.python for spec in host.spec.stacks if spec.name == stack["name"])
