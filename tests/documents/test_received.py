"""The door: whatever a host sends is bounded, typed and printable, or refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpufleet.documents import received
from gpufleet.documents.text import brief, cut, printable
from tests.support.healthy_host import Document, data

FORMER = Path(__file__).parents[1] / "fixtures" / "2fb692b" / "snapshot.json"


def arrived(snapshot: Document) -> Document:
    found: Any = received.snapshot(json.dumps(snapshot).encode(), "gpu01")
    assert found is not None
    return dict(found)


def test_a_healthy_snapshot_and_one_of_a_former_release_pass_unchanged(snapshot: Document) -> None:
    assert arrived(snapshot) == {**snapshot, "host": "gpu01"}
    former = json.loads(FORMER.read_text(encoding="utf-8"))
    assert arrived(former) == {**former, "host": "gpu01"}


def test_what_nobody_declared_passes_bounded(snapshot: Document) -> None:
    snapshot["sections"]["novel"] = {"state": "ok", "seconds": 1, "error": None, "data": [1]}
    assert arrived(snapshot)["sections"]["novel"]["data"] == [1]
    snapshot["sections"]["novel"]["data"] = 10**30
    assert arrived(snapshot)["sections"]["novel"]["state"] == "damaged"


@pytest.mark.parametrize(
    ("section", "key", "value", "printed"),
    [
        ("toolkits", "occupied", 5, "data.occupied is 5, and should be a list"),
        ("disks", "free_mib", {"/": 10**400}, "data.free_mib./ is a number of more than 64 bits"),
        ("disks", "free_mib", {"/": float("inf")}, "data.free_mib./ is inf: not a finite number"),
        ("disks", "free_mib", {"/": float("nan")}, "data.free_mib./ is nan: not a finite number"),
        ("driver", "loaded", [], "data.loaded is [], and should be non-empty text"),
        (
            "toolkits",
            "occupied",
            ["x" * 20_000],
            "data.occupied[0] has 20000 characters: more than 16384",
        ),
        (
            "toolkits",
            "occupied",
            ["x"] * 100_001,
            "data.occupied has 100001 entries: more than 100000",
        ),
        ("smi", "devices", [{}] * 513, "data.devices has 513 entries: more than 512"),
        ("toolkits", "novel", json.loads("[" * 60 + "]" * 60), "is nested deeper than 32 levels"),
        (
            "disks",
            "free_mib",
            {"/a": 1, "/a\x1b": 1, "/a\x1c": 1},
            "data.free_mib./a\ufffd is there twice",
        ),
    ],
)
def test_a_value_that_is_refused_costs_its_section_and_is_named(
    snapshot: Document, section: str, key: str, value: object, printed: str
) -> None:
    data(snapshot, section)[key] = value
    found = arrived(snapshot)["sections"]
    assert found[section]["state"] == "damaged"
    assert printed in found[section]["error"]
    assert {name for name, each in found.items() if each["state"] != "ok"} == {section}


@pytest.mark.parametrize(
    ("raw", "printed"),
    [
        (b'{"a": ' * 5000, "is nested deeper"),
        (b"[" * 300_000, "has more than 250000 values"),
        (b'{"schema": 1, "sections": 5}', "snapshot.sections should be a mapping"),
        (
            b'{"schema": 1, "host": "x", "sections": {"os": 1}, "unseen": 5}',
            "snapshot.unseen is 5, and should be a list",
        ),
        (
            b'{"schema": 1, "sections": {"os": ' + b"9" * 5000 + b"}}",
            "a number of more than 64 bits",
        ),
        (b" " * (9 << 20), "has 9437184 bytes"),
    ],
)
def test_a_document_that_is_refused_as_a_whole_names_its_place(raw: bytes, printed: str) -> None:
    with pytest.raises(received.UnfitError, match=printed.replace("[", r"\[")):
        received.snapshot(raw, "gpu01")


@pytest.mark.parametrize("raw", [b"5", b"[]", b"{}", b'{"schema": 1}', b"null", b'"text"'])
def test_other_json_is_no_snapshot(raw: bytes) -> None:
    assert received.snapshot(raw, "gpu01") is None


def test_text_that_a_terminal_obeys_is_replaced_in_values_and_keys(snapshot: Document) -> None:
    data(snapshot, "os")["arch"] = "\x1b]0;x\x07\x9b\x7f\u202e\u200d\ud800\ue000 naïve \u00a0end"
    snapshot["sections"]["os"]["data"]["k\x1bey"] = 1
    found = arrived(snapshot)["sections"]["os"]["data"]
    assert found["arch"] == "\ufffd]0;x" + "\ufffd" * 7 + " naïve \u00a0end"
    assert found["k\ufffdey"] == 1
    assert received.output(b"\x1b[31mred\xff\n\tnext") == "\ufffd[31mred\ufffd\n\tnext"


def test_a_cut_text_says_how_much_is_left_out() -> None:
    assert cut("x" * 12, 10) == "x" * 10 + " ... (2 more characters)"
    assert printable("a\nb") == "a\nb"


def test_a_value_is_shown_without_building_all_of_it() -> None:
    assert brief({"a": [1, None, "x"], "b": {}}) == "{'a': [1, None, 'x'], 'b': {}}"
    assert len(brief([{"path": "x" * 50}] * 1_000_000)) < 2100
    assert brief(10**5000) == "a number of 16610 bits"
