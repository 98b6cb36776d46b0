"""The program that applies PCI settings at boot, on planted configuration space.

The trees are those of `tests/support/rdma_tree.py`; that module says what of them is derived.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.on_host.host import Host
from gpufleet.on_host.pci import access_control, express_settings
from gpufleet.paths import ROOT
from tests.support.planted_host import interpreter
from tests.support.rdma_tree import Tree, config, port_config

PROGRAM = ROOT / "roles" / "network" / "files" / "pci_settings.py"
ADAPTER = "sys/bus/pci/devices/0000:22:00.0"
ADDRESS = "0000:22:00.0"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A GPU and an adapter with small reads below one switch, whose ports redirect copies."""
    tree = Tree(tmp_path)
    tree.gpu(0)
    place = tree.mlx("mlx5_0", 0, "01")
    tree.put(f"{place}/config", config(512))
    for port in ("0000:00:01.0", "0000:02:01.0", "0000:02:03.0"):
        tree.put(f"sys/bus/pci/devices/{port}/config", port_config(0x1D))
    tree.put("sys/bus/pci/devices/0000:01:00.0/config", port_config(None))
    return tree


@pytest.fixture
def run(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the program on the tree, on a machine of this kind; `none` is bare metal."""

    def start(
        *options: str, machine: str = "none", python: str = "python3"
    ) -> subprocess.CompletedProcess[str]:
        detector = tmp_path / "bin" / "systemd-detect-virt"
        detector.parent.mkdir(exist_ok=True)
        detector.write_text(f"#!/bin/sh\necho {machine}\ntest {machine} != none\n")
        detector.chmod(0o755)
        monkeypatch.setenv("PATH", f"{detector.parent}:/usr/bin:/bin")
        return subprocess.run(
            [python, "-I", PROGRAM, "--root", tree.root, *options],
            capture_output=True,
            text=True,
            check=False,
        )

    return start


def read_request(tree: Tree, name: str = ADAPTER) -> int | None:
    """MaxReadReq as the probe reads it."""
    found: int | None = express_settings((tree.root / name / "config").read_bytes())[
        "max_read_request"
    ]
    return found


def access(tree: Tree, port: str) -> int | None:
    """The control word as the probe reads it."""
    host = Host({"root": str(tree.root)}, 5)
    found: int | None = access_control(host, f"/sys/bus/pci/devices/{port}/config")
    return found


@pytest.mark.parametrize("size", [128, 256, 1024, 2048, 4096])
def test_max_read_request_is_set_and_nothing_else_changes(tree: Tree, run: Run, size: int) -> None:
    path = tree.root / ADAPTER / "config"
    before = path.read_bytes()
    done = run("--max-read-request", str(size), "--adapter", ADDRESS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{ADDRESS}: MaxReadReq was 512 bytes, is {size}\n"
    assert read_request(tree) == size
    after = path.read_bytes()
    assert [at for at in range(len(before)) if before[at] != after[at]] == [0x69]
    assert after[0x68] == before[0x68]  # relaxed ordering and all that is below it
    assert access(tree, "0000:02:01.0") == 0x1D


def test_a_second_run_writes_nothing(tree: Tree, run: Run) -> None:
    options = ("--max-read-request", "4096", "--acs-off", "--adapter", ADDRESS)
    assert run(*options).returncode == 0
    for path in tree.root.glob("sys/bus/pci/devices/*/config"):
        path.chmod(0o444)
    files = {path: path.stat().st_mtime_ns for path in tree.root.rglob("config")}
    done = run(*options)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"{ADDRESS}: MaxReadReq is 4096 bytes already",
        "0000:00:01.0: access control (ACS) is off already",
        "0000:01:00.0: has no access control (ACS)",
        "0000:02:01.0: access control (ACS) is off already",
        "0000:02:03.0: access control (ACS) is off already",
    ]
    assert files == {path: path.stat().st_mtime_ns for path in files}


def test_access_control_is_switched_off_above_gpus_and_adapters(tree: Tree, run: Run) -> None:
    elsewhere = tree.mlx("mlx5_1", 5, "01")
    tree.put("sys/bus/pci/devices/0005:02:01.0/config", port_config(0x1D))
    done = run("--acs-off", "--adapter", ADDRESS)
    assert done.returncode == 0
    assert "0000:02:03.0: access control (ACS) was 0x001d, is 0x0000 (off)" in done.stdout
    assert [access(tree, f"0000:{name}.0") for name in ("00:01", "02:01", "02:03")] == [0, 0, 0]
    # An adapter that is not named keeps what it has.
    assert access(tree, "0005:02:01.0") == 0x1D
    assert read_request(tree, elsewhere) == 4096


@pytest.mark.parametrize("machine", ["kvm", "microsoft", "unknown"])
def test_access_control_stays_on_in_a_virtual_machine(tree: Tree, run: Run, machine: str) -> None:
    options = ("--max-read-request", "4096", "--acs-off", "--adapter", ADDRESS)
    done = run(*options, machine=machine)
    assert done.returncode == 1
    assert f"stays as it is: this is a virtual machine ({machine})" in done.stdout
    assert access(tree, "0000:02:01.0") == 0x1D
    assert read_request(tree) == 4096


def test_an_absent_adapter_is_named_and_the_others_are_set(tree: Tree, run: Run) -> None:
    gone = ("--adapter", "0000:99:00.0", "--adapter", "0000:21:00.0")
    done = run("--max-read-request", "4096", *gone, "--adapter", ADDRESS)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "0000:99:00.0: not there, nothing is set",
        # After a change of the hardware another device has this address: here the GPU.
        "0000:21:00.0: no network adapter any longer, nothing is set",
        f"{ADDRESS}: MaxReadReq was 512 bytes, is 4096",
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff" * 256, "it does not answer"),
        (config()[:64], "its configuration cannot be read as a whole"),
        (b"\xb3\x15" + bytes(254), "it has no PCI Express capability"),
        (config()[:0x41] + b"\x40" + config()[0x42:], "it has no PCI Express capability"),
        (None, "its configuration cannot be read: No such file or directory"),
    ],
    ids=["ones", "without-root", "no-capabilities", "circle", "gone"],
)
def test_a_device_that_cannot_be_set_fails_the_unit_and_no_other_device(
    tree: Tree, run: Run, content: bytes | None, reason: str
) -> None:
    second = tree.mlx("mlx5_1", 1, "01")
    tree.put(f"{second}/config", config(512))
    other = Path(second).name
    path = tree.root / ADAPTER / "config"
    path.unlink() if content is None else path.write_bytes(content)
    done = run("--max-read-request", "4096", "--adapter", ADDRESS, "--adapter", other)
    assert done.returncode == 1
    assert f"{ADDRESS}: not set: {reason}" in done.stdout
    assert f"{other}: MaxReadReq was 512 bytes, is 4096" in done.stdout


def test_an_extended_capability_in_a_circle_ends(tree: Tree, run: Run) -> None:
    circle = bytearray(port_config(None))
    struct.pack_into("<I", circle, 0x100, 0x0001 | 1 << 16 | 0x100 << 20)
    tree.put("sys/bus/pci/devices/0000:02:01.0/config", bytes(circle))
    done = run("--acs-off", "--adapter", ADDRESS)
    assert "0000:02:01.0: has no access control (ACS)" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize("size", ["0", "100", "8192", "-1"])
def test_a_size_that_no_device_has_is_refused(tree: Tree, run: Run, size: str) -> None:
    done = run("--max-read-request", size, "--adapter", ADDRESS)
    assert done.returncode == 2
    assert read_request(tree) == 512


def test_python_3_6_runs_it(tree: Tree, run: Run) -> None:
    options = ("--max-read-request", "4096", "--acs-off", "--adapter", ADDRESS)
    done = run(*options, python=interpreter(6))
    assert (done.returncode, done.stderr) == (0, "")
    assert read_request(tree) == 4096
    assert access(tree, "0000:02:03.0") == 0
