"""A lab host of Red Hat's family, whose roles install from stand-in repositories on the host itself
(lab/host/redhat.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from gpufleet.catalog.facts import DATA
from tests.support.lab_fleet import ROOT, Done, Fleet

FACTS: dict[str, Any] = yaml.safe_load((DATA / "distributions/redhat.yml").read_text("utf-8"))
VERSIONS: list[str] = list(FACTS["driver"]["versions"])
STATE = "/var/lib/gpufleet"
RECEIPT = f"{STATE}/receipts/driver-driver.json"
LOCKS = "/etc/dnf/plugins/versionlock.list"
NVIDIA = "/srv/nvidia/first"


def branch(version: str) -> str:
    """A version's branch."""
    return version.partition(".")[0]


class RedHatHost:
    """The lab's one host, and the playbooks as the launcher calls them."""

    def __init__(self, fleet: Fleet, major: str) -> None:
        self.fleet, self.major = fleet, major
        since = FACTS["releases"][major].get("driver_since", 0)
        # Two versions that NVIDIA's repository for this release has.
        self.old, self.new = [each for each in VERSIONS if int(branch(each)) >= since][:2]
        self.kernels: list[str] = [
            f"{kernel}.x86_64" for kernel in FACTS["releases"][major]["kernels"]
        ]

    def on(self, command: str, status: int | None = 0) -> str:
        """Run a shell command on the host, as root; returns its output."""
        return self.fleet.on("lab1", command, status)

    def enable_epel(self) -> None:
        """Install EPEL, as the message asks where dkms is missing."""
        self.on("dnf --assumeyes --quiet install epel-release")

    def declared(self, version: str, place: str = NVIDIA, **more: Any) -> str:
        """The inventory's variables for a version of the stand-ins' driver."""
        driver = {"branch": branch(version), "source": "nvidia_repo", **more.pop("driver", {})}
        fingerprint = self.on(f"cat {place}/fingerprint").strip()
        repository = {
            "uri": f"file://{place}",
            "key": f"file://{place}/key.asc",
            "fingerprints": [fingerprint],
        }
        return json.dumps(
            {
                "gpu_stacks": [],
                "gpu_driver": driver,
                "nvidia_driver_repository": repository,
                "nvidia_driver_space": {"/usr": 50},
                "nvidia_driver_patience": 5,
                **more,
            }
        )

    def command(self, version: str, *words: str, **more: Any) -> list[str | Path]:
        """The playbook for a version."""
        declared = self.declared(version, **more)
        return [ROOT / ".venv/bin/ansible-playbook", "playbooks/site.yml", "-e", declared, *words]

    def install(self, version: str, *words: str, status: int = 0, **more: Any) -> Done:
        """Run the playbook."""
        return self.fleet.run(*self.command(version, *words, **more), status=status)

    def playbook(self, name: str, *words: str) -> Done:
        """Run another playbook."""
        return self.fleet.run(ROOT / ".venv/bin/ansible-playbook", f"playbooks/{name}.yml", *words)

    def refused(self, version: str, *reported: str, **more: Any) -> str:
        """Run the playbook, which fails with one message that says all this; returns that."""
        done = self.install(version, status=2, **more)
        output = " ".join(done.stdout.split())
        assert output.count("FAILED!") == 1, output
        for text in reported:
            assert text in output, f"{text!r} is not said in:\n{done.stdout}"
        return output

    def verdicts(self, version: str, status: int = 0, **more: Any) -> dict[str, dict[str, Any]]:
        """The verdicts of verify on the host."""
        return self.fleet.verdicts(status, "-e", self.declared(version, **more))["lab1"]

    def packages(self) -> dict[str, str]:
        """The versions of the driver's packages, by name."""
        rows = self.on(r"rpm -qa --qf '%{NAME} %{VERSION}\n' | grep -E '^(kmod-|lib)?nvidia'", None)
        return dict(line.split() for line in rows.splitlines())

    def locked(self) -> set[str]:
        """The names and versions that dnf may not change."""
        return {line for line in self.on(f"cat {LOCKS}", None).splitlines() if "nvidia" in line}

    def works(self, version: str, **more: Any) -> None:
        """A version is installed, whole, locked, built, and nothing is left half-done."""
        row = self.verdicts(version, **more)
        assert {check["verdict"] for check in row.values()} == {"PASS", "NOT-DECLARED"}, row
        assert row["driver.modules"]["verdict"] == row["driver.held"]["verdict"] == "PASS"
        assert json.loads(self.on(f"cat {RECEIPT}"))["version"] == version
        assert set(self.packages().values()) == {version}
        assert len(self.locked()) == len(self.packages())
        assert self.on(f"ls {STATE}/journal") == ""
        assert "changed=0 " in self.install(version, **more).stdout
