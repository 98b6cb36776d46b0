"""The workload in a stack's interpreter: its document, crashes and hangs."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host import constants, workload_run
from gpufleet.on_host.constants import FRAMEWORK_MARK
from gpufleet.on_host.host import Host
from gpufleet.on_host.trust import RefusedError
from gpufleet.on_host.workload_run import FRAMEWORK_SILENT, gpu_variables, write_script
from gpufleet.workload import output
from tests.support.planted_host import probe_tree, put


def test_a_full_tmp_does_not_keep_a_framework_from_running(root: Path) -> None:
    host = Host({"tmpdir": "/proc/no", "matmul": "x"})
    home, script = write_script(host)
    assert Path(script).read_text(encoding="utf-8") == "x"
    shutil.rmtree(home)


def test_what_a_killed_probe_has_left_is_removed_once_no_run_can_last_that_long(
    tmp_path: Path,
) -> None:
    host = Host({"tmpdir": str(tmp_path), "matmul": "x"})
    killed, running = (Path(write_script(host)[0]) for _ in range(2))
    notes = tmp_path / "gpufleet-notes"
    put(notes, "notes", "kept")
    ended = time.time() - workload_run.ABANDONED_S
    os.utime(killed / "matmul.py", (ended, ended - 1))
    os.utime(running / "matmul.py", (ended, ended + 60))
    shutil.rmtree(write_script(host)[0])
    assert sorted(tmp_path.iterdir()) == sorted([notes, running])


def framework(root: Path, script: str, deadline_s: float = 10) -> Any:
    """The result of a stack whose interpreter is a shell script."""
    venv = root / "opt/gpufleet/stacks/s"
    put(venv, "pyvenv.cfg", "version = 3.11.2\n")
    put(venv, "bin/python", "#!/bin/sh\n" + script, 0o755)
    found = probe_tree(root, mode="full", matmul="print()", expect_gpus=0, deadline_s=deadline_s)
    assert list((root / "tmp").iterdir()) == []
    return found["stacks"]["stacks"][0]["framework"]


def printed(**document: Any) -> str:
    return f"echo '{FRAMEWORK_MARK}{json.dumps(document)}'\n"


def test_a_framework_run_is_found_among_chatter(root: Path) -> None:
    script = (
        "echo noise; echo more >&2\n" + printed(state="ok", error=None, version="2") + "echo x\n"
    )
    assert framework(root, script) == dict(
        FRAMEWORK_SILENT, framework="tensorflow", state="ok", error=None, version="2", said=[]
    )


def test_what_tensorflow_says_of_a_gpu_that_it_leaves_out_is_kept(root: Path) -> None:
    line = "Ignoring visible gpu device: the minimum required Cuda capability is 3.5."
    script = f"echo '{line}' >&2\n" + printed(state="ok", error=None) + "echo x >&2\n"
    assert framework(root, script)["said"] == [line]


def test_a_framework_run_has_an_empty_environment(root: Path) -> None:
    found = framework(root, "env >&2; exit 3\n")
    assert found["state"] == "failed"
    assert {line.partition("=")[0] for line in found["error"].split("\n") if "=" in line} <= {
        "ended with status 3: PATH",
        "PATH",
        "HOME",
        "PWD",
        "ended with status 3: HOME",
        "ended with status 3: PWD",
    }


def test_a_crash_keeps_what_was_said_before_it(root: Path) -> None:
    found = framework(
        root,
        printed(state="failed", error="stopped while multiplying", version="2") + "kill -ABRT $$\n",
    )
    assert (found["state"], found["version"]) == ("failed", "2")
    assert found["error"] == "stopped while multiplying, killed by SIGABRT"


@pytest.mark.costly
def test_a_framework_run_that_hangs_is_its_own_finding(root: Path) -> None:
    script = printed(state="failed", error="stopped while importing") + "sleep 600\n"
    # A fifth of them is what a busy machine may take besides.
    found = framework(root, script, deadline_s=6)
    assert found["state"] == "hung"
    assert "no answer within 4.8 s" in found["error"]


def test_a_gpu_has_the_same_number_for_all_that_compute_on_it() -> None:
    """CUDA made the fastest one the first, where GPUs of a host differ."""
    assert gpu_variables({"expect_gpus": 2})["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert gpu_variables({"expect_gpus": None})["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert gpu_variables({"expect_gpus": 0}) == {}


def test_an_interpreter_that_is_gone(root: Path) -> None:
    venv = root / "opt/gpufleet/stacks/s"
    put(venv, "pyvenv.cfg", "version = 3.11.2\n")
    stacks = probe_tree(root, mode="full", matmul="pass", expect_gpus=0)["stacks"]["stacks"]
    found = stacks[0]["framework"]
    assert found["state"] == "failed"
    assert "No such file" in found["error"]


def test_probe_and_workload_know_the_same_mark() -> None:
    assert constants.FRAMEWORK_MARK == output.FRAMEWORK_MARK


@pytest.mark.parametrize(
    ("framework", "refused", "passed"),
    [("pytorch", True, ["--no-compile"]), ("pytorch", False, []), ("jax", True, [])],
)
def test_root_starts_no_compiler_that_others_can_change(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    framework: str,
    refused: bool,
    passed: list[str],
) -> None:
    def judged(code: list[str], as_owner: bool) -> None:
        if refused and not as_owner:
            raise RefusedError("/usr/local/include can be changed by ann")

    def run(args: list[str], *_rest: object, **_more: object) -> tuple[int, str, str]:
        ran.extend(args)
        return 0, "", ""

    ran: list[str] = []
    monkeypatch.setattr(workload_run, "account_for", judged)
    monkeypatch.setattr(workload_run, "run_command", run)
    host = Host({"expect_gpus": 1, "tmpdir": str(tmp_path), "matmul": ""})
    workload_run.run_framework(host, {"venv": "/opt/stack", "runs": framework}, 10)
    assert [arg for arg in ran if arg == "--no-compile"] == passed
    if passed:
        assert "changed by ann" in ran[ran.index("--no-compile") + 1]


def test_a_framework_that_root_does_not_start_leaves_a_valid_document(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(code: object, *, as_owner: bool) -> None:
        raise RefusedError("it belongs to another account")

    monkeypatch.setattr(workload_run, "account_for", refuse)
    stack = {"venv": "/opt/stack", "runs": "tensorflow"}
    found = workload_run.run_framework(Host({"root": str(root)}), stack, 10)
    assert (found["state"], found["said"]) == ("failed", [])
    assert set(found) == {*FRAMEWORK_SILENT, "framework", "state", "error"}
