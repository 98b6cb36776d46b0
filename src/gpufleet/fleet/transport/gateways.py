"""Hosts behind gateways: ClusterShell's tree mode, by its own `topology.conf`.

A probe through a gateway differs in three ways. The gateway connects to the host with its own
settings (its `~/.ssh/config`: users, ports, keys). ClusterShell sends standard input to one command
at a time, so the command itself carries the probe, with short local names and compressed: an
argument may have 128 KiB. Every account of the host can read a command, so no password is sent
through a gateway.
"""

from __future__ import annotations

import base64
import bz2
import json
import math
import os
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import python_minifier
from ClusterShell.NodeSet import NodeSet, NodeSetException
from ClusterShell.Propagation import PropagationTreeRouter, RouteResolvingError
from ClusterShell.Task import Task
from ClusterShell.Topology import TopologyError
from ClusterShell.Worker.Tree import TreeWorker

from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import Connection
from gpufleet.on_host import payload

from . import gateway_channel
from .connection import password, remote_script

# Allowance for a gateway to start, and to return the last answers.
GATEWAY_S = 30
NO_PASSWORD = (
    "A sudo password is not sent through a gateway",
    "allow the user sudo without a password on the host, or reach the host by ProxyJump"
    " without --topology",
)

REMEDY = (
    "check the gateway's console, load and ssh service; on the gateway: python3 -c 'import"
    " ClusterShell', and ssh to the host by hand"
)
NO_ANSWER = ("The gateway returned no answer for the host", REMEDY)
# Exit statuses of ssh and of a broken channel; None: the command did not reach the host.
NOT_REACHED = {None, 255, os.EX_PROTOCOL}


class Worker(TreeWorker):  # type: ignore[misc]
    """A command through a gateway. If the last gateway is lost, only this command ends."""

    def _relaunch(self, previous_gateway: str) -> None:
        try:
            super()._relaunch(previous_gateway)
        except RouteResolvingError:
            self._check_fini()


def unreachable_reason(stderr: str) -> tuple[str, str]:
    """Cause and remedy of a host that no gateway reached."""
    last = " ".join(stderr.split())[-300:] or "no reason given"
    return f"The gateway cannot reach the host: {last}", REMEDY


def refused_reason(refusal: str) -> tuple[str, str]:
    """Cause and remedy of a host whose gateway's answer is not accepted."""
    return (
        f"The gateway's answer is not accepted: {refusal}",
        "see what the login shell there prints (ssh GATEWAY true), which ClusterShell it has,"
        " and whether somebody else controls it; until then take it out of the topology",
    )


def load_topology(task: Task, topology: Path) -> NodeSet:
    """Configure the task's gateways; the hosts behind them. Raises `ConfigurationError`."""
    # The default would be this environment's Python; a gateway has its distribution's.
    os.environ.setdefault("CLUSTERSHELL_GW_PYTHON_EXECUTABLE", "python3")
    try:
        if not topology.is_file():
            raise TopologyError("The file does not exist.")
        task.load_topology(str(topology))
        gateway_channel.install(task)
    except TopologyError as error:
        raise ConfigurationError(
            f"The topology cannot be used: {error}",
            str(topology),
            "Name this machine (hostname -s), the gateways, and the hosts as in ansible_host:"
            " [routes] THIS: GATEWAYS and GATEWAYS: HOSTS.",
        ) from error
    router = PropagationTreeRouter(str(task.topology.root.nodeset), task.topology)
    return NodeSet.fromlist([network for network, _ in router.table])


def is_behind(behind: NodeSet, connection: Connection) -> bool:
    """Return whether a host is reached through a gateway."""
    try:
        return connection.kind == "ssh" and node(connection) in behind
    except NodeSetException:
        # A name that ClusterShell cannot parse is in no topology.
        return False


def command(connection: Connection, config: Mapping[str, Any]) -> str:
    """The shell command that probes a host; it contains the probe and its configuration."""
    assert not password(connection)
    text = json.dumps({name: value for name, value in config.items() if name != "matmul"})
    # A single quote becomes seventeen characters where it is quoted twice.
    start = (
        f"import base64,bz2,json,zlib;c=json.loads({text!r});"
        f's="{_programs()}".replace(".",chr(37)).replace(",",chr(33));'
        "t,p,m=bz2.decompress(base64.b85decode(s)).decode().split(chr(1));"
        "f=lambda e,r:t.replace(chr(2),e).replace(chr(3),"
        "base64.b85encode(zlib.compress(r.encode())).decode());"
        + (f'c["matmul"]=f("{payload.WORKLOAD}",m);' if "matmul" in config else "")
        + f'exec(compile(f("{payload.PROBE}",p),"probe","exec"),'
        '{"__name__":"__main__","CONFIG":json.dumps(c)})'
    )
    # In a variable: an argument may have 128 KB, and the script contains `run` twice.
    run = f'{shlex.quote(connection.python)} -I -S -c "$probe"'
    script = f"probe={shlex.quote(start)}; {remote_script(connection, run)}"
    return f"exec /bin/sh -c {shlex.quote(script)}"


def limit_s(targets: int, fanout: int, deadline_s: float) -> float:
    """Seconds after which all targets have ended, unless their gateway hangs."""
    return math.ceil(targets / fanout) * deadline_s + GATEWAY_S


def node(connection: Connection) -> NodeSet:
    """The host's name for ClusterShell."""
    return NodeSet(connection.address or connection.name)


@cache
def _programs() -> str:
    """The form of a program and the sources of probe and workload, compressed as one text.

    By bz2, which finds what repeats anywhere in the text (zlib: within 32 KB) and is in every
    distribution's Python. In base 85 without `%`, in which ClusterShell writes a host's name, and
    `!`, which C shells replace inside of quotes.
    """
    form = payload.PROGRAM.format(entry=chr(2), packed=chr(3))
    probe = _minified(payload.joined(payload.PROBE, payload.sources("on_host")))
    workload = _minified(payload.joined(payload.WORKLOAD, payload.workload_sources()))
    packed = bz2.compress(chr(1).join((form, probe, workload)).encode())
    return base64.b85encode(packed).decode().replace("%", ".").replace("!", ",")


def _minified(modules: str) -> str:
    """The same modules with short local names: a tenth less, for two seconds.

    Names of modules, of what they contain and of parameters stay, so that they import and call each
    other. A traceback has other numbers of lines.
    """
    names_and_texts = modules.split("\0")
    names_and_texts[1::2] = [
        python_minifier.minify(
            text, hoist_literals=False, rename_globals=False, remove_annotations=True
        )
        for text in names_and_texts[1::2]
    ]
    return "\0".join(names_and_texts)
