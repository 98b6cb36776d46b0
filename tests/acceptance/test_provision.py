"""The main job as a person does it: from fresh hosts to verified ones, broken and mended.

The tests of this module are one story on the same two hosts, and run in their order.
"""

from __future__ import annotations

import json

import pytest

from tests.support.lab_fleet import ROOT, RUNFILE, STACK, TOOLKIT, Fleet

pytestmark = [pytest.mark.lab, pytest.mark.newcomer]

BOTH = ("lab1", "lab2")
# How often Ansible has become root there.
ANSIBLE = "journalctl --no-pager | grep -c 'sudo.*BECOME-SUCCESS' || :"


def test_check_mode_on_fresh_hosts_lists_what_it_would_do_and_changes_nothing(
    fleet: Fleet,
) -> None:
    before = [fleet.state(host) for host in BOTH]
    said = fleet.gpufleet("provision", "--check", "--diff").stdout
    for promise in (
        "toolkit 11.8: 11.8.0 in /usr/local/cuda-11.8",
        "cudnn 11.8-8: 8.6.0.163 in /usr/local/cuda-11.8",
        "stack tensorflow-2.13.1: 2.13.1 in /opt/gpufleet/stacks/tensorflow-2.13.1",
        "+/usr/local/cuda-11.8/lib64",
        "Would install libxml2",
    ):
        assert promise in said
    assert "failed=0" in said
    assert [fleet.state(host) for host in BOTH] == before


def test_provision_ends_with_what_holds_what_was_not_provable_and_the_report(
    fleet: Fleet,
) -> None:
    said = fleet.gpufleet("provision").stdout
    end = " ".join(said[said.rindex("2 hosts healthy:") :].split())
    assert "all declared checks pass" in end
    assert "multiplies matrices exactly on the CPU, not on a GPU" in end
    assert "Skipped by declaration gpu_expect: {count: 0}" in end
    assert "Report: reports/latest/report.html" in end


def test_a_second_provision_changes_nothing(fleet: Fleet) -> None:
    before = [fleet.state(host) for host in BOTH]
    assert "No host differs from its plan: nothing to run." in fleet.gpufleet("provision").stderr
    assert fleet.gpufleet("provision", "--force").stdout.count("changed=0 ") == len(BOTH)
    assert [fleet.state(host) for host in BOTH] == before


def test_only_the_host_that_differs_is_provisioned_and_told_why(fleet: Fleet) -> None:
    before = fleet.state("lab2")
    entered = fleet.on("lab2", ANSIBLE)
    assert int(entered) > 0
    # Damage, and what a run leaves that is killed at its last moment: all stands, uncleared.
    fleet.on("lab1", f"truncate -s 9 {TOOLKIT}/version.json; mkdir -p /var/cache/gpufleet/python")
    done = fleet.gpufleet("provision")
    (told,) = [line for line in done.stderr.splitlines() if "Ansible runs on" in line]
    assert told.startswith("Ansible runs on lab1: repair toolkit 11.8: changed since")
    assert "version.json (size)" in told
    assert "1 of 2 hosts match their plans and are left alone." in done.stderr
    assert "--limit lab1\n" in done.stderr
    assert "lab2" not in done.stdout.partition("✓ lab1")[0]
    assert "2 hosts healthy: all declared checks pass." in done.stdout
    assert fleet.on("lab1", "ls /var/cache/gpufleet") == ""
    assert fleet.on("lab2", ANSIBLE) == entered
    assert fleet.state("lab2") == before


def test_a_host_that_could_not_be_judged_is_run_and_not_skipped(fleet: Fleet) -> None:
    fleet.on("lab2", "mv /usr/bin/python3 /usr/bin/python3.away")
    try:
        done = fleet.gpufleet("provision", status=1)
    finally:
        fleet.on("lab2", "mv /usr/bin/python3.away /usr/bin/python3")
    assert "Ansible runs on lab2: not judged: python3 was not found on lab2" in done.stderr
    assert "--limit lab2\n" in done.stderr


@pytest.mark.parametrize("host", BOTH)
def test_links_versions_and_cache_are_as_declared(fleet: Fleet, host: str) -> None:
    assert fleet.on(host, "readlink /usr/local/cuda") == "cuda-11.8\n"
    version = json.loads(fleet.on(host, "cat /usr/local/cuda/version.json"))
    assert version["cuda"]["version"].startswith("11.8")
    links = fleet.on(host, f"cd {TOOLKIT}/lib64 && readlink libcudnn.so libcudnn.so.8")
    assert links.split() == ["libcudnn.so.8", "libcudnn.so.8.6.0"]
    header = fleet.on(host, f"cat {TOOLKIT}/include/cudnn_version.h")
    for name, value in (("MAJOR", 8), ("MINOR", 6), ("PATCHLEVEL", 0)):
        assert f"#define CUDNN_{name} {value}\n" in header
    cache = fleet.on(host, "/sbin/ldconfig -p")
    for soname in ("libcudart.so.11.0", "libcublas.so.11", "libcudnn.so.8"):
        assert f"{soname} (libc6,x86-64) => {TOOLKIT}/lib64/{soname}" in cache


@pytest.mark.parametrize("host", BOTH)
def test_an_empty_environment_maps_the_stack_s_own_toolkit_only(fleet: Fleet, host: str) -> None:
    program = (
        "import tensorflow as tf; print(tf.__version__);"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if '/libcu' in line})"
    )
    version, mapped = fleet.on(
        host, f'env -i {STACK}/bin/python -c "{program}" 2>/dev/null'
    ).splitlines()
    assert version == "2.13.1"
    assert any("libcudnn.so.8.6.0" in path for path in mapped.split())
    assert all(path.startswith(f"{TOOLKIT}/") for path in mapped.split())


