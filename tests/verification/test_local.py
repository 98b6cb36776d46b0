"""`--local`: one machine, judged by what is installed where nothing is declared."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from gpufleet.checks import judge
from gpufleet.errors import ConfigurationError
from gpufleet.inventory import Connection, HostSelector, InventoryHost
from gpufleet.verification.local import local_host, plan_local_host
from tests.support.command_line import run
from tests.support.elf_file import shared_library
from tests.support.healthy_host import Document, data

UNDECLARED = InventoryHost("localhost", {}, Connection("localhost", "local"))


@pytest.fixture
def observed(snapshot: Document) -> Document:
    """A healthy host without gpufleet: neither receipts nor stacks."""
    snapshot["host"] = "localhost"
    data(snapshot, "receipts").update(receipts=[], texts={})
    data(snapshot, "stacks")["stacks"] = []
    return snapshot


def judged(observed: Document, declared: InventoryHost = UNDECLARED) -> dict[str, Document]:
    plan = plan_local_host(declared, observed)
    assert plan["problems"] == []
    return {check["id"]: check for check in judge.judge(plan, observed)["checks"]}


def test_what_is_found_is_verified_and_noted(observed: Document) -> None:
    plan = plan_local_host(UNDECLARED, observed)
    assert [(row["short"], row["path"], row["default"]) for row in plan["toolkits"]] == [
        ("11.8", "/usr/local/cuda-11.8", True)]
    assert [(row["version"], row["soname"], row["toolkit"]) for row in plan["cudnn"]] == [
        ("8.6.0", "libcudnn.so.8", "11.8")]
    assert plan["notes"][:2] == [
        "gpu_expect is not set: expecting no GPUs, as found on the PCI bus",
        "gpu_toolkits and gpu_stacks are not set: verifying the toolkits found,"
        " /usr/local/cuda-11.8"]
    found = judged(observed)
    assert {name for name, check in found.items() if check["verdict"] == "PASS"} >= {
        "host.probe", "gpu.count", "toolkit.present", "toolkit.readable", "cudnn.present",
        "cudnn.links", "cudnn.readable"}
    assert {check["verdict"] for check in found.values()} == {"PASS", "NOT-DECLARED"}
    assert found["toolkit.files"]["cause"] == "gpu_toolkits: not set, these were found"


def test_a_card_that_is_present_is_expected_to_work(observed: Document) -> None:
    data(observed, "gpus")["pci"] = [{"address": "0000:01:00.0", "vendor": "0x10de",
                                  "device": "0x2330", "class": "0x030200", "driver": None}]
    found = judged(observed)
    assert found["gpu.count"]["verdict"] == "PASS"
    assert found["driver.loaded"]["verdict"] == "FAIL"


def test_a_card_of_a_virtual_machine_is_not_expected(observed: Document) -> None:
    data(observed, "gpus")["pci"] = [{"address": "0000:01:00.0", "vendor": "0x10de",
                                  "device": "0x2330", "class": "0x030200", "driver": "vfio-pci"}]
    assert plan_local_host(UNDECLARED, observed)["expect"]["count"] == 0
    assert judged(observed)["gpu.count"]["verdict"] == "PASS"


def test_a_login_that_hides_the_cards_is_compared_with_what_was_found(observed: Document) -> None:
    data(observed, "gpus")["pci"] = [{"address": "0000:01:00.0", "vendor": "0x10de",
                                  "device": "0x2330", "class": "0x030200", "driver": "nvidia"}]
    data(observed, "environment")["login"].update(
        CUDA_VISIBLE_DEVICES="-1", LD_LIBRARY_PATH="/usr/local/cuda/lib64")
    login = judged(observed)["environment.login"]
    assert login["verdict"] == "FAIL"
    assert login["cause"] == (
        "A login sets CUDA_VISIBLE_DEVICES=-1: it shows 0 of the 1 declared GPUs")


def test_what_is_broken_is_found_without_a_declaration(observed: Document) -> None:
    data(observed, "toolkits")["trees"][0]["nvcc"] = "12.4.131"
    data(observed, "cudnn")["trees"][0]["loaded"][0].update(version=None, error="undefined symbol")
    found = judged(observed)
    assert "nvcc reports 12.4.131" in found["toolkit.present"]["cause"]
    assert found["toolkit.present"]["remedy"].startswith("repair it by hand")
    assert "undefined symbol" in found["cudnn.present"]["cause"]


def test_what_is_declared_is_judged_as_declared(observed: Document) -> None:
    variables = {"gpu_toolkits": [], "gpu_expect": {"count": 2}}
    found = judged(observed, InventoryHost("localhost", variables, UNDECLARED.connection))
    assert found["gpu.count"]["cause"] == "2 of 2 declared GPUs are not on the PCI bus"
    assert found["toolkit.present"]["verdict"] == "NOT-DECLARED"


def test_an_inventorys_host_is_reached_locally(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("gpu_hosts: {hosts: {gpu01: {gpu_prefix: /a}, gpu02: {gpu_prefix: /b}}}")
    found = local_host(HostSelector([str(inventory)], "gpu02"))
    assert (found.connection.kind, found.variables["gpu_prefix"]) == ("local", "/b")
    with pytest.raises(ConfigurationError, match="--limit HOST"):
        local_host(HostSelector([str(inventory)]))


def test_without_an_inventory_from_the_command_line(tmp_path: Path) -> None:
    shared_library(tmp_path / "cuda-12.3/lib64/libcudart.so.12.3.101", "libcudart.so.12")
    variables = json.dumps({"gpu_prefix": str(tmp_path), "gpu_stack_root": str(tmp_path),
                         "ansible_become": False})
    ended = run("verify", "--local", "--report", str(tmp_path / "r"), "-e", variables)
    assert f"verifyingthetoolkitsfound,{tmp_path}/cuda-12.3" in "".join(
        ended.stdout.split()), ended.stderr
    assert "toolkit.present" in ended.stdout
    saved = json.loads((tmp_path / "r/latest/snapshots/localhost.json").read_text())
    assert saved["sections"]["os"]["data"]["hostname"] == platform.node()
    assert (tmp_path / "r/latest/junit.xml").exists()
