"""The page of a certificate, or of a refusal for a vendor. Pure, apart from the template."""

from __future__ import annotations

from gpufleet.documents.commission import Certificate, Figure, Part
from gpufleet.documents.verdict import SYMBOLS, Verdict

from .rendering import source, template


def within(figure: Figure) -> bool | None:
    """Return whether a figure is on the right side of its bound; None where it has none."""
    if figure["bound"] is None:
        return None
    if figure["side"] == "at least":
        return figure["value"] >= figure["bound"]
    return figure["value"] <= figure["bound"]


def named(part: Part) -> str:
    """The name of a part for whoever sends it back, with its serial number where it has one."""
    name = f"the whole host {part['name']}" if part["kind"] == "host" else part["name"]
    serial = part["serial"]
    return f"{name}, {f'serial number {serial}' if serial else 'which reports no serial number'}"


def render(document: Certificate, namespace: str) -> str:
    """The self-contained HTML page; it loads nothing. `namespace`: of the signatures."""
    certified = document["outcome"] == "certified"
    verdict = Verdict.PASS if certified else Verdict.FAIL
    return template("certificate.html.j2").render(
        document=document,
        certified=certified,
        style=source("report.css"),
        mark=verdict.value.lower(),
        symbol=SYMBOLS[verdict],
        symbols={True: SYMBOLS[Verdict.PASS], False: SYMBOLS[Verdict.FAIL], None: ""},
        within=within,
        named=named,
        attributed=[reason for entry in document["faulty"] for reason in entry["reasons"]],
        namespace=namespace,
        measured=[figure for figure in document["figures"] if figure["bound"] is not None],
        unbounded=[figure for figure in document["figures"] if figure["bound"] is None],
    )
