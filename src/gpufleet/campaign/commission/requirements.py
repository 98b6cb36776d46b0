"""The needs of the collectives, by declarations and a first reading, before any load. Pure.

A declaration that comes after hours of load makes all stages invalid. So what is certainly missing
is named first; what only shows once drivers are installed is left to the stage itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpufleet.components.probe_settings import visible_gpus
from gpufleet.documents.commission import Reason
from gpufleet.documents.verdict import Verdict
from gpufleet.errors import ConfigurationError
from gpufleet.fabric.rounds import GroupTest
from gpufleet.fabric.threshold import LEAST_SIBLINGS
from gpufleet.fleet.collectives import Measure, members_of
from gpufleet.fleet.fabric_test import RAILS, declared_bandwidth
from gpufleet.fleet.inventory import InventoryHost
from gpufleet.fleet.machines import Machines, machines_of
from gpufleet.fleet.session import HostRun

from .decision import reason
from .stages import COLLECTIVES

# A port that is assumed where the drivers of the ports are not installed yet, in Gb/s.
ASSUMED_GBIT_S = 100.0


def unmet(
    hosts: Sequence[InventoryHost],
    siblings: Sequence[InventoryHost],
    seen: Mapping[str, HostRun],
    measure: Measure,
) -> dict[str, Reason]:
    """The needs of collectives that hosts certainly lack. `siblings`: those that are requested."""
    missing = {host.name: without_nccl(host) for host in (*hosts, *siblings)}
    found = {
        host.name: why
        for host in hosts
        if (why := missing[host.name]) and (siblings or visible_gpus(host.spec) != 1)
    }
    partners = [host for host in siblings if not missing[host.name]]
    if siblings and not partners:
        first = missing[siblings[0].name]
        assert first is not None
        why = _lacks(f"no sibling has an NCCL: {first['cause']}", first["remedy"])
        found |= {host.name: why for host in hosts if host.name not in found}
    group = [host for host in hosts if not missing[host.name]]
    for host in group:
        if host.name not in found and (
            why := without_figure(host, [*group, *partners], seen, measure)
        ):
            found[host.name] = why
    return found


def without_nccl(host: InventoryHost) -> Reason | None:
    """Why a host has no NCCL by its declaration; None where it has one."""
    try:
        members_of([host])
    except ConfigurationError as error:
        return _lacks(f"{error.where}: {error.message}", error.remedy)
    return None


def without_figure(
    host: InventoryHost,
    group: Sequence[InventoryHost],
    seen: Mapping[str, HostRun],
    measure: Measure,
) -> Reason | None:
    """Why nobody knows how fast the group of a host has to be; None where it may become known."""
    alone = len(group) == 1
    if (alone and visible_gpus(host.spec) == 1) or declared_bandwidth(group) is not None:
        return None
    # So many hosts are compared with each other.
    if len(group) >= 2 * LEAST_SIBLINGS:
        return None
    run = seen[host.name]
    machine = (
        machines_of([host], {host.name: run.snapshot}).get(host.name) if run.snapshot else None
    )
    if machine is None:
        return None
    if not machine.ports_gbit_s and not ports_are_set_up(run):
        machine = replace(machine, ports_gbit_s=(ASSUMED_GBIT_S,))
    # The floor of a group is that of its weakest machine: the others are taken for machines of
    # this kind.
    names = tuple(each.name for each in group)
    machines = Machines(dict.fromkeys(names, machine), members_of(group), measure)
    if machines.floor(GroupTest(names, RAILS)):
        return None
    silent = [each.name for each in group if not each.spec.expect.get("bus_bandwidth_gb_s")]
    return _lacks(
        f"nobody knows how fast the collectives of {', '.join(names)} have to be:"
        " the catalog has no figure for these GPUs and ports, and no"
        f" gpu_expect.bus_bandwidth_gb_s is declared for {', '.join(silent)}",
        "declare it, as ./gpufleet fabric test measures it on hosts that are known to be healthy",
    )


def ports_are_set_up(run: HostRun) -> bool:
    """Return whether provisioning installs no driver for a host's ports: they show as they are."""
    checks = {check["id"]: check["verdict"] for check in run.result["checks"]}
    return checks.get("network.setup") in {Verdict.PASS, Verdict.NOT_DECLARED, None}


def _lacks(cause: str, remedy: str) -> Reason:
    return reason(COLLECTIVES.name, Verdict.INCONCLUSIVE, cause, remedy)
