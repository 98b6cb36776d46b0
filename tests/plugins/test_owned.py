"""Provisioning runs, as root, no interpreter, package manager or installer of another account."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.gpufleet.gpu.plugins.module_utils import owned, python_environment
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError

from tests.support.planted_host import NOBODY, put

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def test_a_users_interpreter_is_not_run(tmp_path: Path) -> None:
    python = put(tmp_path, "stack/bin/python", "#!/bin/sh\n", 0o755)
    put(tmp_path, "stack/pyvenv.cfg", "home = /usr/bin\n")
    ran: list[list[str]] = []

    def run_command(command: list[str], **_: object) -> tuple[int, str, str]:
        ran.append(command)
        return 0, "", ""

    module = SimpleNamespace(run_command=run_command)
    command = ["/usr/bin/env", "pip", "--python", str(python)]
    python_environment.run(module, 0, command)
    module_file = put(tmp_path, "stack/lib/python3.11/site-packages/pip/__init__.py")
    os.chown(module_file, NOBODY, NOBODY)
    with pytest.raises(StateError, match=rf"{module_file} belongs to nobody .* chown root:root"):
        python_environment.run(module, 0, command)
    assert ran == [command]


def test_an_installer_is_not_unpacked_where_a_user_can_exchange_it(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    put(tmp_path, "root/users-file")
    os.chown(tmp_path / "root/users-file", NOBODY, NOBODY)
    owned.refuse_foreign([f"--tmpdir={tmp_path}/root"])
    os.chown(tmp_path / "root", NOBODY, NOBODY)
    with pytest.raises(StateError, match="belongs to nobody"):
        owned.refuse_foreign([f"--tmpdir={tmp_path}/root"])
