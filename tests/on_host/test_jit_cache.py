"""Stacks that compile their code: it is kept, and they have the time for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpufleet.components.declare import declaration_of
from gpufleet.components.probe_settings import COMPILE_S, more_seconds, probe_settings
from gpufleet.on_host import jit_cache
from gpufleet.on_host.constants import FRAMEWORK_MARK
from gpufleet.on_host.host import DEFAULTS, Host
from gpufleet.on_host.jit_cache import PLACE, is_warm, must_compile, open_cache, remove_cache
from gpufleet.on_host.runner import SECTIONS
from gpufleet.on_host.schedule import Schedule
from gpufleet.on_host.sections.stacks import Shares, section_stacks
from tests.support.planted_host import put

VENV = "/opt/gpufleet/stacks/s"


@pytest.fixture(autouse=True)
def owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests is in the place of root."""
    monkeypatch.setattr(jit_cache, "OWNER", os.geteuid())


def stack(root: Path, script: str) -> None:
    """A stack whose interpreter is a shell script, on a host with a driver."""
    put(root, f"{VENV[1:]}/pyvenv.cfg", "version = 3.11.2\n")
    put(root, f"{VENV[1:]}/bin/python", "#!/bin/sh\n" + script, 0o755)
    put(
        root,
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module"
        "  535.261.03  Wed Nov  1 00:00:00 UTC 2026\n",
    )


def run(root: Path, deadline_s: float = 10, **config: Any) -> dict[str, Any]:
    """The result of the framework of that stack."""
    settings = {"root": str(root), "mode": "full", "matmul": "pass", "expect_gpus": 1, **config}
    found: dict[str, Any] = section_stacks(Host(settings, deadline_s))["stacks"][0]["framework"]
    return found


def output(**document: Any) -> str:
    return f"echo '{FRAMEWORK_MARK}{json.dumps(document)}'\n"


def test_what_the_driver_compiled_is_there_the_next_night(root: Path) -> None:
    """HOME was a new directory each night, and with it the driver's cache."""
    stack(root, 'echo x >"$CUDA_CACHE_PATH/$CUDA_CACHE_MAXSIZE"\n' + output(state="ok", error=None))
    place = root / PLACE[1:] / "s"
    assert run(root)["jit_cache"] == f"{PLACE}/s"
    assert [path.name for path in place.iterdir()] == [str(2 << 30)]
    assert (place.stat().st_mode & 0o777, place.parent.stat().st_mode & 0o777) == (0o700, 0o700)


def test_a_cache_that_others_can_write_to_is_not_loaded(root: Path) -> None:
    host = Host({"root": str(root)})
    assert open_cache(host, "s") == f"{PLACE}/s"
    for path in ("s", "."):
        place = root / PLACE[1:] / path
        place.chmod(0o777)
        assert open_cache(host, "s") is None
        place.chmod(0o700)
    (root / PLACE[1:] / "link").symlink_to("/tmp")
    assert [open_cache(host, name) for name in ("link", "..", ".x", "a/b")] == [None] * 4


def test_only_root_keeps_a_cache(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_cache, "OWNER", os.geteuid() + 1)
    stack(root, output(state="ok", error=None))
    assert "jit_cache" not in run(root)
    assert not (root / PLACE[1:]).exists()


def test_nothing_is_kept_where_no_gpu_computes(root: Path) -> None:
    stack(root, output(state="ok", error=None))
    assert "jit_cache" not in run(root, expect_gpus=0)
    assert not (root / PLACE[1:]).exists()


@pytest.mark.parametrize(
    ("native", "cards", "seconds", "compiled"),
    [
        (["7.0", "8.0"], ["8.6", "7.5"], 0, False),
        (["7.0", "8.0"], ["8.0", "9.0"], 0, True),
        (["8.6"], ["8.0"], 0, True),
        (["8.0"], None, 1800, True),
        (["8.0"], None, 0, False),
    ],
)
def test_a_stack_without_machine_code_for_a_card_is_known(
    native: list[str], cards: list[str] | None, seconds: int, compiled: bool
) -> None:
    compiles = {VENV: {"native": native, "seconds": seconds}}
    assert must_compile(Host({"compiles": compiles, "capabilities": cards}), VENV) is compiled
    assert not must_compile(Host({"capabilities": cards}), VENV)


