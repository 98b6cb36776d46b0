"""A machine's stop leaves containers that a lab can go on with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lab import dead


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts")
def test_a_network_namespace_that_ended_with_the_machine_is_replaced(tmp_path: Path) -> None:
    left, made_now, other = (tmp_path / name for name in ("netns-left", "netns-now", "other"))
    for path in (left, made_now, other):
        path.touch()
    for path in (left, other):
        os.utime(path, (0, 0))
    dead.restore_namespaces(tmp_path)
    try:
        assert [os.path.ismount(path) for path in (left, made_now, other)] == [True, False, False]
        dead.restore_namespaces(tmp_path)
    finally:
        subprocess.run(["umount", left], check=True)
    assert not os.path.ismount(left)
