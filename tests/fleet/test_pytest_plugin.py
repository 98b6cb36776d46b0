"""A site's own tests: the fixtures that the installed package provides, on recorded documents."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import PLAN, ROOT, SNAPSHOT, run
from tests.support.healthy_host import Document, data

EXAMPLE = ROOT / "examples" / "test_site.py"
TOOLKIT = "/usr/local/cuda-11.8"
# testinfra's name for this machine, whose commands answer for the recorded host's.
LOCAL = "local"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The example as a site has it: a copy outside the repository."""
    return Path(shutil.copy(EXAMPLE, tmp_path / "test_site.py"))


def on_recorded(
    tests: Path, plan: Document, snapshot: Document
) -> subprocess.CompletedProcess[str]:
    """Run tests on a recorded host; its toolkit is a directory of this machine."""
    toolkit = tests.parent / "cuda-11.8"
    toolkit.mkdir(mode=0o755, exist_ok=True)
    args = []
    for name, document in (("plan", plan), ("snapshot", snapshot)):
        document["host"] = LOCAL
        path = tests.parent / f"{name}.json"
        path.write_text(json.dumps(document).replace(TOOLKIT, str(toolkit)), encoding="utf-8")
        args += [f"--gpu-{name}", str(path)]
    return run(
        "pytest", str(tests), "--hosts=local://", *args, "-p", "no:cacheprovider", "-v",
        f"--rootdir={tests.parent}",
    )  # fmt: skip


def test_the_example_passes_on_a_healthy_host(
    site: Path, plan: Document, snapshot: Document
) -> None:
    ended = on_recorded(site, plan, snapshot)
    assert ended.returncode == 0, ended.stdout
    for name in (
        "only_the_owner_writes_to_a_toolkit",
        "temporary_files_have_space",
        "every_host_computes",
    ):
        assert f"test_site.py::test_{name}[local] PASSED" in ended.stdout


def test_the_example_fails_where_each_fixture_shows_a_fault(
    site: Path, plan: Document, snapshot: Document
) -> None:
    data(snapshot, "disks")["free_mib"]["/tmp"] = 5
    snapshot["sections"]["stacks"].update(state="hung", data=None)
    (site.parent / "cuda-11.8").mkdir()
    (site.parent / "cuda-11.8").chmod(0o777)
    ended = on_recorded(site, plan, snapshot)
    assert ended.returncode == 1
    assert "3 failed" in ended.stdout.splitlines()[-1], ended.stdout
    assert "has the mode 777" in ended.stdout
    assert "stack.mapped: HUNG" in ended.stdout


def test_nothing_of_a_host_that_was_not_reached_passes(site: Path) -> None:
    inventory = site.parent / "hosts.yml"
    inventory.write_text(
        "gpu_hosts: {hosts: {gone: {ansible_host: 127.0.0.1, ansible_port: 1,"
        ' gpu_stacks: [{tensorflow: "2.13.1"}]}}}'
    )
    ended = run("pytest", str(site), f"--ansible-inventory={inventory}", "-p", "no:cacheprovider")
    assert ended.returncode == 1, ended.stdout
    assert ended.stdout.count("UNREACHABLE: The host is reachable and runs the probe.") >= 2
    assert "1 failed, 2 errors" in ended.stdout.splitlines()[-1]


def test_a_test_with_the_host_alone_keeps_the_hosts_of_testinfra(tmp_path: Path) -> None:
    tests = tmp_path / "test_mixed.py"
    tests.write_text(
        "def test_before(host): assert True\n"
        "def test_plan(gpu_plan): assert gpu_plan['host'] == 'gpu01'\n"
        "def test_after(host): assert True\n"
        "def test_neither(): assert True\n"
    )
    ended = run(
        "pytest", str(tmp_path), "--gpu-snapshot", SNAPSHOT, "--gpu-plan", PLAN, f"--rootdir={tmp_path}",
        "-p", "no:cacheprovider", "-v",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    for name in ("before[local]", "plan[gpu01]", "after[local]", "neither"):
        assert f"test_mixed.py::test_{name} PASSED" in ended.stdout


def test_a_test_cannot_change_what_the_next_one_reads(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(
            "def test_it(gpu_plan, gpu_verdicts, gpu_snapshot):\n"
            "    assert gpu_plan.pop('host') == gpu_snapshot.pop('host') == 'gpu01'\n"
            "    assert gpu_verdicts['cudnn.links'].pop('verdict') == 'PASS'\n"
        )
    ended = run(
        "pytest", str(tmp_path), "--gpu-snapshot", SNAPSHOT, "--gpu-plan", PLAN,
        "-p", "no:cacheprovider",
    )  # fmt: skip
    assert "2 passed" in ended.stdout, ended.stdout


@pytest.mark.parametrize(("assertion", "status"), [("True", 0), ("False", 1)])
def test_verify_runs_a_sites_tests_after_the_checks_and_ends_by_both(
    tmp_path: Path, assertion: str, status: int
) -> None:
    tests = tmp_path / "site-tests" / "test_own.py"
    tests.parent.mkdir()
    tests.write_text(f"def test_own(gpu_plan): assert {assertion}\n")
    ended = run(
        "verify", "--snapshot", SNAPSHOT, "--plan", PLAN, "--report", str(tmp_path / "r"),
        "-v", str(tests.parent),
    )  # fmt: skip
    assert ended.returncode == status, ended.stderr
    assert "verify/test_cudnn.py::test_links[gpu01] PASSED" in ended.stderr
    assert "test_own.py::test_own[gpu01]" in ended.stderr
    assert "Warning" not in ended.stderr
    junit = (tmp_path / "r/latest/junit.xml").read_text()
    assert 'name="test_own[gpu01]"' in junit and 'name="test_links[gpu01]"' in junit


def test_hosts_that_testinfra_does_not_find_are_named(site: Path) -> None:
    inventory = site.parent / "hosts.yml"
    inventory.write_text("gpu_hosts: {hosts: {here: {ansible_connection: local}}}")
    ended = run(
        "pytest", str(site), f"--ansible-inventory={inventory}", "--hosts=ansible://gone",
        "-p", "no:cacheprovider",
    )  # fmt: skip
    assert ended.returncode != 0
    assert "testinfra finds none of the hosts ansible://gone" in ended.stdout
    assert "INTERNALERROR" not in ended.stdout + ended.stderr
