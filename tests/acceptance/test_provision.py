"""The main job as a person does it: bad input refused, a fresh host provisioned, broken, repaired.

The tests of this module are one story on the same host, and run in their order. What needs a second
host is in `test_provisioned.py`.
"""

from __future__ import annotations

import json

import pytest

from tests.support.lab_fleet import STACK, TOOLKIT, Fleet

pytestmark = [pytest.mark.lab, pytest.mark.newcomer]

UP = ("--hosts", "lab1")
# Without it, provision starts both hosts of the default lab.
WHERE = ("-i", "inventory/lab")


def test_an_unknown_release_is_refused_before_any_host_is_touched(fleet: Fleet) -> None:
    done = fleet.gpufleet(
        "provision", *WHERE, "-e", json.dumps({"gpu_stacks": [{"tensorflow": "9.9"}]}), status=4
    )
    output = " ".join((done.stdout + done.stderr).split())
    assert "gpu_stacks[0].tensorflow" in output
    assert "9.9" in output
    assert "Nothing was changed on any host." in output
    assert "PLAY" not in output


def test_check_mode_on_a_fresh_host_lists_what_it_would_do_and_changes_nothing(
    fleet: Fleet,
) -> None:
    before = fleet.state("lab1")
    output = fleet.gpufleet("provision", *WHERE, "--check", "--diff").stdout
    for promise in (
        "toolkit 11.8: 11.8.0 in /usr/local/cuda-11.8",
        "cudnn 11.8-8: 8.6.0.163 in /usr/local/cuda-11.8",
        "stack tensorflow-2.13.1: 2.13.1 in /opt/gpufleet/stacks/tensorflow-2.13.1",
        "+/usr/local/cuda-11.8/lib64",
        "Would install libxml2",
    ):
        assert promise in output
    assert "failed=0" in output
    assert fleet.state("lab1") == before


def test_provision_ends_with_what_holds_what_was_not_provable_and_the_report(
    fleet: Fleet,
) -> None:
    output = fleet.gpufleet("provision", *WHERE).stdout
    end = " ".join(output[output.rindex("1 host healthy:") :].split())
    assert "all declared checks pass" in end
    assert "multiplies matrices exactly on the CPU, not on a GPU" in end
    skipped = end[end.index("Skipped by declaration (the report names the checks): ") :]
    assert "gpu_expect: {count: 0}" in skipped
    assert "Report: reports/latest/report.html" in end


def test_a_second_provision_changes_nothing(fleet: Fleet) -> None:
    before = fleet.state("lab1")
    assert (
        "No host differs from its plan: nothing to run."
        in fleet.gpufleet("provision", *WHERE).stderr
    )
    assert fleet.state("lab1") == before


def test_links_versions_and_cache_are_as_declared(fleet: Fleet) -> None:
    assert fleet.on("lab1", "readlink /usr/local/cuda") == "cuda-11.8\n"
    version = json.loads(fleet.on("lab1", "cat /usr/local/cuda/version.json"))
    assert version["cuda"]["version"].startswith("11.8")
    links = fleet.on("lab1", f"cd {TOOLKIT}/lib64 && readlink libcudnn.so libcudnn.so.8")
    assert links.split() == ["libcudnn.so.8", "libcudnn.so.8.6.0"]
    header = fleet.on("lab1", f"cat {TOOLKIT}/include/cudnn_version.h")
    for name, value in (("MAJOR", 8), ("MINOR", 6), ("PATCHLEVEL", 0)):
        assert f"#define CUDNN_{name} {value}\n" in header
    cache = fleet.on("lab1", "/sbin/ldconfig -p")
    for soname in ("libcudart.so.11.0", "libcublas.so.11", "libcudnn.so.8"):
        assert f"{soname} (libc6,x86-64) => {TOOLKIT}/lib64/{soname}" in cache


def test_an_empty_environment_maps_the_stack_s_own_toolkit_only(fleet: Fleet) -> None:
    program = (
        "import tensorflow as tf; print(tf.__version__);"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if '/libcu' in line})"
    )
    version, mapped = fleet.on(
        "lab1", f'env -i {STACK}/bin/python -c "{program}" 2>/dev/null'
    ).splitlines()
    assert version == "2.13.1"
    assert any("libcudnn.so.8.6.0" in path for path in mapped.split())
    assert all(path.startswith(f"{TOOLKIT}/") for path in mapped.split())


def test_a_removed_library_fails_exactly_its_checks(fleet: Fleet) -> None:
    fleet.on("lab1", f"rm {TOOLKIT}/lib64/libcudnn.so.8")
    verdicts = fleet.verdicts(1)
    failed = {name: row for name, row in verdicts["lab1"].items() if row["verdict"] == "FAIL"}
    assert set(failed) == {"cudnn.files", "cudnn.links", "linker.cache", "stack.libraries"}
    for row in failed.values():
        assert "libcudnn.so.8" in row["cause"]
        assert "./gpufleet provision --limit lab1" in row["remedy"]


def test_provision_repairs_it(fleet: Fleet) -> None:
    output = fleet.gpufleet("provision", *WHERE).stdout
    assert "all declared checks pass" in " ".join(output.split())
    fleet.verdicts(0)
