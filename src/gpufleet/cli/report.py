"""`gpufleet report`: where the latest report is; opens it where there is a screen."""

from __future__ import annotations

import argparse
import os
import shutil

from gpufleet.campaign.provision.playbook import run as run_command
from gpufleet.errors import ConfigurationError
from gpufleet.paths import REPORTS

from .parser import Parser


def parser() -> Parser:
    """The options: none."""
    return Parser(
        "report",
        ("report", "report | xargs less"),
        passes_to="xdg-open",
        exit_status="Exit status: 0, or 4 where there is no report yet.",
    )


def run(_: argparse.Namespace, rest: list[str]) -> int:
    """Print the path of the page, and open it; the exit status."""
    page = REPORTS / "latest" / "report.html"
    if not page.exists():
        raise ConfigurationError(
            "There is no report yet.", str(page), "'gpufleet verify' writes one."
        )
    print(page.resolve())
    opener = shutil.which("xdg-open") if os.environ.get("DISPLAY") else None
    return run_command([opener, str(page), *rest]) if opener else 0