@pytest.mark.costly
def test_it_has_the_time_to_compile_until_it_has_run_once(root: Path) -> None:
    """It had 147 s at most, and was reported as hung every night."""
    config: dict[str, Any] = {
        "compiles": {VENV: {"native": ["8.0"], "seconds": 5}},
        "capabilities": ["9.0"],
    }
    stack(root, "sleep 1.5\n" + output(state="ok", error=None))
    assert run(root, 1, **config)["compiled"]
    found = run(root, 1, **config)
    assert (found["state"], "compiled" in found) == ("hung", False)
    # Another driver compiles again.
    put(root, "proc/driver/nvidia/version", "NVRM version: x Kernel Module  550.1.2  x\n")
    assert run(root, 1, **config)["state"] == "ok"


def test_a_run_that_was_ended_while_it_compiled_says_so(root: Path) -> None:
    stack(root, "sleep 60\n")
    found = run(root, 1, compiles={VENV: {"native": ["8.0"], "seconds": 0}}, capabilities=["9.0"])
    assert (found["state"], found["compiled"]) == ("hung", True)
    assert not is_warm(Host({"root": str(root)}), f"{PLACE}/s", {})


def test_unused_time_is_for_the_runs_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five stacks had a fifth each, also where the first took a second."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    shares = Shares(100, 5, 1)
    assert shares.next() == 20
    now[0] += 4
    assert shares.next() == 24
    now[0] += 4
    assert shares.next(more_s=1000) == 1030.7
    now[0] += 1000
    assert shares.next() == 46
    beside = Shares(100, 5, 4)
    assert [beside.next() for _ in range(5)] == [50, 100, 100, 100, 100]


def test_no_other_section_has_the_time_to_compile(root: Path) -> None:
    put(root, "proc/driver/nvidia/version", "")
    shares = []
    for seconds in (0, 1800):
        settings = dict(
            DEFAULTS,
            root=str(root),
            mode="full",
            deadline_s=300 + seconds,
            expect_gpus=1,
            compiles={VENV: {"native": [], "seconds": seconds}},
        )
        plan = Schedule(settings, SECTIONS)
        shares.append(
            [
                plan.deadline_of(name, 300 + seconds)
                for name in ("driver", "smi", "compute", "containers", "receipts", "stacks")
            ]
        )
    assert shares[0][:-1] == shares[1][:-1]
    assert shares[1][-1] - shares[0][-1] == 1800


@pytest.mark.parametrize(
    ("declared", "seconds"),
    [
        ({"gpu_expect": {"count": 8, "model": "NVIDIA H100 80GB HBM3"}}, COMPILE_S),
        ({"gpu_expect": {"count": 8, "model": "NVIDIA A100-SXM4-80GB"}}, 0),
        ({"gpu_expect": {"count": 8}}, 0),
        ({"gpu_expect": {"count": 0}}, None),
    ],
)
def test_the_deadline_grows_where_the_declared_cards_need_it(
    declared: dict[str, Any], seconds: int | None
) -> None:
    spec = declaration_of({"gpu_stacks": [{"tensorflow": "2.4.0"}], **declared}).spec
    settings = probe_settings(spec)
    found = [entry["seconds"] for entry in settings["compiles"].values()]
    assert found == ([] if seconds is None else [seconds])
    assert more_seconds(spec, settings) == (seconds or 0) + 35 * (seconds is not None)


def test_provision_gives_the_time_also_to_cards_of_no_declared_model() -> None:
    spec = declaration_of(
        {"gpu_stacks": [{"tensorflow": "2.4.0"}], "gpu_expect": {"count": 1}}
    ).spec
    assert more_seconds(spec, probe_settings(spec, warm=True)) == COMPILE_S


def test_the_cache_goes_with_its_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_cache, "PLACE", str(tmp_path))
    for name in ("s/a", "s.json", "other/a"):
        put(tmp_path, name)
    remove_cache("s")
    remove_cache("..")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other"]
