"""Documents of release 2fb692b are still read: its snapshot, plan, receipts, journal and history.

The samples were recorded on a lab host that it had provisioned (tests/fixtures/2fb692b).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpufleet.components.changes import changes
from gpufleet.documents import validator
from gpufleet.documents.plan import Plan
from gpufleet.documents.receipt import Receipt
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.verdict import Verdicts
from gpufleet.judge import judge
from gpufleet.on_host.receipts import read_receipts
from gpufleet.watch.history import History
from tests.support.healthy_host import other_than

FORMER = Path(__file__).parents[1] / "fixtures" / "2fb692b"
# The checks that were added since, and judge this host.
ADDED = {
    # It did not observe the temporary directory, nor the machine's drives.
    "host.temporary": "INCONCLUSIVE",
    "host.nvme": "INCONCLUSIVE",
    # It knew no images: every host had booted.
    "host.booted": "PASS",
    # It did not ask apt; the entries of its repositories are compared.
    "host.repositories": "PASS",
}
RECEIPTS = sorted(path.name for path in (FORMER / "receipts").iterdir())


def read(name: str) -> Any:
    return json.loads((FORMER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "document"),
    [("snapshot.json", Snapshot), ("plan.json", Plan), ("verdicts.json", Verdicts)],
)
def test_its_documents_are_valid(name: str, document: type) -> None:
    assert validator.faults(document, read(name), name) == []


def test_no_section_of_its_snapshot_is_damaged() -> None:
    assert validator.mark_damaged(read("snapshot.json")) == read("snapshot.json")


def test_its_snapshot_is_judged_as_it_judged_it() -> None:
    then = read("verdicts.json")["hosts"]["lab1"]
    now = judge.judge(read("plan.json"), read("snapshot.json"))
    known = {check["id"]: check["verdict"] for check in then["checks"]}
    found = {check["id"]: check["verdict"] for check in now["checks"]}
    assert {check: found[check] for check in known} == known
    # Other checks that were added since need a GPU, and this host has none.
    added = {check: found[check] for check in found if check not in known}
    assert other_than("NOT-DECLARED", added) == ADDED
    assert len(found) == len(now["checks"])
    assert len(known) == len(then["checks"]) > 40
    assert (now["verdict"], then["verdict"]) == ("INCONCLUSIVE", "PASS")


def test_a_host_that_it_provisioned_lacks_nothing() -> None:
    assert changes(read("plan.json"), read("snapshot.json")) == []


@pytest.mark.parametrize("name", RECEIPTS)
def test_its_receipts_are_valid(name: str) -> None:
    assert validator.faults(Receipt, read(f"receipts/{name}"), name) == []


def test_the_probe_reads_its_receipts(tmp_path: Path) -> None:
    shutil.copytree(FORMER / "receipts", tmp_path / "receipts")
    found = read_receipts(str(tmp_path))
    assert found["unreadable"] == []
    assert found["journal"] == []
    assert sorted(receipt["kind"] for receipt in found["receipts"]) == [
        "cudnn",
        "environment",
        "stack",
        "toolkit",
    ]
    assert len(RECEIPTS) == 4


def test_its_history_is_read(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    shutil.copy(FORMER / "history.sqlite", path)
    with History(path) as history:
        runs = history.nights()
        assert len(runs) == 2
        assert history.names("hosts") == ["lab1", "lab2"]
        assert history.letters(runs) == {"lab1": "PP", "lab2": "PF"}
        assert {
            host: change["kind"]
            for change in history.changes()["changes"]
            for host in [change["host"]]
        } == {"lab2": "failure"}
