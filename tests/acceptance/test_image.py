"""An image is built without a kernel of its own, boots as a host, and is proved by that boot.

The tests of this module are one story on one image, and run in their order.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import images
from lab.progress import Progress
from lab.settings import Lab
from tests.support.lab_fleet import ROOT, STACK, TOOLKIT, Fleet, fresh, lab
from tests.support.machine import deadline

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@dataclass
class Build:
    """A lab without hosts, and the directory of a fresh system that no host runs."""

    fleet: Fleet
    root: Path

    @property
    def lab(self) -> Lab:
        return Lab.from_environment(self.fleet.environment)

    @property
    def words(self) -> list[str]:
        """The command that provisions it."""
        report = ["--report", str(self.root.with_name("reports"))]
        return [
            "provision",
            "-i",
            "inventory/lab",
            "--limit",
            "lab1",
            "--chroot",
            str(self.root),
            *report,
        ]

    def inside(self, name: str) -> Path:
        return self.root / name.lstrip("/")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    root = tmp_path_factory.mktemp("image") / "root"
    root.mkdir()
    with fresh("image") as fleet:
        lab(fleet, "artifacts")
        made = Build(fleet, root)
        packed = images.tarball(made.lab, images.Recipe("bookworm"), Progress())
        fleet.run("tar", "-C", root, "-xf", packed)
        yield made
    shutil.rmtree(root)


def test_a_killed_build_leaves_nothing_mounted_and_is_not_finished(build: Build) -> None:
    with subprocess.Popen(
        [ROOT / "gpufleet", *build.words],
        cwd=ROOT,
        env=build.fleet.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as running:
        ends = time.monotonic() + deadline(600)
        while not build.inside(TOOLKIT).exists() and time.monotonic() < ends:
            assert running.poll() is None
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGKILL)
    assert build.inside(TOOLKIT).exists()
    assert str(build.root) not in Path("/proc/self/mountinfo").read_text("utf-8")
    assert not build.inside("/var/lib/gpufleet/receipts/toolkit-11.8.json").exists()


def test_the_next_run_finishes_it_and_says_what_only_a_boot_can_prove(build: Build) -> None:
    done = build.fleet.gpufleet(*build.words, "--json", status=3)
    (result,) = json.loads(done.stdout)["hosts"].values()
    assert result["verdict"] == "INCONCLUSIVE"
    checks = {check["id"]: check for check in result["checks"]}
    shown = [
        name
        for name, check in checks.items()
        if check["verdict"] not in {"PASS", "NOT-DECLARED"} and "explained_by" not in check
    ]
    assert shown == ["host.booted"]
    assert "proved by the first boot" in checks["host.booted"]["cause"]
    for name in ("toolkit.files", "cudnn.links", "linker.cache", "stack.files"):
        assert checks[name]["verdict"] == "PASS", checks[name]
    # Nothing ran on this machine's kernel.
    assert checks["stack.matmul"]["verdict"] == "INCONCLUSIVE"
    assert json.loads(build.inside("/var/lib/gpufleet/image.json").read_text())["provisioned"]
    assert not [*build.inside("/run").glob("systemd/*"), *build.inside("/sys").iterdir()]


def test_a_second_run_changes_nothing(build: Build) -> None:
    done = build.fleet.gpufleet(*build.words, status=3)
    assert "No host differs from its plan: nothing to run." in done.stderr


def test_the_first_boot_proves_it(build: Build) -> None:
    packed = build.root.with_name("image.tar")
    build.fleet.run("tar", "-C", build.root, "--sparse", "--format=pax", "-cf", packed, ".")
    images.give(build.lab, images.Recipe("bookworm"), packed, Progress())
    packed.unlink()
    lab(build.fleet, "up", "--hosts", "lab1")
    (checks,) = build.fleet.verdicts(0, "--limit", "lab1").values()
    assert "provisioned as an image at 20" in checks["host.booted"]["evidence"]
    assert checks["stack.matmul"]["verdict"] == "PASS"
    before = build.fleet.state("lab1")
    done = build.fleet.gpufleet("provision", "--limit", "lab1")
    assert "No host differs from its plan: nothing to run." in done.stderr
    assert build.fleet.state("lab1") == before
    assert build.fleet.on("lab1", f"{STACK}/bin/python -c 'import tensorflow'") == ""
