"""The launcher: native commands printed and run, statuses kept, clear refusals."""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


def type_in(*words: str) -> subprocess.CompletedProcess[str]:
    """What a person sees who types this, from another directory."""
    return subprocess.run(
        [ROOT / "gpufleet", *words], cwd="/", capture_output=True, text=True, check=False
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


def test_help_names_every_verb() -> None:
    told = type_in("--help").stdout
    verbs = ("resolve", "plan", "provision", "verify", "remove", "report", "artifacts")
    for verb in (*verbs, "lab", "test"):
        assert f"\n    {verb}" in told


def test_resolve_puts_one_document_on_standard_output_and_the_command_elsewhere() -> None:
    done = type_in("resolve", "--tensorflow", "2.13.1", "--json")
    assert json.loads(done.stdout)["cuda"] == "11.8"
    assert "$ .venv/bin/python -m gpufleet resolve --tensorflow 2.13.1 --json" in done.stderr


def test_the_native_command_s_status_is_kept() -> None:
    assert type_in("resolve", "--tensorflow", "2.13.1").returncode == 0
    assert type_in("resolve", "--tensorflow", "9.9").returncode == 4


@pytest.mark.parametrize("words", [[], ["fly"], ["lint", "fast"]])
def test_what_it_does_not_know_is_refused(words: list[str]) -> None:
    done = type_in(*words)
    assert done.returncode in {2, 4}
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_an_inventory_that_is_not_there_is_refused_by_name() -> None:
    done = type_in("verify", "-i", "no/such/place")
    assert done.returncode == 4
    assert "The inventory no/such/place does not exist" in done.stderr


def test_artifacts_hands_on_paths_of_the_person_s_own_directory(
    launcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(launcher, "run", lambda command, **_: commands.append(command) or 0)
    monkeypatch.setattr(launcher, "make_venv", lambda: None)
    (tmp_path / "hosts.yml").touch()
    monkeypatch.chdir(tmp_path)
    fetch = ["artifacts", "fetch", "mirror", "-i", "hosts.yml", "--from", "Downloads", "--json"]
    assert launcher.main(fetch) == 0
    assert launcher.main(["artifacts", "serve", "mirror", "--port", "80"]) == 0
    assert [command[1:] for command in commands] == [
        ["-m", "gpufleet", "artifacts", "fetch", f"{tmp_path}/mirror", "-i",
         f"{tmp_path}/hosts.yml", "--from", f"{tmp_path}/Downloads", "--json"],
        ["-m", "gpufleet", "artifacts", "serve", f"{tmp_path}/mirror", "--port", "80"],
    ]  # fmt: skip


def test_provision_hands_on_what_ansible_is_to_be_told(
    launcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(launcher, "run", lambda command, **_: commands.append(command) or 3)
    monkeypatch.setattr(launcher, "make_venv", lambda: None)
    (tmp_path / "hosts.yml").touch()
    monkeypatch.chdir(tmp_path)
    words = ["provision", "-i", "hosts.yml", "--force", "--json", "--tags", "cuda_install", "-C"]
    assert launcher.main(words) == 3
    assert [command[1:] for command in commands] == [
        ["-m", "gpufleet", "provision", "-i", f"{tmp_path}/hosts.yml", "--force", "--check",
         "--json", "--tags", "cuda_install"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["fly", "mirror"],
        ["fetch"],
        ["serve", "/no/such/mirror"],
        ["verify", "mirror", "--from", "."],
    ],
)
def test_mistakes_in_a_call_of_artifacts_are_status_4(words: list[str]) -> None:
    done = type_in("artifacts", *words)
    assert (done.returncode, done.stdout) == (4, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("version", ["11.8.0", "cuda-11.8", "11"])
def test_a_toolkit_that_none_could_be_is_not_looked_for(version: str) -> None:
    done = type_in("remove", "--toolkit", version)
    assert done.returncode == 4
    assert "goes by its directory's X.Y, such as 11.8" in done.stderr


def options(**given: object) -> argparse.Namespace:
    """Options as the parser makes them."""
    empty = {"inventory": None, "limit": None, "extra_vars": None, "vault_password_file": None}
    return argparse.Namespace(**{**empty, **given})


def test_without_an_inventory_the_lab_is_meant(launcher: ModuleType) -> None:
    assert launcher.where(options()) == ["-i", str(ROOT / "inventory" / "lab")]


def test_every_command_gets_the_same_words_with_absolute_paths(
    launcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.yml").touch()
    monkeypatch.chdir(tmp_path)
    given = options(
        inventory=["hosts.yml", "gpu01,"],
        limit="gpu01",
        extra_vars=["@more.yml", "x=1"],
        vault_password_file="secret",
    )
    assert launcher.where(given) == [
        *("-i", f"{tmp_path}/hosts.yml", "-i", "gpu01,"),
        *("-e", f"@{tmp_path}/more.yml", "-e", "x=1"),
        *("--limit", "gpu01", "--vault-password-file", f"{tmp_path}/secret"),
    ]


def test_files_of_native_commands_are_those_of_the_person_s_own_directory(
    launcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--pulled", "in", "--report=out", "--limit", "in", "--pulled"]
    assert launcher.seen_from_here(given, launcher.PATHS["verify"]) == [
        "--pulled", f"{tmp_path}/in", f"--report={tmp_path}/out", "--limit", "in", "--pulled"]
    # Of a rollout --plan is no file.
    assert launcher.seen_from_here(["--plan", "x"], launcher.PATHS["rollout"]) == ["--plan", "x"]
    assert "gpufleet history" in type_in("history", "--help").stdout


def test_missing_packages_are_listed_with_the_command_to_those_who_are_not_root(
    launcher: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher.os, "geteuid", lambda: 1000)
    wanted = {"no-such-program": "podman", "/no/such/path": "netavark", "sh": "dash"}
    with pytest.raises(launcher.Refusal) as refused:
        launcher.install_packages(wanted)
    assert "netavark, podman." in str(refused.value)
    assert "sudo apt-get install --yes --no-install-recommends netavark podman" in str(
        refused.value
    )


def test_nothing_is_installed_where_nothing_is_missing(
    launcher: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "run", lambda *_, **__: pytest.fail("ran a command"))
    launcher.install_packages({"sh": "dash"})


def test_uv_is_bootstrapped_with_the_hashes_of_requirements_txt(launcher: ModuleType) -> None:
    pins = launcher.pins_of("uv", (ROOT / "requirements.txt").read_text()).splitlines()
    assert pins[0].startswith("uv==")
    assert len(pins) > 1
    assert all(line.lstrip().startswith("--hash=sha256:") for line in pins[1:])


def test_an_up_to_date_environment_is_left_alone(
    launcher: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "run", lambda *_, **__: pytest.fail("ran a command"))
    launcher.make_venv()


def test_an_environment_that_was_left_half_made_is_made_anew(
    launcher: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[list[str]] = []
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "half").touch()

    def run(command: list[str], **_: object) -> int:
        commands.append(command)
        (venv / "bin").mkdir(parents=True, exist_ok=True)
        (venv / "bin" / "python").touch()
        return 0

    monkeypatch.setattr(launcher, "run", run)
    monkeypatch.setattr(launcher, "VENV", venv)
    monkeypatch.setattr(launcher, "BIN", venv / "bin")
    launcher.make_venv()
    assert [word for command in commands for word in command if word in {"venv", "sync"}] == [
        "venv",
        "sync",
    ]
    assert not (venv / "bin" / "half").exists()
    made = len(commands)
    launcher.make_venv()
    assert len(commands) == made


def test_an_interrupted_command_is_waited_for_and_nothing_else_is_begun(
    launcher: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(launcher, "make_venv", lambda: None)
    monkeypatch.setattr(launcher, "install_packages", interrupted)
    assert launcher.main(["test"]) == launcher.INTERRUPTED


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
