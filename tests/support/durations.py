"""How long tests took the last time on this machine, so that two workers end at about the same time.

A plugin of pytest. One worker has all tests of a file; files that take longest come first, and the
short ones fill what is left. The controller reads the record and passes it on: another run may
write it meanwhile, and the workers must sort alike. What a machine has not run yet takes as long as
`usual_durations.yml` says.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.files import write_file
from lab.settings import cache_root

USUAL = Path(__file__).with_name("usual_durations.yml")
# Shorter tests do not decide the order.
LEAST_S = 0.5


def record_file() -> Path:
    """Where the record is."""
    return cache_root(os.environ) / "test-durations.json"


def recorded() -> dict[str, float]:
    """The seconds of each test, setup and teardown included; nothing without a record."""
    try:
        found: dict[str, float] = json.loads(record_file().read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found


def usual() -> dict[str, float]:
    """The seconds of the files that take longest, on a machine with two processors."""
    found: dict[str, float] = yaml.safe_load(USUAL.read_text(encoding="utf-8"))
    return found


def longest_first(
    items: list[pytest.Item], seconds: dict[str, float], costly: Container[Path]
) -> None:
    """Sort by the time of each file, keeping the order of the tests in it.

    Of `costly` files, those come first of which nothing is known.
    """
    of_file: dict[Path, float] = {}
    names: dict[Path, str] = {}
    for item in items:
        of_file[item.path] = of_file.get(item.path, 0) + seconds.get(item.nodeid, 0)
        names[item.path] = item.nodeid.partition("::")[0]
    expected = usual()
    for path, name in names.items():
        of_file[path] = of_file[path] or expected.get(name, 0)
    unknown = {path for path, spent in of_file.items() if not spent and path in costly}
    items.sort(key=lambda item: (item.path not in unknown, -of_file[item.path]))


class Durations:
    """Adds up what each test takes, and adds it to the record at the end."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.before = recorded()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["durations"] = self.before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        lasting = {name: round(s, 1) for name, s in self.seconds.items() if s >= LEAST_S}
        path = record_file()
        if lasting:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, json.dumps(recorded() | lasting) + "\n", 0o644)
