"""The page's embedded document: each text once, the most important first if room is short."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.documents.verdict import HEALTHY_VERDICTS
from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge import judge
from gpufleet.report import change_summary, fleet_versions, page, summary
from tests.support.fleet_documents import STACK, Fleet, fleet
from tests.support.healthy_host import Document, data

MONTH = 30


@pytest.fixture(scope="module")
def eight() -> Fleet:
    return fleet(8, seed=5, broken=0.6)


def text(document: Document, number: int, host: Document) -> str:
    found: str = document["texts"][number]
    return found.replace(summary.OWN_NAME, host["name"])


def evidence(document: Document, kind: str) -> list[int]:
    return [
        row[-1]
        for host in document["hosts"]
        for row in (document["seen"][host[kind]] if kind == "seen" else host[kind])
        if row[-1]
    ]


def test_each_text_is_printed_once_and_means_what_was_judged(eight: Fleet) -> None:
    document = page.document(eight.session, eight.past)
    assert len(document["texts"]) == len(set(document["texts"]))
    for host, shown in zip(eight.session.hosts, document["hosts"], strict=True):
        found = {
            document["checks"][check][0]: [text(document, number, shown) for number in numbers]
            for check, *numbers in shown["wrong"]
        }
        assert found == {
            check["id"]: [check[part] for part in ("cause", "remedy", "evidence")]
            for check in host.result["checks"]
            if check["verdict"] not in HEALTHY_VERDICTS
        }
        excused = {
            document["checks"][check][0]: document["texts"][declaration]
            for check, declaration in document["excuses"][shown["excused"]]
        }
        assert excused == {
            check["id"]: check["cause"]
            for check in host.result["checks"]
            if check["verdict"] == "NOT-DECLARED"
        }


def test_a_consequence_is_folded_under_its_cause(eight: Fleet) -> None:
    document = page.document(eight.session)
    for host, shown in zip(eight.session.hosts, document["hosts"], strict=True):
        folded = {
            document["checks"][check][0]: document["checks"][cause][0]
            for check, cause in shown["folded"]
        }
        assert folded == {
            check["id"]: check["explained_by"]
            for check in host.result["checks"]
            if "explained_by" in check
        }


def test_missing_cards_are_one_row_and_not_one_for_each_check() -> None:
    lost = [
        host
        for host in fleet(40, nights=2, broken=1).session.hosts
        if any(
            check["id"] == "gpu.count" and check["verdict"] == "FAIL"
            for check in host.result["checks"]
        )
    ]
    assert lost
    rows = summary.issues(Session(lost))
    assert [list(row.checks) for row in rows] == [["gpu.count"]]
    assert {"gpu.mig", "toolkit.device-query"} <= set(rows[0].explains)


def test_where_room_is_short_what_is_wrong_has_its_evidence(
    eight: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = page.document(eight.session)
    assert page.NOWHERE not in evidence(whole, "wrong") + evidence(whole, "seen")
    room = sum(len(whole["texts"][number]) for number in set(evidence(whole, "wrong")))
    monkeypatch.setattr(page, "MOST_EVIDENCE", room)
    tight = page.document(eight.session)
    assert page.NOWHERE not in evidence(tight, "wrong")
    assert page.NOWHERE in evidence(tight, "seen")


def test_of_too_many_values_the_newest_nights_stay(
    eight: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(page.document(eight.session, eight.past)["nights"]) == MONTH
    rows = sum(len(host["measures"]) for host in eight.past["hosts"].values())
    monkeypatch.setattr(page, "MOST_MEASURED", rows * (page.ROW + 20))
    document = page.document(eight.session, eight.past)
    assert document["nights"] == eight.past["nights"][-20:]
    assert {len(host["nights"]) for host in document["hosts"]} == {20}
    assert {len(row[-1]) for host in document["hosts"] for row in host["series"]} == {20}


def test_of_too_many_rows_those_of_the_worst_hosts_stay(
    eight: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = max(len(host["measures"]) for host in eight.past["hosts"].values())
    monkeypatch.setattr(page, "MOST_MEASURED", 5 * rows * (page.ROW + page.LEAST_NIGHTS))
    document = page.document(eight.session, eight.past)
    assert len(document["nights"]) == page.LEAST_NIGHTS
    has = [document["hosts"][place]["series"] is not None for place in document["order"]]
    assert has == [True] * 5 + [False] * 3


def test_a_value_is_kept_finer_than_a_screen_and_a_gap_stays_one(eight: Fleet) -> None:
    document = page.document(eight.session, eight.past)
    host_versions = fleet_versions.read_versions(eight.session)
    for host, shown in zip(eight.session.hosts, document["hosts"], strict=True):
        cards = host_versions[host.name].numbers
        measures = eight.past["hosts"][host.name]["measures"]
        for what, which, least, most, _, last, steps in shown["series"]:
            if document["texts"][what] != STACK.removeprefix("stack.") or not cards:
                continue
            number = int(document["texts"][which].removeprefix("GPU "))
            (values,) = [
                measures[name]
                for card, place in cards.items()
                if place == number and (name := f"gpu.{card}.{STACK}.tflops") in measures
            ]
            assert last == values[-1]
            for value, step in zip(values, steps, strict=True):
                if value is None:
                    assert step == page.ABSENT
                else:
                    kept = least + (most - least) * page.STEPS.index(step) / 63
                    assert abs(kept - value) <= (most - least) / 100


def test_a_processor_and_a_card_without_a_uuid_have_a_name(
    plan: Document, snapshot: Document
) -> None:
    session = Session([HostRun("lab1", snapshot, plan, judge.judge(plan, snapshot))])
    past = {
        "nights": ["1", "2"],
        "hosts": {
            "lab1": {
                "verdicts": ".P",
                "measures": {
                    "cpu.stack.tensorflow-2.13.1.tflops": [None, 0.2],
                    "gpu.0.toolkit.11.8.tflops": [1, 2],
                    "gpu.0.toolkit.11.8.first_op_s": [1, 2],
                    "gpu.0.stack.never.tflops": [None, None],
                },
            }
        },
    }
    document = page.document(session, past)
    assert [
        (document["texts"][what], document["texts"][which])
        for what, which, *_ in document["hosts"][0]["series"]
    ] == [("CUDA 11.8", "GPU 0"), ("tensorflow-2.13.1", "CPU")]
    appeared = {"nights": ["1", "2"], "hosts": {}}
    assert page.document(session, appeared)["hosts"][0]["nights"] == ""


def test_versions_in_which_hosts_differ(eight: Fleet) -> None:
    host_versions = fleet_versions.read_versions(eight.session)
    found = {each.component: each for each in fleet_versions.compare_versions(host_versions)}
    driver = found["Driver"]
    assert driver.differs
    assert [version for version, _ in driver.versions] == ["535.261.03", "535.183.01"]
    assert not found["CUDA 11.8"].differs
    assert found["GPUs"].versions[0][0] == "8 × NVIDIA H100 80GB HBM3"
    assert next(iter(found)) == "Driver"


def test_a_planned_stack_that_is_absent_is_odd(plan: Document, snapshot: Document) -> None:
    data(snapshot, "stacks")["stacks"] = []
    run = HostRun("gpu01", snapshot, plan, judge.judge(plan, snapshot))
    found = fleet_versions.read_versions(Session([run]))["gpu01"].versions
    assert found["tensorflow-2.13.1"] == fleet_versions.NONE
    assert found["CUDA 11.8"] == "11.8.20220929"


@pytest.mark.parametrize(
    "damage",
    [
        None,
        [],
        "text",
        7,
        {"devices": [None]},
        {"trees": ["x"]},
        {"stacks": [{"packages": 3}]},
        {"runs": [{"devices": 1}]},
    ],
)
def test_damaged_sections_hide_a_version_and_break_nothing(
    plan: Document, snapshot: Document, damage: Any
) -> None:
    for section in list(snapshot["sections"]):
        broken = {
            **snapshot,
            "sections": {**snapshot["sections"], section: {"state": "ok", "data": damage}},
        }
        session = Session([HostRun("gpu01", broken, plan, judge.judge(plan, broken))])
        assert fleet_versions.compare_versions(fleet_versions.read_versions(session))
        assert page.document(session)["hosts"]
    for broken in ({}, {"sections": None}, {"sections": {"os": None}}):
        one = Session([HostRun("gpu01", broken, plan, {})])
        assert fleet_versions.describe(fleet_versions.read_versions(one)["gpu01"].versions) == ""


def change(host: str, check: str | None, what: str, **more: Any) -> Document:
    return {
        "kind": "failure",
        "host": host,
        "check": check,
        "before": None,
        "after": None,
        "text": what,
        "remedy": f"./gpufleet provision --limit {host}",
        "weight": "bad",
        "strikes": 1,
        **more,
    }


def test_what_changed_is_printed_once_for_all_its_checks_and_hosts() -> None:
    summarized = change_summary.summarize(
        [
            change("gpu01", None, "Running kernel: 2, and was 1.", kind="kernel", weight="note"),
            change("gpu01", "gpu.smi", "gpu.smi hangs: no answer."),
            change("gpu01", "gpu.pcie", "gpu.pcie hangs: no answer."),
            change("gpu02", "gpu.smi", "gpu.smi hangs: no answer."),
            change("gpu03", "gpu.smi", "gpu.smi hangs: no answer."),
            change("gpu04", "gpu.smi", "gpu.smi hangs: no answer.", strikes=2),
        ]
    )
    assert [(each.text, each.checks, each.hosts) for each in summarized] == [
        ("hangs: no answer.", ("gpu.smi",), ("gpu02", "gpu03")),
        ("hangs: no answer.", ("gpu.smi", "gpu.pcie"), ("gpu01",)),
        ("hangs: no answer.", ("gpu.smi",), ("gpu04",)),
        ("Running kernel: 2, and was 1.", (), ("gpu01",)),
    ]
    assert summarized[0].remedy == "./gpufleet provision --limit gpu02,gpu03"


def test_hosts_whose_names_begin_alike_are_distinguished() -> None:
    text = "gpu1 and gpu10, gpu1.example.org, my-gpu1: gpu1."
    bare = summary.mask_name(text, "gpu1")
    assert summary.insert_names(bare, ["X"]) == "X and gpu10, gpu1.example.org, my-gpu1: X."
    assert summary.insert_names(bare, ["a", "b"], "HOST").startswith("HOST and gpu10")
