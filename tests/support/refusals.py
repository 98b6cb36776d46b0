"""A provisioning that is refused: one clear message, and nothing on the host."""

from __future__ import annotations

import json
from typing import Any

from tests.support.lab_fleet import ROOT, Done, Fleet


def provision(fleet: Fleet, host: str = "lab1", **declared: Any) -> Done:
    """The playbook for one host, with variables on top of the lab's."""
    playbook = ROOT / ".venv" / "bin" / "ansible-playbook"
    words = ("playbooks/site.yml", "--limit", host, "-e", json.dumps(declared))
    return fleet.run(playbook, *words, status=None)


def refused(fleet: Fleet, done: Done, *reported: str, host: str = "lab1") -> None:
    """The run failed with these words, and left nothing behind."""
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    for words in reported:
        assert words in output
    assert "Traceback" not in output
    assert fleet.on(host, "ls -d /usr/local/cuda* /opt/gpufleet /var/lib/gpufleet/* || :") == ""
