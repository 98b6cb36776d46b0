"""`gpufleet completion`: bash completes by the script; that for zsh names every option."""

from __future__ import annotations

import re
import subprocess

import pytest

from gpufleet.cli.completion import script
from gpufleet.cli.main import parsers
from gpufleet.cli.verbs import GROUPS
from gpufleet.paths import ROOT


def complete(*words: str) -> list[str]:
    """The completions that bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in ("gpufleet", *words))
    commands = (
        f"{script('bash')}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}; _shtab_gpufleet;"
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", commands], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


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
        (["verify", "-i", "inv"], ["inventory"]),
        (["verify", "inv"], ["inventory"]),
        (["verify", "-i", "inv", "--pair-s"], ["--pair-stack"]),
        (["lab", "--"], []),
    ],
)
def test_bash_offers_verbs_options_and_values(words: list[str], offered: list[str]) -> None:
    assert complete(*words) == offered


def test_bash_offers_every_verb() -> None:
    assert complete("") == [verb.name for verbs in GROUPS.values() for verb in verbs]


def test_the_script_for_zsh_names_every_option() -> None:
    text = script("zsh")
    assert text.startswith("#compdef gpufleet\n")
    for verb in parsers().values():
        for action in verb._actions:
            for option in action.option_strings:
                assert re.search(rf"{option}[\[\",}}]", text), option
