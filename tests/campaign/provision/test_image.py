"""An image as a host: its inventory, the mounts of its commands, and what only a boot can prove."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpufleet.campaign.provision import reasons
from gpufleet.campaign.provision.image import in_image
from gpufleet.components.base import host as host_state
from gpufleet.components.base.host import Host
from gpufleet.components.changes import changes
from gpufleet.components.driver.restart_change import decide
from gpufleet.documents.verdict import HEALTHY_VERDICTS
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import HostSelector, image, inventory_hosts
from gpufleet.judge import judge
from gpufleet.on_host import constants
from gpufleet.on_host.runner import probe
from tests.support.healthy_host import document, with_cards
from tests.support.host_documents import section
from tests.support.planted_host import put
from tests.support.restart_hosts import host as with_driver
from tests.support.restart_hosts import plan as driver_plan

Row = dict[str, Any]

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount and change its root")


def made(folder: Path, *absent: str) -> Path:
    """A directory that passes for the root directory of a system."""
    for name in ("etc", "dev", "proc", "run", "sys"):
        if name not in absent:
            (folder / name).mkdir(parents=True)
    for name in ("bin/sh", "usr/bin/python3"):
        if name not in absent:
            put(folder, name)
    return folder


def inventory(folder: Path) -> HostSelector:
    """Two hosts, one of which has its connection in host_vars."""
    put(folder, "hosts.yml", "gpu_hosts: {hosts: {gpu07: {gpu_arch: x86_64}, gpu08: {}}}")
    put(folder, "host_vars/gpu07.yml", "ansible_connection: ssh\nansible_host: 203.0.113.9\n")
    return HostSelector([str(folder)])


@AS_ROOT
def test_an_image_keeps_the_declaration_and_has_another_connection(tmp_path: Path) -> None:
    place = made(tmp_path / "root")
    selector = HostSelector(inventory(tmp_path / "inv").inventories, "gpu07")
    with in_image(selector, place) as selected:
        (found,) = inventory_hosts(selected)
        assert found.name == "gpu07"
        assert found.variables["gpu_arch"] == "x86_64"
        assert found.connection.kind == "local"
        assert found.connection.launcher == image.launcher(place)
        assert found.connection.become.enabled is False
        # Its locks stay beside its own inventory.
        assert found.locks_dir == tmp_path / "inv" / "stacks"
        folder = Path(selected.inventories[-1])
        assert folder.exists()
    assert not folder.exists()


@AS_ROOT
@pytest.mark.parametrize(
    "variables",
    [
        "ansible_connection=local",
        "ansible_host=203.0.113.7",
        '{"ansible_connection": "ssh", "ansible_host": "203.0.113.7"}',
    ],
)
def test_variables_that_connect_to_another_place_are_refused(
    tmp_path: Path, variables: str
) -> None:
    """The builder itself was provisioned, or a server."""
    selector = HostSelector(inventory(tmp_path / "inv").inventories, "gpu07", [variables])
    with (
        pytest.raises(ConfigurationError, match="connect gpu07 to another place"),
        in_image(selector, made(tmp_path / "root")),
    ):
        pass


@AS_ROOT
@pytest.mark.parametrize(
    ("limit", "absent", "words"),
    [
        (None, (), "2 hosts are selected"),
        ("gpu07", ("usr/bin/python3",), "has no usr/bin/python3"),
        ("gpu07", ("proc",), "has no proc"),
    ],
)
def test_what_is_no_image_or_no_single_host_is_refused(
    tmp_path: Path, limit: str | None, absent: tuple[str, ...], words: str
) -> None:
    selector = HostSelector(inventory(tmp_path / "inv").inventories, limit)
    with (
        pytest.raises(ConfigurationError, match=words),
        in_image(selector, made(tmp_path / "root", *absent)),
    ):
        pass


def test_the_running_system_is_no_image(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match="the system that runs"),
        in_image(inventory(tmp_path), Path("/etc/..")),
    ):
        pass


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A system of a shell and a few programs of this machine, with their libraries."""
    place = made(tmp_path / "system", "bin/sh")
    for name in ("sh", "cat", "ls", "readlink", "sleep"):
        program = shutil.which(name)
        assert program
        needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        words = [word for word in needed.stdout.split() if word.startswith("/")]
        for path in {
            program: place / "bin" / name,
            **{word: place / word[1:] for word in words},
        }.items():
            path[1].parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path[0], path[1])
    return place


