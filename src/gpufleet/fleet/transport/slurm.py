"""Slurm: a host's node name, the machine that runs Slurm's commands, and the probe as a job step.

A step runs as the account that calls srun; ssh to the nodes is not needed. What this account may
not read (other users' processes, the kernel's log, if it has no sudo) is INCONCLUSIVE, as over ssh.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import Connection, HostSelector, InventoryHost, inventory_hosts

# This share of a host's deadline may pass in Slurm's queue; srun fails if the node is busy longer.
QUEUE_SHARE = 0.5


def as_job_steps(
    hosts: Sequence[InventoryHost],
    selector: HostSelector,
    deadline_of: Callable[[InventoryHost], float],
) -> list[InventoryHost]:
    """The same hosts, reached by srun instead of ssh."""
    schedulers = scheduler_connections(hosts, selector)
    return [
        replace(host, connection=_step(host, schedulers[host.name], deadline_of(host)))
        for host in hosts
    ]


def _step(host: InventoryHost, scheduler: Connection | None, deadline_s: float) -> Connection:
    options = host.variables.get("gpu_srun_options") or []
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise ConfigurationError(
            f"Expected a list of options, got {options!r}.",
            f"{host.name}: gpu_srun_options",
            'Write it like ["--partition=gpu", "--gres=gpu:8"].',
        )
    srun = (
        "srun",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node_name(host)}",
        "--overlap",
        "--job-name=gpufleet",
        "--quiet",
        "--chdir=/",
        "--export=NONE",
        f"--immediate={max(1, int(deadline_s * QUEUE_SHARE))}",
        # The job ends even if srun is killed.
        f"--time={math.ceil(deadline_s / 60) + 1}",
        *options,
    )
    return replace(
        scheduler or Connection(host.name, "local"),
        name=host.name,
        launcher=srun,
        python=host.connection.python,
        become=host.connection.become,
    )


def scheduler_connections(
    hosts: Sequence[InventoryHost], selector: HostSelector
) -> dict[str, Connection | None]:
    """The machine that runs the scheduler's commands of each host; None: this machine."""
    names = {host.name: _name(host, "gpu_scheduler_host") for host in hosts}
    connections: dict[str | None, Connection | None] = {None: None}
    for name in names.values():
        if name not in connections:
            # The scheduler's host need not be a GPU host.
            connections[name] = inventory_hosts(
                replace(selector, limit=name, group="all", domain=None)
            )[0].connection
    return {host: connections[name] for host, name in names.items()}


def node_name(host: InventoryHost) -> str:
    """The host's name in its scheduler."""
    return _name(host, "gpu_node_name") or host.name


def _name(host: InventoryHost, variable: str) -> str | None:
    value = host.variables.get(variable)
    if value is not None and (not isinstance(value, str) or not re.fullmatch(r"\w[\w.-]*", value)):
        raise ConfigurationError(
            f"Expected a host name, got {value!r}.", f"{host.name}: {variable}", "Correct it."
        )
    return value
