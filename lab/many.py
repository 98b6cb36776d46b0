"""One lab host that answers on many ports: a stand-in for a fleet, to measure and test fan-out.

Each port is forwarded to the host's own sshd, so each probe is a complete login and run. All ports
belong to one host, with this machine's processors: what the hosts of a real fleet do in parallel,
its processors do one after the other.
"""

from __future__ import annotations

import json

from lab import files, hosts
from lab.command import podman, run
from lab.errors import LabError
from lab.progress import Progress
from lab.settings import Lab

HOST = "lab1"
FIRST_PORT = 20001
MOST = 5000
# sshd turns away whoever comes while so many are still logging in; sessions are logged otherwise.
SSHD = "MaxStartups 1000\nLogLevel ERROR\n"
CHAIN = "GPUFLEET-MANY"


def up(lab: Lab, count: int, progress: Progress) -> None:
    """Have lab1 answer as so many hosts; inventory/many lists them."""
    if not 1 <= count <= MOST:
        raise LabError(f"the stand-in cannot have {count} hosts", f"Use a number from 1 to {MOST}.")
    found = {host.name: host for host in hosts.up(lab, [HOST], "bookworm", progress)}
    container = found[HOST].container
    run(
        "podman",
        "exec",
        "--interactive",
        container,
        "sh",
        "-c",
        "cat >/etc/ssh/sshd_config.d/many.conf && systemctl reload ssh",
        stdin=SSHD,
    )
    _lead(container, f"{FIRST_PORT}:{FIRST_PORT + count - 1}")
    files.write(
        lab.directory / "many.json",
        json.dumps({"schema": 1, "host": HOST, "first_port": FIRST_PORT, "count": count}) + "\n",
        mode=0o600,
    )


def _lead(container: str, ports: str) -> None:
    """Forward a range of ports to sshd's, in the host's own network, until it restarts."""
    process = podman("inspect", "--format", "{{.State.Pid}}", container)

    def rule(*words: str, check: bool = True) -> None:
        run(
            "nsenter",
            "--target",
            process,
            "--net",
            "iptables",
            "--wait",
            "--table",
            "nat",
            *words,
            check=check,
        )

    rule("--new-chain", CHAIN, check=False)
    rule("--flush", CHAIN)
    rule(
        "--append",
        CHAIN,
        "--protocol",
        "tcp",
        "--dport",
        ports,
        "--jump",
        "REDIRECT",
        "--to-ports",
        "22",
    )
    rule("--delete", "PREROUTING", "--jump", CHAIN, check=False)
    rule("--append", "PREROUTING", "--jump", CHAIN)
