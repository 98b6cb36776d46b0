"""Five stacks on one host, from TensorFlow 1.0.0 to 2.21.0: each with its own CUDA, none disturbed.

The tests of this module are one story on the same host, and run in their order.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lab import elf, pythons
from lab.errors import LabError
from tests.support.lab_fleet import ROOT, Fleet
from tests.support.mapped_libraries import STACKS, mapped

try:
    pythons.find("3.6", os.environ)
except LabError as error:
    pytest.skip(error.message, allow_module_level=True)

# What two stacks of it show is in `test_two_stacks.py`.
pytestmark = [pytest.mark.lab, pytest.mark.slow]
ARTIFACTS = ("--all",)
UP = ("--hosts", "lab1", "--python", "3.6")

WHERE = ("-i", "inventory/side-by-side")
# Each stack's own place, and a library of it that must be there.
OWN = {
    "tensorflow-1.0.0": ("/usr/local/cuda-8.0/", "libcudnn.so.5.1.10"),
    "tensorflow-1.4.0": ("/usr/local/cuda-8.0/", "libcudnn.so.6.0.21"),
    "tensorflow-2.13.1": ("/usr/local/cuda-11.8/", "libcudnn.so.8.6.0"),
    "tensorflow-2.18.1": ("/usr/local/cuda-12.5/", "libcudart.so.12.5.82"),
    "tensorflow-2.21.0": (f"{STACKS}/tensorflow-2.21.0/", "libcusolver.so.11"),
}


def contents(fleet: Fleet, *places: str) -> str:
    """A digest of every file's content, mode and time, and of every link, in some places."""
    files = f"find {' '.join(places)} -not -path '*/__pycache__*'"
    return fleet.on(
        "lab1",
        f"{{ {files} -printf '%p %y %m %l %T@\\n' | sort; {files} -type f -print0 | sort -z"
        " | xargs -0 sha256sum; } | sha256sum",
    )


def test_one_provision_brings_all_five(fleet: Fleet) -> None:
    output = " ".join(fleet.gpufleet("provision", *WHERE).stdout.split())
    assert "all declared checks pass" in output
    for stack in OWN:
        assert f"{stack} multiplies matrices exactly on the CPU" in output


@pytest.mark.parametrize("stack", OWN)
def test_a_stack_maps_its_own_libraries_only(fleet: Fleet, stack: str) -> None:
    place, library = OWN[stack]
    files = mapped(fleet, stack)
    assert any(path.endswith(f"/{library}") for path in files)
    assert [path for path in files if not path.startswith(place)] == []


def test_a_second_run_changes_nothing(fleet: Fleet) -> None:
    before = fleet.state("lab1")
    assert "changed=0 " in fleet.gpufleet("provision", "--force", *WHERE).stdout
    assert fleet.state("lab1") == before


def test_the_plan_names_toolkits_left_out_of_the_linker_cache(fleet: Fleet) -> None:
    output = " ".join(fleet.gpufleet("plan", *WHERE).stdout.split())
    assert "CUDA 8.0.61, patch 8.0.61.2 in /usr/local/cuda-8.0" in output
    for loser in ("12.3", "12.5"):
        assert re.search(
            rf"The linker cache uses CUDA 11\.8 for [^,]+(, [^,]+)*, not {loser}\.", output
        )
    assert "none: the host matches its plan" in output


# What people do to such hosts, and what they are told: {check: a part of its cause}.
CLASSICS = {
    "cuDNN 5 given to TensorFlow 1.4.0": (
        "cd /usr/local/cuda-8.0/lib64 && ln -sfn libcudnn.so.5.1.10 libcudnn.so.6",
        {
            "cudnn.present": "libcudnn.so.6 reports cuDNN 5.1.10, declared is 6.0",
            "cudnn.files": "libcudnn.so.6 (target)",
            "stack.mapped": "libcudnn.so.5.1.10, which was installed for something else",
            # It is linked against that name, which cuDNN 5 does not bear.
            "stack.matmul": "TensorFlow of tensorflow-1.4.0",
        },
    ),
    "ldconfig was not run": (
        "cd /etc/ld.so.conf.d && mv gpufleet-cuda.conf /root/ && /sbin/ldconfig"
        " && mv /root/gpufleet-cuda.conf .",
        {"linker.cache": "The linker cache does not list libcudart.so.8.0"},
    ),
    "links were copied": (
        "cd /usr/local/cuda-11.8/lib64 && cp --remove-destination -L libcudnn.so.8.6.0"
        " libcudnn.so.8",
        {
            "cudnn.links": "libcudnn.so.8 is a copy, not a symlink to libcudnn.so.8.6.0",
            "cudnn.files": "libcudnn.so.8 (type)",
        },
    ),
    "a package took the default link": (
        # As the maintainer scripts of NVIDIA's own packages do it.
        "rm /usr/local/cuda; update-alternatives --install /usr/local/cuda cuda"
        " /usr/local/cuda-12.3 123",
        {
            "toolkit.default-link": "points to /usr/local/cuda-12.3, declared is /usr/local/cuda-11.8"
        },
    ),
    "pip install -U in a stack": (
        f"{STACKS}/tensorflow-2.13.1/bin/python -m pip install -q -U 'numpy<2'",
        {"stack.release": "numpy 1.24.3 -> 1.26.4", "stack.files": "numpy"},
    ),
    "LD_LIBRARY_PATH for everybody": (
        "echo 'export LD_LIBRARY_PATH=/usr/local/cuda-12.5/lib64' >>/home/deploy/.profile",
        {"environment.login": "A login of deploy sets LD_LIBRARY_PATH"},
    ),
}


