"""The playbooks under the real ansible-runner, as AWX runs them: project, inventory, answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab_fleet import ROOT, TOOLKIT, Done, Fleet

pytestmark = [pytest.mark.lab, pytest.mark.slow]

BIN = ROOT / ".venv" / "bin"
PACKAGES = ("ansible-runner==2.4.3", "ansible-builder==3.2.0")
DECLARED = {"gpu_stacks": [], "gpu_toolkits": ["11.8"]}
BOTH = ("lab1", "lab2")
# No environment, no reports: what a project's checkout has, links among it.
BESIDE = shutil.ignore_patterns(".*", "reports", "__pycache__", "dist")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=BESIDE)
    subprocess.run(
        [BIN / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=folder / "source",
        check=True,
        capture_output=True,
    )
    shutil.rmtree(folder / "source")
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """AWX's own programs and the package, in an environment of their own as in the image."""
    folder = tmp_path_factory.mktemp("awx") / "venv"
    for words in (
        ("venv", "--quiet", "--python", BIN / "python", folder),
        ("pip", "install", "--quiet", "--python", folder / "bin/python", *PACKAGES, wheel),
    ):
        subprocess.run([BIN / "uv", *words], check=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A private data directory: this checkout as the project, the lab's inventory, the answers."""
    folder = tmp_path_factory.mktemp("private")
    shutil.copytree(ROOT, folder / "project", symlinks=True, ignore=BESIDE)
    shutil.copytree(ROOT / "inventory" / "lab", folder / "inventory")
    (folder / "env").mkdir()
    (folder / "env" / "extravars").write_text(json.dumps(DECLARED))
    yield folder
    shutil.rmtree(folder)


class Runner:
    """ansible-runner over one private data directory."""

    def __init__(self, fleet: Fleet, tools: Path, private: Path) -> None:
        self.fleet, self.tools, self.private = fleet, tools, private

    def run(self, ident: str, playbook: str, *words: str, status: int = 0) -> Done:
        """Run a playbook; everything about it is kept under this name."""
        environment = {**self.fleet.environment, "PATH": f"{self.tools}:{os.environ['PATH']}"}
        done = subprocess.run(
            [self.tools / "ansible-runner", "run", self.private, "-p", f"playbooks/{playbook}",
             "--ident", ident, *words],
            cwd="/", env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        # It keeps a command line for the runs to come; each job of AWX's has its own directory.
        (self.private / "env" / "cmdline").unlink(missing_ok=True)
        assert done.returncode == status, done.stdout
        return done

    def touched(self, ident: str) -> set[str]:
        """The hosts on which a run had tasks, as its events tell."""
        events = (self.private / "artifacts" / ident / "job_events").glob("*.json")
        # A line of progress, printed where a task takes seconds, is an event without data.
        data = [json.loads(path.read_text()).get("event_data", {}) for path in events]
        return {event["host"] for event in data if "host" in event}


@pytest.fixture(scope="module")
def runner(fleet: Fleet, tools: Path, private: Path) -> Runner:
    return Runner(fleet, tools, private)


def test_check_mode_changes_nothing(fleet: Fleet, runner: Runner) -> None:
    before = fleet.state("lab1")
    output = runner.run(
        "check", "site.yml", "--limit", "lab1", "--cmdline", "--check --diff"
    ).stdout
    assert f"toolkit 11.8: 11.8.0 in {TOOLKIT}" in output
    assert fleet.state("lab1") == before


def test_slices_are_all_hosts_and_each_once(fleet: Fleet, runner: Runner) -> None:
    for number, name in enumerate(BOTH):
        runner.run(f"slice-{number}", "site.yml", "--limit", f"gpu_hosts[{number}]")
        assert runner.touched(f"slice-{number}") == {name}
    for name in BOTH:
        assert fleet.on(name, "readlink /usr/local/cuda") == "cuda-11.8\n"


def test_what_awx_made_is_what_the_launcher_would_make(fleet: Fleet, runner: Runner) -> None:
    where = ("-e", json.dumps(DECLARED))
    assert "No host differs from its plan" in fleet.gpufleet("provision", *where).stderr
    assert runner.run("again", "site.yml").stdout.count("changed=0") == len(BOTH)


def test_the_suite_runs_there_and_its_status_is_kept(fleet: Fleet, runner: Runner) -> None:
    variables = runner.private / "inventory" / "group_vars" / "gpu_hosts" / "declared.json"
    variables.parent.mkdir(parents=True, exist_ok=True)
    variables.write_text(json.dumps(DECLARED))
    runner.run("verify", "verify.yml", "--cmdline=--check")
    fleet.on("lab1", f"rm {TOOLKIT}/bin/nvcc")
    runner.run("verify-broken", "verify.yml", status=2)
    assert (runner.private / "project" / "reports" / "latest" / "report.html").exists()


def test_the_image_s_definition_is_one(tools: Path, wheel: Path, tmp_path: Path) -> None:
    definition, context = tmp_path / "awx" / "execution-environment.yml", tmp_path / "context"
    (definition.parent / "dist").mkdir(parents=True)
    shutil.copy(ROOT / "contrib/awx/execution-environment.yml", definition)
    shutil.copy(wheel, definition.parent / "dist")
    subprocess.run(
        [tools / "ansible-builder", "create", "--file", definition, "--context", context],
        check=True,
        capture_output=True,
    )
    assert 'EE_BASE_IMAGE="fedora:' in (context / "Containerfile").read_text()
    assert (context / "_build" / "gpufleet" / wheel.name).exists()
