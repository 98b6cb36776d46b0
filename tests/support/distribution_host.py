"""A lab host of another distribution, and what tests do with it: provision, verify, look."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.lab_fleet import ROOT, Done, Fleet

STATE = "/var/lib/gpufleet"
RECEIPT = f"{STATE}/receipts/driver-driver.json"


@dataclass
class DistributionHost:
    """lab1 of a lab of its own."""

    fleet: Fleet
    suite: str
    # Declared beside what a test declares.
    usual: dict[str, Any] = field(default_factory=dict)

    def on(self, command: str, status: int | None = 0) -> str:
        """Run a shell command on the host, as root."""
        return self.fleet.on("lab1", command, status)

    def deliver(self, folder: Path, place: str) -> None:
        """Put a directory on the host."""
        packed = subprocess.run(["tar", "c", "-C", folder, "."], capture_output=True, check=True)
        unpack = f"rm -rf {place}; mkdir -p {place}; tar x -C {place}"
        words = [ROOT / ".venv/bin/python", "-m", "lab", "exec", "lab1", "--", "sh", "-c", unpack]
        subprocess.run(words, cwd=ROOT, env=self.fleet.environment, input=packed.stdout, check=True)

    def declared(self, driver: dict[str, Any] | None, **more: Any) -> str:
        """The inventory's variables."""
        declared = {"gpu_driver": driver} if driver else {}
        return json.dumps({"gpu_stacks": [], **self.usual, **declared, **more})

    def command(
        self, driver: dict[str, Any] | None, *options: str, **more: Any
    ) -> list[str | Path]:
        """The playbook, as the launcher calls it."""
        return [ROOT / ".venv/bin/ansible-playbook", "playbooks/site.yml", *options,
                "-e", self.declared(driver, **more)]  # fmt: skip

    def provision(
        self, driver: dict[str, Any] | None, *options: str, status: int = 0, **more: Any
    ) -> Done:
        """Run the playbook."""
        return self.fleet.run(*self.command(driver, *options, **more), status=status)

    def refused(self, driver: dict[str, Any] | None, *reported: str, **more: Any) -> None:
        """Run the playbook, which is to fail with one message that says all this."""
        done = self.provision(driver, status=2, **more)
        output = " ".join(done.stdout.split())
        assert output.count("FAILED!") == 1, output
        for text in reported:
            assert text in output, f"{text!r} is not said in:\n{done.stdout}"

    def rollback(self) -> None:
        """Go back to the driver before."""
        self.fleet.run(ROOT / ".venv/bin/ansible-playbook", "playbooks/rollback.yml")

    def verdicts(
        self, driver: dict[str, Any] | None, status: int | None = 0, **more: Any
    ) -> dict[str, dict[str, Any]]:
        """The verdicts of verify on the host."""
        return self.fleet.verdicts(status, "-e", self.declared(driver, **more))["lab1"]

    def healthy(self, driver: dict[str, Any], **more: Any) -> None:
        """Verify finds nothing wrong, and the driver held, with a module for every kernel."""
        row = self.verdicts(driver, **more)
        assert {check["verdict"] for check in row.values()} == {"PASS", "NOT-DECLARED"}, row
        assert row["driver.modules"]["verdict"] == row["driver.held"]["verdict"] == "PASS"

    def works(self, driver: dict[str, Any], version: str, **more: Any) -> None:
        """A version is installed, whole, held, with its modules, and nothing is left half-done."""
        self.healthy(driver, **more)
        assert self.receipt()["version"] == version
        assert self.on(f"ls {STATE}/journal; dpkg --audit") == ""
        assert "changed=0 " in self.provision(driver, **more).stdout

    def receipt(self) -> dict[str, Any]:
        """The receipt of the driver."""
        document: dict[str, Any] = json.loads(self.on(f"cat {RECEIPT}"))
        return document

    def driver_packages(self) -> dict[str, str]:
        """The versions of NVIDIA's packages that dpkg knows, by name."""
        listed = self.on("dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\\n'")
        rows = [line.split() for line in listed.splitlines()]
        return {name: version for name, version, status in rows
                if "nvidia" in name and status != "config-files"}  # fmt: skip

    def modules(self) -> dict[str, str]:
        """The version of the module that each kernel would load, as modinfo prints it."""
        output = self.on(
            "for image in /boot/vmlinuz-*; do kernel=${image#/boot/vmlinuz-}; echo $kernel"
            " $(modinfo -k $kernel -F version nvidia 2>/dev/null || echo none); done"
        )
        return dict(line.split() for line in output.splitlines())

    def apt(self, *words: str) -> str:
        """Run apt-get as an administrator's script does."""
        quiet = "DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0"
        return self.on(f"{quiet} {' '.join(shlex.quote(word) for word in words)} 2>&1")
