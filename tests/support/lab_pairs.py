"""What two hosts of the lab do that meet: what they leave behind."""

from __future__ import annotations

import time

from tests.support.lab_fleet import Fleet

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
