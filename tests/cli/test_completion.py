"""`gpufleet completion`: bash accepts the script and completes by it; zsh's names every option."""

from __future__ import annotations

import subprocess

import pytest

from gpufleet.cli.completion import bash, zsh
from gpufleet.cli.main import parsers
from gpufleet.cli.verbs import GROUPS


def complete(*words: str) -> list[str]:
    """What bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in ("gpufleet", *words))
    script = (
        f"{bash()}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}; _gpufleet;"
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_accepts_the_script() -> None:
    subprocess.run(["bash", "-n"], input=bash(), text=True, check=True)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ver"], ["verify"]),
        (["pro"], ["provision"]),
        (["verify", "--pair"], ["--pair", "--pairs", "--pair-stack"]),
        (["verify", "--launcher", ""], ["ssh", "slurm"]),
        (["verify", "--launcher", "s"], ["ssh", "slurm"]),
        (["history", "--kind", "n"], ["nightly"]),
        (["artifacts", "f"], ["fetch"]),
        (["completion", ""], ["bash", "zsh"]),
        (["verify", "-i", "inv"], []),
        (["verify", "inv"], []),
        (["lab", "--"], []),
    ],
)
def test_bash_offers_verbs_options_and_values(words: list[str], offered: list[str]) -> None:
    assert complete(*words) == offered


def test_bash_offers_every_verb() -> None:
    assert complete("") == [verb.name for verbs in GROUPS.values() for verb in verbs]


def test_the_script_for_zsh_names_every_option() -> None:
    script = zsh()
    assert script.startswith("#compdef gpufleet\n")
    for verb in parsers().values():
        for action in verb._actions:
            for option in action.option_strings:
                assert f"{option}[" in script
