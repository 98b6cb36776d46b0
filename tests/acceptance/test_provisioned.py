"""On provisioned hosts: only what differs is repaired, and removal takes what was installed.

The tests of this module are one story on the same two hosts, and run in their order.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.support.lab_fleet import ROOT, RUNFILE, STACK, TOOLKIT, Fleet

pytestmark = pytest.mark.lab

BOTH = ("lab1", "lab2")
# How often Ansible has become root there.
ANSIBLE = "journalctl --no-pager | grep -c 'sudo.*BECOME-SUCCESS' || :"
PYTEST = ROOT / ".venv" / "bin" / "pytest"
# Faults that both opinions have to see, and how they are taken back without a trace.
FAULTS = {
    "lab1": f"mv {TOOLKIT}/lib64/libcudnn.so.8 /usr/local/cuda /root; ln -s lib /usr/local/cuda",
    "lab2": f"mv {TOOLKIT}/lib64/libcublas.so.11.* /root",
}
MENDED = {
    "lab1": f"mv /root/libcudnn.so.8 {TOOLKIT}/lib64; mv -T /root/cuda /usr/local/cuda",
    "lab2": f"mv /root/libcublas.so.11.* {TOOLKIT}/lib64",
}
# The check that fails of each test of the second opinion that fails.
OPINIONS = {
    ("lab1", "test_cudnn_links"): "cudnn.links",
    ("lab1", "test_default_link"): "toolkit.default-link",
    ("lab1", "test_linker_cache"): "linker.cache",
    ("lab2", "test_linker_cache"): "linker.cache",
}


@pytest.fixture(autouse=True, scope="module")
def provisioned(fleet: Fleet) -> None:
    """Provision the hosts, as `tests/acceptance/test_provision.py` expects them."""
    fleet.gpufleet("provision")


def test_a_second_run_of_ansible_changes_nothing(fleet: Fleet) -> None:
    before = [fleet.state(host) for host in BOTH]
    assert fleet.gpufleet("provision", "--force").stdout.count("changed=0 ") == len(BOTH)
    assert [fleet.state(host) for host in BOTH] == before


def test_the_suite_runs_natively_under_pytest(fleet: Fleet) -> None:
    done = fleet.run(PYTEST, "verify/", "--ansible-inventory=inventory/lab", "-q")
    assert "passed" in done.stdout
    assert "failed" not in done.stdout


def second_opinion(fleet: Fleet, *words: str, status: int) -> str:
    """The output of `verify/test_smoke.py` on both hosts."""
    hosts = ("--hosts=ansible://gpu_hosts", "--ansible-inventory=inventory/lab")
    return fleet.run(PYTEST, "verify/test_smoke.py", *hosts, *words, status=status).stdout


def test_the_second_opinion_passes_healthy_hosts(fleet: Fleet) -> None:
    """That the checks pass there, `provision` has just said."""
    output = second_opinion(fleet, status=0)
    # Without a GPU there is nothing to list and no container to start.
    assert "10 passed, 4 skipped" in output
    assert "the PCI bus has no NVIDIA GPU" in output


def test_the_second_opinion_fails_where_the_checks_fail(fleet: Fleet) -> None:
    try:
        for host, fault in FAULTS.items():
            fleet.on(host, fault)
        output = second_opinion(fleet, "-k", "not matrix_product", status=1)
        verdicts = fleet.verdicts(1)
    finally:
        for host, mended in MENDED.items():
            fleet.on(host, mended)
    failed = re.findall(r"^FAILED \S+::(\w+)\[ansible://(\w+)\]", output, flags=re.MULTILINE)
    assert {(host, test) for test, host in failed} == OPINIONS.keys()
    for (host, _), check in OPINIONS.items():
        assert verdicts[host][check]["verdict"] == "FAIL"
    assert verdicts["lab2"]["toolkit.files"]["verdict"] == "FAIL"
    assert verdicts["lab2"]["toolkit.default-link"]["verdict"] == "PASS"
    assert verdicts["lab2"]["cudnn.links"]["verdict"] == "PASS"


def test_a_removed_library_fails_its_own_host_alone(fleet: Fleet) -> None:
    fleet.on("lab1", f"rm {TOOLKIT}/lib64/libcudnn.so.8")
    verdicts = fleet.verdicts(1)
    failed = {name for name, row in verdicts["lab1"].items() if row["verdict"] == "FAIL"}
    assert failed == {"cudnn.files", "cudnn.links", "linker.cache", "stack.libraries"}
    assert {row["verdict"] for row in verdicts["lab2"].values()} == {"PASS", "NOT-DECLARED"}
    fleet.gpufleet("provision")


def test_only_the_host_that_differs_is_provisioned_and_has_the_reason(fleet: Fleet) -> None:
    before = fleet.state("lab2")
    entered = fleet.on("lab2", ANSIBLE)
    assert int(entered) > 0
    # Damage, and what a run leaves that is killed at its last moment: all stands, uncleared.
    downloads = "/var/cache/gpufleet/gpufleet-python"
    fleet.on("lab1", f"truncate -s 9 {TOOLKIT}/version.json; mkdir -p {downloads}")
    done = fleet.gpufleet("provision")
    (reported,) = [line for line in done.stderr.splitlines() if "Ansible runs on" in line]
    assert reported.startswith("Ansible runs on lab1: repair toolkit 11.8: changed since")
    assert "version.json (size)" in reported
    assert "1 of 2 hosts matches its plan and is left alone." in done.stderr
    assert "--limit lab1\n" in done.stderr
    assert "lab2" not in done.stdout.partition("✓ lab1")[0]
    assert "2 hosts healthy: all declared checks pass." in done.stdout
    assert fleet.on("lab1", "ls /var/cache/gpufleet") == ""
    assert fleet.on("lab2", ANSIBLE) == entered
    assert fleet.state("lab2") == before


def test_a_host_without_python_gets_no_ansible_and_is_named(fleet: Fleet) -> None:
    fleet.on("lab2", "mv /usr/bin/python3 /usr/bin/python3.away")
    try:
        done = fleet.gpufleet("provision", status=1)
    finally:
        fleet.on("lab2", "mv /usr/bin/python3.away /usr/bin/python3")
    assert "Nothing is run on lab2: it is not reached" in done.stderr
    assert "python3 was not found on lab2" in " ".join(done.stdout.split())
    assert "PLAY [" not in done.stdout


@pytest.mark.slow
def test_what_ansible_cannot_do_is_one_cause_and_is_not_tried_again(fleet: Fleet) -> None:
    """An index without an address: three runs of Ansible and 14 causes, the true one among them."""
    fleet.on("lab1", f"rm -r {STACK}")
    nowhere = "http://index.invalid/simple"
    words = ("provision", "--limit", "lab1", "-e", f"gpu_pip_index_url={nowhere}")
    done = fleet.gpufleet(*words, status=1)
    assert done.stdout.count("PLAY RECAP") == 1
    output = " ".join(done.stdout.split())
    assert "FAIL host.plan: " in output and "Ansible failed in '" in output
    # The index may hold a password: Ansible shows none of its address.
    assert "is not resolved (uv pip install failed" in output and "consequences: " in output
    assert "recreate" not in output
    fleet.gpufleet("provision")


# Each has a row in the table of faults as well.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("breakage", "checks", "reported"),
    [
        (
            f"truncate -s 1000 {TOOLKIT}/targets/x86_64-linux/lib/libcublas.so.11.*",
            # What opens it is killed: cuDNN on being asked its version, TensorFlow on import.
            {"toolkit.files", "cudnn.present", "stack.matmul"},
            "libcublas",
        ),
        (
            "ln -sfn /nowhere /usr/local/cuda",
            {"toolkit.default-link"},
            "/nowhere",
        ),
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
            + json.dumps(
                {
                    "kind": "cudnn",
                    "id": "11.8-8",
                    "path": TOOLKIT,
                    "state": "installing",
                    "version": "8.6.0.163",
                    "fresh": False,
                    "started": "x",
                    "schema": 1,
                }
            )
            + "' >/var/lib/gpufleet/journal/cudnn-11.8-8.json",
            {"install.complete"},
            "11.8-8",
        ),
    ],
    ids=["truncated library", "default link", "unreadable header", "pip install", "half-installed"],
)
def test_other_breakages_are_named_and_repaired(
    fleet: Fleet, breakage: str, checks: set[str], reported: str
) -> None:
    fleet.on("lab2", breakage)
    verdicts = fleet.verdicts(1, "--limit", "lab2")["lab2"]
    failed = {name for name, row in verdicts.items() if row["verdict"] == "FAIL"}
    assert failed == checks
    assert any(reported in verdicts[name]["cause"] for name in checks)
    assert all(verdicts[name]["remedy"] for name in checks)
    fleet.gpufleet("provision", "--limit", "lab2")


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
    output = fleet.gpufleet("remove", *what, "--limit", "lab1").stdout
    assert f"{TOOLKIT}/targets/x86_64-linux/lib/theirs" in output
    left = fleet.on("lab1", "find /usr/local/cuda* /opt/gpufleet/stacks -type f -o -type l")
    assert left == f"{TOOLKIT}/targets/x86_64-linux/lib/theirs\n"
    assert TOOLKIT not in fleet.on("lab1", "/sbin/ldconfig -p")
    assert fleet.on("lab1", "find /var/lib/gpufleet -name '*.json'") == ""
    assert fleet.state("lab2") == before


@pytest.mark.slow
def test_what_was_removed_is_missed_and_comes_back(fleet: Fleet) -> None:
    missed = {name for name, row in fleet.verdicts(1)["lab1"].items() if row["verdict"] == "FAIL"}
    assert {"toolkit.present", "stack.release"} <= missed
    fleet.on("lab1", f"rm -r {TOOLKIT}")
    fleet.gpufleet("provision")
    fleet.verdicts(0)
