"""The probe as it is shipped: one text on standard input, on every Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpufleet.documents.snapshot import SNAPSHOT_SCHEMA
from gpufleet.on_host import host as probe_host
from gpufleet.on_host import payload
from tests.support.machine import deadline
from tests.support.planted_host import NOBODY, as_started, form, interpreter


def test_an_abandoned_child_does_not_hold_the_callers_pipe(root: Path) -> None:
    """ssh ends only when the last holder of its pipes is gone."""
    hang = (
        "\nimport signal\nimport gpufleet.on_host.runner\n"
        "gpufleet.on_host.runner.SECTIONS['driver'] = lambda host: signal.pause()\nmain("
    )
    ended = subprocess.run(
        [sys.executable, "-", f"root={root}", "deadline_s=1", "matmul="],
        input=payload.probe().replace("\nmain(", hang).encode(),
        capture_output=True,
        timeout=deadline(20),
        check=True,
    )
    assert json.loads(ended.stdout)["sections"]["driver"]["state"] == "hung"


@pytest.fixture(scope="module")
def own_forms() -> dict[str, Any]:
    """The form of what this Python says of the planted tree, by account; each is made once."""
    return {}


@pytest.mark.costly
@pytest.mark.parametrize("user", ["as-it-is", "nobody"])
@pytest.mark.parametrize("minor", range(6, 15))
def test_every_python_says_the_same_on_standard_input(
    minor: int, user: str, open_root: Path, own_forms: dict[str, Any]
) -> None:
    config = {"root": str(open_root), "host": "gpu01", "deadline_s": 20}
    snapshot = as_started(interpreter(minor), config, user)
    assert snapshot["euid"] == (NOBODY if user == "nobody" else os.geteuid())
    assert [section["error"] for section in snapshot["sections"].values() if section["error"]] == []
    if user not in own_forms:
        own_forms[user] = form(as_started(sys.executable, config, user))
    assert form(snapshot) == own_forms[user]


def test_what_only_root_sees_is_named_by_whoever_is_not_root() -> None:
    config = {"host": "gpu01", "deadline_s": 20}
    mine, theirs = (
        as_started("/usr/bin/python3", config),
        as_started("/usr/bin/python3", config, "nobody"),
    )
    assert list(mine["sections"]) == list(theirs["sections"])
    whole = {name for name, section in theirs["sections"].items() if section["state"] == "ok"}
    assert {theirs["sections"][name]["state"] for name in set(theirs["sections"]) - whole} <= {
        "denied"
    }
    for name in whole:
        assert list(mine["sections"][name]["data"]) == list(theirs["sections"][name]["data"])
    assert [row for row in mine["unseen"] if row not in theirs["unseen"]] == []
    assert {
        "section": "kernel",
        "what": "/proc/1/environ",
        "because": "this account cannot read it",
    } in theirs["unseen"]


def test_a_place_that_may_not_be_listed_is_no_empty_one(open_root: Path) -> None:
    (open_root / "usr/local").chmod(0o700)
    snapshot = as_started("/usr/bin/python3", {"root": str(open_root), "host": "gpu01"}, "nobody")
    rows = {(row["section"], row["what"]) for row in snapshot["unseen"]}
    assert ("toolkits", "/usr/local") in rows


DESCRIBED = '''"""What it is.

More of it.
"""
TEXT = """
"""


def four():
    """It returns nothing, and says so."""
'''


def test_only_what_is_imported_travels_and_lines_keep_their_numbers() -> None:
    space: dict[str, object] = {"__name__": "shipped"}
    head, _, _ = payload.pack_program(
        "shipped",
        {
            "shipped": "one = 1\n    # a comment\nimport described\nfour = '# none'\n",
            "described": DESCRIBED,
            "left": "nobody imports it",
        },
    ).partition("\nsys.meta_path")
    exec(head, space)
    texts = eval("Sources(SOURCES).texts", space)
    assert texts == {
        "shipped": "one = 1\n\nimport described\nfour = '# none'\n",
        "described": '0\n\n\n\nTEXT = """\n"""\n\n\ndef four():\n 0\n',
    }
    assert compile(texts["described"], "described", "exec")


def test_continued_texts_keep_their_indentation() -> None:
    source = 'def f():\n    if 1:\n        return """a\n        b\n    # c"""\n'
    head, _, _ = payload.pack_program("one", {"one": source}).partition("\nsys.meta_path")
    space: dict[str, object] = {"__name__": "shipped"}
    exec(head, space)
    shipped, original = {}, {}
    exec(eval("Sources(SOURCES).texts", space)["one"], shipped)
    exec(source, original)
    assert shipped["f"]() == original["f"]()


def test_a_program_has_what_it_imports_and_nothing_else() -> None:
    texts = {
        "top": "",
        "top.other": "",
        "top.main": "from .part import one\nfrom ..top import two\n",
        "top.part": "def f():\n    import top.lazy\n",
        "top.part.one": "from .. import three",
        "top.two": "",
        "top.three": "from top.part import four",
        "top.lazy": "",
        "top.part.four": "",
    }
    assert set(payload.imported("top.main", texts)) == set(texts) - {"top.other"}


def test_the_probe_writes_the_schema_that_the_checks_read() -> None:
    assert probe_host.SCHEMA == SNAPSHOT_SCHEMA
