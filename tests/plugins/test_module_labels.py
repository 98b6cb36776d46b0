"""An installed tree gets the labels of SELinux's policy, where SELinux is enabled."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpufleet.gpu.plugins.module_utils.module import restore_labels
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError


class Module:
    """The parts of a module that it uses."""

    def __init__(self, *, enabled: bool, status: int = 0) -> None:
        self.enabled, self.status = enabled, status
        self.commands: list[list[str]] = []

    def selinux_enabled(self) -> bool:
        return self.enabled

    def get_bin_path(self, name: str, *_: Any) -> str:
        return f"/sbin/{name}"

    def run_command(self, command: list[str]) -> tuple[int, str, str]:
        self.commands.append(command)
        return self.status, "", "no policy"


def test_labels_are_restored_where_selinux_is_enabled() -> None:
    module = Module(enabled=True)
    restore_labels(module, "/usr/local/cuda-11.8")
    assert module.commands == [["/sbin/restorecon", "-R", "/usr/local/cuda-11.8"]]


def test_nothing_is_run_without_selinux() -> None:
    module = Module(enabled=False)
    restore_labels(module, "/usr/local/cuda-11.8")
    assert module.commands == []


def test_labels_that_cannot_be_restored_are_an_error() -> None:
    with pytest.raises(StateError, match="no policy"):
        restore_labels(Module(enabled=True, status=1), "/usr/local/cuda-11.8")
