"""The probe on the newest Debian's own Python, as root and as an ordinary user.

Those that this machine has are tried in tests/on_host/test_payload.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpufleet.documents import validator
from gpufleet.on_host import payload
from tests.support.lab_fleet import Fleet
from tests.support.planted_host import as_started, form

pytestmark = [pytest.mark.lab, pytest.mark.slow]
UP = ("--hosts", "lab1", "--suite", "forky")
ARTIFACTS = ("--cuda", "8.0")


@pytest.fixture(scope="module")
def python(fleet: Fleet) -> str:
    """The newest interpreter that Debian has for that host."""
    fleet.on("lab1", "apt-get -q update && apt-get install -q -y python3.14-minimal || :")
    return fleet.on("lab1", "ls /usr/bin/python3.* | grep -E '3\\.[0-9]+$' | sort -V").split()[-1]


@pytest.mark.parametrize("user", ["root", "deploy"])
def test_the_document_is_the_same(fleet: Fleet, tmp_path: Path, python: str, user: str) -> None:
    config = {"host": "lab1", "deadline_s": 20}
    script = tmp_path / "probe.py"
    script.write_text(f"CONFIG = {json.dumps(config)!r}\n{payload.probe()}")
    fleet.run("podman", "cp", script, f"gpufleet-{fleet.instance}-lab1:/tmp/probe.py")
    fleet.on("lab1", "chmod 644 /tmp/probe.py")
    output = fleet.on("lab1", f"su -s /bin/sh {user} -c '{python} -I -S - </tmp/probe.py'")
    snapshot: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert python == "/usr/bin/python3.14"
    assert (snapshot["euid"] == 0) == (user == "root")
    assert validator.mark_damaged(snapshot) == snapshot
    assert {section["state"] for section in snapshot["sections"].values()} == {"ok"}
    own = as_started(sys.executable, config)
    for name, section in snapshot["sections"].items():
        assert set(form(section["data"])) == set(form(own["sections"][name]["data"]))
