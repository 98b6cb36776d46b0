"""The launcher: it builds .venv from the pins, and becomes the program in it."""

from __future__ import annotations

import fcntl
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


def type_in(*args: str) -> subprocess.CompletedProcess[str]:
    """The result for a person who types this, from another directory."""
    return subprocess.run(
        [ROOT / "gpufleet", *args], cwd="/", capture_output=True, text=True, check=False
    )


@pytest.fixture
def launcher() -> Iterator[ModuleType]:
    """The launcher as a module."""
    loader = importlib.machinery.SourceFileLoader("launcher", str(ROOT / "gpufleet"))
    specification = importlib.util.spec_from_loader("launcher", loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    loader.exec_module(module)
    yield module
    sys.modules.pop("launcher", None)
    close_locks()


def close_locks() -> None:
    """Close what the program that a launcher becomes would hold until it ends."""
    for each in Path("/proc/self/fd").iterdir():
        if os.path.realpath(each).endswith("/.venv.lock"):
            os.close(int(each.name))


def test_resolve_puts_one_document_on_standard_output_and_nothing_elsewhere() -> None:
    done = type_in("resolve", "--tensorflow", "2.13.1", "--json")
    assert json.loads(done.stdout)["cuda"] == "11.8"
    assert done.stderr == ""


def test_the_program_s_status_is_kept() -> None:
    assert type_in("resolve", "--tensorflow", "2.13.1").returncode == 0
    assert type_in("resolve", "--tensorflow", "9.9").returncode == 4


def test_the_program_runs_in_the_current_directory_with_the_same_arguments(
    launcher: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(launcher, "make_venv", lambda: None)
    monkeypatch.setattr(os, "execv", lambda program, args: calls.append((program, args)))
    monkeypatch.setattr(os, "chdir", lambda _: pytest.fail("left the directory"))
    launcher.main(["artifacts", "fetch", "mirror", "--from", "Downloads"])
    program = str(ROOT / ".venv/bin/gpufleet")
    assert calls == [(program, [program, "artifacts", "fetch", "mirror", "--from", "Downloads"])]


def test_uv_is_bootstrapped_with_the_hashes_of_requirements_txt(launcher: ModuleType) -> None:
    pins = launcher.pins_of("uv", (ROOT / "requirements.txt").read_text()).splitlines()
    assert pins[0].startswith("uv==")
    assert len(pins) > 1
    assert all(line.lstrip().startswith("--hash=sha256:") for line in pins[1:])


def test_an_up_to_date_environment_is_left_alone(
    launcher: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.make_venv()
    monkeypatch.setattr(launcher, "run", lambda *_: pytest.fail("ran a command"))
    launcher.make_venv()


def test_an_environment_that_was_left_half_built_is_built_again(
    launcher: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[list[str]] = []
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "half").touch()

    def run(command: list[str]) -> None:
        commands.append(command)
        (venv / "bin").mkdir(parents=True, exist_ok=True)
        for name in launcher.PROGRAMS:
            (venv / "bin" / name).touch(0o755)

    monkeypatch.setattr(launcher, "run", run)
    monkeypatch.setattr(launcher, "VENV", venv)
    monkeypatch.setattr(launcher, "BIN", venv / "bin")
    monkeypatch.setattr(launcher, "LOCK", tmp_path / ".venv.lock")
    launcher.make_venv()
    assert [word for command in commands for word in command if word in {"venv", "sync"}] == [
        "venv",
        "sync",
    ]
    assert not (venv / "bin" / "half").exists()
    count = len(commands)
    launcher.make_venv()
    assert len(commands) == count


@pytest.fixture
def checkout(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkout whose environment is built by touching its programs; built counts the builds."""
    for name in ("requirements.txt", "pyproject.toml"):
        (tmp_path / name).write_text("")
    (tmp_path / "built").write_text("")
    venv = tmp_path / ".venv"

    def build(requirements: str) -> None:
        shutil.rmtree(venv, ignore_errors=True)
        (venv / "bin").mkdir(parents=True)
        for name in launcher.PROGRAMS:
            (venv / "bin" / name).touch(0o755)
        with (tmp_path / "built").open("a") as stream:
            stream.write("x")

    for name, value in {
        "ROOT": tmp_path,
        "VENV": venv,
        "BIN": venv / "bin",
        "LOCK": tmp_path / ".venv.lock",
        "build_venv": build,
    }.items():
        monkeypatch.setattr(launcher, name, value)
    released(launcher)
    return tmp_path


def released(launcher: ModuleType) -> None:
    """A command that used the environment, and has ended."""
    launcher.make_venv()
    close_locks()


@pytest.mark.parametrize("name", ["python", "gpufleet"])
@pytest.mark.parametrize("how", ["missing", "dangling", "not executable"])
def test_an_environment_that_lost_a_program_is_built_again(
    launcher: ModuleType, checkout: Path, name: str, how: str
) -> None:
    program = checkout / ".venv" / "bin" / name
    if how == "not executable":
        program.chmod(0o644)
    else:
        program.unlink()
    if how == "dangling":
        program.symlink_to("/nowhere/python3")
    launcher.make_venv()
    assert (checkout / "built").read_text() == "xx"
    assert os.access(program, os.X_OK)


def test_an_environment_in_use_is_not_removed(
    launcher: ModuleType,
    checkout: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As the launcher that became a program holds it.
    user = os.open(checkout / ".venv.lock", os.O_RDWR)
    fcntl.flock(user, fcntl.LOCK_SH)
    (checkout / "requirements.txt").write_text("changed")
    found: list[str] = []
    flock = fcntl.flock

    def waited(lock: int, how: int) -> None:
        if how == fcntl.LOCK_EX:
            found.append((checkout / "built").read_text())
            flock(user, fcntl.LOCK_UN)
        flock(lock, how | fcntl.LOCK_NB)

    monkeypatch.setattr(launcher.fcntl, "flock", waited)
    launcher.make_venv()
    os.close(user)
    # Nothing was built before the other command ended.
    assert found == ["x"]
    assert (checkout / "built").read_text() == "xx"
    assert "waiting until it ends" in capsys.readouterr().err


def test_the_lock_is_held_by_the_program_that_the_launcher_becomes(
    launcher: ModuleType, checkout: Path
) -> None:
    launcher.make_venv()
    other = os.open(checkout / ".venv.lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    ours = [
        int(each.name)
        for each in Path("/proc/self/fd").iterdir()
        if each.exists() and os.path.realpath(each) == str(checkout / ".venv.lock")
    ]
    assert [os.get_inheritable(each) for each in ours] == [True]
    assert (checkout / ".venv.lock").stat().st_mode & 0o777 == 0o600


def test_a_build_that_fails_or_is_interrupted_runs_nothing_else(
    launcher: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("ran the program"))
    for error, status in ((KeyboardInterrupt(), 130), (launcher.Refusal("no index"), 4)):

        def fail(error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(launcher, "make_venv", fail)
        assert launcher.main(["verify"]) == status
    assert "gpufleet: no index" in capsys.readouterr().err


def test_requirements_txt_pins_every_package_that_pyproject_toml_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    wanted = {re.split(r"[<>=]", line)[0] for line in named}
    pinned = {
        line.split("==")[0]
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if "==" in line
    }
    assert wanted <= pinned


def test_every_way_of_installing_has_the_same_uv() -> None:
    """It is copied to hosts: two control machines would replace each other's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (pin,) = [each for each in project["dependencies"] if each.startswith("uv")]
    assert f"\n{pin} \\\n" in (ROOT / "requirements.txt").read_text()
