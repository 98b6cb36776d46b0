"""A fault: one difference from the plan, or from a healthy host, as a component's judge states it.

The judge of a component is the one place that knows what is wrong with it. A check shows the faults
of its kinds, and adoption asks that there is none. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpufleet.documents.plan import Plan
from gpufleet.documents.verdict import Verdict

from .registry import Evidence, Finding
from .remedies import Component, Remedy, of_text, person, provision, then
from .subjects import Subjects


@dataclass(frozen=True)
class Fault:
    """A fault with its repair; the last four fields are those of a `Finding`."""

    kind: str
    cause: str
    # `provision` repairs these, the most likely one first.
    components: tuple[Component, ...] = ()
    # A person does this before `provision`, or in place of it where no component is named.
    act: str = ""
    note: str = ""
    evidence: str = ""
    verdict: Verdict = Verdict.FAIL
    about: Subjects = ()
    entails: Subjects = ()

    @classmethod
    def of(cls, kind: str, finding: Finding) -> Fault:
        """The fault of a finding that only a person can repair."""
        remedy, rest = str(finding.remedy), (finding.verdict, finding.about, finding.entails)
        return cls(kind, finding.cause, (), remedy, "", finding.evidence, *rest)

    def remedy(self, plan: Plan) -> Remedy:
        if not self.components:
            return of_text(self.act)
        repair = provision(plan, *self.components, note=self.note)
        return then(person(self.act), repair) if self.act else repair

    def finding(self, plan: Plan) -> Finding:
        return Finding(
            self.cause, self.remedy(plan), self.evidence, self.verdict, self.about, self.entails
        )


# A judge yields faults, and evidence of what it compared, each with its kind.
Judged = Iterator[Fault | Evidence]


def shown(plan: Plan, judged: Judged, *kinds: str) -> Iterator[Finding | Evidence]:
    """The findings and the evidence that a check shows: those of its kinds."""
    for each in judged:
        if each.kind in kinds:
            yield each.finding(plan) if isinstance(each, Fault) else each


def causes(judged: Judged) -> list[str]:
    """The causes of all faults: with any, a component is not adopted."""
    return [each.cause for each in judged if isinstance(each, Fault)]
