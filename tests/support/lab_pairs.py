"""Two hosts of the lab that meet: how they are disturbed, and what they leave behind."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.lab_fleet import DEADLINE_S, ROOT, Fleet
from tests.support.machine import deadline

HOSTS = ("lab1", "lab2")
# On a host: what it runs of the stacks, and listens on where the two meet. Brackets keep the
# pattern from matching the shell that carries it.
OURS = r"""pgrep -f '[/]stacks/(tensorflow|pytorch|jax)'
ss -Htln | awk '{print $4}' | grep -E ':(2[0-9]|3[0-2])[0-9]{3}$'
ls -d /tmp/.keras /root/.keras"""
LISTENS = "ss -Htln | grep -qE ':(2[0-9]|3[0-2])[0-9]{3} '"


def left(fleet: Fleet) -> str:
    """The remains of a meeting on both hosts."""
    return "".join(fleet.on(host, f"{{ {OURS}; }} 2>/dev/null; :") for host in HOSTS)


def gone(fleet: Fleet) -> str:
    """The permanent remains: none, once all that is on its way out is gone."""
    ends = time.monotonic() + deadline(60)
    while (still := left(fleet)) and time.monotonic() < ends:
        time.sleep(0.2)
    return still


@contextmanager
def closed_ports(fleet: Fleet) -> Iterator[None]:
    """Meanwhile lab1 drops whatever lab2 says to the ports on which the two meet."""
    fleet.on("lab1", "command -v nft || { apt-get update -q && apt-get install -yq nftables; }")
    address = fleet.on("lab2", "hostname -I").strip()
    rules = (
        "add table inet closed; add chain inet closed i {type filter hook input priority 0;};"
        f" add rule inet closed i ip saddr {address} tcp dport 20000-32767 drop"
    )
    fleet.on("lab1", f"nft '{rules}'")
    try:
        yield
    finally:
        fleet.on("lab1", "nft delete table inet closed")


def verification(fleet: Fleet, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """A verification in a session of its own."""
    # As the launcher starts it.
    command = [ROOT / ".venv/bin/python", "-m", "gpufleet", "verify", *options, "--json"]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**fleet.environment, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_on(fleet: Fleet, host: str, condition: str, then: str = ":") -> None:
    """Wait until a command succeeds on a host, and run another one there at that moment."""
    until = f"until {condition}; do sleep 0.02; done"
    fleet.on(host, f"""timeout {DEADLINE_S} sh -c "{until}" && {then}""")


def meeting(fleet: Fleet, options: tuple[str, ...], then: str = ":") -> subprocess.Popen[bytes]:
    """A verification that has come so far that the two have met.

    `then` is run on lab2 at that moment.
    """
    found = verification(fleet, options)
    wait_on(fleet, "lab2", LISTENS, then)
    return found


def half_met(fleet: Fleet, options: tuple[str, ...], process: str) -> subprocess.Popen[bytes]:
    """A verification in which lab1 waits for lab2, whose process is stopped.

    On a busy machine, those that met have parted before anybody sees it.
    """
    found = verification(fleet, options)
    wait_on(fleet, "lab2", f"pkill -STOP -f '{process}'")
    wait_on(fleet, "lab1", LISTENS)
    return found
