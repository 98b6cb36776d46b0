"""`gpufleet lint`: every linter; all of them, also after one has failed. Changes nothing."""

from __future__ import annotations

import argparse

from gpufleet.campaign.provision.playbook import run as run_command
from gpufleet.cli.developer import BIN
from gpufleet.cli.parser import Parser
from gpufleet.paths import ROOT

LINTERS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("lint-imports",),
    ("yamllint", "--strict", "."),
    ("ansible-lint", "--strict"),
    ("python", "-m", "docs.generate", "--check"),
    ("python", "-m", "tools.lint"),
    ("mkdocs", "build", "--strict", "--quiet"),
)


def parser() -> Parser:
    """The options: none."""
    return Parser(
        "lint", ("lint", "lint --help"), exit_status="Exit status: 0 clean, 1 a linter complains."
    )


def run(_: argparse.Namespace, __: list[str]) -> int:
    """Run every linter; the exit status."""
    statuses = [run_command([str(BIN / program), *args], cwd=ROOT) for program, *args in LINTERS]
    return 1 if any(statuses) else 0
