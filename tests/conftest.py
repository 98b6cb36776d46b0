"""Fast tests first: what needs no host, then what needs one, then whole stories on hosts.

Where two workers share the files it is the other way round: one has the hosts' files, the other all
that is fast, and neither waits in the end for the other's hosts.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.inventory import start_ansible
from tests.support.healthy_host import plan, snapshot
from tests.support.lab_fleet import fleet
from tests.support.receivers import changes, configured, listener, post

# Before any of our modules is imported by the collection's name.
start_ansible()

__all__ = ["changes", "configured", "fleet", "listener", "plan", "post", "snapshot"]

SLOWER = ("lab", "slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort by cost, keeping the order within a module, where acceptance tests tell a story."""

    def cost(item: pytest.Item) -> tuple[bool, bool]:
        return any(map(item.get_closest_marker, SLOWER)), "acceptance" in item.nodeid

    if hasattr(config, "workerinput"):  # in a worker of pytest-xdist
        costly = {item.path for item in items if cost(item)[0]}
        items.sort(key=lambda item: item.path not in costly)
    else:
        items.sort(key=cost)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The figures of the proof, over all faults that were injected in this run (tests/faults)."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(
        kind, []) if report.when == "call"]  # fmt: skip
    rows = [value for report in reports for key, value in report.user_properties if key == "fault"]
    if rows:
        numbers = {row["number"] for row in rows}
        terminalreporter.section("faults")
        terminalreporter.write_line(
            f"injected: {len(rows)} (of {len(numbers)} numbers); caught:"
            f" {sum(row['caught'] for row in rows)}; caught with the right cause and remedy:"
            f" {sum(row['right'] for row in rows)}; collateral failures:"
            f" {sum(len(row['collateral']) for row in rows)}")
