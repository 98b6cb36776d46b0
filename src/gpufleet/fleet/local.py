"""`--local`: verify this machine, also without a declaration.

What is not declared is taken from the snapshot: the GPUs on the PCI bus, the installed toolkits and
their cuDNN. Only a declaration can show that a GPU or a toolkit is missing: what was merely found
is verified, and is no declaration that could be fulfilled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpufleet.components.base.cards import of_driver
from gpufleet.components.base.host import Host
from gpufleet.documents.plan import Plan, PlannedCudnn, PlannedToolkit
from gpufleet.documents.sections.cuda import ToolkitTree
from gpufleet.documents.snapshot import Snapshot
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import Connection, HostSelector, InventoryHost, inventory_hosts

from .judging import Resolver, plan_of


def _unplanned(version: str, short: str, path: str, default: bool) -> PlannedToolkit:
    """A toolkit that is not declared."""
    return {
        "version": version,
        "short": short,
        "path": path,
        "default": default,
        "registered": False,
        "generation": None,
        "gcc_max": None,
        "sonames": [],
        "artifact": None,
        "patches": [],
        "installed_mib": None,
        "because": ["found on this host"],
        "sources": [],
        "found": True,
    }


def local_host(selector: HostSelector) -> InventoryHost:
    """This machine, with the variables of the one host that the selector matches.

    Raises `ConfigurationError` if the selector matches several hosts.
    """
    hosts = inventory_hosts(replace(selector, inventories=selector.inventories or ["localhost,"]))
    if len(hosts) > 1:
        raise ConfigurationError(
            f"--local verifies this machine only, but {len(hosts)} hosts are selected.",
            ", ".join(host.name for host in hosts[:5]),
            "Select this machine: --limit HOST.",
        )
    connection = hosts[0].connection
    return replace(
        hosts[0],
        connection=Connection(
            connection.name, "local", python=connection.python, become=connection.become
        ),
    )


def plan_local_host(
    host: InventoryHost, snapshot: Snapshot | None, resolve: Resolver | None = None
) -> Plan:
    """The host's plan, completed from its snapshot; a note in the plan for each assumption."""
    observed, variables, notes = Host(snapshot), dict(host.variables), []
    if snapshot and snapshot.get("euid"):
        notes.append(
            "the probe did not run as root: what it could not read is INCONCLUSIVE;"
            " sudo ./gpufleet verify --local reads all of it"
        )
    expect = variables.get("gpu_expect") or {}
    known = observed.section("gpus") is not None
    if known and isinstance(expect, dict) and expect.get("count") is None:
        # A card that is passed through to a virtual machine cannot be used on this host.
        count = len(of_driver(observed))
        variables["gpu_expect"] = {**expect, "count": count}
        notes.append(
            f"gpu_expect.count is not set: verifying the {count} found on the PCI bus;"
            " whether one is missing is unknown"
            if count
            else "gpu_expect.count is not set, and no GPU was found on the PCI bus"
        )
    plan = plan_of(replace(host, variables=variables), snapshot, resolve)
    if variables.get("gpu_expect") != host.variables.get("gpu_expect"):
        plan["expect"]["found"] = True
    if not {"gpu_toolkits", "gpu_stacks"} & set(variables):
        partial = [tree["path"] for tree in _trees(observed) if not tree["cudart"]]
        if partial:
            notes.append(f"not verified, for they have no libcudart: {', '.join(partial)}")
        plan["toolkits"] = list(_toolkits(observed))
        plan["cudnn"] = list(_cudnn(observed, plan["toolkits"]))
        names = ", ".join(row["path"] for row in plan["toolkits"])
        notes.append(
            f"gpu_toolkits and gpu_stacks are not set: verifying the toolkits found, {names}"
            if names
            else "gpu_toolkits and gpu_stacks are not set, and no toolkit was found: that"
            " the GPUs compute was not verified"
        )
    return {**plan, "notes": [*notes, *plan["notes"]]}


def _trees(observed: Host) -> list[ToolkitTree]:
    """The directories of toolkits that were found, those with a few tools alone included."""
    found = observed.section("toolkits")
    return [tree for tree in found["trees"] if tree["short"]] if found else []


def _toolkits(observed: Host) -> Iterator[PlannedToolkit]:
    found = observed.section("toolkits") or {"default": {"realpath": None}}
    for tree in _trees(observed):
        # Packages such as cuda-compat or cuda-nvcc alone make a directory of the same name.
        if tree["cudart"]:
            installed, short = tree["version"] or "", tree["short"] or ""
            # The directory's name counts: a version that contradicts it is a fault.
            version = installed if installed.split(".")[:2] == short.split(".")[:2] else short
            default = found["default"]["realpath"] == tree["realpath"]
            yield _unplanned(version, short, tree["path"], default)


def _cudnn(observed: Host, toolkits: list[PlannedToolkit]) -> Iterator[PlannedCudnn]:
    shorts = {row["path"]: row["short"] for row in toolkits}
    for tree in observed.cudnn_trees:
        headers = [header["version"] for header in tree["headers"] if header["version"]]
        for library in tree["loaded"] if tree["toolkit"] in shorts else ():
            major = library["soname"].rpartition(".")[2]
            version = library["version"] or next(
                (header for header in headers if header.split(".")[0] == major), major
            )
            yield {
                "version": version,
                "short": version,
                "major": int(major),
                "soname": library["soname"],
                "toolkit": shorts[tree["toolkit"]],
                "toolkit_path": tree["toolkit"],
                "artifact": None,
                "installed_mib": None,
                # The header belongs to one of the libraries, the default.
                "default": any(header.split(".")[0] == major for header in headers),
                "because": ["found on this host"],
                "sources": [],
                "found": True,
            }
