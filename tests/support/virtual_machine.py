"""Virtual machines of the lab for tests, which are skipped where its programs are missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab import vm
from lab.progress import Progress
from lab.settings import Lab


@contextmanager
def booted(kind: vm.Kind, count: int = 1) -> Iterator[list[vm.Machine]]:
    """Machines that have booted. `gpufleet test --all` installs the programs that they need."""
    if lacking := vm.missing():
        pytest.skip(f"apt-get install --no-install-recommends {' '.join(lacking)}")
    with vm.together(Lab.from_environment(os.environ), Progress(), kind, count) as machines:
        yield machines


def unhurried() -> dict[str, str]:
    """The environment for Ansible on an emulated processor, which is slow to let root log in."""
    return {**os.environ, "ANSIBLE_TIMEOUT": "120"}
