"""Hosts that only a gateway reaches: ClusterShell's tree mode, by its own `topology.conf`.

What goes through a gateway differs in three ways. The way from it to the host is the gateway's own
(its `~/.ssh/config`: users, ports, keys). ClusterShell sends standard input to one command at a
time, so the probe travels in the command: compressed, 80 KB. And every account of the host can read
a command, so that no password goes this way.
"""

from __future__ import annotations

import base64
import json
import math
import os
import shlex
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ClusterShell.NodeSet import NodeSet, NodeSetException
from ClusterShell.Propagation import PropagationTreeRouter, RouteResolvingError
from ClusterShell.Task import Task
from ClusterShell.Topology import TopologyError
from ClusterShell.Worker.Tree import TreeWorker

from gpufleet.errors import ConfigurationError
from gpufleet.inventory import Connection

from .connection import password, program, remote_script

# What a gateway may take to start, and to bring the last answers.
GATEWAY_S = 30
NO_PASSWORD = ("A sudo password is not sent through a gateway",
               "allow the user sudo without one there, or reach the host by ProxyJump and without"
               " --topology")

LOOK = ("look at the gateway's console, load and ssh service; on it: python3 -c 'import"
        " ClusterShell', and ssh to the host by hand")
SILENT = ("The gateway gave no answer for it", LOOK)
# What ssh ends with, and a gateway's channel that broke; None: it never came to the host.
NOT_THERE = {None, 255, os.EX_PROTOCOL}


class Worker(TreeWorker):  # type: ignore[misc]
    """A command by way of a gateway. When the last one is lost, it ends, and not the whole task."""

    def _relaunch(self, previous_gateway: str) -> None:
        try:
            super()._relaunch(previous_gateway)
        except RouteResolvingError:
            self._check_fini()


def lost(words: str) -> tuple[str, str]:
    """(cause, remedy) of a host to which no gateway got."""
    last = " ".join(words.split())[-300:] or "it gave no reason"
    return f"The gateway does not get there: {last}", LOOK


def load(task: Task, topology: Path) -> NodeSet:
    """Have the task know the gateways; who is behind them. Raises `ConfigurationError`."""
    # The gateways' Python, which is the distribution's: ours is called as this environment's is.
    os.environ.setdefault("CLUSTERSHELL_GW_PYTHON_EXECUTABLE", "python3")
    try:
        if not topology.is_file():
            raise TopologyError("There is no such file.")
        task.load_topology(str(topology))
    except TopologyError as error:
        raise ConfigurationError(
            f"The topology cannot be used: {error}", str(topology),
            "Name this machine (hostname -s), gateways and hosts as the inventory's ansible_host"
            " does: [routes] THIS: GATEWAYS and GATEWAYS: HOSTS.") from error
    router = PropagationTreeRouter(str(task.topology.root.nodeset), task.topology)
    return NodeSet.fromlist([network for network, _ in router.table])


def is_behind(behind: NodeSet, connection: Connection) -> bool:
    """Whether the way to a host leads through a gateway."""
    try:
        return connection.kind == "ssh" and node(connection) in behind
    except NodeSetException:
        # A name that ClusterShell cannot read stands in no topology.
        return False


def command(connection: Connection, config: Mapping[str, Any]) -> str:
    """The shell command that looks at a host, with everything that it needs in it."""
    assert not password(connection)
    told = json.dumps({name: value for name, value in config.items() if name != "matmul"})
    start = (f"import base64,json,zlib;c=json.loads({told!r});"
             f"p,m=zlib.decompress(base64.b64decode('{_programs()}')).decode().split(chr(0));"
             + ("c['matmul']=m;" if "matmul" in config else "")
             + "exec(compile(p,'probe','exec'),{'__name__':'__main__','CONFIG':json.dumps(c)})")
    # Once, in a variable: a command's word may have 128 KB, and `run` stands in the script twice.
    run = f'{shlex.quote(connection.python)} -I -S -c "$look"'
    script = f"look={shlex.quote(start)}; {remote_script(connection, run)}"
    return f"exec /bin/sh -c {shlex.quote(script)}"


def limit_s(targets: int, fanout: int, deadline_s: float) -> float:
    """After this all of them have ended, or their gateway hangs."""
    return math.ceil(targets / fanout) * deadline_s + GATEWAY_S


def node(connection: Connection) -> NodeSet:
    """The host as ClusterShell names it."""
    return NodeSet(connection.address or connection.name)


@cache
def _programs() -> str:
    both = f"{program('probe/probe.py')}\0{program('workload/matmul.py')}"
    return base64.b64encode(zlib.compress(both.encode(), 9)).decode()