def test_the_classic_failures_are_named_all_at_once(fleet: Fleet) -> None:
    wanted: dict[str, list[str]] = {}
    for breakage, reported in CLASSICS.values():
        fleet.on("lab1", breakage)
        for check, cause in reported.items():
            wanted.setdefault(check, []).append(cause)
    verdicts = fleet.verdicts(1, *WHERE)["lab1"]
    failed = {name: row for name, row in verdicts.items() if row["verdict"] == "FAIL"}
    assert set(failed) == set(wanted)
    for check, causes in wanted.items():
        for cause in causes:
            assert cause in failed[check]["cause"]
        assert failed[check]["remedy"]


def test_provision_repairs_them_and_leaves_what_is_a_person_s_own(fleet: Fleet) -> None:
    output = " ".join(fleet.gpufleet("provision", *WHERE, status=1).stdout.split())
    assert "1 FAIL" in output
    assert "A login of deploy sets LD_LIBRARY_PATH=/usr/local/cuda-12.5/lib64" in output
    fleet.on("lab1", "sed -i /LD_LIBRARY_PATH/d /home/deploy/.profile")
    fleet.verdicts(0, *WHERE)


def uv_finds_python(fleet: Fleet, version: str, tmp_path: Path) -> None:
    """Set uv on the host to a directory with one build, made of this machine's own interpreter."""
    prefix = pythons.find(version, os.environ)
    question = "import platform; print(platform.python_version())"
    full = subprocess.check_output(
        [prefix / f"bin/python{version}", "-c", question], text=True
    ).strip()
    pythons.lay_out(prefix, version, tmp_path / "python")
    # Unlike the lab's copies, uv's builds find their libraries wherever they stand.
    program = tmp_path / f"python/bin/python{version}"
    elf.move_runpath(program, f"{pythons.PLACE / version}/", "$ORIGIN/../")
    subprocess.run(["tar", "-czf", "build.tar.gz", "python"], cwd=tmp_path, check=True)
    major, minor, patch = map(int, full.split("."))
    build = {
        "name": "cpython",
        "arch": {"family": "x86_64", "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": major,
        "minor": minor,
        "patch": patch,
        "prerelease": "",
        "url": "file:///srv/uv/build.tar.gz",
        "variant": None,
        "build": None,
        "sha256": hashlib.sha256((tmp_path / "build.tar.gz").read_bytes()).hexdigest(),
    }
    (tmp_path / "builds.json").write_text(json.dumps({f"cpython-{full}-linux-x86_64-gnu": build}))
    fleet.on("lab1", "mkdir -p /srv/uv")
    for name in ("build.tar.gz", "builds.json"):
        fleet.run("podman", "cp", tmp_path / name, f"gpufleet-{fleet.instance}-lab1:/srv/uv/{name}")
    setting = 'python-downloads-json-url = "/srv/uv/builds.json"'
    fleet.on(
        "lab1",
        f"mkdir -p /etc/uv; touch /etc/uv/uv.toml; sed -i '1i {setting}' /etc/uv/uv.toml",
    )


def test_a_sixth_stack_is_added_and_nothing_else_is_touched(fleet: Fleet, tmp_path: Path) -> None:
    try:
        uv_finds_python(fleet, "3.9", tmp_path)
    except LabError as error:
        pytest.skip(error.message)
    locks = shutil.copytree(ROOT / "inventory/side-by-side/stacks", tmp_path / "stacks")
    places = [
        *(f"{STACKS}/{stack}" for stack in OWN),
        *(f"/usr/local/cuda-{short}" for short in ("8.0", "11.8", "12.5")),
        "/etc/ld.so.conf.d",
    ]
    before = contents(fleet, *places)
    listed = [{"tensorflow": name.partition("-")[2]} for name in OWN]
    listed[-1]["cuda"] = "pip"
    sixth = {"tensorflow": "2.17.1", "python": "3.9"}
    more = {"gpu_stacks": [*listed, sixth], "gpu_locks_dir": str(locks)}
    refused = fleet.gpufleet("provision", *WHERE, "-e", json.dumps(more), status=1)
    assert "the host has no Python 3.9" in " ".join(refused.stdout.split())
    more["gpu_python_install"] = True
    fleet.gpufleet("provision", *WHERE, "-e", json.dumps(more))
    assert fleet.on("lab1", f"{STACKS}/tensorflow-2.17.1/bin/python -V").startswith("Python 3.9.")
    assert contents(fleet, *places) == before
    # The toolkits 12.3 and 12.5 have a libcudart.so.12 each.
    for stack, release in (("tensorflow-2.17.1", "12.3.101"), ("tensorflow-2.18.1", "12.5.82")):
        found = [path for path in mapped(fleet, stack) if "libcudart" in path]
        short = release[:4]
        lib = f"/usr/local/cuda-{short}/targets/x86_64-linux/lib"
        assert found == [f"{lib}/libcudart.so.{release}"]
