"""A healthy lab host to be broken, and the count of what was caught."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpufleet import inventory
from gpufleet.verification import session
from lab import driver_repository
from lab.stubs import library
from tests.faults.catalogue import Fault, found
from tests.faults.libraries import STAND_INS
from tests.support.gpu_containers import CARDS
from tests.support.lab_fleet import ROOT, Fleet, lab

Checks = dict[str, dict[str, Any]]


@dataclass
class Healthy:
    """lab1 in a declared state, and its verdicts before anything was broken."""

    fleet: Fleet
    inventory: str = "inventory/lab"
    wishes: dict[str, Any] = field(default_factory=dict)
    before: Checks = field(default_factory=dict)

    def provision(self, status: int | None = 0, **more: Any) -> str:
        """Make it so, by the playbook that the launcher runs."""
        playbook = ROOT / ".venv" / "bin" / "ansible-playbook"
        return self.fleet.run(
            playbook, "playbooks/site.yml", "-i", self.inventory, "--limit", "lab1",
            "-e", json.dumps({**self.wishes, **more}), status=status,
        ).stdout  # fmt: skip

    def verify(self, **more: Any) -> Checks:
        """{check: what it says}, by a whole verification: look, plan, judge."""
        question = inventory.HostSelector((str(ROOT / self.inventory),), "lab1",
                                   (json.dumps({**self.wishes, **more}),))  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GPUFLEET_LAB", self.fleet.instance)
            found = session.verify(inventory.inventory_hosts(question), session.ProbeOptions())
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


def bring(fleet: Fleet, folder: Path, place: str) -> None:
    """Copy a directory's content to lab1."""
    packed = subprocess.run(["tar", "c", "-C", folder, "."], capture_output=True, check=True)
    words = [ROOT / ".venv/bin/python", "-m", "lab", "exec", "lab1", "--", "sh", "-c",
             f"mkdir -p {place}; tar x -C {place}"]  # fmt: skip
    subprocess.run(words, cwd=ROOT, env=fleet.environment, input=packed.stdout, check=True)


@pytest.fixture(scope="module")
def one_stack(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    """TensorFlow 2.13.1, CUDA 11.8 and cuDNN 8.6, as the lab declares; stand-ins lie ready."""
    folder = tmp_path_factory.mktemp("stand-ins")
    library.write(folder / "libcublasLt.so.11", "libcublasLt.so.11",
                  {"cublasLtCreate": library.Function()})  # fmt: skip
    library.write(folder / "libcufft.so.10", "libcufft.so.10", {"cufftCreate": library.Function()})
    library.write(folder / "libcudnn.so.8.5.0", "libcudnn.so.8",
                  {"cudnnGetVersion": library.Function(8500)})  # fmt: skip
    bring(fleet, folder, STAND_INS)
    host = Healthy(fleet)
    host.provision()
    return host.healthy()


@pytest.fixture(scope="module")
def two_toolkits(one_stack: Healthy) -> Healthy:
    """TensorFlow 2.18.1 on CUDA 12.5, the default; and 12.3, whose libraries bear its names."""
    host = Healthy(one_stack.fleet, "inventory/side-by-side", {
        "gpu_stacks": [{"tensorflow": "2.18.1"}], "gpu_cuda_default": "12.5"})  # fmt: skip
    host.provision()
    return host.healthy()


@pytest.fixture(scope="module")
def with_driver(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    """A driver's packages, as stand-ins, and upgrades that happen at night."""
    folder, place = tmp_path_factory.mktemp("driver"), "/srv/driver-packages"
    fingerprint = driver_repository.build(folder)
    bring(fleet, folder, place)
    version = next(iter(driver_repository.VERSIONS))
    label = driver_repository.LABEL
    host = Healthy(fleet, wishes={
        "gpu_stacks": [],
        "gpu_driver": {"branch": version.partition(".")[0], "source": "nvidia_repo"},
        "nvidia_driver_repository": {
            "uri": f"copy:{place}", "suite": "./", "label": label, "pin": f"release o={label}",
            "key": f"file://{place}/{driver_repository.KEY_FILE}", "fingerprints": [fingerprint]},
        "nvidia_driver_space": {"/usr": 50},
    })  # fmt: skip
    host.on("apt-get update -qq; apt-get install -qq --no-install-recommends unattended-upgrades")
    host.provision()
    return host.healthy()


@pytest.fixture(scope="module")
def with_cards(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    """Docker with NVIDIA's toolkit, and two cards, the last two as stand-ins."""
    folder, place = tmp_path_factory.mktemp("toolkit"), "/srv/toolkit"
    lab(fleet, "toolkit-repository", str(folder))
    bring(fleet, folder, place)
    host = Healthy(fleet, wishes={
        "gpu_stacks": [], "gpu_expect": {"count": 2}, "gpu_containers": {"toolkit": "1.17.8"},
        "nvidia_docker_repo_url": f"file://{place}",
        "nvidia_docker_repo_key": f"file://{place}/key.asc",
        "nvidia_docker_repo_key_fingerprint": (folder / "fingerprint").read_text().strip(),
    })  # fmt: skip
    host.on("apt-get update -qq; apt-get install -qq --no-install-recommends docker.io")
    host.on(CARDS)
    # What has no stand-in, such as the cards on the PCI bus, is wrong before and after.
    host.provision(status=None)
    host.before = host.verify()
    return host


Prove = Callable[[Fault, Checks, Checks], dict[str, Any]]


@pytest.fixture
def prove(record_property: Callable[[str, object], None]) -> Prove:
    """Judge what the checks said before and after a fault was injected, and count it."""

    def proven(fault: Fault, before: Checks, after: Checks) -> dict[str, Any]:
        proof = found(fault, before, after)
        record_property("fault", {"number": fault.number, **proof})
        said = {name: (check["verdict"], check["cause"], check["remedy"], check["evidence"])
                for name, check in after.items()
                if check["verdict"] != before[name]["verdict"] or name == fault.check}  # fmt: skip
        told = json.dumps(said, indent=1)
        assert proof["caught"], told
        assert proof["right"], f"cause {fault.cause!r}, remedy {fault.remedy!r} not in:\n{told}"
        assert not proof["collateral"], f"{proof['collateral']} beside:\n{told}"
        return proof

    return proven
