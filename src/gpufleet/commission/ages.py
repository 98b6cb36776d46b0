"""How old what was computed on a host may be when it is certified. Pure.

A host that has its certificate stays certified: its stages are as old as they were at the issue.
"""

from __future__ import annotations

from datetime import timedelta

from gpufleet.model.commission import CommissionRecord, StageRecord
from gpufleet.nightly.retention import TOLERANCE_S, read_time

from .stages import PROVISION, RESUMED

MOST_DAYS = 30
# What was installed is read each time, and so is what the preflight judges.
AGING = {stage.name for stage in RESUMED if stage is not PROVISION}


def too_old(name: str, stage: StageRecord, record: CommissionRecord, now: str) -> str:
    """Why a stage that has passed is too old to be valid; empty where it is not."""
    if name not in AGING:
        return ""
    issued = record.get("certificate", {}).get("issued")
    age = read_time(issued or now) - read_time(stage["finished"] or "")
    if age < timedelta(seconds=-TOLERANCE_S):
        return f"it ended at {stage['finished']}, which is later than now"
    if age > timedelta(days=MOST_DAYS):
        return f"it ended at {stage['finished']}, more than {MOST_DAYS} days ago"
    return ""
