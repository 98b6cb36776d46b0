"""Healthy hosts: of many verifications in a row not one says that something is wrong.

On each Debian, with one stack and with five, with and without the distribution's real driver
packages. A few runs of one of them are usual, the others and twenty of each are for
`./gpufleet test --all`; `GPUFLEET_RUNS` sets another number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from lab import pythons
from lab.errors import LabError
from tests.support.lab_fleet import Fleet, fresh, lab

# That a healthy host is, all other tests on hosts see as well.
pytestmark = [pytest.mark.lab, pytest.mark.slow]
RUNS = int(os.environ.get("GPUFLEET_RUNS") or 20)
USUAL_RUNS = 2
BOTH = {"PASS", "NOT-DECLARED"}


@dataclass(frozen=True)
class Kind:
    """A kind of host: its Debian, its variables beside the inventory's, and what it has besides."""

    suite: str
    inventory: str = "inventory/lab"
    declared: str = "{}"
    prepare: str = "true"
    up: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The options of every verb."""
        return "-i", self.inventory, "-e", self.declared


# Debian 13 has no Python that the lab's usual release was built for.
STACKS = {"trixie": [{"tensorflow": "2.21.0"}]}
# The libraries and programs as the distribution has them, with no module: `gpu_driver` that is
# managed is in molecule's scenario `branches`, which builds the modules for a quarter of an hour.
DRIVER = " apt-get update -qq; apt-get install -qq --no-install-recommends libcuda1 nvidia-smi"


def kind(suite: str, prepare: str = "true") -> Kind:
    """One stack that the suite's Python can run."""
    declared = {"gpu_stacks": STACKS[suite]} if suite in STACKS else {}
    return Kind(
        suite,
        declared=json.dumps(declared),
        prepare=prepare,
        artifacts=("--all",) if declared else (),
    )


KINDS = {f"{suite}-one-stack": kind(suite) for suite in ("bookworm", "bullseye", "trixie")}
KINDS |= {
    f"{suite}-one-stack-driver": kind(suite, prepare=DRIVER)
    for suite in ("bookworm", "bullseye", "trixie")
}
# What Debian 12 and 13 have no Python for is given to them. Those that are there to give need not
# run on Debian 11, whose libc is older: it has five stacks that its own Python can run.
FIVE = {
    "bullseye": [*({"tensorflow": each} for each in ("2.13.1", "2.16.2", "2.17.1", "2.18.1")),
                 {"tensorflow": "2.20.0", "cuda": "pip"}],
}  # fmt: skip
KINDS |= {f"{suite}-five-stacks{name}": Kind(
    suite, "inventory/side-by-side", prepare=prepare,
    declared=json.dumps({"gpu_stacks": FIVE[suite]} if suite in FIVE else {}),
    up=tuple(word for each in given for word in ("--python", each)), artifacts=("--all",))
    for suite, given in {"bookworm": ("3.6",), "bullseye": (), "trixie": ("3.6", "3.11")}.items()
    for name, prepare in {"": "true", "-driver": DRIVER}.items()}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Fleet, Kind]]:
    """A fresh host of a kind, provisioned."""
    wanted = KINDS[request.param]
    # A lock that is made today is not to stay beside the inventory.
    if wanted.suite != "bookworm":
        locks = tmp_path_factory.mktemp("locks")
        wanted = replace(
            wanted,
            declared=json.dumps({**json.loads(wanted.declared), "gpu_locks_dir": str(locks)}),
        )
    for version in set(wanted.up) - {"--python"}:
        try:
            pythons.find(version, os.environ)
        except LabError as error:
            pytest.skip(error.message)
    with fresh("healthy") as fleet:
        lab(fleet, "artifacts", *wanted.artifacts)
        lab(fleet, "up", "--hosts", "lab1", "--suite", wanted.suite, *wanted.up)
        fleet.on("lab1", wanted.prepare)
        fleet.gpufleet("provision", *wanted.words)
        yield fleet, wanted


def runs(fleet: Fleet, wanted: Kind, count: int) -> None:
    """Verify that often; each time everything that is declared must hold."""
    for number in range(1, count + 1):
        checks = fleet.verdicts(0, *wanted.words)["lab1"]
        wrong = {
            name: check["cause"] for name, check in checks.items() if check["verdict"] not in BOTH
        }
        assert not wrong, f"run {number} of {count}"


def test_a_healthy_host_is_healthy_every_time(host: tuple[Fleet, Kind]) -> None:
    runs(*host, USUAL_RUNS)


def test_it_is_so_twenty_times_in_a_row(host: tuple[Fleet, Kind]) -> None:
    runs(*host, RUNS)
