"""The results of real GPUs: an H100 and an H200 with driver 580.159.04, see tests/evidence.

Each fixture is a bundle's plan and snapshot with the verdicts of that day. Faults were made on the
machine itself. The linker's cache is cut, and what names the machine's owner is replaced.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from gpufleet.fleet.host_versions import versions_of
from gpufleet.judge import judge
from tests.support.real_gpus import FIXTURES, documents

# {fixture: {check at fault: what its cause says}}
FAULTS = {
    "h100": {},
    "h100-busy": {},
    "h100-deep": {},
    "h100-hidden": {"environment.login": "CUDA_VISIBLE_DEVICES=9"},
    # A program wrote to an address that is not its own: Xid 31, an application error.
    "h100-illegal-address": {},
    "h100-no-nvrtc-builtins": {"toolkit.nvrtc": "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE"},
    # Two GPUs of another model were declared, and /tmp had been closed.
    "h100-not-as-declared": {
        "host.temporary": "/tmp has mode 0755, not 1777",
        "gpu.count": "1 of 2 declared GPUs is not on the PCI bus",
        "gpu.identity": "NVIDIA H100 80GB HBM3, declared is NVIDIA H200",
        "gpu.settings": "a power limit of 700 W, declared are 600",
    },
    "h200-deep": {},
    "h200-stub": {"driver.cuda": "/opt/stub/libcuda.so.1"},
}


def test_every_fixture_is_judged() -> None:
    assert {path.stem for path in FIXTURES.glob("*.json")} == set(FAULTS)


# The checks that were added since, and judge these hosts.
ADDED = {"host.repositories": "PASS"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_real_gpu_is_judged_as_on_its_day(name: str) -> None:
    found = documents(name)
    result = judge.judge(found["plan"], found["snapshot"])
    checks = {check["id"]: check for check in result["checks"]}
    assert {
        check: row["verdict"] for check, row in checks.items() if row["verdict"] != "NOT-DECLARED"
    } == {**found["verdicts"], **ADDED}
    faults = FAULTS[name]
    at_fault = {
        check
        for check, row in checks.items()
        if row["verdict"] == "FAIL" and not row.get("explained_by")
    }
    assert at_fault == set(faults)
    for check, cause in faults.items():
        assert cause in checks[check]["cause"]


def test_the_error_of_a_program_names_it_and_fails_nobody() -> None:
    found = documents("h100-illegal-address")
    result = judge.judge(found["plan"], found["snapshot"])
    (errors,) = [row for row in result["checks"] if row["id"] == "kernel.application-errors"]
    assert errors["verdict"] == "PASS"
    assert "Xid 31 of 0000:00:06.0, 1 times, last by python3 1940" in errors["evidence"]


def b200_guest() -> tuple[Any, Any, Any]:
    """Plan, snapshot and sections of the guest with an H100, as if its GPU were one of a B200."""
    found = documents("h100")
    sections = found["snapshot"]["sections"]
    sections["gpus"]["data"]["pci"][0]["device"] = "0x2901"
    (card,) = sections["smi"]["data"]["devices"]
    card["elements"]["pci/pci_device_id"] = "290110DE"
    return found["plan"], found["snapshot"], sections


def test_a_gpu_alone_in_a_guest_has_no_fabric_to_register_with() -> None:
    plan, snapshot, sections = b200_guest()
    sections["driver"]["data"]["fabric"] = {
        "unit": "nvidia-fabricmanager.service",
        "enabled": True,
        "active": False,
        "version": "580.159.04",
    }

    def verdicts() -> dict[str, str]:
        return {row["id"]: row["verdict"] for row in judge.judge(plan, snapshot)["checks"]}

    assert verdicts()["driver.fabric"] == "PASS"
    assert verdicts()["gpu.fabric"] == "PASS"
    link = {"link": 0, "active": True, "status": 0, "version": 7, "remote": "switch"}
    (row,) = sections["smi"]["data"]["nvlink"]
    row["links"] = [{**link, "remote_address": None}]
    assert verdicts()["gpu.fabric"] == "INCONCLUSIVE"
    row["links"] = [{**link, "active": None, "remote": None, "remote_address": None}]
    assert verdicts()["gpu.fabric"] == "INCONCLUSIVE"
    row["links"] = None
    assert verdicts()["gpu.fabric"] == "INCONCLUSIVE"
    row["links"] = []
    sections["gpus"]["data"]["hypervisor"] = False
    assert verdicts()["gpu.fabric"] == "INCONCLUSIVE"


def test_two_models_of_one_architecture_have_the_same_sums_of_random_products() -> None:
    """The cards, their clocks and so the rounds of a launch differ; each has eight formats."""
    cards = [
        {
            entry["format"]: entry["sums"]
            for entry in documents(name)["snapshot"]["sections"]["compute"]["data"]["runs"][0][
                "consensus"
            ]
        }
        for name in ("h100", "h100-busy", "h200-deep")
    ]
    assert len(cards[0]) == 8
    for one, other in pairwise(cards):
        for name, sums in one.items():
            common = min(len(sums), len(other[name]))
            assert common >= 4
            assert sums[:common] == other[name][:common]


def test_the_toolkit_of_a_host_that_declares_none_is_among_its_versions() -> None:
    found = documents("h200-deep")
    assert versions_of(found["snapshot"], found["plan"]).versions == {
        "Operating system": "ubuntu 24.04",
        "Kernel": "6.18.44-gpu",
        "Driver": "580.159.04",
        "GPUs": "1 × NVIDIA H200",
        "CUDA 13.0": "13.0.88",
    }


def test_others_that_use_a_gpu_are_named_beside_its_speed() -> None:
    found = documents("h100-busy")
    checks = {
        check["id"]: check for check in judge.judge(found["plan"], found["snapshot"])["checks"]
    }
    assert "beside processes of others on it: pid " in checks["gpu.throughput"]["evidence"]
