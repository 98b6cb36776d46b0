"""The command line as a whole: help, wrong calls, and what goes on to other programs."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpufleet.cli import artifacts, developer, lab, playbook, provision, remove, system_packages
from gpufleet.cli.main import main, parsers
from gpufleet.cli.options import selector
from gpufleet.cli.verbs import GROUPS, VERBS
from gpufleet.errors import ConfigurationError
from gpufleet.paths import LAB_INVENTORY, PLAYBOOKS, ROOT
from tools.cli import test as test_verb

PARSERS = parsers()


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit status, standard output and error."""
    status = main(args)
    printed = capsys.readouterr()
    return status, printed.out, re.sub(r"\s+", " ", printed.err)


def test_nobody_else_can_write_what_a_verb_creates_whatever_the_umask_is(tmp_path: Path) -> None:
    """Report directories were 0777 and pages 0666."""
    fixtures = ROOT / "tests" / "fixtures"
    words = ["--snapshot", fixtures / "snapshot.json", "--plan", fixtures / "plan.json"]
    subprocess.run(
        [sys.executable, "-m", "gpufleet", "verify", *words, "--report", tmp_path / "reports"],
        capture_output=True,
        check=False,
        umask=0,
    )
    found = {path.name: path.lstat() for path in (tmp_path / "reports").rglob("*")}
    assert {"report.html", "report.json", "plans", "snapshots", "gpu01.json"} <= set(found)
    modes = {name: info.st_mode & 0o777 for name, info in found.items() if name != "latest"}
    assert set(modes.values()) == {0o755, 0o644}, modes


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--help")
    assert status == 0
    verbs = ("resolve", "plan", "provision", "verify", "remove", "report", "artifacts")
    for verb in (*verbs, "lab", "test"):
        assert f"\n    {verb} " in out
    for title in GROUPS:
        assert f"\n{title}:\n" in out


def test_help_answers_without_delay() -> None:
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "gpufleet", "--help"], capture_output=True, check=True)
    assert time.monotonic() - started < 3  # a twentieth of that on a quiet machine


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run(capsys, "--version")[:2] == (0, f"gpufleet {version}\n")


@pytest.mark.parametrize("verb", PARSERS)
def test_a_verb_s_help_lists_each_option_with_its_help_and_two_examples(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, verb, "--help")
    assert status == 0
    text = re.sub(r"\s+", " ", out)
    assert text.startswith(f"usage: gpufleet {verb}")
    assert VERBS[verb].summary in text
    for action in PARSERS[verb]._actions:
        assert action.help, f"{verb}: {action.dest} has no help"
        for name in action.option_strings:
            assert name in out
        # A line may end within a word, at its hyphen.
        words = action.help.partition("%")[0].split()
        assert "".join(words) in "".join(out.split())
    examples = out.partition("Examples:\n")[2].splitlines()[:2]
    assert all(line.startswith("  gpufleet ") for line in examples) and len(set(examples)) == 2
    # Each option belongs to a group of its kind.
    assert "\noptions:" not in out


@pytest.mark.parametrize(
    ("verb", "example"),
    [
        (verb, line.removeprefix("  gpufleet ").split()[1:])
        for verb, parser in PARSERS.items()
        for line in (parser.epilog or "").splitlines()
        if line.startswith(f"  gpufleet {verb}") and "|" not in line and "--help" not in line
    ],
    ids=str,
)
def test_examples_are_correct_calls(verb: str, example: list[str]) -> None:
    PARSERS[verb].parse([word.strip("'") for word in example if not word.startswith(">")])


@pytest.mark.parametrize("args", [[], ["fly"], ["lint", "fast"]])
def test_what_it_does_not_know_is_refused(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, *args)
    assert status == 4
    assert out == ""
    assert "Traceback" not in err and "gpufleet" in err


@pytest.mark.parametrize(
    ("args", "remedy"),
    [
        (["verfy"], "Did you mean verify?"),
        (["plan", "--limt", "a"], "Did you mean --limit?"),
        (["provision", "--fource"], "Did you mean --force?"),
        (["history", "--colour"], "gpufleet history --help lists the options."),
    ],
)
def test_a_mistyped_call_names_what_is_near(
    args: list[str], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, *args)
    assert status == 4
    assert remedy in err


