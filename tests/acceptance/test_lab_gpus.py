"""Part two of the tutorial, as it is printed: each command runs, and each line of its output comes.

The hosts are real but for their GPUs, which are the lab's stand-ins. The tests are one story.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.gpus.planting import MODEL
from tests.support.lab_fleet import ROOT, Fleet

pytestmark = [pytest.mark.lab, pytest.mark.slow]
PAGE = ROOT / "docs/tutorial-gpus.md"
COMMANDS = ("./gpufleet ", "ssh-keygen ", "echo ", "rm ")
GIVE, NIGHTS, COMMISSION, CLEAN = "## 1.", "## 2.", "## 5.", "## 6."
DATE = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass
class Page:
    """The page, followed on hosts of these tests; `place` is in the place of `reports`."""

    fleet: Fleet
    place: Path
    printed: list[str] = field(default_factory=list)

    def lines(self, first: str, end: str) -> list[str]:
        """The indented lines from one heading up to another."""
        text = PAGE.read_text()
        part = text[text.index(first) : text.index(end) if end else None]
        return [line[4:] for line in part.splitlines() if line.startswith("    ")]

    def follow(self, first: str, end: str) -> str:
        """Run the commands of some steps and expect what is printed there; all that came."""
        output, expected = "", []
        for line in self.lines(first, end):
            if line.startswith(COMMANDS):
                output += self.run(line)
            else:
                expected.append(DATE.sub("DATE", line.replace(".../reports", "reports")).strip())
        shown = DATE.sub("DATE", output.replace(str(self.place), "reports"))
        assert expected
        assert [line for line in expected if line not in shown] == [], output[-6000:]
        return output

    def run(self, line: str) -> str:
        """Run a command of the page; a host may be unhealthy, and nothing else may fail."""
        command = line.replace("/lab/lab/nights", f"/lab/{self.fleet.instance}/nights")
        command = command.replace("reports/", f"{self.place}/")
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=ROOT,
            env=self.fleet.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in {0, 1}, (line, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def page(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page on hosts of the first part."""
    fleet.gpufleet("provision")
    return Page(fleet, tmp_path_factory.mktemp("reports"))


def test_the_checks_of_gpus_pass(page: Page) -> None:
    page.follow(GIVE, NIGHTS)


def test_the_cards_are_there_after_a_restart(page: Page) -> None:
    page.fleet.run("podman", "restart", f"gpufleet-{page.fleet.instance}-lab1")
    page.fleet.on("lab1", "systemctl is-system-running --wait", status=None)
    assert MODEL in page.fleet.on("lab1", "nvidia-smi -L")
    found = page.fleet.verdicts(0, "--limit", "lab1")["lab1"]
    assert found["gpu.count"]["verdict"] == "PASS"


def test_a_card_fails_its_host_is_drained_and_it_is_silenced(page: Page) -> None:
    page.follow(NIGHTS, COMMISSION)


def test_one_host_is_certified_and_one_is_refused(page: Page) -> None:
    output = page.follow(COMMISSION, CLEAN)
    assert 'Good "gpufleet-certificate" signature' in output
    certificate = json.loads((page.place / "lab_commission/certificates/lab2.json").read_text())
    [card] = [part for part in certificate["parts"] if part["kind"] == "gpu"]
    assert (card["model"], card["serial"], card["firmware"]) == (MODEL, "STAND-IN-0200", "stand-in")
    [burn_in] = [stage for stage in certificate["stages"] if stage["name"] == "burn-in"]
    load_s = int(re.search(r"(\d+) s of products in float32", " ".join(burn_in["notes"]))[1])
    # Three fifths of the 90 s; products in other formats take the rest.
    assert 54 <= load_s < 90
    for kind, name in (("certificates", "lab2"), ("refusals", "lab1")):
        assert MODEL in (page.place / f"lab_commission/{kind}/{name}.html").read_text()


def test_a_host_whose_cards_are_taken_away_has_none_left(page: Page) -> None:
    page.run("./gpufleet lab gpus --count 0")
    left = page.fleet.on(
        "lab1", "ls /dev/nvidia* /srv/stand-in-gpus /usr/bin/nvidia-smi; mount", status=None
    )
    assert "nvidia" not in left
    assert "stand-in" not in left
    # What the first part declares is due again, and no GPU is.
    found = page.fleet.verdicts(None, "--limit", "lab1")["lab1"]
    assert found["gpu.count"]["verdict"] == "NOT-DECLARED"
