"""Run an Ansible module of ours in this process, as Ansible would, and read its answer; and a
stack that is installed so."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from tests.support.ansible_modules import Run, load
from tests.support.stack_bench import Bench


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """``run(module, check=False, **arguments)`` returns what the module answered."""

    def answer(module: ModuleType, check: bool = False, **arguments: Any) -> dict[str, Any]:
        words = {name: str(v) if isinstance(v, Path) else v for name, v in arguments.items()}
        capfd.readouterr()
        with patch_module_args({**words, "_ansible_check_mode": check}), pytest.raises(SystemExit):
            module.main()
        reported: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[-1])
        return reported

    return answer


@pytest.fixture
def bench(tmp_path: Path, run: Run) -> Bench:
    """A stack that is not there yet. Tests of other modules have benches of their own."""
    return Bench(tmp_path, load("gpu_stack"), run)
