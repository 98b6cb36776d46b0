"""The identity of a host that was proven: changes that void its stages, and changes that do not."""

from __future__ import annotations

from typing import Any, cast

from gpufleet.campaign.commission.identity import INSTALLED, KERNEL, PLAN, identity_of, plan_digest
from gpufleet.components.resolver import with_locks
from tests.support.healthy_host import Document, data

LOCK = "tensorflow-2.13.1-py3.11.lock"


def locked(plan: Document, digest: str) -> Any:
    """The plan on a control machine that has this lock."""
    return with_locks(plan, {LOCK: digest})


def test_a_lock_that_provisioning_resolves_voids_nothing(
    plan: Document, snapshot: Document
) -> None:
    """A run that was killed after it found that its host's declaration had changed."""
    unlocked: Any = with_locks(plan, {})
    whole, found = locked(plan, "cd" * 32), cast(Any, snapshot)
    before, after = identity_of(unlocked, found), identity_of(whole, found)
    assert before == after
    assert plan_digest(whole) != plan_digest({**whole, "stacks": []})


def test_another_lock_than_the_installed_one_changes_what_is_installed(
    plan: Document, snapshot: Document
) -> None:
    found: Any = snapshot
    before, after = (identity_of(locked(plan, digest * 32), found) for digest in ("cd", "ef"))
    assert before[PLAN] == after[PLAN]
    assert before[INSTALLED] != after[INSTALLED]
    # Somebody has installed the stack from the other lock.
    for receipt in data(snapshot, "receipts")["receipts"]:
        if receipt["kind"] == "stack":
            receipt["lock_sha256"] = "ef" * 32
    installed = identity_of(locked(plan, "ef" * 32), found)
    assert installed[INSTALLED] not in {before[INSTALLED], after[INSTALLED]}


def test_another_kernel_is_another_host(plan: Document, snapshot: Document) -> None:
    found, declared = cast(Any, snapshot), cast(Any, plan)
    before = identity_of(declared, found)
    data(snapshot, "kernel")["running"] = "6.8.0-99-generic"
    after = identity_of(declared, found)
    assert {name for name in before if before[name] != after[name]} == {KERNEL}
