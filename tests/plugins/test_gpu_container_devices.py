"""Running containers keep their GPUs at a reload that follows: systemd is told what they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.ansible_modules import Run, load

MODULE = load("gpu_container_devices")
NODES = [{"node": "/dev/nvidia0", "numbers": "195:0"},
         {"node": "/dev/nvidiactl", "numbers": "195:255"}]


def unit(name: str, *allow: str, policy: str = "strict") -> dict[str, Any]:
    return {"unit": f"docker-{name}.scope", "name": None, "policy": policy, "nodes": NODES,
            "allow": list(allow)}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where a systemctl of the test's own writes what it is asked for."""
    program = tmp_path / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "asked"


@pytest.mark.parametrize("check", [False, True])
def test_only_what_systemd_does_not_know_is_added(
    run: Run, monkeypatch: pytest.MonkeyPatch, asked: Path, check: bool
) -> None:
    """A package's daemon-reload took the GPUs from a container started by --gpus alone."""
    there = [unit("plain", "char-* m", "/dev/char/195:255 m"), unit("free", policy="auto"),
             unit("given", "/dev/char/195:0 rwm", "/dev/char/195:255 rw")]
    monkeypatch.setattr(MODULE, "containers_with_gpus", lambda host: there)
    answer = run(MODULE, check)
    assert answer["changed"]
    assert answer["containers"] == {
        "docker-plain.scope": ["/dev/char/195:0", "/dev/char/195:255"]}
    if check:
        assert not asked.exists()
    else:
        assert asked.read_text() == (
            "set-property --runtime docker-plain.scope DeviceAllow=/dev/char/195:0 rw"
            " DeviceAllow=/dev/char/195:255 rw\n")


def test_a_host_without_systemd_or_containers_is_left_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nothing in (None, []):
        monkeypatch.setattr(MODULE, "containers_with_gpus", lambda host, found=nothing: found)
        assert not run(MODULE)["changed"]
