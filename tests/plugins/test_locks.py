"""Locks are root's alone, or of the account that takes them: who can open one can hold it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.gpu.plugins.module_utils import download, receipts

from gpufleet.campaign.rollout.progress import Store
from gpufleet.watch.state import exclusive

# Each holds the lock `lock` of a directory.
HOLDERS: dict[str, Callable[[Path], Any]] = {
    "installations": lambda place: receipts.host_lock(str(place)),
    "downloads": lambda place: download.held(str(place / "lock")),
    "rollouts": lambda place: Store(place).alone(),
    "nightly runs": exclusive,
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_no_other_account_can_hold_a_lock(kind: str, tmp_path: Path) -> None:
    """It was readable by all: any user's flock kept every installation waiting."""
    lock = tmp_path / "lock"
    lock.touch()
    lock.chmod(0o644)
    if os.geteuid() == 0 and kind in {"installations", "downloads"}:
        os.chown(lock, 65534, 65534)
    with HOLDERS[kind](tmp_path):
        info = lock.stat()
    assert (info.st_mode & 0o7777, info.st_uid) == (0o600, os.geteuid())
    lock.unlink()
    (tmp_path / "target").write_text("others'")
    lock.symlink_to(tmp_path / "target")
    with pytest.raises(Exception, match=r"symbolic links|cannot be used"), HOLDERS[kind](tmp_path):
        pass
    assert (tmp_path / "target").read_text() == "others'"
