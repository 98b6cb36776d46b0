"""Complete what pytest-testmon selects, for `./gpufleet test --changed`.

testmon knows which functions each test has run in its own process. This plugin adds the rules for
what it cannot know:

- A changed file that is no Python (facts, templates, roles, C sources of stand-ins) runs all tests.
- A test file that starts processes runs whole when a Python file outside the tests has changed.
- The tests of a file on lab hosts are one story: all of them run, or none, in their order.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.files import write_file

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / ".testmondata.json"
STARTS = {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"}
STARTED = "started a process"
# Prose, and what testmon or a comparison of its own knows.
LEFT_OUT = (".py", ".md", ".png", ".lock")


def digest_of_data() -> str:
    """A digest of the files of the checkout that are no Python and no prose."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    digest = hashlib.sha256()
    for name in sorted(set(map(os.fsdecode, names))):
        path = ROOT / name
        if name and not name.endswith(LEFT_OUT) and path.is_file():
            digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


class Changed:
    """The rules beside testmon's selection, and the record of test files that start processes."""

    def __init__(self, config: pytest.Config) -> None:
        self.worker = hasattr(config, "workerinput")
        try:
            self.record = json.loads(RECORD.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            self.record = {"data": "", "starting": []}
        self.starting = set(self.record["starting"])
        self.data = digest_of_data()
        self.current: pytest.Item | None = None
        sys.addaudithook(self.audit)
        self.extend(config)

    def extend(self, config: pytest.Config) -> None:
        """Take out of testmon's deselection what the rules add."""
        select, testmon = config.pluginmanager.get_plugin("TestmonSelect"), config.testmon_data
        if select is None:
            return
        product = any(not name.startswith("tests/") for name in testmon.unstable_files)
        if self.data != self.record["data"]:
            select.deselected_files, select.deselected_tests = [], set()
            return
        again = self.starting if product else set[str]()
        select.deselected_files = [name for name in select.deselected_files if name not in again]
        select.deselected_tests = {
            name for name in select.deselected_tests if name.partition("::")[0] not in again
        }

    def audit(self, event: str, _: tuple[Any, ...]) -> None:
        """Note that the current test starts a process."""
        if event in STARTS and self.current is not None:
            self.current.user_properties.append((STARTED, True))
            self.current = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.current = item
        try:
            return (yield)
        finally:
            self.current = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        """Restore the order that testmon changes, and the stories of which it chose a part."""
        before = list(items)
        result = yield
        chosen = set(items)
        stories = {item.path for item in items if item.get_closest_marker("lab")}
        order = {item: at for at, item in enumerate(before)}
        whole = [item for item in before if item in chosen or item.path in stories]
        items[:] = sorted(whole, key=lambda item: order[item])
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (STARTED, True) in report.user_properties:
            self.starting.add(report.nodeid.partition("::")[0])

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Keep the record of a whole run; an interrupted one has not run what the data demands."""
        if not self.worker and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            row = {"data": self.data, "starting": sorted(self.starting)}
            write_file(RECORD, json.dumps(row) + "\n", 0o644)
