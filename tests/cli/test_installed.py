"""gpufleet as `uv tool install` and `pipx install` leave it: without a checkout, from anywhere.

The wheel is unpacked; the libraries are those of the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.command_line import PLAN, SNAPSHOT


class Installed:
    """The unpacked wheel in an environment."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder, self.site = folder, folder / "site"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)
        self.venv()

    def venv(self) -> None:
        """An environment with the wheel, and the libraries of this one."""
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", self.folder / "venv"], check=True
        )
        (packages,) = (self.folder / "venv").glob("lib/python3*/site-packages")
        ours = Path(pytest.__file__).parents[1]
        for entry in ours.iterdir():
            if "gpufleet" not in entry.name and entry.name != "ansible_collections":
                (packages / entry.name).symlink_to(entry)
        shutil.move(self.site / "gpufleet", packages)
        shutil.move(self.site / "ansible_collections", packages)
        self.collection = packages / "ansible_collections" / "gpufleet" / "gpu"
        for entry in (ours / "ansible_collections").iterdir():
            if entry.name != "gpufleet":
                (packages / "ansible_collections" / entry.name).symlink_to(entry)
        for info in self.site.glob("*.dist-info"):
            shutil.move(info, packages)
        self.python = self.folder / "venv" / "bin" / "python"
        for name in ("ansible", "ansible-inventory", "ansible-playbook"):
            text = Path(sys.executable).with_name(name).read_text()
            program = self.python.with_name(name)
            program.write_text(f"#!{self.python}\n{text.partition(chr(10))[2]}")
            program.chmod(0o755)

    def __call__(self, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "-I", "-m", "gpufleet", *args],
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
            env={"HOME": str(cwd), "PATH": os.defpath, "LANG": "C.UTF-8"},
        )


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    (wheel,) = built.glob("*.whl")
    return Installed(tmp_path_factory.mktemp("installed"), wheel)


@pytest.mark.costly
def test_the_wheel_carries_the_collection_without_links(installed: Installed) -> None:
    for part in (
        "playbooks/site.yml",
        "roles/cuda/tasks/main.yml",
        "ansible.cfg",
        "meta",
        "plugins/module_utils/on_host/__init__.py",
        "verify/test_host.py",
    ):
        assert (installed.collection / part).exists(), part
    assert not [path for path in installed.collection.rglob("*") if path.is_symlink()]
    assert not (installed.collection / "inventory" / "lab").exists()


def test_an_inventory_is_created_and_planned_from_anywhere(
    installed: Installed, tmp_path: Path
) -> None:
    done = installed("init", "fleet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = installed("plan", "--offline", "--json", "-i", "fleet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["hosts"]) == 2
    assert installed("--version", cwd=tmp_path).stdout.startswith("gpufleet ")
    assert installed("resolve", "--tensorflow", "2.13.1", cwd=tmp_path).returncode == 0


@pytest.mark.costly
def test_without_an_inventory_one_is_asked_for_and_a_checkout_where_it_is_needed(
    installed: Installed, tmp_path: Path
) -> None:
    for verb in ("plan", "provision", "verify", "remove"):
        more = ["--driver"] if verb == "remove" else []
        done = installed(verb, *more, cwd=tmp_path)
        assert (done.returncode, "Name one: -i INVENTORY." in done.stderr) == (4, True), verb
    done = installed("test", cwd=tmp_path)
    assert done.returncode == 4 and "needs a checkout" in done.stderr


@pytest.mark.costly
def test_this_machine_is_verified_and_saved_without_an_inventory(
    installed: Installed, tmp_path: Path
) -> None:
    variables = {
        "gpu_prefix": str(tmp_path),
        "gpu_stack_root": str(tmp_path),
        "ansible_become": False,
        "gpu_expect": {"count": 0},
    }
    done = installed(
        "verify", "--local", "--save", "first", "-e", json.dumps(variables), cwd=tmp_path
    )
    assert done.returncode in {0, 1, 3}, done.stderr
    assert "Look at: first/report.html" in done.stderr
    bundle = json.loads((tmp_path / "first/bundles/localhost.json").read_text())
    assert bundle["result"]["checks"][0]["id"] == "host.probe"


def test_the_suite_runs_with_the_plugin_of_the_package(
    installed: Installed, tmp_path: Path
) -> None:
    saved = ("--snapshot", SNAPSHOT, "--plan", PLAN)
    done = installed("verify", *saved, "-v", "-k", "cudnn.links", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "verify/test_cudnn.py::test_links[gpu01] PASSED" in done.stderr
    assert "1 passed" in done.stderr


@pytest.mark.costly
def test_the_playbooks_roles_and_plugins_are_found(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(
        "gpu_hosts: {hosts: {here: {ansible_connection: local, ansible_become: false,"
        f" gpu_prefix: {tmp_path}, gpu_stack_root: {tmp_path}, gpu_expect: {{count: 0}}}}}}}}"
    )
    done = installed(
        "provision", "-i", "hosts.yml", "--force", "--check", "--list-tasks", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "gpufleet.gpu.gpu_plan : Probe the host and resolve its plan" in done.stdout
    done = installed("verify", "-i", "hosts.yml", "--json", "-k", "host.disk", cwd=tmp_path)
    verdicts = {
        check["id"]: check["verdict"]
        for check in json.loads(done.stdout)["hosts"]["here"]["checks"]
    }
    assert verdicts["host.disk"] == "PASS", done.stderr
    assert "1 passed" in done.stderr
    assert (tmp_path / "reports" / "latest" / "report.html").exists()


@pytest.mark.costly
def test_what_only_a_checkout_has_is_not_in_its_help(installed: Installed, tmp_path: Path) -> None:
    shown = installed("--help", cwd=tmp_path).stdout
    assert "    verify " in shown and "    playbook " in shown
    for verb in ("lab", "test", "lint", "docs", "build", "bench", "catalog"):
        assert f"    {verb} " not in shown
    assert "checkout" not in shown


@pytest.mark.costly
def test_it_packs_itself_for_a_control_host_which_builds_it_again(
    installed: Installed, tmp_path: Path
) -> None:
    archive, control = tmp_path / "nightly.tar", tmp_path / "control"
    digest = installed("pack", str(archive), cwd=tmp_path)
    assert len(digest.stdout.strip()) == 16, digest.stderr
    with tarfile.open(archive) as packed:
        packed.extractall(control, filter="data")
    done = subprocess.run(
        [sys.executable, control / "gpufleet", "nightly", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "gpufleet nightly" in done.stdout, done.stderr
    # The same versions as here, and the same roles.
    listed = subprocess.run(
        [control / ".venv/bin/ansible-playbook", "--version"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"core {version('ansible-core')}" in listed
    assert (control / "roles/nightly_verify/tasks/main.yml").exists()
