"""The content of a certificate and of a refusal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.documents.commission import (
    Certificate,
    CertifiedStage,
    CommissionRecord,
    Figure,
    Reason,
    StageRecord,
)
from gpufleet.documents.plan import Plan
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.validator import section_data
from gpufleet.documents.verdict import HostResult, Verdict

from .decision import FAILING, faulty_parts, reason_of
from .identity import parts_of, plan_digest
from .stages import STAGES

SCHEMA = 1


@dataclass(frozen=True)
class Seen:
    """A host as a stage has last seen it."""

    declared: Plan
    snapshot: Snapshot | None
    result: HostResult


def certificate(
    record: CommissionRecord, seen: Seen, *, by: str, issued: str, program: str
) -> Certificate:
    """The certificate of a host that has passed all stages, else its refusal."""
    stages = {name: record["stages"][name] for name in ordered(record)}
    reasons = [each for stage in stages.values() for each in stage["reasons"]]
    parts = parts_of(record["host"], seen.snapshot)
    passed = all(
        name in stages and stages[name]["outcome"] == "passed"
        for name in (stage.name for stage in STAGES)
    )
    return {
        "schema": SCHEMA,
        "outcome": "certified" if passed else "refused",
        "host": record["host"],
        "issued": issued,
        "by": by,
        "program": program,
        "plan_sha256": plan_digest(seen.declared),
        "driver": _driver(seen.snapshot),
        "parts": parts,
        "stages": [_stage(name, stage) for name, stage in stages.items()],
        "figures": figures(list(stages.values())),
        "checks": [
            reason_of(check) for check in seen.result["checks"] if check["verdict"] == Verdict.PASS
        ],
        "faulty": [] if passed else faulty_parts(parts, reasons),
        "reasons": reasons,
    }


def ordered(record: CommissionRecord) -> list[str]:
    """The names of the stages that have started on a host, in their order."""
    return [stage.name for stage in STAGES if stage.name in record["stages"]]


def figures(stages: Sequence[StageRecord]) -> list[Figure]:
    """The figures of all stages, each of the last stage that measured it, in their order."""
    last = {
        (figure["part"], figure["what"]): figure for stage in stages for figure in stage["figures"]
    }
    return list(last.values())


def failing(reasons: Sequence[Reason]) -> list[Reason]:
    """The reasons by which something failed; the others were not judged."""
    return [each for each in reasons if each["verdict"] in FAILING]


def _stage(name: str, stage: StageRecord) -> CertifiedStage:
    found: CertifiedStage = {
        "name": name,
        "outcome": stage["outcome"],
        "started": stage["started"],
        "finished": stage["finished"],
        "by": stage["by"],
        "notes": stage["notes"],
        "evidence": stage["evidence"],
    }
    if program := stage.get("program"):
        found["program"] = program
    return found


def _driver(snapshot: Snapshot | None) -> str | None:
    data = section_data(snapshot) if snapshot else {}
    return data["driver"]["loaded"] if "driver" in data else None
