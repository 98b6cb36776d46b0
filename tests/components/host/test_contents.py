"""When the contents of what is installed were read, as far as a night could."""

from __future__ import annotations

from gpufleet.judge import judge
from tests.components.faults.host import scrubbed
from tests.support.healthy_host import Document, data


def judged(plan: Document, snapshot: Document) -> Document:
    return {check["id"]: dict(check) for check in judge.judge(plan, snapshot)["checks"]}[
        "install.contents"
    ]


def test_contents_that_no_night_reads_are_not_called_read(
    plan: Document, snapshot: Document
) -> None:
    del data(snapshot, "receipts")["scrub"]
    assert judged(plan, snapshot)["verdict"] == "NOT-DECLARED"


def test_the_report_shows_when_each_component_was_last_read_whole(
    plan: Document, snapshot: Document
) -> None:
    scrubbed(snapshot, {}, {"component": "stack-tf", "read": None, "first": 1_800_000_000})
    found = judged(plan, snapshot)
    assert found["verdict"] == "PASS"
    assert found["evidence"].splitlines() == [
        "cudnn-11.8-8: 40 files, 3072 MiB, read whole 2027-01-02 08:00 UTC",
        "toolkit-11.8: 40 files, 3072 MiB, read whole 2027-01-02 08:00 UTC",
        "stack-tf: 40 files, 3072 MiB, reading started 2027-01-15 08:00 UTC",
    ]


def test_a_busy_disk_is_no_finding_before_the_days_are_over(
    plan: Document, snapshot: Document
) -> None:
    scrubbed(snapshot, error="no answer within 60 s")
    found = judged(plan, snapshot)
    assert (found["verdict"], found["evidence"].splitlines()[0]) == (
        "PASS",
        "nothing was read tonight: no answer within 60 s",
    )


def test_a_time_that_cannot_be_is_not_believed_and_no_defect_of_the_check(
    plan: Document, snapshot: Document
) -> None:
    scrubbed(snapshot, {"read": 10**15})
    found = judged(plan, snapshot)
    assert (found["verdict"], "toolkit-11.8 (last read whole" in found["cause"]) == (
        "INCONCLUSIVE",
        True,
    )
