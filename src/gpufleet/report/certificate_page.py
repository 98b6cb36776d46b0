"""The page of a certificate, or of a refusal for a vendor. Pure, apart from the template."""

from __future__ import annotations

from gpufleet.model.commission import Certificate, Figure
from gpufleet.model.verdict import SYMBOLS, Verdict

from .rendering import source, template


def within(figure: Figure) -> bool | None:
    """Whether a figure is on the right side of its bound; None where it has none."""
    if figure["bound"] is None:
        return None
    if figure["side"] == "at least":
        return figure["value"] >= figure["bound"]
    return figure["value"] <= figure["bound"]


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
        attributed=[reason for entry in document["faulty"] for reason in entry["reasons"]],
        namespace=namespace,
        measured=[figure for figure in document["figures"] if figure["bound"] is not None],
        unbounded=[figure for figure in document["figures"] if figure["bound"] is None],
    )
