"""The field corpus (tests/field): public reports, and the rule by which an answer to one is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gpufleet.components.resolver import resolve
from gpufleet.judge import judge
from tests.support.field_cards import device_of, on_two_cards
from tests.support.field_hosts import planted
from tests.support.healthy_host import Document
from tests.support.host_documents import DEBIAN_12, SYSTEMS
from tests.support.host_documents import snapshot as bare_host

FIELD = Path(__file__).parents[1] / "field"
# Documents about the reports: these hold none.
ABOUT = ("open.yml", "first_sight.yml")
# Systems on which gpufleet installs nothing.
OTHER_SYSTEMS: dict[str, Document] = {
    "ubuntu-18.04": {"id": "ubuntu", "version_id": "18.04", "codename": "bionic", "glibc": "2.27"},
    "centos-7": {"id": "centos", "version_id": "7", "codename": None, "glibc": "2.17"},
}
WRONG = ("FAIL", "INCONCLUSIVE", "HUNG")


def reports() -> list[Document]:
    """All reports, in the order of their files."""
    files = sorted(path for path in FIELD.glob("*.yml") if path.name not in ABOUT)
    return [report for path in files for report in read(path.name)]


def read(name: str) -> Any:
    """A document of the corpus."""
    return yaml.safe_load((FIELD / name).read_text(encoding="utf-8"))


def answered(report: Document) -> tuple[bool, str]:
    """Return whether the answer is right, and the causes with their remedies, one a line."""
    report = on_two_cards(report)
    rows = _rows(report)
    told = "\n".join(
        f"{row['verdict']} {row['id']}: {row['cause']} -- {row['remedy']}"
        for row in rows
        if row["verdict"] in WRONG and not row.get("explained_by")
    )
    return _is_right(report, rows), told


def _is_right(report: Document, rows: list[Document]) -> bool:
    expected = report["expect"]
    if report["healthy"] or expected["verdict"] == ["PASS"]:
        # Where nothing can be known, a report may accept that its checks say so.
        open_to = expected["check"] if "INCONCLUSIVE" in expected["verdict"] else ()
        return not any(
            row["verdict"] in WRONG
            and (
                row["verdict"] != "INCONCLUSIVE"
                or row["id"] not in open_to
                or _misleads(row, expected)
            )
            for row in rows
        )
    return any(_is_expected(row, expected) for row in rows)


def _is_expected(row: Document, expected: Document) -> bool:
    """Return whether a check says what was true of the host, and what helps."""
    if row.get("explained_by") or (expected["check"] and row["id"] not in expected["check"]):
        return False
    cause, remedy = ((row[name] or "").lower() for name in ("cause", "remedy"))
    evidence = f"{cause} {row.get('evidence') or ''}".lower()
    if not _says(expected.get("cause"), evidence):
        return False
    if row["verdict"] == "PASS":
        return "NOTE" in expected["verdict"] and bool(expected.get("cause"))
    fits = _says(expected.get("remedy"), f"{remedy} {cause}") and not _misleads(row, expected)
    # A probe that hung could not conclude.
    verdict = "INCONCLUSIVE" if row["verdict"] == "HUNG" else row["verdict"]
    return verdict in expected["verdict"] and fits


def _misleads(row: Document, expected: Document) -> bool:
    remedy = (row["remedy"] or "").lower()
    return any(word.lower() in remedy for word in expected.get("remedy_not") or ())


def _says(wanted: list[list[str]] | None, text: str) -> bool:
    return all(any(word.lower() in text for word in words) for words in wanted or ())


def _rows(report: Document) -> list[Document]:
    """The checks of the report's host; the resolver's problems and notes are those of `plan`."""
    given, rows = report["input"], []
    if set(given) == {"declare"} or "plan" in report["expect"]["check"]:
        rows = _planned(given.get("declare") or {}, given)
    if set(given) != {"declare"}:
        plan, snapshot = planted(given)
        checks: Any = judge.judge(plan, snapshot)["checks"]
        rows = [*rows, *checks]
    return rows


def _planned(declared: Document, given: Document) -> list[Document]:
    """The resolver's answer to the report's declaration on a host of its system."""
    system = declared.get("os", "ubuntu-22.04")
    own: Document = (
        OTHER_SYSTEMS.get(system) or SYSTEMS.get(system) or SYSTEMS[system.partition(".")[0]]
    )
    versions = [each["python"] for each in declared.get("gpu_stacks", ()) if "python" in each]
    pythons = [{"path": f"/usr/bin/python{each}", "version": f"{each}.1"} for each in versions]
    place = {"address": "0000:01:00.0", "vendor": "0x10de"}
    named = declared.get("gpu") or ("H100 SXM5 80GB" if "gpu_driver" in declared else None)
    cards = [{**place, "device": device_of(named)}] if named else []
    host = bare_host(
        os={**DEBIAN_12, **own, "pythons": pythons or DEBIAN_12["pythons"]},
        gpus={"pci": cards},
        kernel={"running": declared.get("kernel", "6.1.0-50-amd64")},
        driver={
            path.partition("/")[2]: value
            for path, value in (given.get("snapshot") or {}).items()
            if path in ("driver/loaded", "driver/library", "driver/cuda_version")
        },
    )
    wishes = {name: value for name, value in declared.items() if name.startswith("gpu_")}
    plan: Any = resolve({"gpu_accept_nvidia_eula": True, **wishes}, host)
    problems = [
        {"id": "plan", "verdict": "FAIL", "cause": each["message"], "remedy": each["remedy"]}
        for each in plan["problems"]
    ]
    notes = [
        {"id": "plan", "verdict": "NOTE", "cause": each, "remedy": each} for each in plan["notes"]
    ]
    return problems + notes
