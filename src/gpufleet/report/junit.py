"""The verdicts as JUnit XML, the same as pytest writes for the suite.

pytest needs a tenth of a second for each host's seventy items, so it runs only where someone has
given it options. tests/report/test_junit.py holds the two against each other.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import XMLGenerator
from xml.sax.xmlreader import AttributesImpl

from gpufleet.checks.judge import AREAS
from gpufleet.model.verdict import CheckResult, Verdict
from gpufleet.verification.session import Session
from gpufleet.verification.suite import message

# Characters that XML does not allow, such as terminal colours in a host's output.
NO_XML = re.compile("[^\t\n\r\x20-\x7e\x80-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(path: Path, session: Session, scheme: str) -> None:
    """One case for each check of each host; `scheme` precedes the name, as in testinfra."""
    summary = session.document["summary"]
    tests, skipped = sum(summary.values()), summary[Verdict.NOT_DECLARED.value]
    failures = tests - skipped - summary[Verdict.PASS.value]
    with path.open("w", encoding="utf-8", errors="backslashreplace") as stream:
        xml = XMLGenerator(stream, "utf-8", short_empty_elements=True)
        xml.startDocument()
        xml.startElement("testsuites", _attributes(name="gpufleet"))
        xml.startElement("testsuite", _attributes(
            name="gpufleet", errors=0, failures=failures, skipped=skipped, tests=tests,
            time=f"{session.seconds:.3f}", timestamp=session.started, hostname=platform.node()))
        for area, host, check in _cases(session):
            xml.startElement("testcase", _attributes(
                classname=f"verify.test_{area}",
                name=f"test_check[{scheme}://{host}-{check['id']}]", time=0))
            _outcome(xml, check)
            xml.endElement("testcase")
        xml.endElement("testsuite")
        xml.endElement("testsuites")
        xml.endDocument()


def _cases(session: Session) -> Iterator[tuple[str, str, CheckResult]]:
    """(area, host, check), area by area as pytest runs the suite's files."""
    for area in AREAS:
        for host in session.hosts:
            for check in host.result["checks"]:
                if check["id"].startswith(f"{area}."):
                    yield area, host.name, check


def _outcome(xml: XMLGenerator, check: CheckResult) -> None:
    if check["verdict"] == Verdict.PASS:
        return
    text = NO_XML.sub(lambda found: f"#x{ord(found[0]):02X}", message(check))
    if check["verdict"] == Verdict.NOT_DECLARED:
        xml.startElement("skipped", _attributes(type="pytest.skip", message=text))
        xml.endElement("skipped")
    else:
        xml.startElement("failure", _attributes(message=f"Failed: {text}"))
        xml.characters(text)
        xml.endElement("failure")


def _attributes(**values: Any) -> AttributesImpl[str]:
    return AttributesImpl({name: str(value) for name, value in values.items()})
