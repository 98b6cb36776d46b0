"""`--local`: one machine, judged by what is installed where nothing is declared."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from gpufleet.cli import verify
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import Connection, HostSelector, InventoryHost
from gpufleet.fleet.local import local_host, plan_local_host
from gpufleet.judge import judge
from tests.support.command_line import run
from tests.support.elf_file import shared_library
from tests.support.healthy_host import Document, data
from tests.support.host_parts import with_gpus

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
        ("11.8", "/usr/local/cuda-11.8", True)
    ]
    assert [(row["version"], row["soname"], row["toolkit"]) for row in plan["cudnn"]] == [
        ("8.6.0", "libcudnn.so.8", "11.8")
    ]
    assert plan["notes"][:2] == [
        "gpu_expect.count is not set, and no GPU was found on the PCI bus",
        "gpu_toolkits and gpu_stacks are not set: verifying the toolkits found,"
        " /usr/local/cuda-11.8",
    ]
    found = judged(observed)
    assert {name for name, check in found.items() if check["verdict"] == "PASS"} >= {
        "host.probe",
        "toolkit.present",
        "toolkit.readable",
        "cudnn.present",
        "cudnn.links",
        "cudnn.readable",
    }
    assert {
        name: check["verdict"]
        for name, check in found.items()
        if check["verdict"] not in {"PASS", "NOT-DECLARED"}
    } == {"gpu.count": "INCONCLUSIVE"}
    assert found["toolkit.files"]["cause"] == "gpu_toolkits: not set, these were found"


def test_a_card_that_is_present_is_expected_to_work(observed: Document) -> None:
    data(observed, "gpus")["pci"] = [
        {
            "address": "0000:01:00.0",
            "vendor": "0x10de",
            "device": "0x2330",
            "class": "0x030200",
            "driver": None,
        }
    ]
    found = judged(observed)
    assert (found["gpu.count"]["verdict"], found["gpu.count"]["cause"]) == (
        "NOT-DECLARED",
        "gpu_expect: not set, 1 found on the PCI bus",
    )
    assert found["driver.loaded"]["verdict"] == "FAIL"


def test_where_no_gpu_is_found_it_is_not_called_healthy(observed: Document) -> None:
    """Its only card may be off the bus: nobody has declared how many there are."""
    count = judged(observed)["gpu.count"]
    assert count["verdict"] == "INCONCLUSIVE"
    assert "gpu_expect does not say whether there should be one" in count["cause"]
    assert "gpu_expect: {count: 0}" in count["remedy"]
    declared = InventoryHost("localhost", {"gpu_expect": {"count": 0}}, UNDECLARED.connection)
    assert judged(observed, declared)["gpu.count"]["verdict"] == "PASS"


def test_undeclared_cards_are_judged_by_what_every_card_should_do(
    plan: Document, snapshot: Document
) -> None:
    with_gpus(plan, snapshot)
    snapshot["host"] = "localhost"
    found = judged(snapshot)
    cards = {
        name: check["verdict"]
        for name, check in found.items()
        if name.startswith("gpu.") and name not in {"gpu.count", "gpu.mig"}
    }
    assert {cards.pop(name) for name in ("gpu.identity", "gpu.rack")} == {"NOT-DECLARED"}
    assert len(cards) > 5 and set(cards.values()) == {"PASS"}, cards
    assert found["driver.loaded"]["verdict"] == found["kernel.log"]["verdict"] == "PASS"
    data(snapshot, "smi")["devices"][0]["remap"]["failure"] = True
    assert judged(snapshot)["gpu.memory-errors"]["verdict"] == "FAIL"


def test_a_directory_of_a_few_tools_is_no_broken_toolkit(observed: Document) -> None:
    """Packages such as cuda-compat alone make /usr/local/cuda-13.0, with nothing to compute by."""
    data(observed, "toolkits")["trees"][0]["cudart"] = []
    plan = plan_local_host(UNDECLARED, observed)
    assert plan["toolkits"] == []
    assert "not verified, for they have no libcudart: /usr/local/cuda-11.8" in plan["notes"]
    assert any("that the GPUs compute was not verified" in note for note in plan["notes"])
    assert judged(observed)["toolkit.present"]["verdict"] == "NOT-DECLARED"


def test_without_root_it_says_that_something_may_be_unread(observed: Document) -> None:
    assert not any("sudo" in note for note in plan_local_host(UNDECLARED, observed)["notes"])
    observed["euid"] = 1000
    assert "sudo ./gpufleet verify --local" in plan_local_host(UNDECLARED, observed)["notes"][0]
    observed["sections"]["receipts"] = {
        "state": "denied",
        "seconds": 0,
        "error": "Permission denied",
        "data": None,
    }
    probe = judged(observed)["host.probe"]
    assert probe["verdict"] == "INCONCLUSIVE" and "sudo with --local" in probe["remedy"]


def test_a_card_of_a_virtual_machine_is_not_expected(observed: Document) -> None:
    data(observed, "gpus")["pci"] = [
        {
            "address": "0000:01:00.0",
            "vendor": "0x10de",
            "device": "0x2330",
            "class": "0x030200",
            "driver": "vfio-pci",
        }
    ]
    assert plan_local_host(UNDECLARED, observed)["expect"]["count"] == 0
    count = judged(observed)["gpu.count"]
    assert (count["verdict"], count["evidence"]) == (
        "INCONCLUSIVE",
        "1 of virtual machines (vfio-pci)",
    )


def test_a_login_that_hides_the_cards_is_compared_with_what_was_found(observed: Document) -> None:
    data(observed, "gpus")["pci"] = [
        {
            "address": "0000:01:00.0",
            "vendor": "0x10de",
            "device": "0x2330",
            "class": "0x030200",
            "driver": "nvidia",
        }
    ]
    data(observed, "environment")["login"].update(
        CUDA_VISIBLE_DEVICES="-1", LD_LIBRARY_PATH="/usr/local/cuda/lib64"
    )
    login = judged(observed)["environment.login"]
    assert login["verdict"] == "FAIL"
    assert login["cause"] == ("A login sets CUDA_VISIBLE_DEVICES=-1: it shows 0 of 1 declared GPU")


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
    variables = json.dumps(
        {"gpu_prefix": str(tmp_path), "gpu_stack_root": str(tmp_path), "ansible_become": False}
    )
    save = tmp_path / "saved"
    ended = run(
        "verify", "--local", "--report", str(tmp_path / "r"), "-e", variables, "--save", str(save)
    )
    assert f"Look at: {save}/report.html" in ended.stderr
    assert f"Send: {save}/bundles/localhost.json" in ended.stderr
    assert {str(path.relative_to(save)) for path in save.rglob("*.*")} == {
        "report.html",
        "report.json",
        "bundles/localhost.json",
        "plans/localhost.json",
        "snapshots/localhost.json",
    }
    verdicts = json.loads((save / "report.json").read_text())["hosts"]["localhost"]
    bundle = json.loads((save / "bundles/localhost.json").read_text())
    assert bundle["snapshot"]["sections"]["os"]["data"]["hostname"] == "host1"
    assert verdicts == bundle["result"] and bundle["same_verdicts"]
    assert (
        verdicts["verdict"]
        == json.loads((tmp_path / "r/latest/report.json").read_text())["hosts"]["localhost"][
            "verdict"
        ]
    )
    assert f"verifyingthetoolkitsfound,{tmp_path}/cuda-12.3" in "".join(ended.stdout.split()), (
        ended.stderr
    )
    assert "toolkit.readable" in ended.stdout
    saved = json.loads((tmp_path / "r/latest/snapshots/localhost.json").read_text())
    assert saved["sections"]["os"]["data"]["hostname"] == platform.node()
    assert (tmp_path / "r/latest/junit.xml").exists()


@pytest.mark.parametrize("name", ["file", "file/below", "there"])
def test_a_directory_that_cannot_be_written_is_refused_before_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "bundles").write_text("")
    monkeypatch.setattr(verify, "local_host", lambda selected: pytest.fail("hosts were selected"))
    options, _ = verify.parser().parse(
        ["--local", "--report", str(tmp_path / "r"), "--save", str(tmp_path / name)]
    )
    with pytest.raises(ConfigurationError, match="Use another directory: --save DIR"):
        verify.judged(options, Console())
    assert not (tmp_path / "r").exists()


# Systems on which gpufleet installs nothing, or only on another architecture.
ODD = {
    "SLES on ARM64": ({"id": "sles", "version_id": "15.6", "arch": "aarch64"}, "rpm"),
    "Ubuntu of tomorrow": ({"id": "ubuntu", "version_id": "28.04", "arch": "aarch64"}, "dpkg"),
    "RHEL with 64k pages": ({"id": "rhel", "version_id": "9.6", "arch": "aarch64"}, "rpm"),
    "Arch on RISC-V": ({"id": "arch", "version_id": None, "arch": "riscv64"}, None),
    "no os-release": ({"id": None, "version_id": None, "arch": "ppc64le"}, None),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_any_architecture_and_distribution_is_judged(
    observed: Document, odd: tuple[Document, str | None]
) -> None:
    usual = {name: check["verdict"] for name, check in judged(observed).items()}
    system, manager = odd
    data(observed, "os").update(codename=None, **system)
    data(observed, "packages")["manager"] = manager
    found = judged(observed)
    assert {name: check["verdict"] for name, check in found.items()} == usual
    assert found["toolkit.present"]["verdict"] == "PASS"
    assert plan_local_host(UNDECLARED, observed)["arch"] == system["arch"]


@pytest.mark.parametrize(
    ("system", "reason"),
    [
        (ODD["SLES on ARM64"][0], "the driver branches in distro for sles 15.6 are not known"),
        (ODD["Arch on RISC-V"][0], "the host is riscv64, and gpufleet installs on x86_64 and"),
    ],
)
def test_a_declared_driver_that_cannot_be_installed_is_judged(
    observed: Document, system: Document, reason: str
) -> None:
    data(observed, "os").update(codename=None, **system)
    declared = replace(UNDECLARED, variables={"gpu_driver": {"branch": "535"}})
    found = {
        check["id"]: check
        for check in judge.judge(plan_local_host(declared, observed), observed)["checks"]
    }
    assert found["host.plan"]["verdict"] == "INCONCLUSIVE"
    assert reason in found["host.plan"]["cause"]
    assert "source: preinstalled" in found["host.plan"]["remedy"]
    # Whoever installed it has held its packages or not.
    assert found["driver.held"]["verdict"] == "NOT-DECLARED"
    assert "FAIL" not in {check["verdict"] for check in found.values()}
