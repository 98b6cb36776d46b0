"""Where no driver is loaded, nothing that the probe runs can create a device node."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpufleet.on_host import runner, schedule
from gpufleet.on_host.host import Host
from tests.support.planted_host import probe_tree, put


def make_nodes(host: Host) -> dict[str, str | None]:
    """As libcuda and NVML do it, and as nvidia-modprobe does it for them."""
    found: dict[str, str | None] = {}
    try:
        os.mknod(host.path("/dev/nvidiactl"), 0o600 | 0o020000, os.makedev(195, 255))
        found["own"] = None
    except OSError as error:
        found["own"] = error.strerror
    done = subprocess.run(
        ["mknod", host.path("/dev/nvidia0"), "c", "195", "0"], check=False, capture_output=True
    )
    found["program"] = "failed" if done.returncode else None
    return found


def test_libraries_that_create_nodes_cannot_where_no_driver_is_loaded(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/nvidiactl alone made later runs take the host for one with a driver."""
    (root / "dev").mkdir()
    monkeypatch.setattr(runner, "SECTIONS", {"smi": make_nodes})
    assert probe_tree(root)["smi"] == {"own": "Operation not permitted", "program": "failed"}
    assert list((root / "dev").iterdir()) == []


def test_with_a_driver_its_programs_keep_what_they_have(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "proc/driver/nvidia/version", "NVRM version: ...\n")
    asked: list[bool] = []
    monkeypatch.setattr(schedule, "forbid_driver_changes", lambda: asked.append(True))
    schedule.run_section(lambda host: None, Host({"root": str(root)}))
    assert asked == []
