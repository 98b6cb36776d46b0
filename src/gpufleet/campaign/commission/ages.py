"""How old what was computed on a host may be when it is certified. Pure.

A host that has its certificate stays certified: its stages are as old as they were at the issue.
"""

from __future__ import annotations

from datetime import timedelta

from gpufleet.documents.commission import CommissionRecord, StageRecord
from gpufleet.watch.retention import TOLERANCE_S, read_time

from .stages import COOL_DOWN, PROVISION, RESUMED

MOST_DAYS = 30
# The last verification of a host, and the issue of its certificate, are at most so far apart.
MOST_DAYS_TO_ISSUE = 1
# The stages that age: each run reads the installed software and the preflight's facts anew.
AGING = {stage.name for stage in RESUMED if stage is not PROVISION}


def too_old(name: str, stage: StageRecord, record: CommissionRecord, now: str) -> str:
    """Why a stage that has passed is too old to be valid; empty where it is not."""
    if name not in AGING:
        return ""
    issued = record.get("certificate", {}).get("issued")
    age = read_time(issued or now) - read_time(stage["finished"] or "")
    if age < timedelta(seconds=-TOLERANCE_S):
        return f"it ended at {stage['finished']}, which is later than now"
    most = MOST_DAYS_TO_ISSUE if name == COOL_DOWN.name else MOST_DAYS
    if age > timedelta(days=most):
        days = f"{most} days" if most > 1 else "a day"
        return f"it ended at {stage['finished']}, more than {days} ago"
    return ""
