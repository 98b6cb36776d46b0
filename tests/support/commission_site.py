"""A site whose hosts are commissioned: they answer with recorded snapshots, all else is real."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpufleet.campaign.commission.records import Store
from gpufleet.cli.main import main
from tests.support.recorded_hosts import RecordedHosts

ALL = ["preflight", "provision", "verify", "deep", "burn-in", "collectives", "cool-down"]
NAMESPACE = "gpufleet-certificate"


class Site:
    """Hosts, a key, and what the command has left."""

    def __init__(self, place: Path, names: list[str], gpus: int = 1) -> None:
        self.place = place
        self.hosts = RecordedHosts(place / "hosts", names, gpus)
        self.state, self.database = place / "state", place / "history.sqlite"
        self.key = place / "key"
        self.signers = place / "signers"
        self.make_key(self.key)

    def make_key(self, key: Path) -> None:
        """Make a key, which is the only one whose signatures are accepted."""
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "site", "-f", key],
            check=True,
            input=b"y\n",
        )
        self.signers.write_text(f"site@example.org {Path(f'{key}.pub').read_text()}")

    def words(self, *more: str) -> list[str]:
        return [
            "commission",
            *("-i", str(self.hosts.inventory), "--state", str(self.state)),
            *("--database", str(self.database), "--key", str(self.key)),
            *("--burn-in", "60s", "--by", "ann", *more),
        ]

    def run(self, *more: str) -> int:
        return main(self.words(*more))

    def set_state(self, name: str, state: str, why: str) -> None:
        """A person sets the state of a host."""
        words = ("fleet", "-i", str(self.hosts.inventory), "--database", str(self.database))
        assert main([*words, "--limit", name, "--set", state, "--why", why, "--by", "ann"]) == 0

    def files(self) -> dict[Path, bytes]:
        """All that the commissionings have left."""
        return {path: path.read_bytes() for path in self.state.rglob("*") if path.is_file()}

    def record(self, name: str) -> Any:
        return Store(self.state).read(name)

    def stopped(self, name: str) -> dict[str, str]:
        """The stages that a host did not pass."""
        return {stage: end for stage, end in self.outcomes(name).items() if end != "passed"}

    def outcomes(self, name: str) -> dict[str, str]:
        return {stage: row["outcome"] for stage, row in self.record(name)["stages"].items()}

    def issued(self, kind: str, name: str) -> Any:
        return json.loads((self.state / kind / f"{name}.json").read_text())

    def states(self, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        capsys.readouterr()
        words = ("fleet", "-i", str(self.hosts.inventory), "--database", str(self.database))
        assert main([*words, "--json"]) == 0
        return {row["host"]: row for row in json.loads(capsys.readouterr().out)["hosts"]}

    def verifies(self, path: Path, namespace: str = NAMESPACE) -> bool:
        """Return whether the standard tool accepts the signature of a file."""
        done = subprocess.run(
            [
                *("ssh-keygen", "-Y", "verify", "-f", self.signers, "-I", "site@example.org"),
                *("-n", namespace, "-s", f"{path}.sig"),
            ],
            input=path.read_bytes(),
            capture_output=True,
            check=False,
        )
        return done.returncode == 0
