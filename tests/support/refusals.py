"""A provisioning that is refused: one clear message, and nothing on the host."""

from __future__ import annotations

import json
from typing import Any

from tests.support.lab_fleet import ROOT, Done, Fleet


def provision(fleet: Fleet, host: str = "lab1", **wishes: Any) -> Done:
    """The playbook for one host, with wishes on top of the lab's."""
    playbook = ROOT / ".venv" / "bin" / "ansible-playbook"
    words = ("playbooks/site.yml", "--limit", host, "-e", json.dumps(wishes))
    return fleet.run(playbook, *words, status=None)


def refused(fleet: Fleet, done: Done, *told: str, host: str = "lab1") -> None:
    """The run failed with these words, and left nothing behind."""
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    for words in told:
        assert words in said
    assert "Traceback" not in said
    assert fleet.on(host, "ls -d /usr/local/cuda* /opt/gpufleet /var/lib/gpufleet/* || :") == ""
