"""The end of `verify` and `provision`: write the report, run the suite, show the verdicts."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from gpufleet.checks import judge
from gpufleet.errors import ConfigurationError
from gpufleet.paths import LAB_INVENTORY, ROOT
from gpufleet.report import bundle, junit, terminal
from gpufleet.report import directory as report
from gpufleet.verification.session import Session
from gpufleet.verification.suite import PreparedSession

from .options import print_json

SUITE = ROOT / "verify"


def conclude(
    session: Session, directory: Path, options: argparse.Namespace, rest: list[str],
    console: Console,
) -> int:
    """Write the report and the JUnit file, then show the verdicts; the exit status.

    With `rest`, arguments of pytest, the JUnit file is pytest's own.
    """
    session.inventory_args = inventory_args(options)
    page = report.write_report(directory, session)
    if options.save:
        save_bundles(session, options.save, console)
    if rest:
        run_suite(session, directory / "junit.xml", options, rest)
    else:
        junit.write(directory / "junit.xml", session, scheme(options))
    latest = report.update_latest(directory) / page.name
    if options.json:
        print_json(session.document)
    else:
        terminal.show(Console(), session.for_display(), latest if latest.exists() else page)
    return judge.exit_status(session.document)


def keep_odd_names() -> None:
    """Escape names that this machine's terminal cannot show, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def inventory_args(options: argparse.Namespace) -> str:
    """The -i options of the call, as a person in this directory types them."""
    args = []
    for given in options.inventory:
        path = Path(given).absolute()
        if path != LAB_INVENTORY:
            short = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
            args += ["-i", str(short) if path.exists() else given]
    return shlex.join(args)


def save_bundles(session: Session, directory: Path, console: Console) -> None:
    """Save what can be sent to others, and print what to check in it first."""
    saved = report.write_bundles(directory, session)
    console.print(f"Saved to {directory}, to be sent: {bundle.NOTE}", markup=False, soft_wrap=True)
    for host in saved:
        if not host["same_verdicts"]:
            console.print(f"{host['host']}: without its names the verdicts differ;"
                          " mention it when you send it.", style="bold red", markup=False)


def run_suite(session: Session, path: Path, options: argparse.Namespace, rest: list[str]) -> None:
    """Run the pytest suite on this session; its JUnit file goes to `path`."""
    import pytest  # noqa: PLC0415 (only with options of pytest's)

    if options.inventory:
        # testinfra takes one inventory; Ansible itself takes several here.
        os.environ["ANSIBLE_INVENTORY"] = ",".join(
            str(Path(name).absolute()) if Path(name).exists() else name
            for name in options.inventory)
    args = [str(SUITE), f"--rootdir={ROOT}", "-p", "no:cacheprovider",
            f"--junitxml={path}", "-o", "junit_suite_name=gpufleet", *rest]
    if scheme(options) == "ssh":
        args += ["--hosts", ",".join(f"ssh://{host.name}" for host in session.hosts)]
    # Standard output is for the verdicts.
    with contextlib.redirect_stdout(sys.stderr):
        status = pytest.main(args, plugins=[_Registers(PreparedSession(session))])
    if status not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED,
                      pytest.ExitCode.NO_TESTS_COLLECTED}:
        raise ConfigurationError("pytest could not run the suite; its messages are above.")


def scheme(options: argparse.Namespace) -> str:
    """testinfra's name for the connection: without an inventory hosts are plain names."""
    return "ssh" if options.snapshot or options.local else "ansible"


class _Registers:
    """Registers the session under its name before the suite's conftest asks for it."""

    def __init__(self, prepared: PreparedSession) -> None:
        self.prepared = prepared

    def pytest_configure(self, config: Any) -> None:
        """pytest's hook."""
        config.pluginmanager.register(self.prepared, self.prepared.NAME)
