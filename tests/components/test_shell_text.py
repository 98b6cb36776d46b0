"""Text that a host sends never becomes shell text in a remedy or in a command of a repair.

Each string of a snapshot is replaced by shell text, one at a time, on healthy and on broken hosts.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from copy import copy
from typing import Any

import pytest

from gpufleet.judge import judge
from tests.support.check_faults import Fault, faults, no_gpus
from tests.support.healthy_host import Document, document, with_cards, with_driver
from tests.support.host_parts import with_gpus

Place = tuple[str | int, ...]

# What a shell obeys or a program takes for an option.
PAYLOADS = (
    ";touch${IFS}/PWNED;#",
    "$(touch /PWNED)",
    "`touch /PWNED`",
    "\ntouch /PWNED\n",
    "'\";touch /PWNED;\"'",
    "--exec=touch /PWNED",
    "x || touch /PWNED &",
    "old (touch /PWNED)",
)
# All of them at once, for the many cases.
ALL = "".join(PAYLOADS)
# How `quoted` prints what is no plain name: in quotes, and without what a shell obeys.
HARMLESS = re.compile(r"'[\w ./+:@%,=\\-]*'")
# Every payload has it.
MARK = "PWNED"
HEALTHY = (no_gpus, with_driver, with_cards, with_gpus)
FAULTS = faults()
# How many rows of a longer list are tried, from either end.
LONG = 3
# How many cases of each fault the default, the exhaustive and the slow run try. Each fault begins at
# another place, so that together they try each string on several broken hosts.
SAMPLE, MANY, MOST = 1, 10, 40
# The exhaustive run tries each eighth case of a healthy host.
EIGHTH, EACH = 8, 1


def strings(value: Any, here: Place = ()) -> Iterator[tuple[Place, bool]]:
    """The place of each string (or null) of a document, and whether its key is meant."""
    if value is None or isinstance(value, str):
        yield here, False
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield (*here, key), True
            yield from strings(inner, (*here, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            if not LONG <= number < len(value) - LONG:
                yield from strings(inner, (*here, number))


def replaced(document: Document, place: Place, key: bool, text: str, append: bool) -> Document:
    """The document with the text at this place: a copy along the path, the same objects beside."""
    result: Any = copy(document)
    inner = result
    for step in place[:-1]:
        inner[step] = copy(inner[step])
        inner = inner[step]
    last = place[-1]
    if key:
        inner[f"{last}{text}" if append else text] = inner.pop(last)
    else:
        inner[last] = f"{inner[last] or ''}{text}" if append else text
    return result


def obeyed(result: Any) -> list[tuple[str, str]]:
    """Check and text of each remedy and repair that has shell text of the host."""
    found = []
    for check in result["checks"]:
        parts = check.get("repairs", [])
        prose = [
            check["remedy"] if check["verdict"] != "NOT-DECLARED" else "",
            *(part["act"] for part in parts if "act" in part),
        ]
        found += [(check["id"], text) for text in prose if MARK in HARMLESS.sub("", text)]
        for part in parts:
            command = part.get("command", "./gpufleet")
            if (
                MARK in command
                or MARK in part.get("name", "")
                or shlex.split(command)[0] != "./gpufleet"
            ):
                found.append((check["id"], command))
    return found


def cases(
    plan: Document, snapshot: Document, changed: Document | None = None
) -> Iterator[tuple[Place, bool, bool]]:
    """The place, whether its key is meant, and whether the text is appended, of each case.

    `changed`: only sections that differ from this snapshot's.
    """
    for name, section in snapshot["sections"].items():
        if changed is None or section != changed["sections"].get(name):
            for place, key in strings(section, ("sections", name)):
                yield place, key, False
                yield place, key, True
    if changed is None:
        for name in ("host", "mode"):
            yield (name,), False, True


def obeyed_in(
    plan: Document, snapshot: Document, tried: list[tuple[Place, bool, bool]], text: str = ALL
) -> list[tuple[Place, str, str]]:
    """Place, check and text of shell text that would be obeyed in these cases."""
    before = json.dumps(snapshot)
    wrong = [
        (place, *one)
        for place, key, append in tried
        for one in obeyed(judge.judge(plan, replaced(snapshot, place, key, text, append)))
    ]
    assert json.dumps(snapshot) == before
    return wrong


def broken(fault: Fault) -> tuple[Document, Document, list[tuple[Place, bool, bool]]]:
    """The documents of a fault, and the cases in the sections that it changes."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    fault.healthy(plan, snapshot)
    healthy = json.loads(json.dumps(snapshot))
    fault.apply(plan, snapshot)
    return plan, snapshot, list(cases(plan, snapshot, healthy))


