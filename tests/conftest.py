"""Fast tests first: what needs no host, then what needs one, then whole stories on hosts.

Where two workers share the files, those that took longest the last time come first
(`tests/support/durations.py`). The first time on a machine, files with and without hosts take
turns: one worker begins with hosts, and while it waits for their images the other has what is fast.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest

from gpufleet.fleet.inventory import start_ansible
from tests.support import machine
from tests.support.built_release import built
from tests.support.changed import Changed
from tests.support.durations import Durations, longest_first
from tests.support.healthy_host import plan, snapshot
from tests.support.lab_fleet import fleet
from tests.support.lab_mirror import mirror
from tests.support.lab_run import LabRun
from tests.support.receivers import changes, configured, listener, post

# Ten thousand tests are collected, and all of them stay: nothing there is garbage.
gc.disable()
# Before any of our modules is imported by the collection's name.
start_ansible()
# Tests read the results of tasks that change nothing, too.
os.environ.setdefault("ANSIBLE_DISPLAY_OK_HOSTS", "true")

__all__ = [
    "built",
    "changes",
    "configured",
    "fleet",
    "listener",
    "mirror",
    "plan",
    "post",
    "snapshot",
]

SLOWER = ("lab", "slow")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Record durations, name the run, measure the machine: once, not in each worker."""
    if hasattr(config, "testmon_data"):
        config.pluginmanager.register(Changed(config))
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    config.pluginmanager.register(Durations())
    config.pluginmanager.register(LabRun())
    if getattr(config.option, "numprocesses", None):
        machine.measure()


def pytest_report_header() -> str:
    """The factor of this machine's speed."""
    return f"deadlines of tests: {machine.factor():g} times"


def pytest_collection_finish() -> None:
    """Leave the collected tests out of each later collection of garbage, and of forks' pages."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort by cost, keeping the order within a module, where acceptance tests tell a story."""

    def cost(item: pytest.Item) -> tuple[bool, bool]:
        return any(map(item.get_closest_marker, SLOWER)), "acceptance" in item.nodeid

    worker = getattr(config, "workerinput", None)  # of pytest-xdist
    costly = list(dict.fromkeys(item.path for item in items if cost(item)[0]))
    if worker:
        longest_first(items, worker["durations"], costly)
    else:
        items.sort(key=cost)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The figures of the proof, over all faults that were injected in this run (tests/faults)."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(
        kind, []) if report.when == "call"]  # fmt: skip
    properties = [each for report in reports for each in report.user_properties]
    if reported := [value for key, value in properties if key == "remedy"]:
        terminalreporter.section("remedies")
        terminalreporter.write_line(
            f"remedies run: {sum(bool(row['ran']) for row in reported)}, healthy after:"
            f" {sum(bool(row['ran']) and row['healthy'] for row in reported)}, a person named:"
            f" {sum(row['person'] for row in reported)}"
        )
    rows = [value for key, value in properties if key == "fault"]
    if rows:
        numbers = {row["number"] for row in rows}
        terminalreporter.section("faults")
        terminalreporter.write_line(
            f"injected: {len(rows)} (of {len(numbers)} numbers); caught:"
            f" {sum(row['caught'] for row in rows)}; caught with the right cause and remedy:"
            f" {sum(row['right'] for row in rows)}; collateral failures:"
            f" {sum(len(row['collateral']) for row in rows)}"
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    """The size of the fuzzer's run, tests/fuzz."""
    parser.addoption("--mutations", type=int, default=2000, help="mutations of the fuzzer")
    parser.addoption("--mutation-seed", type=int, default=1, help="seed of the fuzzer")
