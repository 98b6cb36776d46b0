"""Hosts with CUDA from pip wheels alone: the probe loads the GPUs through a stack's own cuBLAS."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host.host import Host
from gpufleet.on_host.processes import run_command
from gpufleet.on_host.sections.compute import section_compute
from tests.support import stand_ins
from tests.support.toolkit_run import FILL_MIB, UNPACKED, Document

SITE = "lib/python3.11/site-packages"


def stack(home: Path, libraries: tuple[Path, Path], name: str, cublas: str) -> Path:
    """A stack with wheels of stand-ins, and its receipt."""
    venv = home / "stacks" / name
    for part, soname in stand_ins.TOOLKIT.items():
        wheel = venv / SITE / "nvidia" / part / "lib"
        wheel.mkdir(parents=True)
        shutil.copy(libraries[0] / "lib64" / soname, wheel)
    info = venv / SITE / f"nvidia_cublas_cu12-{cublas}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: nvidia-cublas-cu12\nVersion: {cublas}\n")
    (venv / "pyvenv.cfg").touch()
    record = home / "state/receipts"
    record.mkdir(parents=True, exist_ok=True)
    (record / f"stack-{name}.json").write_text(
        json.dumps(
            {
                "schema": 1,
                "kind": "stack",
                "id": name,
                "path": str(venv),
                "version": "1",
                "manifest": [{"path": "pyvenv.cfg", "type": "file"}],
            }
        )
    )
    return venv


@pytest.fixture
def home(tmp_path: Path, libraries: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two stacks, and no toolkit; the driver is found by the linker's search path."""
    stack(tmp_path, libraries, "tensorflow-2.17.1", "12.3.4.1")
    stack(tmp_path, libraries, "pytorch-2.9.0", "12.10.0.5")
    driver = str(libraries[1])
    monkeypatch.setattr("gpufleet.on_host.sections.compute.run_command", with_driver(driver))
    return tmp_path


def with_driver(driver: str) -> Any:
    """The probe's own way to start a program, which finds the stand-in driver and is short."""

    def run(args: list[str], deadline_s: float, env: dict[str, str], **more: Any) -> Any:
        return run_command(
            [*args, "--size", "48", "--sustained", "2", "--fill", str(FILL_MIB)],
            deadline_s,
            env=dict(env, LD_LIBRARY_PATH=driver, STAND_IN_GPUS="1"),
            **more,
        )

    return run


def runs(home: Path, **config: Any) -> list[Document]:
    settings = {
        "mode": "full",
        "matmul": UNPACKED,
        "prefix": str(home),
        "expect_gpus": 1,
        "state_dir": str(home / "state"),
        "tmpdir": str(home),
        "sustained_s": 1,
        **config,
    }
    found: list[Document] = section_compute(Host(settings, 600))["runs"]
    return found


def test_the_newest_cublas_of_a_wheel_loads_the_gpus(home: Path) -> None:
    """They were excused from throughput, load, bandwidth and copies: --deep loaded nothing."""
    (run,) = runs(home, deep=True)
    assert (run["state"], run["error"]) == ("ok", None)
    assert run["toolkit"] == str(home / "stacks/pytorch-2.9.0")
    for part in ("cublas", "bandwidth", "sustained", "host_copies"):
        (row,) = run[part]
        assert (part, row["error"], row["wrong"]) == (part, None, 0)
    assert run["sustained"][0]["samples"] or run["sustained"][0]["checked"]
    assert run["peer"] == []
    # Its framework tries cuDNN itself.
    assert run["cudnn"] == []
    assert all(
        path.startswith(f"{home}/stacks/pytorch-2.9.0/{SITE}/nvidia/") for path in run["mapped"]
    )


def test_libraries_that_another_account_can_change_are_not_loaded(home: Path) -> None:
    library = home / f"stacks/pytorch-2.9.0/{SITE}/nvidia/cublas/lib/libcublas.so.12"
    library.chmod(0o777)
    (run,) = runs(home)
    assert run["state"] == "failed"
    assert run["error"] == f"every account can write {library}: it is not run as root"
    assert (run["cublas"], run["devices"]) == ([], [])
    library.chmod(0o755)
    elsewhere = home / "elsewhere"
    shutil.move(library, elsewhere)
    library.symlink_to(elsewhere)
    elsewhere.chmod(0o777)
    assert runs(home)[0]["error"] == f"every account can write {elsewhere}: it is not run as root"


def test_stacks_of_others_and_hosts_without_gpus_are_left_alone(home: Path) -> None:
    assert runs(home, expect_gpus=0) == []
    shutil.rmtree(home / "state")
    assert runs(home) == []


def test_a_toolkit_of_ours_is_enough(home: Path, libraries: tuple[Path, Path]) -> None:
    toolkit = home / "cuda-12.2"
    shutil.copytree(libraries[0], toolkit)
    (home / "state/receipts/toolkit-12.2.json").write_text(
        json.dumps(
            {
                "schema": 1,
                "kind": "toolkit",
                "id": "12.2",
                "path": str(toolkit),
                "version": "1",
                "manifest": [{"path": "pyvenv.cfg", "type": "file"}],
            }
        )
    )
    assert [run["toolkit"] for run in runs(home)] == [str(toolkit)]
