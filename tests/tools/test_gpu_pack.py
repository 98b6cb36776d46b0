"""The pack arrives whole or says what is missing, and a run leaves a record of every step."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.moments import wait_until
from tools.gpu_pack import build, parts, run

LIMIT, SPARE = 66 * 1024, 2 * 1024


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory with files that compress well, and with one that does not."""
    site = tmp_path / "site"
    (site / "mirror/wheels").mkdir(parents=True)
    (site / "mirror/cuda.run").write_bytes(b"the same line\n" * 20_000)
    (site / "mirror/wheels/a.whl").write_bytes(random.Random(1).randbytes(180_000))
    (site / "hosts.yml").write_text("---\n")
    (site / "empty").touch()
    return site


def contents(directory: Path) -> dict[str, bytes]:
    """The content of each file below a directory."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_what_is_split_is_joined_again(site: Path, tmp_path: Path) -> None:
    manifest = parts.split(site, tmp_path / "pack", tmp_path / "kept", LIMIT, SPARE)
    assert len(manifest["parts"]) > 3
    parts.join(tmp_path / "pack", tmp_path / "joined")
    assert contents(tmp_path / "joined") == contents(site)
    for folder in (tmp_path / "pack").glob("[0-9]*"):
        assert sum(path.stat().st_size for path in folder.iterdir()) <= LIMIT


def test_parts_of_an_earlier_call_are_used_again(site: Path, tmp_path: Path) -> None:
    parts.split(site, tmp_path / "first", tmp_path / "kept", LIMIT, SPARE)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    (site / "zz-last").write_text("new")
    parts.split(site, tmp_path / "second", tmp_path / "kept", LIMIT, SPARE)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    assert before.items() <= after.items()
    assert len(after) == len(before) + 1


def test_missing_and_damaged_parts_are_named_until_they_arrive(site: Path, tmp_path: Path) -> None:
    parts.split(site, tmp_path / "pack", tmp_path / "kept", LIMIT, SPARE)
    first, second, *_ = sorted((tmp_path / "pack").rglob("*.xz"))
    kept = shutil.move(first, tmp_path / first.name)
    whole = second.read_bytes()
    second.unlink()  # it is a hard link to the kept part
    second.write_bytes(whole[:-1])
    with pytest.raises(parts.PackError, match="2 of") as caught:
        parts.join(tmp_path / "pack", tmp_path / "joined")
    assert first.name in str(caught.value)
    assert second.name in str(caught.value)
    assert not (tmp_path / "joined").exists()

    second.write_bytes(whole)
    shutil.move(kept, tmp_path / "pack")  # in any directory of the pack
    parts.join(tmp_path / "pack", tmp_path / "joined")
    assert contents(tmp_path / "joined") == contents(site)


def test_no_round_is_larger_than_the_limit() -> None:
    sizes = [59, 7, 30, 31, 1, 29, 58, 60]
    found = parts.rounds({f"{size}": {"size_bytes": size} for size in sizes}, limit=60)
    assert sorted(name for names in found for name in names) == sorted(map(str, sizes))
    assert all(sum(map(int, names)) <= 60 for names in found)
    assert len(found) == 5


def test_artifacts_have_the_code_of_one_architecture_and_the_chosen_components() -> None:
    wanted = {artifact["cuda"]: artifact for artifact in build.wanted() if "nvcc" in artifact}
    assert {artifact["device_code"] for artifact in build.wanted()} == {90}
    components = [each["key"] for each in wanted["11.8"]["components"]]
    assert components == ["cuda_cudart", "cuda_nvrtc", "libcublas"]
    opened = {"libcublas", "libcufft", "libcusolver", "libcusparse"}
    assert opened < {each["key"] for each in wanted["12.5"]["components"]}


def performed(
    tmp_path: Path, steps: dict[str, Callable[[run.Run], None]], seconds: float = 60
) -> dict[str, Any]:
    """The record of a run of these steps; each needs the one called `first`, but for itself."""
    options = argparse.Namespace(
        pack=tmp_path, work=tmp_path, output=tmp_path / "out", gpus=0, seconds=seconds, slower=1
    )
    options.output.mkdir()
    needs = {name: ("first",) if name == "second" else () for name in steps}
    run.perform(options, {n: run.Step(act, 30, 1, needs[n]) for n, act in steps.items()})
    record: dict[str, Any] = json.loads((options.output / "record.json").read_text())
    return record["steps"]


def fails(each: run.Run) -> None:
    raise run.StepError("it broke")


def passes(each: run.Run) -> None:
    each.command("sh", "-c", "echo done")


def test_a_failed_step_is_recorded_and_those_that_do_not_need_it_go_on(tmp_path: Path) -> None:
    steps = performed(tmp_path, {"first": fails, "second": passes, "third": passes})
    assert {name: row["state"] for name, row in steps.items()} == {
        "first": "failed",
        "second": "not started",
        "third": "passed",
    }
    assert steps["first"]["error"] == "StepError: it broke"
    assert "it broke" in (tmp_path / "out/record.md").read_text()
    assert "done" in (tmp_path / "out/log.txt").read_text()


def test_a_command_ends_at_the_deadline_with_everything_it_started(tmp_path: Path) -> None:
    def hangs(each: run.Run) -> None:
        each.command("sh", "-c", "sleep 300 & echo $! >pid; wait")

    began = time.monotonic()
    steps = performed(tmp_path, {"first": hangs, "third": passes}, seconds=2)
    assert steps["first"]["state"] == "stopped"
    assert steps["third"]["state"] == "not started"
    assert time.monotonic() - began < 200
    sleeping = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    wait_until(lambda: not sleeping.exists() or " Z " in sleeping.read_text())


def test_a_report_says_which_checks_are_not_healthy() -> None:
    checks = [{"id": "a", "verdict": "PASS"}, {"id": "b", "verdict": "FAIL"}]
    checks += [{"id": "c", "verdict": "NOT-DECLARED"}, {"id": "d", "verdict": "INCONCLUSIVE"}]
    assert run.failed_checks({"hosts": {"gpu": {"checks": checks}}}) == ["b", "d"]
