"""`gpufleet completion bash|zsh`: a completion script that shtab makes of the verbs' parsers."""

from __future__ import annotations

import argparse

import shtab

from .main import groups, parsers
from .parser import Parser

# Values that are files or directories.
FILES = {"INV", "FILE", "DIR", "DIRECTORY"}


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "completion",
        ("completion bash >/etc/bash_completion.d/gpufleet", "completion zsh >~/.zfunc/_gpufleet"),
        usage="bash|zsh",
    )
    verb.add_argument_group("Shell").add_argument(
        "shell", choices=["bash", "zsh"], help="Print the script for this shell: bash or zsh"
    )
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Print the script; the exit status."""
    print(script(options.shell))
    return 0


def script(shell: str) -> str:
    """The completion script for a shell."""
    return str(shtab.complete(every_verb(), shell))


def every_verb() -> argparse.ArgumentParser:
    """One parser that has each verb as a subcommand, and says which values are files."""
    found = argparse.ArgumentParser("gpufleet", add_help=False)
    subcommands = found.add_subparsers()
    options = parsers()
    for verb in (verb for verbs in groups().values() for verb in verbs):
        own = options.get(verb.name)
        added = subcommands.add_parser(
            verb.name,
            help=verb.summary,
            description=verb.summary,
            add_help=False,
            parents=[own] if own else [],
        )
        if own is None or own.passes_to:
            added.add_argument("others", nargs="*", metavar="FILE", help="Files and other options")
        for action in added._actions:
            if action.metavar in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return found
