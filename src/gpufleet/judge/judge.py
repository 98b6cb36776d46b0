"""From a plan and a snapshot to verdicts. Pure: documents in, documents out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpufleet.components.base.holders import CUDA_SECTIONS, DRIVER_SECTIONS, behind_driver
from gpufleet.components.base.remedies import of_text, person, provision, then
from gpufleet.components.checks import CHECKS, PAIR_CHECKS, Check, Evidence, Finding, Sections
from gpufleet.components.host.booted import left_to_boot
from gpufleet.components.host.host import unreadable_section
from gpufleet.components.host.obstacles import cleared
from gpufleet.documents import verdict as statuses
from gpufleet.documents.plan import Plan
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.text import cut, gpufleet, one_line, printable
from gpufleet.documents.validator import mark_damaged
from gpufleet.documents.verdict import CheckResult, HostResult, Repair, Verdict, Verdicts, worst
from gpufleet.errors import Defect, guarded
from gpufleet.on_host.constants import REFUSED, UNJUDGED

from . import causes, due

SCHEMA = 1
REACHABLE = "host.reachable"
CHECK_IDS = (REACHABLE, *CHECKS, *PAIR_CHECKS)
# The part of an id before the dot, in reading order; `verify/` has a test file for each.
AREAS = tuple(dict.fromkeys(check_id.partition(".")[0] for check_id in CHECK_IDS))
REACHABLE_STATEMENT = "The host is reachable and runs the probe."
PROBE = "host.probe"
# The longest texts that are stored and sent, in characters.
MOST_CAUSE, MOST_REMEDY, MOST_EVIDENCE = 4000, 2000, 16_000
# The most findings of a check that are read, that have not failed, and that are joined.
MOST_FINDINGS, MOST_NOT_FAILED, MOST_CAUSES = 1000, 20_000, 50
# The characters of all findings of a check that are kept whole, and of each one after those.
MOST_KEPT, MOST_REST = 64_000, 200


def judge(plan: Plan, snapshot: Snapshot) -> HostResult:
    """The result of one host: its verdict and that of each check."""
    return judge_typed(plan, mark_damaged(snapshot))


def judge_typed(plan: Plan, snapshot: Snapshot) -> HostResult:
    """The verdicts of a snapshot from `model.received`, which has marked what is damaged."""
    checks = [*CHECKS.values(), *(PAIR_CHECKS.values() if plan.get("pairs") else ())]
    results = {check.id: _apply(check, plan, snapshot) for check in checks}
    found = [entry for entry, _ in results.values()]
    if left := guarded(
        "compared this host with its plan",
        lambda: [*due.findings(plan, snapshot, found)],
        lambda defect: [_damaged(defect)],
    ):
        results[due.CHECK] = _apply(CHECKS[due.CHECK], plan, snapshot, left)
    explained = causes.explained({name: judged for name, (_, judged) in results.items()})
    for name, cause in explained.items():
        results[name][0]["explained_by"] = cause
    return _host([entry for entry, _ in results.values()])


def unreachable(cause: str, remedy: str, evidence: str = "") -> HostResult:
    """The result of a host without a snapshot: one entry, not one per check."""
    return _host(
        [
            _entry(
                REACHABLE,
                REACHABLE_STATEMENT,
                Verdict.UNREACHABLE,
                cause=cause,
                remedy=remedy,
                evidence=evidence,
            )
        ]
    )


def not_judged(cause: str, remedy: str, evidence: str = "") -> HostResult:
    """The result of a host whose snapshot was refused, or that a defect of ours kept from it."""
    return _host([_not_judged(cause, remedy, evidence)])


def defective(defect: Defect, host: str, known: HostResult | None = None) -> HostResult:
    """The result of a host on which gpufleet itself failed; what is `known` of it stays."""
    report = (
        f"report it with what {gpufleet('verify', '--limit', host, '--save', 'DIR')} saves, or with"
        " the files of this host in the report's directory; other hosts are not affected"
    )
    if defect.ended_after_s:
        cause = (
            f"gpufleet stopped working on this host after {defect.ended_after_s:g} s of processor"
            f" time, while it {defect.step}"
        )
        remedy = (
            "look in the host's snapshot for lists and texts that no healthy host has, and examine"
            f" the host, which may be damaged or taken over; where it is healthy, {report}"
        )
    else:
        cause, remedy = f"gpufleet failed while it {defect.step}: {defect.error}", report
    entry = _not_judged(cause, remedy, defect.evidence)
    checks = [check for check in known["checks"] if check["id"] != PROBE] if known else []
    return _host([entry, *checks])


def _not_judged(cause: str, remedy: str, evidence: str) -> CheckResult:
    entry = _entry(
        PROBE,
        CHECKS[PROBE].statement,
        Verdict.INCONCLUSIVE,
        cause=cause,
        remedy=remedy,
        evidence=evidence,
    )
    entry["repairs"] = list(person(remedy).repairs)
    return entry


def document(hosts: Mapping[str, HostResult], started: str, finished: str) -> Verdicts:
    """The verdicts of all hosts; `summary` counts checks."""
    found = Counter(check["verdict"] for host in hosts.values() for check in host["checks"])
    summary = {name.value: found[name.value] for name in SUMMARY_ORDER}
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
    """The exit status of the command that printed this document."""
    if not verdicts["hosts"]:
        return statuses.USAGE
    return statuses.exit_status(Verdict(host["verdict"]) for host in verdicts["hosts"].values())


def _host(checks: list[CheckResult]) -> HostResult:
    verdicts = {check["verdict"] for check in checks}
    return {"verdict": worst(map(Verdict, verdicts)).value, "checks": checks}


def _entry(
    check_id: str,
    statement: str,
    verdict: Verdict,
    *,
    cause: str,
    remedy: str = "",
    evidence: str = "",
) -> CheckResult:
    return {
        "id": check_id,
        "verdict": verdict.value,
        "statement": statement,
        # Cause and remedy of a check that passes are empty.
        "cause": cause and cut(one_line(cause), MOST_CAUSE),
        "remedy": remedy and cut(one_line(remedy), MOST_REMEDY),
        "evidence": evidence and cut(printable(evidence), MOST_EVIDENCE),
    }


def _apply(
    check: Check, plan: Plan, snapshot: Snapshot, further: Sequence[Finding] = ()
) -> tuple[CheckResult, causes.Judged]:
    """The check's entry. `further`: findings beside those of its function."""

    def skipped() -> tuple[str | None, list[Finding], list[str]]:
        reason = check.skip_reason(plan)
        if reason:
            return reason, [], []
        findings, evidence = _findings(check, plan, snapshot)
        return None, [*findings, *further], evidence

    skip_reason, findings, evidence = guarded(
        f"judged {check.id}", skipped, lambda defect: (None, [_damaged(defect)], [])
    )
    if skip_reason:
        # The declaration is both the cause and what would change the verdict.
        entry = _entry(check.id, check.statement, Verdict.NOT_DECLARED, cause=skip_reason)
        return entry, causes.Judged(Verdict.NOT_DECLARED, [], [])
    if not findings:
        entry = _entry(
            check.id,
            check.statement,
            Verdict.PASS,
            cause="",
            evidence=_joined(evidence, "\n", MOST_EVIDENCE),
        )
        return entry, causes.Judged(Verdict.PASS, [], [])
    verdict = worst(finding.verdict for finding in findings)
    # Only the worst findings are named: facts that were not judged would blur a failure.
    selected = [finding for finding in findings if finding.verdict == verdict]
    entry = _entry(
        check.id,
        check.statement,
        verdict,
        cause=_joined((finding.cause for finding in selected), ". ", MOST_CAUSE),
        remedy=_joined(_each_once(str(finding.remedy) for finding in selected), "; ", MOST_REMEDY),
        evidence=_joined(
            [f.evidence for f in selected if f.evidence] or evidence, "\n", MOST_EVIDENCE
        ),
    )
    if repairs := _repairs(selected):
        entry["repairs"] = repairs
    if all(finding.held for finding in selected):
        entry["held"] = True
    return entry, causes.Judged(verdict, findings, selected)


