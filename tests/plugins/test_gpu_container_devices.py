"""Running containers keep their devices when systemd reloads: its rules name what they have."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host.container_units import UNREAD
from tests.support.ansible_modules import Run, load

MODULE = load("gpu_container_devices")
NODES = [
    {"node": "/dev/nvidia0", "numbers": "195:0"},
    {"node": "/dev/nvidiactl", "numbers": "195:255"},
]
DEVICES = Path("/sys/fs/cgroup/devices")


def unit(name: str, *allow: str, policy: str = "strict", **others: Any) -> dict[str, Any]:
    return {
        "unit": f"docker-{name}.scope",
        "pid": str(os.getpid()),
        "policy": policy,
        "nodes": NODES,
        "allow": list(allow),
        **others,
    }


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where a systemctl of the test's own writes what it is asked for."""
    program = tmp_path / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "asked"


@pytest.mark.parametrize("check", [False, True])
def test_only_rules_that_systemd_lacks_are_added(
    run: Run, monkeypatch: pytest.MonkeyPatch, asked: Path, check: bool
) -> None:
    """A package's daemon-reload took the GPUs from a container started by --gpus alone."""
    units = [
        unit("plain", "char-* m", "/dev/char/195:255 m"),
        unit("free", policy="auto"),
        unit("given", "/dev/char/195:0 rwm", "/dev/char/195:255 rw"),
        unit("privileged", "char-* rwm", "block-* rwm"),
    ]
    monkeypatch.setattr(MODULE, "units_with_gpus", lambda host: units)
    monkeypatch.setattr(
        MODULE,
        "allowed_nodes",
        lambda module, unit: (
            {"195:0": "rw", "195:255": "rw", "10:229": "r"}
            if unit["unit"] != "docker-given.scope"
            else {"195:0": "rw"}
        ),
    )
    answer = run(MODULE, check)
    assert answer["changed"]
    assert answer["containers"] == {
        "docker-plain.scope": ["/dev/char/195:0", "/dev/char/195:255", "/dev/char/10:229"]
    }
    if check:
        assert not asked.exists()
    else:
        assert asked.read_text() == (
            "set-property --runtime docker-plain.scope DeviceAllow=/dev/char/195:0 rw"
            " DeviceAllow=/dev/char/195:255 rw DeviceAllow=/dev/char/10:229 r\n"
        )


def test_a_host_without_systemd_or_containers_is_left_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nothing in (None, []):
        monkeypatch.setattr(MODULE, "units_with_gpus", lambda host, found=nothing: found)
        assert not run(MODULE)["changed"]


@pytest.fixture
def container(tmp_path: Path) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A process with device rules like a container's, and the nodes in its /dev.

    The rules allow a card, an IMEX channel and fuse; the container created the node of a disk.
    """
    group = DEVICES / f"gpufleet-test-{os.getpid()}"
    root = tmp_path / "root"
    allowed = {"nvidia1": "195:1", "nvidia-caps-imex-channels/channel0": "238:0", "fuse": "10:229"}
    nodes = []
    try:
        group.mkdir()
        for name, numbers in {**allowed, "created": "21:0"}.items():
            path = root / "dev" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(path, 0o20666, os.makedev(*map(int, numbers.split(":"))))
            nodes.append({"node": f"/dev/{name}", "numbers": numbers})
    except OSError as error:
        pytest.skip(f"device nodes and control groups cannot be created here: {error}")
    (root / "dev" / "link").symlink_to("fuse")
    nodes.append({"node": "/dev/link", "numbers": "10:229"})
    (group / "devices.deny").write_text("a")
    for numbers in allowed.values():
        access = "r" if numbers == "10:229" else "rw"
        (group / "devices.allow").write_text(f"c {numbers} {access}")
    # It joins the group after its start, since no program can be started without /dev/null.
    process = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
    (group / "cgroup.procs").write_text(str(process.pid))
    yield str(process.pid), [{**node, "node": f"{root}{node['node']}"} for node in nodes]
    process.kill()
    process.wait()
    group.rmdir()


def test_only_nodes_that_the_control_group_allows_are_added(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    asked: Path,
    container: tuple[str, list[dict[str, str]]],
) -> None:
    """A container may create a node of any device; it must not get the device by that."""
    pid, nodes = container
    monkeypatch.setattr(
        MODULE, "units_with_gpus", lambda host: [unit("theirs", "char-* m", pid=pid, nodes=nodes)]
    )
    run(MODULE)
    assert asked.read_text() == (
        "set-property --runtime docker-theirs.scope DeviceAllow=/dev/char/195:1 rw"
        " DeviceAllow=/dev/char/238:0 rw DeviceAllow=/dev/char/10:229 r\n"
    )


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ({"nodes": [*NODES, UNREAD]}, "its /dev has too many entries to be read"),
        ({}, "its control group could not be asked"),
    ],
)
def test_a_container_that_cannot_be_asked_stops_the_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, asked: Path, there: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(MODULE, "device_group", lambda pid: "/nowhere/cgroup.procs")
    monkeypatch.setattr(MODULE, "units_with_gpus", lambda host: [unit("odd", "char-* m", **there)])
    answer = run(MODULE)
    assert answer["failed"]
    assert "docker-odd.scope" in answer["msg"]
    assert message in answer["msg"]
    assert not asked.exists()


def test_a_container_that_has_ended_needs_no_rules(
    run: Run, monkeypatch: pytest.MonkeyPatch, asked: Path
) -> None:
    monkeypatch.setattr(
        MODULE, "units_with_gpus", lambda host: [unit("gone", "char-* m", pid="4194999")]
    )
    assert not run(MODULE)["changed"]
    assert not asked.exists()


LISTED = "5:devices:/docker/a\n1:cpu,cpuacct:/docker/b\n0::/system.slice/docker-c.scope\n"


@pytest.mark.parametrize(
    ("mounted", "file"),
    [
        (True, "devices/docker/a/cgroup.procs"),
        # A kernel with both lists the first version's groups though nothing of it is mounted.
        (False, "system.slice/docker-c.scope/cgroup.procs"),
    ],
)
def test_the_control_group_with_the_device_rules_is_of_the_mounted_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounted: bool, file: str
) -> None:
    if mounted:
        (tmp_path / "devices").mkdir()
    monkeypatch.setattr(MODULE, "open", lambda name: io.StringIO(LISTED), raising=False)
    assert MODULE.device_group(7, str(tmp_path)) == f"{tmp_path}/{file}"
