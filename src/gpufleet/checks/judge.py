"""From a plan and a snapshot to verdicts. Pure: documents in, documents out."""

from __future__ import annotations

from collections.abc import Mapping

from gpufleet.model import verdict as statuses
from gpufleet.model.plan import Plan
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.validator import mark_damaged
from gpufleet.model.verdict import (
    CheckResult,
    HostResult,
    Repair,
    Verdict,
    Verdicts,
    worst,
)

from . import CHECKS, PAIR_CHECKS, Check, Evidence, Finding, Sections, causes
from .holders import CUDA_SECTIONS, behind_mps
from .host import unreadable_section
from .remedies import person

SCHEMA = 1
REACHABLE = "host.reachable"
CHECK_IDS = (REACHABLE, *CHECKS, *PAIR_CHECKS)
# The part of an id before the dot, in reading order; `verify/` has a test file for each.
AREAS = tuple(dict.fromkeys(check_id.partition(".")[0] for check_id in CHECK_IDS))
REACHABLE_STATEMENT = "The host is reachable and runs the probe."


def judge(plan: Plan, snapshot: Snapshot) -> HostResult:
    """The result of one host: its verdict and that of each check."""
    checks = [*CHECKS.values(), *(PAIR_CHECKS.values() if plan.get("pairs") else ())]
    sound = mark_damaged(snapshot)
    results = {check.id: _apply(check, plan, sound) for check in checks}
    explained = causes.explained({name: judged for name, (_, judged) in results.items()})
    for name, cause in explained.items():
        results[name][0]["explained_by"] = cause
    return _host([entry for entry, _ in results.values()])


def unreachable(cause: str, remedy: str, evidence: str = "") -> HostResult:
    """The result of a host without a snapshot: one entry, not one per check."""
    return _host([
        _entry(REACHABLE, REACHABLE_STATEMENT, Verdict.UNREACHABLE,
               cause=cause, remedy=remedy, evidence=evidence)
    ])


def document(hosts: Mapping[str, HostResult], started: str, finished: str) -> Verdicts:
    """The verdicts of all hosts; `summary` counts checks."""
    found = [check["verdict"] for host in hosts.values() for check in host["checks"]]
    summary = {name.value: found.count(name.value) for name in SUMMARY_ORDER}
    return {
        "schema": SCHEMA,
        "started": started,
        "finished": finished,
        "hosts": dict(hosts),
        "summary": summary,
    }


SUMMARY_ORDER = (
    Verdict.PASS,
    Verdict.FAIL,
    Verdict.HUNG,
    Verdict.UNREACHABLE,
    Verdict.INCONCLUSIVE,
    Verdict.NOT_DECLARED,
)


def exit_status(verdicts: Verdicts) -> int:
    """What the command that printed this document ends with."""
    if not verdicts["hosts"]:
        return statuses.USAGE
    return statuses.exit_status(Verdict(host["verdict"]) for host in verdicts["hosts"].values())


def _host(checks: list[CheckResult]) -> HostResult:
    return {"verdict": worst(Verdict(check["verdict"]) for check in checks).value, "checks": checks}


def _entry(
    check_id: str, statement: str, verdict: Verdict, *, cause: str, remedy: str = "",
    evidence: str = "",
) -> CheckResult:
    return {
        "id": check_id,
        "verdict": verdict.value,
        "statement": statement,
        "cause": cause,
        "remedy": remedy,
        "evidence": evidence,
    }


def _apply(
    check: Check, plan: Plan, snapshot: Snapshot
) -> tuple[CheckResult, causes.Judged]:
    try:
        skip_reason = check.skip_reason(plan)
        if skip_reason:
            # The declaration is both the cause and what would change the verdict.
            entry = _entry(check.id, check.statement, Verdict.NOT_DECLARED, cause=skip_reason)
            return entry, causes.Judged(Verdict.NOT_DECLARED, [], [])
        findings, evidence = _findings(check, plan, snapshot)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        findings, evidence = [_damaged(error)], []
    verdict = worst([finding.verdict for finding in findings] or [Verdict.PASS])
    # What failed speaks; that something else could not be judged would only blur it.
    selected = [finding for finding in findings if finding.verdict == verdict]
    entry = _entry(
        check.id,
        check.statement,
        verdict,
        cause=_joined([finding.cause for finding in selected], ". "),
        remedy=_joined(_each_once([str(finding.remedy) for finding in selected]), "; "),
        evidence=_joined([f.evidence for f in selected if f.evidence] or evidence, "\n"),
    )
    if repairs := _repairs(selected):
        entry["repairs"] = repairs
    return entry, causes.Judged(verdict, findings, selected)


def _findings(
    check: Check, plan: Plan, snapshot: Snapshot
) -> tuple[list[Finding], list[str]]:
    observed = Sections(snapshot, check.reads)
    unreadable = [
        behind_mps(finding, observed) if name in CUDA_SECTIONS else finding
        for name in check.reads if (finding := unreadable_section(snapshot, name))]
    if unreadable:
        return unreadable, []
    results = list(check.function(plan, observed))
    starts_cuda = not CUDA_SECTIONS.isdisjoint(check.reads)
    return (
        [behind_mps(item, observed) if starts_cuda else item
         for item in results if isinstance(item, Finding)],
        [item.evidence for item in results if isinstance(item, Evidence)],
    )


def _damaged(error: Exception) -> Finding:
    return Finding(
        "The plan or the snapshot lacks data that this check reads, or has it in another form",
        "take a new snapshot with this release's probe",
        f"{type(error).__name__}: {error}",
        Verdict.INCONCLUSIVE,
    )


def _repairs(findings: list[Finding]) -> list[Repair]:
    """The parts of the findings' remedies, each once, in their order."""
    found: list[Repair] = []
    for finding in findings:
        remedy = finding.remedy
        parts = (person(remedy) if isinstance(remedy, str) else remedy).repairs if remedy else ()
        found += [part for part in parts if part not in found]
    return found


def _each_once(remedies: list[str]) -> list[str]:
    """Without those that are a part of another: "move it away; then provision" says "provision"."""
    return [one for one in remedies if not any(one != other and one in other for other in remedies)]


def _joined(texts: list[str], between: str) -> str:
    return between.join(dict.fromkeys(text for text in texts if text))