@pytest.mark.parametrize("verb", ["verify", "plan", "provision", "remove", "rollout"])
def test_an_inventory_that_does_not_exist_is_refused_by_name(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--driver"] if verb == "remove" else []
    status, out, err = run(capsys, verb, "-i", "no/such/place", *more)
    assert status == 4
    assert "no/such/place: The inventory does not exist." in f"{out} {err}"


@pytest.mark.parametrize(
    "args",
    [
        ["fly", "mirror"],
        ["fetch"],
        ["serve", "/no/such/mirror"],
        ["verify", "mirror", "--from", "."],
        ["serve", "/srv", "--limit", "gpu01"],
        ["fetch", "/srv", "--port", "80"],
    ],
)
def test_mistakes_in_a_call_of_artifacts_are_status_4(
    args: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "build", lambda _: pytest.fail("built the lab's artifacts"))
    status, out, err = run(capsys, "artifacts", *args)
    assert (status, out) == (4, "")
    assert "Traceback" not in err


@pytest.mark.parametrize("version", ["11.8.0", "cuda-11.8", "11"])
def test_a_toolkit_that_none_could_be_is_not_searched(
    version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, "remove", "--toolkit", version)
    assert status == 4
    assert "Name its X.Y, such as 11.8" in err


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The native commands that would have been run."""
    found: list[list[str]] = []

    def run_command(command: Sequence[str], *_: object, **__: object) -> int:
        found.append([str(word) for word in command])
        return 3

    for module in (playbook, remove, test_verb):
        monkeypatch.setattr(module, "run_command", run_command)
    monkeypatch.setattr(developer, "run", run_command)
    for module in (developer, playbook, remove, test_verb):
        monkeypatch.setattr(module, "require", lambda _: None)
    return found


def test_remove_hands_on_what_ansible_receives(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.yml").touch()
    monkeypatch.chdir(tmp_path)
    args = [
        "remove",
        "-i",
        "hosts.yml",
        "-i",
        "gpu01,",
        "-e",
        "@more.yml",
        "-e",
        "x=1",
        "-l",
        "gpu01",
        "--vault-password-file",
        "secret",
        "--driver",
        "--check",
        "--tags=a",
    ]
    assert main(args) == 3
    removed = (
        '{"gpu_remove_toolkits": [], "gpu_remove_stacks": [], "gpu_remove_driver": true,'
        ' "gpu_remove_containers": false, "gpu_remove_network": false}'
    )
    assert [command[1:] for command in commands] == [
        [
            str(PLAYBOOKS / "remove.yml"),
            "-i",
            "hosts.yml",
            "-i",
            "gpu01,",
            "-e",
            "@more.yml",
            "-e",
            "x=1",
            "--limit",
            "gpu01",
            "--vault-password-file",
            "secret",
            "-e",
            removed,
            "--check",
            "--tags=a",
        ]
    ]


def test_a_removal_with_a_mistyped_option_runs_nothing(
    commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, "remove", "-i", "gpu01,", "--driver", "--chekc")
    assert (status, commands) == (4, [])
    assert "Did you mean --check?" in err


def test_lab_bench_and_docs_hand_on_everything(commands: list[list[str]]) -> None:
    assert main(["lab", "exec", "lab1", "--", "ls", "--help"]) == 3
    assert main(["bench", "--help"]) == 3
    assert main(["docs", "--check"]) == 3
    assert [command[1:] for command in commands] == [
        ["-m", "lab", "exec", "lab1", "--", "ls", "--help"],
        ["-m", "benchmarks", "--help"],
        ["-m", "docs.generate", "--check"],
    ]


@pytest.mark.parametrize(
    ("args", "markers", "left_out"),
    [
        (
            [],
            "not slow and not exhaustive and not costly and (not lab or newcomer)",
            "--all runs every test",
        ),
        (
            ["--hosts"],
            "(lab or exhaustive or costly) and not slow and not newcomer",
            "(./gpufleet test)",
        ),
        (["--all"], None, None),
    ],
)
def test_a_tier_of_tests_ends_with_what_it_leaves_out(
    commands: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    markers: str | None,
    left_out: str | None,
) -> None:
    status, _, err = run(capsys, "test", *args, "tests/cli", "-x")
    assert status == 3
    (command,) = commands
    assert command[-2:] == ["tests/cli", "-x"]
    assert ("-m" in command) == (markers is not None)
    assert markers is None or command[command.index("-m") + 1] == markers
    assert (left_out or "") in err and ("Left out" in err) == (left_out is not None)


def test_in_a_checkout_the_lab_is_the_default_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANSIBLE_INVENTORY", raising=False)
    options, _ = PARSERS["plan"].parse([])
    assert selector(options).inventories == [str(ROOT / "inventory" / "lab")]
    options, _ = PARSERS["verify"].parse(["--local"])
    assert selector(options).inventories == []
    options, _ = PARSERS["plan"].parse(["-i", str(LAB_INVENTORY), "-i", "gpu01,"])
    assert selector(options).inventories == [str(LAB_INVENTORY), "gpu01,"]


def test_on_a_control_host_the_fleet_of_the_nightly_is_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ANSIBLE_INVENTORY", raising=False)
    settings = tmp_path / "nightly.yml"
    settings.write_text(
        "inventory: [/etc/gpufleet/fleet/inventory/a]\nvault_password_file: /root/key\n"
    )
    monkeypatch.setattr("gpufleet.cli.options.CONTROL", settings)
    options, _ = PARSERS["verify"].parse([])
    selected = selector(options)
    assert selected.inventories == ["/etc/gpufleet/fleet/inventory/a"]
    assert selected.vault_password_files == ["/root/key"]
    for words in (["-i", "gpu01,"], ["--local"]):
        options, _ = PARSERS["verify"].parse(words)
        assert selector(options).inventories == words[1:]
    monkeypatch.setenv("ANSIBLE_INVENTORY", "gpu01,")
    options, _ = PARSERS["verify"].parse([])
    assert selector(options).inventories == []


def test_an_account_that_may_not_read_the_settings_of_the_nightly_is_told_which_may(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ANSIBLE_INVENTORY", raising=False)
    settings = tmp_path / "nightly.yml"
    settings.write_text("inventory: [/etc/gpufleet/fleet/inventory/a]\n")
    monkeypatch.setattr("gpufleet.cli.options.CONTROL", settings)
    monkeypatch.setattr("gpufleet.cli.options.os.access", lambda *_: False)
    options, _ = PARSERS["verify"].parse([])
    with pytest.raises(ConfigurationError, match="may not read the settings") as refused:
        selector(options)
    assert "sudo -u gpufleet -H gpufleet" in str(refused.value)


def test_provision_starts_the_lab_only_where_nothing_names_an_inventory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start() -> None:
        raise ConfigurationError("the lab would be started")

    monkeypatch.setattr(provision, "start_lab", start)
    monkeypatch.setattr(provision, "require", lambda _: None)
    monkeypatch.delenv("ANSIBLE_INVENTORY", raising=False)
    assert "the lab would be started" in run(capsys, "provision")[2]
    # Nothing is started by a call that is wrong.
    assert "There is no option --forse" in run(capsys, "provision", "--forse")[2]
    assert "more than 0" in run(capsys, "provision", "--fanout", "0")[2]
    inventory = 'gpu_hosts: {hosts: {gpu01: {gpu_stacks: [{tensorflow: "9.9"}]}}}'
    monkeypatch.setenv("ANSIBLE_INVENTORY", "gpu01,")
    assert (
        inventory
        and "the lab"
        not in run(
            capsys, "provision", "-i", "gpu01,", "-e", ('{"gpu_stacks": [{"tensorflow": "9.9"}]}')
        )[2]
    )


def test_an_installed_gpufleet_says_what_needs_a_checkout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(developer, "HAS_TOOLS", False)
    for verb in ("lab", "test", "lint", "docs", "build", "bench", "catalog"):
        status, _, err = run(capsys, verb, *(["check"] if verb == "catalog" else []))
        assert status == 4
        assert f"'gpufleet {verb}' needs a checkout of gpufleet" in err


def test_missing_packages_are_listed_with_the_command_to_those_who_are_not_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system_packages.os, "geteuid", lambda: 1000)
    wanted = {"no-such-program": "podman", "/no/such/path": "netavark", "sh": "dash"}
    with pytest.raises(ConfigurationError) as refused:
        system_packages.require(wanted)
    assert "netavark, podman." in str(refused.value)
    assert "sudo apt-get install --yes --no-install-recommends netavark podman" in str(
        refused.value
    )


def test_nothing_is_installed_where_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_packages, "run", lambda *_, **__: pytest.fail("ran a command"))
    system_packages.require({"sh": "dash", "/etc/passwd": "base-files"})


def test_an_interrupted_command_ends_with_130_and_nothing_else_is_started(
    monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(test_verb, "require", interrupted)
    assert main(["test"]) == 130
    assert commands == []
    monkeypatch.setattr(lab, "run_module", interrupted)
    assert main(["lab", "up"]) == 130


@pytest.mark.parametrize("columns", [80, 100])
def test_help_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    _, text, _ = run(capsys, "remove", "--help")
    described = text.partition("Examples:")[0]
    assert max(map(len, described.splitlines())) <= columns


@pytest.mark.parametrize(("answer", "runs"), [("y\n", 1), ("\n", 0), ("", 0)])
def test_remove_asks_at_a_terminal(
    commands: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    runs: int,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", shown := Terminal())
    main(["remove", "-i", "gpu01,gpu02,", "--stack", "solo", "--toolkit", "12.5"])
    assert len(commands) == runs
    assert "Remove from 2 hosts: stack solo, toolkit 12.5\nHosts: gpu[01-02]" in shown.getvalue()
    main(["remove", "-i", "gpu01,gpu02,", "--stack", "solo", "--yes"])
    assert len(commands) == runs + 1


def test_playbook_runs_a_playbook_by_name(commands: list[list[str]]) -> None:
    main(["playbook", "rollback", "-i", "gpu01,", "--limit", "gpu01", "--check"])
    (command,) = commands
    assert command[1:] == [
        str(PLAYBOOKS / "rollback.yml"),
        "-i",
        "gpu01,",
        "--limit",
        "gpu01",
        "--check",
    ]


def test_playbook_names_the_playbooks_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "playbook", "../../etc/passwd", "-i", "gpu01,")
    assert status == 4
    assert "nightly, plan, pull, remove, rollback, site, verify" in err
