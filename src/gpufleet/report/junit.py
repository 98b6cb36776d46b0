"""The verdicts as JUnit XML, the same as pytest writes for the suite.

pytest needs a tenth of a second for each host's seventy items, so it runs only where someone has
given it options. tests/report/test_junit.py holds the two against each other.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from gpufleet.documents.verdict import CheckResult, Verdict
from gpufleet.fleet.session import Session
from gpufleet.fleet.suite import area_of, message, name_of_test
from gpufleet.judge.judge import AREAS

# Characters that XML does not allow, such as terminal colours in a host's output.
NO_XML = re.compile("[^\t\n\r\x20-\x7e\x80-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(path: Path, session: Session) -> None:
    """One case for each check of each host, by the name of its test in the suite."""
    summary = session.document["summary"]
    tests, skipped = sum(summary.values()), summary[Verdict.NOT_DECLARED.value]
    failures = tests - skipped - summary[Verdict.PASS.value]
    with path.open("w", encoding="utf-8", errors="backslashreplace") as stream:
        stream.write(
            '<?xml version="1.0" encoding="utf-8"?>\n<testsuites name="gpufleet">'
            f'<testsuite name="gpufleet" errors="0" failures="{failures}" skipped="{skipped}"'
            f' tests="{tests}" time="{session.seconds:.3f}"'
            f" timestamp={quoteattr(session.started)} hostname={quoteattr(platform.node())}>"
        )
        stream.writelines(_cases(session))
        stream.write("</testsuite></testsuites>")


def _cases(session: Session) -> Iterator[str]:
    """Area by area, as pytest runs the suite's files."""
    areas: dict[str, list[tuple[str, CheckResult]]] = {area: [] for area in AREAS}
    for host in session.hosts:
        for check in host.result["checks"]:
            area = area_of(check["id"])
            if area in areas and "." in check["id"]:
                areas[area].append((host.name, check))
    for area, checks in areas.items():
        for name, check in checks:
            title = quoteattr(f"{name_of_test(check['id'])}[{name}]")
            yield (
                f'<testcase classname="verify.test_{area}" name={title} time="0"{_outcome(check)}'
            )


def _outcome(check: CheckResult) -> str:
    """The end of a case's element."""
    if check["verdict"] == Verdict.PASS:
        return "/>"
    text = NO_XML.sub(lambda found: f"#x{ord(found[0]):02X}", message(check))
    if check["verdict"] == Verdict.NOT_DECLARED:
        return f'><skipped type="pytest.skip" message={quoteattr(text)}/></testcase>'
    return f"><failure message={quoteattr(f'Failed: {text}')}>{escape(text)}</failure></testcase>"