@AS_ROOT
def test_a_command_in_an_image_sees_no_device_and_no_driver_of_the_builder(system: Path) -> None:
    script = "cat /run/systemd/container; ls /dev /sys /proc/driver; [ ! -s /proc/modules ]"
    done = subprocess.run(
        [*image.launcher(system), "/bin/sh", "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"{constants.IMAGE}\n")
    nodes = set(done.stdout.split()) - {constants.IMAGE, "/dev:", "/sys:", "/proc/driver:"}
    assert nodes == {
        *("fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout"),
        *("tty", "urandom", "zero"),
    }


@AS_ROOT
@pytest.mark.parametrize(
    "target",
    [
        None,
        "",
        "/run/systemd/resolve/stub-resolv.conf",
        "../run/NetworkManager/resolv.conf",
        "/etc/resolvconf/run/resolv.conf",
        "../run/../../../../{outside}",
    ],
)
def test_names_are_resolved_as_on_the_builder_and_nothing_outside_is_written(
    system: Path, tmp_path: Path, target: str | None
) -> None:
    (system / "etc/resolvconf").mkdir()
    (system / "etc/resolvconf/run").symlink_to("/run/resolvconf")
    outside = tmp_path / "outside"
    if target:
        (system / "etc/resolv.conf").symlink_to(target.format(outside=outside))
    elif target is not None:
        put(system, "etc/resolv.conf", "nameserver 192.0.2.1\n")
    done = subprocess.run(
        [*image.launcher(system), "/bin/cat", "/etc/resolv.conf"],
        capture_output=True,
        text=True,
        check=False,
    )
    # Where the link's directory is not in the image, nothing is there to resolve names with.
    if "outside" not in str(target):
        assert done.stdout == Path("/etc/resolv.conf").read_text(encoding="utf-8"), done.stderr
    assert not outside.exists()
    if target == "":
        kept = (system / "etc/resolv.conf").read_text(encoding="utf-8")
        assert kept == "nameserver 192.0.2.1\n"


@AS_ROOT
def test_nothing_stays_mounted_also_after_a_kill(system: Path) -> None:
    def mounted() -> bool:
        return str(system) in Path("/proc/self/mountinfo").read_text("utf-8")

    running = subprocess.Popen(
        [*image.launcher(system), "/bin/sh", "-c", "cat /run/systemd/container; exec sleep 600"],
        stdout=subprocess.PIPE,
    )
    assert running.stdout
    assert running.stdout.readline() == f"{constants.IMAGE}\n".encode()
    # Others never see its mounts.
    assert not mounted()
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    shutil.rmtree(system)
    assert not system.exists()


def test_the_probe_runs_nothing_in_an_image(tmp_path: Path) -> None:
    assert host_state.IMAGE == constants.IMAGE
    put(tmp_path, "run/systemd/container", "image\n")
    put(tmp_path, "var/lib/gpufleet/image.json", '{"provisioned": "2026-11-26T08:00:00Z"}\n')
    found = probe({"root": str(tmp_path), "mode": "full", "matmul": {}})
    assert found["mode"] == "facts"
    kernel = found["sections"]["kernel"]["data"]
    assert kernel["container"] == "image"
    assert kernel["provisioned_as_image"] == "2026-11-26T08:00:00Z"
    assert Host(found).is_image


def image_of_a_gpu_host() -> tuple[Row, Row]:
    """A healthy host with GPUs whose snapshot says that it is an image."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot)
    section(snapshot, "kernel")["container"] = "image"
    snapshot["mode"] = "facts"
    for name in ("smi_after", "kernel_log_after"):
        del snapshot["sections"][name]
    return plan, snapshot


def test_nothing_of_a_gpu_is_healthy_in_an_image() -> None:
    plan, snapshot = image_of_a_gpu_host()
    result = judge.judge(plan, snapshot)
    assert result["verdict"] == "INCONCLUSIVE"
    for check in result["checks"]:
        if check["id"].startswith(("gpu.", "kernel.", "containers.", "driver.loaded", "stack.ma")):
            assert check["verdict"] in {"INCONCLUSIVE", "NOT-DECLARED"}, check
    unproved = [row for row in result["checks"] if row["verdict"] not in HEALTHY_VERDICTS]
    shown = [row["id"] for row in unproved if "explained_by" not in row]
    assert shown == ["host.booted"]
    assert reasons.why(plan, snapshot) == []


def test_a_damaged_file_of_an_image_fails_all_the_same() -> None:
    plan, snapshot = image_of_a_gpu_host()
    section(snapshot, "cudnn")["trees"] = []
    result = judge.judge(plan, snapshot)
    assert result["verdict"] == "FAIL"


def test_an_image_is_not_rebooted_for_its_driver() -> None:
    found = with_driver(None)
    assert decide(driver_plan(), found)["action"] == "reload"
    section(dict(found.snapshot or {}), "kernel")["container"] = "image"
    assert decide(driver_plan(), found)["action"] == "none"


def test_what_needs_services_is_left_to_the_first_run_after_the_boot() -> None:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    plan["toolkits"] = plan["cudnn"] = plan["stacks"] = []
    section(snapshot, "receipts")["receipts"] = []
    assert "containers" in {row["what"] for row in changes(plan, snapshot)}
    section(snapshot, "kernel")["container"] = "image"
    assert "containers" not in {row["what"] for row in changes(plan, snapshot)}