def _findings(check: Check, plan: Plan, snapshot: Snapshot) -> tuple[list[Finding], list[str]]:
    observed = Sections(snapshot, check.reads)
    if unproved := left_to_boot(check, plan, observed):
        return [unproved], []
    unreadable = [
        behind_driver(finding, observed, name) if name in DRIVER_SECTIONS else finding
        for name in check.reads
        if (finding := unreadable_section(snapshot, name))
    ]
    if unreadable:
        return [_not_run(finding, plan, snapshot) for finding in unreadable], []
    findings: list[Finding] = []
    evidence: list[str] = []
    failed, starts_cuda = False, not CUDA_SECTIONS.isdisjoint(check.reads)
    left = MOST_KEPT
    for item in check.function(plan, observed):
        if isinstance(item, Evidence):
            if left > 0:
                evidence.append(cut(item.evidence, MOST_EVIDENCE))
                left -= len(evidence[-1])
            continue
        known = behind_driver(item, observed) if starts_cuda else item
        finding = _bounded(cleared(_not_run(known, plan, snapshot), observed), left)
        left -= len(finding.cause) + len(finding.evidence)
        findings.append(finding)
        failed = failed or finding.verdict is Verdict.FAIL
        # Nothing is worse than a failure; for something else one is still searched.
        if len(findings) >= (MOST_FINDINGS if failed else MOST_NOT_FAILED):
            findings.append(_more(findings))
            break
    return findings, evidence


