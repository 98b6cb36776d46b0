"""`--local`: this very machine, of which nobody may have declared anything.

Whoever has one workstation wants to know whether what is in it works. So what is not declared is
taken from what was seen: as many GPUs as the PCI bus shows, the toolkits that stand there, and the
cuDNN in them. That a GPU or a toolkit ought to be there, and is not, only a declaration can tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gpufleet.errors import ConfigurationError
from gpufleet.host_state.driver_running import GIVEN_AWAY
from gpufleet.host_state.host import Host
from gpufleet.inventory import Connection, HostSelector, InventoryHost, inventory_hosts

from .session import Resolver, plan_of

Row = dict[str, Any]

# What a row of a plan says of a declared toolkit, and nobody knows of one that was found.
UNKNOWN: Row = {"registered": False, "generation": None, "gcc_max": None, "sonames": [],
                "artifact": None, "patches": [], "installed_mib": None, "because": ["found here"],
                "sources": [], "found": True}


def local_host(question: HostSelector) -> InventoryHost:
    """This machine, with the wishes of the one host that the question leads to, if there are any.

    Raises `ConfigurationError` where it leads to several.
    """
    found = inventory_hosts(replace(question, inventories=question.inventories or ["localhost,"]))
    if len(found) > 1:
        raise ConfigurationError(
            f"--local is about this machine alone, and {len(found)} hosts are asked for.",
            ", ".join(host.name for host in found[:5]), "Say which of them it is: --limit HOST.")
    there = found[0].connection
    return replace(found[0], connection=Connection(
        there.name, "local", python=there.python, become=there.become))


def plan_local_host(
    host: InventoryHost, snapshot: dict[str, Any] | None, resolve: Resolver | None = None
) -> dict[str, Any]:
    """The plan of the wishes, filled up with what was seen, each thing with a note that says so."""
    seen, wishes, notes = Host(snapshot), dict(host.variables), []
    cards, expect = seen.section("gpus"), wishes.get("gpu_expect") or {}
    if cards and isinstance(expect, dict) and expect.get("count") is None:
        # A card that a virtual machine has computes there, not here.
        count = sum(card["driver"] != GIVEN_AWAY for card in cards["pci"])
        wishes["gpu_expect"] = {**expect, "count": count}
        notes.append(f"gpu_expect is not set: expected is what the PCI bus shows,"
                     f" {count or 'no'} GPU{'' if count == 1 else 's'}")
    plan = plan_of(replace(host, variables=wishes), snapshot, resolve)
    if not {"gpu_toolkits", "gpu_stacks"} & set(wishes):
        plan["toolkits"] = list(_toolkits(seen))
        plan["cudnn"] = list(_cudnn(seen, plan["toolkits"]))
        names = ", ".join(row["path"] for row in plan["toolkits"]) or "none"
        notes.append(f"gpu_toolkits and gpu_stacks are not set: tried is what was found, {names}")
    return {**plan, "notes": [*notes, *plan["notes"]]}


def _toolkits(seen: Host) -> Iterator[Row]:
    found = seen.section("toolkits") or {"trees": [], "default": {"realpath": None}}
    for tree in found["trees"]:
        if tree["short"]:
            told, short = tree["version"] or "", tree["short"]
            # The directory's name is what people go by: a version that contradicts it is a fault.
            version = told if told.split(".")[:2] == short.split(".")[:2] else short
            default = found["default"]["realpath"] == tree["realpath"]
            yield {**UNKNOWN, "version": version, "short": short, "path": tree["path"],
                   "default": default}


def _cudnn(seen: Host, toolkits: list[Row]) -> Iterator[Row]:
    shorts = {row["path"]: row["short"] for row in toolkits}
    for tree in (seen.section("cudnn") or {"trees": []})["trees"]:
        headers = [header["version"] for header in tree["headers"] if header["version"]]
        for library in tree["loaded"] if tree["toolkit"] in shorts else ():
            major = library["soname"].rpartition(".")[2]
            version = library["version"] or next(
                (told for told in headers if told.split(".")[0] == major), major)
            yield {"version": version, "short": version, "major": int(major),
                   "soname": library["soname"], "toolkit": shorts[tree["toolkit"]],
                   "toolkit_path": tree["toolkit"], "artifact": None, "installed_mib": None,
                   # The header belongs to one of them.
                   "default": any(told.split(".")[0] == major for told in headers),
                   "because": ["found here"], "sources": [], "found": True}
