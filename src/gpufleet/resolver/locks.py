"""Locks: put the digests of the stacks' lock files into a plan.

The resolver reads no files: the caller passes the digests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_locks(plan: Mapping[str, Any], digests: Mapping[str, str]) -> dict[str, Any]:
    """The plan with `lock_sha256` in each stack: the lock's digest, None where there is no lock.

    `digests` maps a lock's file name to the sha256 of its content, in hex. A receipt with
    another digest is then a change.
    """
    stacks = [{**row, "lock_sha256": digests.get(row["lock"])} for row in plan["stacks"]]
    return {**plan, "stacks": stacks}
