"""Two hosts of the lab that meet: how they are disturbed, and what they leave behind."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.lab_fleet import DEADLINE_S, ROOT, Fleet

HOSTS = ("lab1", "lab2")
# On a host: what it runs of the stacks, and listens on where the two meet. Brackets keep the
# pattern from matching the shell that carries it.
OURS = r"""pgrep -f '[/]stacks/(tensorflow|pytorch|jax)'
ss -Htln | awk '{print $4}' | grep -E ':(2[0-9]|3[0-2])[0-9]{3}$'
ls -d /tmp/.keras /root/.keras"""


def left(fleet: Fleet) -> str:
    """What is left of a meeting on both hosts."""
    return "".join(fleet.on(host, f"{{ {OURS}; }} 2>/dev/null; :") for host in HOSTS)


def gone(fleet: Fleet) -> str:
    """What is left for good: nothing, once all that is on its way out is gone."""
    deadline = time.monotonic() + 60
    while (still := left(fleet)) and time.monotonic() < deadline:
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


def meeting(fleet: Fleet, options: tuple[str, ...], then: str = ":") -> subprocess.Popen[bytes]:
    """A verification, in a session of its own, that has come so far that the two have met.

    `then` is run on lab2 at that moment.
    """
    # As the launcher starts it.
    command = [ROOT / ".venv/bin/python", "-m", "gpufleet", "verify", *options, "--json"]
    environment = {**fleet.environment, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    found = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    met = "until ss -Htln | grep -qE ':(2[0-9]|3[0-2])[0-9]{3} '; do sleep 0.02; done"
    fleet.on("lab2", f"""timeout {DEADLINE_S} sh -c "{met}" && {then}""")
    return found