def _bounded(finding: Finding, left: int) -> Finding:
    """The finding cut to the `left` characters of the check; past that nothing explains it."""
    if left <= 0:
        long = len(str(finding.remedy)) > MOST_REST
        return Finding(
            cut(finding.cause, MOST_REST),
            cut(str(finding.remedy), MOST_REST) if long else finding.remedy,
            verdict=finding.verdict,
            held=finding.held,
        )
    about = (*finding.about, *finding.entails)
    named = len(about) <= MOST_FINDINGS and max(map(len, about), default=0) <= MOST_CAUSE
    if named and len(finding.cause) <= MOST_CAUSE and len(finding.evidence) <= MOST_EVIDENCE:
        return finding
    return replace(
        finding,
        cause=cut(finding.cause, MOST_CAUSE),
        evidence=cut(finding.evidence, MOST_EVIDENCE),
        about=finding.about if named else (),
        entails=finding.entails if named else (),
    )


def _more(findings: list[Finding]) -> Finding:
    """The finding in place of those that were not read; without a subject nothing explains it."""
    return Finding(
        f"More than {len(findings) - 1} findings of this check: the others are not listed",
        "repair the listed ones first",
        verdict=worst(finding.verdict for finding in findings),
    )


def _not_run(finding: Finding, plan: Plan, snapshot: Snapshot) -> Finding:
    """Nothing is known of what root did not run, since others could have written it."""
    if REFUSED not in finding.cause or finding.verdict is Verdict.HUNG:
        return finding
    # The same words may be in the name of a file, which anybody gives.
    refused = [error for error in _refusals(snapshot["sections"]) if error in finding.cause]
    if not refused:
        return finding
    if any(UNJUDGED in error for error in refused):
        act = (
            "on the host: find out why the named file cannot be read (findmnt -T FILE, dmesg); then"
            " ./gpufleet verify"
        )
        return replace(finding, verdict=Verdict.INCONCLUSIVE, remedy=person(act))
    # Whoever could write it may have done so: contents count only when they are compared.
    return replace(
        finding,
        verdict=Verdict.INCONCLUSIVE,
        remedy=then(
            person(
                "on the host: what one account alone owns is run as that account; if it is to be"
                " root's, move it away where it is a link or in a home, else chown -h root:root and"
                " chmod go-w it"
                " (chown -hR, chmod -R for a directory); where a file that is named with it leads"
                " there, correct that file instead"
            ),
            provision(plan, contents=True, note="what it contains may have been changed"),
        ),
    )


def _refusals(value: object, key: object = "") -> Iterator[str]:
    """The errors in a snapshot that say that root did not run something."""
    if isinstance(value, str):
        if key in {"error", "nvcc_error", "refused", "unread"} and value.endswith(REFUSED):
            yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _refusals(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _refusals(each, key)


def _damaged(defect: Defect) -> Finding:
    return Finding(
        "The plan or the snapshot lacks data that this check reads, or has it in another form",
        "take a new snapshot with this release's probe",
        defect.evidence,
        Verdict.INCONCLUSIVE,
    )


def _repairs(findings: list[Finding]) -> list[Repair]:
    """The parts of the findings' remedies, each once, in their order; a long one is left out."""
    found: list[Repair] = []
    for finding in findings:
        remedy = finding.remedy
        parts = (of_text(remedy) if isinstance(remedy, str) else remedy).repairs if remedy else ()
        found += [
            part
            for part in parts
            if part not in found and sum(map(len, map(str, part.values()))) <= MOST_REMEDY
        ]
        if len(found) >= MOST_CAUSES:
            break
    return found


def _each_once(remedies: Iterable[str]) -> list[str]:
    """Without those that are a part of another: "move it away; then provision" says "provision"."""
    different = list(dict.fromkeys(remedies))[:MOST_CAUSES]
    return [
        one for one in different if not any(one != other and one in other for other in different)
    ]


def _joined(texts: Iterable[str], between: str, most: int) -> str:
    """Different texts as one; no more of it is built than `most` needs."""
    different = [text for text in dict.fromkeys(texts) if text]
    if len(different) == 1:
        return different[0]
    parts, length = [], 0
    for number, text in enumerate(different):
        if length > most or number == MOST_CAUSES:
            parts.append(f"... and {len(different) - number} more")
            break
        parts.append(text)
        length += len(text)
    joined = parts[0] if parts else ""
    for part in parts[1:]:
        # A part that ends its sentence needs no full stop.
        joined += (" " if between == ". " and joined.endswith((".", "!", "?")) else between) + part
    return joined
