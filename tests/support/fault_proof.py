"""A healthy lab host in which faults are injected, and the proof that a check catches each."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpufleet.fleet import inventory
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.probing import verify
from tests.faults.catalogue import Fault
from tests.support.lab_fleet import ROOT, Fleet

Checks = dict[str, dict[str, Any]]


@dataclass
class Healthy:
    """lab1 in a declared state, and its verdicts before anything was broken."""

    fleet: Fleet
    inventory: str = "inventory/lab"
    variables: dict[str, Any] = field(default_factory=dict)
    before: Checks = field(default_factory=dict)

    def provision(self, status: int | None = 0, **more: Any) -> str:
        """Provision it with the playbook that the launcher runs."""
        playbook = ROOT / ".venv" / "bin" / "ansible-playbook"
        return self.fleet.run(
            playbook, "playbooks/site.yml", "-i", self.inventory, "--limit", "lab1",
            "-e", json.dumps({**self.variables, **more}), status=status,
        ).stdout  # fmt: skip

    def verify(self, **more: Any) -> Checks:
        """The result of each check, by a whole verification: probe, plan, judge."""
        selector = inventory.HostSelector((str(ROOT / self.inventory),), "lab1",
                                   (json.dumps({**self.variables, **more}),))  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GPUFLEET_LAB", self.fleet.instance)
            found = verify(inventory.inventory_hosts(selector), ProbeOptions())
        return {check["id"]: check for check in found.hosts[0].result["checks"]}

    def healthy(self) -> Healthy:
        """The same, with what it says now as the state to come back to."""
        self.before = self.verify()
        bad = [f"{name}: {check['cause']}" for name, check in self.before.items()
               if check["verdict"] not in {"PASS", "NOT-DECLARED"}]  # fmt: skip
        assert not bad, bad
        return self

    def on(self, command: str, status: int | None = 0) -> str:
        """Run a shell script on it, as root."""
        return self.fleet.on("lab1", command, status)


def copy_to_host(fleet: Fleet, folder: Path, place: str, host: str = "lab1") -> None:
    """Copy a directory's content to a host."""
    packed = subprocess.run(["tar", "c", "-C", folder, "."], capture_output=True, check=True)
    words = [ROOT / ".venv/bin/python", "-m", "lab", "exec", host, "--", "sh", "-c",
             f"mkdir -p {place}; tar x -C {place}"]  # fmt: skip
    subprocess.run(words, cwd=ROOT, env=fleet.environment, input=packed.stdout, check=True)


Prove = Callable[[Fault, Checks, Checks], dict[str, Any]]