def obeyed_on_broken(number: int, most: int) -> list[tuple[Place, str, str]]:
    """Shell text that would be obeyed in so many cases of a fault, evenly distributed."""
    plan, snapshot, tried = broken(FAULTS[number])
    step = max(1, len(tried) // most)
    return obeyed_in(plan, snapshot, tried[number % step :: step])


def cost(exhaustive: int, slow: int) -> Any:
    """How many cases are tried: by the exhaustive and by the slow tests."""
    return [
        pytest.param(exhaustive, id="sample", marks=pytest.mark.exhaustive),
        pytest.param(slow, id="all", marks=pytest.mark.slow),
    ]


@pytest.mark.parametrize("step", cost(EIGHTH, EACH))
@pytest.mark.parametrize("host", HEALTHY, ids=lambda host: host.__name__)
def test_no_string_of_a_healthy_host_becomes_shell_text(host: Any, step: int) -> None:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    host(plan, snapshot)
    tried = list(cases(plan, snapshot))
    assert len(tried) > 1000
    assert obeyed_in(plan, snapshot, tried[HEALTHY.index(host) :: step]) == []


@pytest.mark.parametrize("most", cost(MANY, MOST))
@pytest.mark.parametrize(
    "number", range(len(FAULTS)), ids=lambda number: f"{FAULTS[number].area}-{FAULTS[number].name}"
)
def test_no_string_of_a_broken_host_becomes_shell_text(number: int, most: int) -> None:
    assert obeyed_on_broken(number, most) == []


def test_a_sample_of_the_strings_of_each_broken_host_becomes_no_shell_text() -> None:
    assert [one for number in range(len(FAULTS)) for one in obeyed_on_broken(number, SAMPLE)] == []


def test_the_path_of_a_link_below_a_shareable_stack_becomes_no_shell_text() -> None:
    [fault] = [each for each in FAULTS if each.name == "stack_that_is_a_link_to_a_home"]
    plan, snapshot, tried = broken(fault)
    paths = [case for case in tried if "exposed" in case[0]]
    assert paths and obeyed_in(plan, snapshot, paths) == []


def unfinished(**changes: str) -> Document:
    """The result of install.complete, where the journal has an entry that no plan has."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    snapshot["sections"]["receipts"]["data"]["journal"] = [
        {
            "kind": "stack",
            "id": "old",
            "path": "/opt/gpufleet/stacks/old",
            "state": "installing",
            "started": "2026-01-01T00:00:00Z",
            **changes,
        }
    ]
    result = judge.judge(plan, snapshot)
    return {check["id"]: check for check in result["checks"]}["install.complete"]


def test_a_journal_entry_with_a_plain_id_is_removed_by_a_command() -> None:
    check = unfinished()
    command = "./gpufleet remove --stack old --limit gpu01"
    assert command in check["remedy"]
    assert [part["command"] for part in check["repairs"]] == [command]


@pytest.mark.parametrize("text", [*PAYLOADS, "", "--all", "old stack", "-n"])
@pytest.mark.parametrize("field", ["id", "kind"])
def test_a_journal_entry_with_another_id_or_kind_is_described_in_words(
    field: str, text: str
) -> None:
    check = unfinished(**{field: text})
    assert "remove" not in re.findall(r"\./gpufleet (\w+)", check["remedy"])
    assert {part["by"] for part in check["repairs"]} == {"person"}
    assert obeyed({"checks": [check]}) == []


@pytest.mark.parametrize("text", PAYLOADS)
def test_an_unreadable_record_with_another_path_is_described_in_words(text: str) -> None:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    snapshot["sections"]["receipts"]["data"]["unreadable"] = [
        {"path": f"/var/lib/gpufleet/receipts/{text}.json", "error": "no JSON"}
    ]
    result = judge.judge(plan, snapshot)
    check = {check["id"]: check for check in result["checks"]}["install.complete"]
    assert check["verdict"] == "FAIL"
    assert "on the host: move '/var/lib/gpufleet/receipts/" in check["remedy"]
    assert obeyed(result) == []


@pytest.mark.parametrize("text", PAYLOADS)
def test_the_scan_finds_shell_text_in_a_remedy_and_in_a_repair(text: str) -> None:
    command = f"./gpufleet remove --stack {text}"
    check = {
        "id": "x",
        "verdict": "FAIL",
        "remedy": command,
        "repairs": [{"by": "command", "command": command}],
    }
    assert obeyed({"checks": [check]}) == [("x", command)] * 2
