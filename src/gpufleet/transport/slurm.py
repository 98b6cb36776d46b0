"""Under Slurm: which node a host is, where Slurm is spoken to, and the probe as a job step.

A step runs as whoever calls srun; ssh to the nodes is not needed. What that account may not see
(other users' processes, the kernel's log, where it has no sudo) is INCONCLUSIVE, as over ssh.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from gpufleet.errors import ConfigurationError
from gpufleet.inventory import Connection, HostSelector, InventoryHost, inventory_hosts

# The half of a host's time is for Slurm's queue; a node that is not free by then is told as such.
QUEUE_SHARE = 0.5


def as_job_steps(
    hosts: Sequence[InventoryHost], question: HostSelector, deadline_s: float
) -> list[InventoryHost]:
    """The same hosts, reached by srun in place of ssh."""
    there = scheduler_connections(hosts, question)
    return [replace(host, connection=_step(host, there[host.name], deadline_s)) for host in hosts]


def _step(host: InventoryHost, there: Connection | None, deadline_s: float) -> Connection:
    options = host.variables.get("gpu_srun_options") or []
    if not isinstance(options, list) or not all(isinstance(word, str) for word in options):
        raise ConfigurationError(
            f"It is {options!r}, not a list of options.", f"{host.name}: gpu_srun_options",
            'Write it like ["--partition=gpu", "--gres=gpu:8"].')
    srun = (
        "srun", "--nodes=1", "--ntasks=1", f"--nodelist={node_name(host)}", "--overlap",
        "--job-name=gpufleet", "--quiet", "--chdir=/", "--export=NONE",
        f"--immediate={max(1, int(deadline_s * QUEUE_SHARE))}",
        # Should srun be killed, the job still ends.
        f"--time={math.ceil(deadline_s / 60) + 1}", *options,
    )
    return replace(there or Connection(host.name, "local"), name=host.name, launcher=srun,
                   python=host.connection.python, become=host.connection.become)


def scheduler_connections(
    hosts: Sequence[InventoryHost], question: HostSelector
) -> dict[str, Connection | None]:
    """On which machine each host's scheduler is spoken to; None: on this one."""
    named = {host.name: _name(host, "gpu_scheduler_host") for host in hosts}
    found: dict[str | None, Connection | None] = {None: None}
    for name in named.values():
        if name not in found:
            # It need not be one of the GPU hosts.
            found[name] = inventory_hosts(
                replace(question, limit=name, group="all", domain=None))[0].connection
    return {host: found[name] for host, name in named.items()}


def node_name(host: InventoryHost) -> str:
    """The host's name as its scheduler has it."""
    return _name(host, "gpu_node_name") or host.name


def _name(host: InventoryHost, variable: str) -> str | None:
    value = host.variables.get(variable)
    if value is not None and (
            not isinstance(value, str) or not re.fullmatch(r"\w[\w.-]*", value)):
        raise ConfigurationError(
            f"It is {value!r}, not a host's name.", f"{host.name}: {variable}", "Correct it.")
    return value
