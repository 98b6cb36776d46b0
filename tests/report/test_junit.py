"""The JUnit XML equals the one that pytest writes."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge import judge
from gpufleet.report import junit
from tests.support.command_line import PLAN
from tests.support.healthy_host import Document, data

ROOT = Path(__file__).resolve().parents[2]
Case = tuple[str | None, str | None, str, str]


def cases(path: Path) -> tuple[dict[str, str | None], list[Case]]:
    """The suite's counts, and each case with its message."""
    suite = ET.parse(path).getroot()[0]
    found = []
    for case in suite:
        outcome = case[0] if len(case) else None
        text = "" if outcome is None or outcome.tag == "skipped" else str(outcome.text)
        found.append(
            (
                case.get("classname"),
                case.get("name"),
                "PASS" if outcome is None else outcome.tag,
                text,
            )
        )
    names = ("name", "tests", "failures", "skipped", "errors")
    return {name: suite.get(name) for name in names}, found


@pytest.mark.costly
@pytest.mark.parametrize("broken", [False, True])
def test_it_equals_the_xml_of_pytest(tmp_path: Path, snapshot: Document, broken: bool) -> None:
    if broken:
        data(snapshot, "cudnn")["trees"][0]["headers"][0]["version"] = "8.9.7"
        snapshot["sections"]["linker"].update(state="hung", data=None)
        snapshot["sections"]["disks"].update(
            state="failed", data=None, error="\x1b[31mno <disk> & \x00 words\x1b[0m"
        )
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(snapshot))
    documents = []
    for name, args in (("own", []), ("pytest", ["-q"])):
        directory = tmp_path / name
        subprocess.run(
            [
                sys.executable,
                "-m",
                "gpufleet",
                "verify",
                "--snapshot",
                str(path),
                "--plan",
                PLAN,
                "--report",
                str(directory),
                *args,
            ],
            cwd=ROOT,
            check=False,
            capture_output=True,
        )
        documents.append(cases(directory / "latest" / "junit.xml"))
    assert documents[0] == documents[1]
    assert (documents[0][0]["failures"] != "0") == broken


def test_an_unreachable_host_is_one_failure(tmp_path: Path, plan: Document) -> None:
    session = Session([HostRun("gone", None, plan, judge.unreachable("no answer", "look"))])
    junit.write(tmp_path / "junit.xml", session)
    figures, (case,) = cases(tmp_path / "junit.xml")
    assert figures["failures"] == figures["tests"] == "1"
    assert case[1:3] == ("test_reachable[gone]", "failure")
    assert "no answer" in case[3]
