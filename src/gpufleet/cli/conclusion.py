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

from gpufleet.documents.verdict import FAILED, HEALTHY, Bundle
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.session import Session
from gpufleet.fleet.suite import PreparedSession
from gpufleet.judge import judge
from gpufleet.paths import LAB_INVENTORY, ROOT, host_file_name
from gpufleet.report import bundle, terminal
from gpufleet.report import directory as report
from gpufleet.watch import silences

from .options import print_json
from .silence import of_default_history

SUITE = ROOT / "verify"


def conclude(
    session: Session,
    directory: Path,
    options: argparse.Namespace,
    rest: list[str],
    console: Console,
) -> int:
    """Write the report and the JUnit file, then show the verdicts; the exit status.

    With `rest`, arguments of pytest, the JUnit file is pytest's own.
    """
    session.inventory_args = inventory_args(options)
    if image := getattr(options, "chroot", None):
        session.provision_args = shlex.join(["--chroot", str(image)])
    known, notes = of_default_history()
    session = silences.applied(session, known)
    session.notes += notes
    written = report.write_report(directory, session)
    page, session = written.value, written.session
    saved = report.write_bundles(options.save, session) if options.save else []
    failed = False
    if rest:
        failed = run_suite(session, directory / "junit.xml", options, rest)
    else:
        session = report.write_junit(directory / "junit.xml", session)
    latest = report.update_latest(directory) / page.name
    if options.json:
        print_json(session.document)
    else:
        session = terminal.show(
            terminal.output(), session, latest if latest.exists() else page, options.verbose
        )
    if saved:
        show_saved(saved, options.save, console)
    # A site's own test may fail where every verdict is healthy.
    return judge.exit_status(session.document) or (FAILED if failed else HEALTHY)


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


def show_saved(saved: list[Bundle], directory: Path, console: Console) -> None:
    """Print which of the saved files to look at, which to send, and what to check in it first."""
    sent = directory / "bundles" / f"{host_file_name(saved[0]['host'])}.json"
    for line in (
        f"Saved to {directory}. Look at: {directory / 'report.html'}",
        f"Send: {sent if len(saved) == 1 else sent.parent}",
        bundle.NOTE,
    ):
        console.print(line, markup=False, soft_wrap=True, highlight=False)
    for host in saved:
        if not host["same_verdicts"]:
            console.print(
                f"{host['host']}: without its names the verdicts differ;"
                " mention it when you send it.",
                style="bold red",
                markup=False,
            )


def run_suite(session: Session, path: Path, options: argparse.Namespace, rest: list[str]) -> bool:
    """Run the pytest suite on this session; its JUnit file goes to `path`. Whether a test failed.

    `rest` may name a directory of a site's own tests, which run after the suite.
    """
    import pytest  # noqa: PLC0415 (only with options of pytest's)

    if options.inventory:
        # testinfra takes one inventory; Ansible itself takes several here.
        os.environ["ANSIBLE_INVENTORY"] = ",".join(
            str(Path(name).absolute()) if Path(name).exists() else name
            for name in options.inventory
        )
    args = [
        str(SUITE),
        f"--rootdir={ROOT}",
        "-p",
        "no:cacheprovider",
        f"--junitxml={path}",
        "-o",
        "junit_suite_name=gpufleet",
        # The plugin's package is in this process before pytest, and has no assertions to rewrite.
        "-W",
        "ignore:Module already imported:pytest.PytestAssertRewriteWarning",
        *(["-v"] if options.verbose else []),
        *rest,
    ]
    if scheme(options) == "ssh":
        args += ["--hosts", ",".join(f"ssh://{host.name}" for host in session.hosts)]
    # Standard output is for the verdicts.
    with contextlib.redirect_stdout(sys.stderr):
        status = pytest.main(args, plugins=[_Registers(PreparedSession(session))])
    if status not in {
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    }:
        raise ConfigurationError("pytest could not run the suite; its messages are above.")
    return status == pytest.ExitCode.TESTS_FAILED


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
