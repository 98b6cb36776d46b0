"""The page of the field corpus: public reports, by component, and what gpufleet makes of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.support.field_reports import read, reports

Table = Callable[[list[str], list[list[str]]], str]
Report = dict[str, Any]
HEAD = """\
Public reports of broken GPU servers, and of odd but healthy ones, {first} to {last}: {count} of
them. For each, what was true by the thread's resolution was written down before gpufleet's answer
was looked at. `tests/field` holds them: what the host showed, and the check, cause and remedy that
are expected. A test plants each host and judges it.

- **right**: verdict, cause and remedy are as the thread found, and a healthy host passes;
- **open**: they are not yet; the reason stands beside it;
- **out of scope**: nothing that gpufleet reads of a host shows the cause; the reason stands beside
  it.

## Right at first sight

How many of each fifty were right before a check was changed for one of them (commit `{commit}`), in
the order in which they were tried. **As first planted**, the report's fields alone were written
into a healthy host: such a host contradicts itself, such as another driver beside the old one's
libraries, and some could not be planted. The rules that make hosts whole
(`tests/support/field_hosts.py`) were written with those answers in view; truths and expectations
were not changed for an answer. **Right** and **wrong** are the answers to the whole hosts.

"""
HEADINGS = {
    "card": "Cards",
    "containers": "Containers",
    "cudnn": "cuDNN",
    "driver": "The driver",
    "environment": "The environment of a login",
    "fabric": "NVSwitches and IMEX",
    "framework": "Frameworks",
    "healthy": "Odd, and healthy",
    "kernel-log": "The kernel log",
    "linker": "The linker",
    "memory": "Memory and drives",
    "network": "The network",
    "nvlink": "NVLink",
    "packages": "Packages",
    "pcie": "PCI Express",
    "plan": "The plan",
    "platform": "The platform",
    "power": "Power",
    "scheduler": "Schedulers",
    "stack": "Stacks",
    "toolkit": "Toolkits",
}


def page(table: Table, source: str) -> str:
    """The page's text."""
    found, unsolved, first = reports(), read("open.yml"), read("first_sight.yml")
    years = [report["year"] for report in found]
    head = HEAD.format(first=min(years), last=max(years), count=len(found), commit=first["commit"])
    parts = [f"# Public reports\n{source}\n", head, _at_first_sight(table, first)]
    of_component = {
        name: [report for report in found if report["component"] == name] for name in HEADINGS
    }
    rows = []
    for name, those in of_component.items():
        states = Counter(_state(report, unsolved) for report in those)
        title = f"[{HEADINGS[name]}](#{_anchor(HEADINGS[name])})"
        rows.append([title, str(len(those)), *(str(states[each]) for each in STATES)])
    total = Counter(_state(report, unsolved) for report in found)
    rows.append(["all", str(len(found)), *(str(total[each]) for each in STATES)])
    parts.append("\n## By component\n\n" + table(["component", "reports", *STATES], rows))
    for name, those in of_component.items():
        lines = "".join(_line(report, unsolved) for report in those)
        parts.append(f"\n## {HEADINGS[name]}\n\n{lines}")
    return "".join(parts)


STATES = ("right", "open", "out of scope")


def _at_first_sight(table: Table, first: dict[str, Any]) -> str:
    """How many of each fifty were right, as first planted and as whole hosts."""
    rows, at = [], 1
    planted = zip(
        first["fifties"], first["as_first_planted"], first["not_planted_at_first"], strict=True
    )
    for fifty, right, absent in planted:
        tried = sum(map(len, fifty.values()))
        counts = [str(len(fifty[name])) for name in ("right", "wrong", "out_of_scope")]
        early = f"{right} right, {absent} not planted"
        rows.append([f"{at} to {at + tried - 1}", early, *counts])
        at += tried
    return table(["reports", "as first planted", "right", "wrong", "out of scope"], rows)


def _state(report: Report, unsolved: dict[str, str]) -> str:
    if "scope" in report:
        return "out of scope"
    return "open" if report["id"] in unsolved else "right"


def _line(report: Report, unsolved: dict[str, str]) -> str:
    """An item of a list: source, year, truth, state and the state's reason."""
    state = _state(report, unsolved)
    reason = report.get("why") or unsolved.get(report["id"])
    state_and_reason = f"*{state}*: {_escaped(reason)}" if reason else f"*{state}*"
    return (
        f"- {_source(report)}, {report['year']}: {_escaped(report['truth'])} {state_and_reason}\n"
    )


def _source(report: Report) -> str:
    """The report's first thread, as a link."""
    found = report["source"]
    first = found if isinstance(found, str) else found[0]
    if first.startswith("https://"):
        return f"[{first.split('/')[2]}]({first})"
    name, _, number = first.partition("#")
    return f"[{first}](https://github.com/{name}/issues/{number})"


def _escaped(text: str) -> str:
    """The text with the characters that Markdown and HTML would read."""
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("|", "\\|")


def _anchor(title: str) -> str:
    return "-".join(title.lower().replace(",", "").split())
