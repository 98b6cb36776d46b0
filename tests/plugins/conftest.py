"""Run an Ansible module of ours in this process, as Ansible would, and read its answer; and a
stack that is installed so."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from tests.support.ansible_modules import Run, load
from tests.support.stack_bench import Bench

from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.trust import (  # isort: skip
    Judgement,
)


@pytest.fixture(scope="session", autouse=True)
def interpreter_judged_once() -> Iterator[None]:
    """Walk each tree of the interpreter that runs the tests once, not at each start of it.

    It has some ten thousand files, and no test changes them; trees of a test's own are walked each
    time. A tree that others could have written is walked again, so that each test sees it refused.
    """
    own, judged, tree = (sys.prefix, sys.base_prefix), set[str](), Judgement.tree

    def once(self: Judgement, top: str) -> None:
        # A `home` in pyvenv.cfg is named with a second slash before it.
        top = f"/{top.lstrip('/')}"
        if top in judged:
            return
        tree(self, top)
        if top.startswith(own) and not self.found:
            judged.add(top)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Judgement, "tree", once)
        yield


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
