"""Leftovers: what is installed and declared no longer is named, or removed where that is declared."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.changes import changes
from gpufleet.components.resolver import resolve
from tests.support.host_documents import converged, declaration, section, snapshot

Row = dict[str, Any]

BEFORE = declaration("1.4.0", "2.13.1")
AFTER = declaration("2.13.1")
PATH = "/usr/local/cuda-8.0"
GONE = [("stack", "tensorflow-1.4.0"), ("cudnn", "8.0-6"), ("toolkit", "8.0")]


@pytest.fixture
def host() -> Row:
    """A host on which everything declared before was done."""
    plan = resolve(BEFORE)
    places = {("environment", "files"): "/"}
    places |= {("toolkit", row["short"]): row["path"] for row in plan["toolkits"]}
    places |= {("cudnn", row["id"]): row["toolkit_path"] for row in plan["cudnn"]}
    places |= {("stack", row["name"]): row["venv"] for row in plan["stacks"]}
    made = converged(plan)
    for row in section(made, "receipts")["receipts"]:
        row["path"] = places[row["kind"], row["id"]]
    return made


def planned(host: Row, **more: Any) -> Row:
    plan = resolve({**AFTER, **more}, host)
    assert plan["problems"] == []
    return plan


def removed(plan: Row, host: Row) -> list[tuple[str, str]]:
    rows = changes(plan, host)
    return [(row["what"], row["id"]) for row in rows if row["action"] == "remove"]


def test_a_host_that_declares_nothing_at_all_is_not_emptied() -> None:
    (problem,) = resolve({"gpu_prune": True})["problems"]
    assert (problem["code"], problem["where"]) == ("prune-undeclared", "gpu_prune")
    assert "gpu_stacks: []" in problem["remedy"]
    assert resolve({"gpu_prune": True, "gpu_stacks": []})["problems"] == []


def test_without_the_declaration_leftovers_are_only_named(host: Row) -> None:
    plan = planned(host)
    assert removed(plan, host) == []
    reported = [note for note in plan["notes"] if "gpu_prune: true removes it" in note]
    assert len(reported) == len(GONE)
    assert f"toolkit 8.0 in {PATH} is no longer declared" in reported[2]


def test_with_it_they_go_stacks_first_and_toolkits_last(host: Row) -> None:
    plan = planned(host, gpu_prune=True)
    assert removed(plan, host) == GONE
    assert not any("no longer declared" in note for note in plan["notes"])
    rows = [row for row in changes(plan, host) if row["action"] == "remove"]
    assert all("no longer declared (gpu_prune)" in row["because"] for row in rows)


def test_what_is_still_declared_or_has_no_receipt_never_goes(host: Row) -> None:
    plan = resolve({**BEFORE, "gpu_prune": True}, host)
    assert removed(plan, host) == []
    section(host, "receipts")["receipts"] = []
    section(host, "toolkits")["default"]["realpath"] = PATH
    assert removed(resolve({"gpu_prune": True}), host) == []


def test_a_toolkit_that_somebody_s_environment_is_bound_to_stays_with_its_cudnn(
    host: Row,
) -> None:
    theirs = {"name": "theirs", "venv": "/opt/gpufleet/stacks/theirs", "bound_to": f"{PATH}/lib64"}
    section(host, "stacks")["stacks"].append(theirs)
    plan = planned(host, gpu_prune=True)
    assert removed(plan, host) == GONE[:1]
    (reported,) = [note for note in plan["notes"] if note.startswith("toolkit 8.0")]
    assert "stays: /opt/gpufleet/stacks/theirs, which gpufleet did not install" in reported


@pytest.mark.parametrize("prune", [True, False])
def test_a_removal_that_was_killed_is_finished_whatever_is_declared(host: Row, prune: bool) -> None:
    section(host, "receipts")["receipts"] = [
        row for row in section(host, "receipts")["receipts"] if row["id"] != "8.0"
    ]
    entry = {"kind": "toolkit", "id": "8.0", "path": PATH, "state": "removing", "started": "noon"}
    section(host, "receipts")["journal"] = [entry]
    plan = planned(host, gpu_prune=prune)
    (row,) = [row for row in changes(plan, host) if row["id"] == "8.0"]
    assert (row["what"], row["action"]) == ("toolkit", "remove")
    assert row["because"] == "its removal started at noon and did not finish"


def test_a_first_installation_that_was_killed_is_a_leftover_too() -> None:
    entry = {"kind": "toolkit", "id": "8.0", "path": PATH, "state": "installing", "started": "noon"}
    host = snapshot(receipts={"journal": [entry]})
    assert removed(planned(host, gpu_prune=True), host) == [("toolkit", "8.0")]
    assert removed(planned(host), host) == []


@pytest.mark.parametrize("name", ["receipts", "stacks"])
def test_nothing_goes_from_a_host_that_could_not_tell_who_needs_it(host: Row, name: str) -> None:
    host["sections"][name] = {"state": "hung", "data": None, "error": "deadline"}
    assert removed(planned(host, gpu_prune=True), host) == []


LINK = "/usr/local/cuda"


@pytest.mark.parametrize(
    ("link", "goes"),
    [
        ({"state": "link", "target": "cuda-8.0", "realpath": PATH}, True),
        ({"state": "link", "target": "cuda-8.0", "realpath": None}, True),
        ({"state": "link", "target": "/opt/theirs", "realpath": "/opt/theirs"}, False),
        ({"state": "link", "target": "/opt/unmounted", "realpath": None}, False),
        ({"state": "directory", "target": None, "realpath": None}, False),
    ],
)
def test_the_default_link_goes_with_the_last_toolkit(host: Row, link: Row, goes: bool) -> None:
    section(host, "toolkits")["default"] = {"path": LINK, **link}
    last = resolve({"gpu_prune": True, "gpu_stacks": []}, host)
    assert (("default_link", LINK) in removed(last, host)) is goes
    assert ("default_link", LINK) not in removed(resolve({}, host), host)


def test_a_refused_declaration_has_no_notes_on_leftovers(host: Row) -> None:
    plan = resolve({"gpu_stacks": [{"tensorflow": "2.13.99"}]}, host)
    assert [problem["code"] for problem in plan["problems"]] == ["unknown-release"]
    assert not [note for note in plan["notes"] if "no longer declared" in note]