def test_a_removed_library_fails_exactly_its_checks_on_its_host(fleet: Fleet) -> None:
    fleet.on("lab1", f"rm {TOOLKIT}/lib64/libcudnn.so.8")
    verdicts = fleet.verdicts(1)
    failed = {name: row for name, row in verdicts["lab1"].items() if row["verdict"] == "FAIL"}
    assert set(failed) == {"cudnn.files", "cudnn.links", "linker.cache", "stack.libraries"}
    for row in failed.values():
        assert "libcudnn.so.8" in row["cause"]
        assert "./gpufleet provision --limit lab1" in row["remedy"]
    assert {row["verdict"] for row in verdicts["lab2"].values()} == {"PASS", "NOT-DECLARED"}


def test_provision_repairs_it(fleet: Fleet) -> None:
    said = fleet.gpufleet("provision").stdout
    assert "all declared checks pass" in " ".join(said.split())
    fleet.verdicts(0)


@pytest.mark.parametrize(
    ("breakage", "checks", "told"),
    [
        (
            f"truncate -s 1000 {TOOLKIT}/targets/x86_64-linux/lib/libcublas.so.11.*",
            # What opens it is killed: cuDNN on being asked its version, TensorFlow on import.
            {"toolkit.files", "cudnn.present", "stack.matmul"},
            "libcublas",
        ),
        ("ln -sfn /nowhere /usr/local/cuda", {"toolkit.default-link"}, "/nowhere"),
        (
            f"chmod 600 {TOOLKIT}/include/cudnn_version.h",
            {"cudnn.files", "cudnn.readable"},
            "cudnn_version.h",
        ),
        (
            f"sed -i 's/^Version: .*/Version: 2.12.0/' "
            f"{STACK}/lib/python3.11/site-packages/tensorflow-2.13.1.dist-info/METADATA",
            {"stack.release"},
            "2.12.0",
        ),
        (
            "mkdir -p /var/lib/gpufleet/journal; echo '"
            + json.dumps({"kind": "cudnn", "id": "11.8-8", "path": TOOLKIT, "state": "installing",
                          "version": "8.6.0.163", "fresh": False, "started": "x", "schema": 1})
            + "' >/var/lib/gpufleet/journal/cudnn-11.8-8.json",
            {"install.complete"},
            "11.8-8",
        ),
    ],
    ids=["truncated library", "default link", "unreadable header", "pip install", "half-installed"],
)
def test_other_breakages_are_named_and_mended(
    fleet: Fleet, breakage: str, checks: set[str], told: str
) -> None:
    fleet.on("lab2", breakage)
    verdicts = fleet.verdicts(1, "--limit", "lab2")["lab2"]
    failed = {name for name, row in verdicts.items() if row["verdict"] == "FAIL"}
    assert failed == checks
    assert any(told in verdicts[name]["cause"] for name in checks)
    assert all(verdicts[name]["remedy"] for name in checks)
    fleet.gpufleet("provision", "--limit", "lab2")


def test_the_suite_runs_natively_under_pytest(fleet: Fleet) -> None:
    pytest_program = ROOT / ".venv" / "bin" / "pytest"
    done = fleet.run(pytest_program, "verify/", "--ansible-inventory=inventory/lab", "-q")
    assert "passed" in done.stdout
    assert "failed" not in done.stdout


def test_plan_says_that_nothing_would_change(fleet: Fleet) -> None:
    document = json.loads(fleet.gpufleet("plan", "--json").stdout)
    assert {name: plan["changes"] for name, plan in document["hosts"].items()} == {
        "lab1": [],
        "lab2": [],
    }
    stack = document["hosts"]["lab1"]["stacks"][0]
    assert (stack["cuda"], stack["cudnn"]) == ("11.8", "8.6.0.163")
    assert document["hosts"]["lab1"]["artifacts"][0]["file"] == RUNFILE


def test_a_toolkit_is_not_removed_from_under_a_stack(fleet: Fleet) -> None:
    before = fleet.state("lab1")
    done = fleet.gpufleet("remove", "--toolkit", "11.8", "--limit", "lab1", status=None)
    assert done.returncode != 0
    assert "needed by tensorflow-2.13.1" in " ".join(done.stdout.split())
    assert fleet.state("lab1") == before


def test_remove_takes_exactly_what_was_installed_on_that_host(fleet: Fleet) -> None:
    before = fleet.state("lab2")
    fleet.on("lab1", f"echo precious >{TOOLKIT}/lib64/theirs")
    what = ("--stack", "tensorflow-2.13.1", "--toolkit", "11.8")
    said = fleet.gpufleet("remove", *what, "--limit", "lab1").stdout
    assert f"{TOOLKIT}/targets/x86_64-linux/lib/theirs" in said
    left = fleet.on("lab1", "find /usr/local/cuda* /opt/gpufleet/stacks -type f -o -type l")
    assert left == f"{TOOLKIT}/targets/x86_64-linux/lib/theirs\n"
    assert TOOLKIT not in fleet.on("lab1", "/sbin/ldconfig -p")
    assert fleet.on("lab1", "find /var/lib/gpufleet -name '*.json'") == ""
    assert fleet.state("lab2") == before


def test_what_was_removed_is_missed_and_comes_back(fleet: Fleet) -> None:
    missed = {name for name, row in fleet.verdicts(1)["lab1"].items() if row["verdict"] == "FAIL"}
    assert {"toolkit.present", "stack.release"} <= missed
    fleet.on("lab1", f"rm -r {TOOLKIT}")
    fleet.gpufleet("provision")
    fleet.verdicts(0)
