"""Terminal, JUnit, JSON, page and exit status show the same verdicts of the same documents."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.documents.verdict import SYMBOLS, Verdict
from gpufleet.fleet.session import HostRun
from gpufleet.judge import judge
from gpufleet.report import bundle
from tests.support.command_line import SNAPSHOT, run
from tests.support.healthy_host import Document, data, of_page

Verdicts = dict[tuple[str, str], str]


def healthy(snapshot: Document) -> None:
    """Nothing is broken."""


def broken(snapshot: Document) -> None:
    data(snapshot, "cudnn")["trees"][0]["headers"][0]["version"] = "8.9.7"


def hung(snapshot: Document) -> None:
    snapshot["sections"]["linker"] = {
        "state": "hung",
        "seconds": 20,
        "error": "no answer within 20 s",
        "data": None,
    }


def denied(snapshot: Document) -> None:
    snapshot["sections"]["receipts"] = {
        "state": "denied",
        "seconds": 0,
        "error": "Permission denied",
        "data": None,
    }


def damaged(snapshot: Document) -> None:
    data(snapshot, "stacks")["stacks"][0]["packages"] = None


def of_json(document: Document) -> Verdicts:
    return {
        (name, check["id"]): check["verdict"]
        for name, host in document["hosts"].items()
        for check in host["checks"]
    }


def of_junit(path: Path) -> Verdicts:
    """By what a continuous integration sees: passed, skipped, or failed with the verdict first."""
    found = {}
    for case in ET.parse(path).getroot()[0]:
        area = str(case.get("classname")).removeprefix("verify.test_")
        test, _, host = str(case.get("name")).rstrip("]").partition("[")
        check = f"{area}.{test.removeprefix('test_').replace('_', '-')}"
        failure, skipped = case.find("failure"), case.find("skipped")
        if failure is not None:
            verdict = str(failure.get("message")).removeprefix("Failed: ").partition(":")[0]
        else:
            verdict = "PASS" if skipped is None else "NOT-DECLARED"
        found[host, check] = verdict
    return found


def of_terminal(text: str) -> Verdicts:
    """By the symbols of the compact list under each host's headline."""
    verdicts = {symbol: verdict.value for verdict, symbol in SYMBOLS.items()}
    found, host = {}, ""
    for line in text.splitlines():
        if match := re.match(rf"([{''.join(verdicts)}]) (\S+)  ", line):
            host = match[2]
        elif line.startswith("  ") and line[2:3] in verdicts:
            found |= {
                (host, check): verdicts[symbol]
                for symbol, check in re.findall(r"(\S) ([\w.-]+)", line)
            }
    return found


@pytest.mark.parametrize(
    ("breaks", "expected"),
    [
        (healthy, ("PASS", 0)),
        (broken, ("FAIL", 1)),
        (hung, ("HUNG", 1)),
        (denied, ("INCONCLUSIVE", 3)),
        (damaged, ("INCONCLUSIVE", 3)),
        (None, ("UNREACHABLE", 1)),
    ],
)
def test_all_say_the_same(
    tmp_path: Path,
    plan: Document,
    snapshot: Document,
    breaks: Callable[[Document], None] | None,
    expected: tuple[str, int],
) -> None:
    verdict, status = expected
    if breaks:
        breaks(snapshot)
    result = judge.judge(plan, snapshot) if breaks else judge.unreachable("gone", "look")
    (saved,) = bundle.bundles([HostRun("gpu01", snapshot if breaks else None, plan, result)])
    path = tmp_path / "host1.json"
    path.write_text(json.dumps(saved), encoding="utf-8")
    ended = run("verify", "--snapshot", str(path), "--report", str(tmp_path / "r"), "-v")
    assert ended.returncode == status, ended.stderr
    report = tmp_path / "r/latest"
    document = json.loads((report / "report.json").read_text("utf-8"))
    reported = of_json(document)
    assert document["hosts"]["host1"]["verdict"] == verdict
    assert len(reported) == (1 if verdict == "UNREACHABLE" else len(result["checks"]))
    assert reported == {("host1", check["id"]): check["verdict"] for check in result["checks"]}
    assert of_junit(report / "junit.xml") == reported
    assert of_page((report / "report.html").read_text("utf-8")) == reported
    assert of_terminal(ended.stdout) == reported
    assert document["summary"] == {
        name: list(reported.values()).count(name) for name in document["summary"]
    }
    assert {name for name, count in document["summary"].items() if count} <= set(Verdict)


@pytest.mark.parametrize(
    "words",
    [
        ["-i", "EMPTY"],
        ["-i", "/nowhere/inventory"],
        ["-i", "gpu01,", "--limit", "nobody"],
        ["--snapshot", "/nowhere/snapshot.json"],
        ["--snapshot", SNAPSHOT, "-i", "other,"],
    ],
)
def test_where_there_is_nothing_to_judge_it_is_never_0(tmp_path: Path, words: list[str]) -> None:
    empty = tmp_path / "empty.yml"
    empty.write_text("gpu_hosts: {hosts: {}}\n")
    ended = run(
        "verify",
        "--json",
        *(str(empty) if w == "EMPTY" else w for w in words),
        "--report",
        str(tmp_path / "r"),
    )
    assert ended.returncode == 4
    (problem,) = json.loads(ended.stdout)["problems"]
    assert problem["message"] and problem["where"]
    assert not (tmp_path / "r/latest").exists()
