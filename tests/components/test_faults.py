"""Each fault is caught by its checks, with cause and remedy, and by no other check."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import pytest

from gpufleet.components.changes import changes
from gpufleet.components.checks import CHECKS
from gpufleet.judge import judge
from tests.components.faults.gpu_unlike import with_four_cards
from tests.components.faults.grace import with_tray
from tests.components.faults.lossless import with_lossless
from tests.components.faults.manifest import with_manifest
from tests.components.faults.network_setup import with_setup
from tests.components.faults.rack import with_rack
from tests.support.check_faults import faults, no_gpus
from tests.support.framework_stacks import with_frameworks_on_gpus
from tests.support.healthy_host import (
    OF_OTHERS,
    Break,
    data,
    document,
    verdicts,
    with_cards,
    with_driver,
)
from tests.support.host_parts import with_gpus

FAULTS = faults()
# The verdicts of each healthy host before anything is broken, and those that differ.
UNUSED = {"PASS", "NOT-DECLARED"}
HEALTHY: dict[Break, set[str]] = {
    no_gpus: UNUSED,
    with_driver: UNUSED,
    with_cards: {"PASS"},
    with_four_cards: {"PASS"},
    with_rack: {"PASS"},
    with_lossless: {"PASS"},
    with_tray: {"PASS"},
    with_gpus: {"PASS"},
    with_setup: {"PASS"},
    with_manifest: UNUSED,
    with_frameworks_on_gpus: {"PASS"},
}
# TensorFlow and containers do not use the GPUs of the first; both have TensorFlow alone.
CARDS = {
    "stack.gpu": "FAIL",
    **dict.fromkeys(
        ("containers.cdi", "containers.gpus", "containers.reload", *OF_OTHERS), "NOT-DECLARED"
    ),
}
# What only hosts of racks, with Grace, with a lossless class, with a set-up network, or with a
# manifest declare.
RACK, GRACE, LOSSLESS = ("gpu.rack",), ("driver.imex", "driver.memory-mode"), ("network.lossless",)
NETWORK, MANIFEST = ("network.setup",), ("host.manifest",)


def not_declared(*names: tuple[str, ...]) -> dict[str, str]:
    return {name: "NOT-DECLARED" for some in names for name in some}


DIFFER: dict[Break, dict[str, str]] = {
    with_cards: {**CARDS, **not_declared(RACK, GRACE, LOSSLESS, NETWORK, MANIFEST)},
    with_four_cards: {**CARDS, **not_declared(RACK, GRACE, LOSSLESS, NETWORK, MANIFEST)},
    with_rack: {**CARDS, **not_declared(GRACE, LOSSLESS, NETWORK, MANIFEST)},
    with_lossless: {**CARDS, **not_declared(RACK, GRACE, NETWORK, MANIFEST)},
    with_tray: {**CARDS, **not_declared(RACK, LOSSLESS, NETWORK, MANIFEST)},
    with_setup: {**CARDS, **not_declared(RACK, GRACE, LOSSLESS, MANIFEST)},
    with_gpus: not_declared(RACK, GRACE, LOSSLESS, NETWORK, MANIFEST, OF_OTHERS),
    with_frameworks_on_gpus: not_declared(RACK, GRACE, LOSSLESS, NETWORK, MANIFEST),
}
# What a container does not own: not declared in each of them.
OF_THE_MACHINE = {"host.nvme"}
# Breaks that are more than one fault: each is a cause of its own.
SEVERAL = {
    "cudnn-sub_library_truncated_and_relinked": "a library is truncated, a link leads elsewhere",
    "gpu-a_page_waits_to_be_retired": "the card is also of an old model that is not declared",
    "kernel_log-the_log_was_overwritten_and_a_counter_is_not_clean": "a page waits to be retired, and older messages are lost",
    "driver_in_use-fabric_manager_of_an_unknown_version": "CUDA does not start, and it is unknown why",
    "tensorflow-a_sum_without_a_word_beside_a_job": "a sum is missing, and a GPU is held",
}


BY_NAME = {f"{fault.area}-{fault.name}": fault for fault in FAULTS}


@functools.cache
def healthy_verdicts(healthy: Break) -> dict[str, str]:
    """The verdict of each check on a healthy host; many faults break the same one."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    healthy(plan, snapshot)
    return verdicts(plan, snapshot)


class Broken(NamedTuple):
    """A broken host: its verdicts, and the checks that are caught or do not pass."""

    host: str
    in_container: bool
    verdicts: dict[str, str]
    checks: dict[str, Any]


@functools.cache
def broken(name: str) -> Broken:
    """The host that a fault has broken, judged once for all tests here."""
    fault = BY_NAME[name]
    plan, snapshot = document("plan.json"), document("snapshot.json")
    fault.healthy(plan, snapshot)
    fault.apply(plan, snapshot)
    checks = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    return Broken(
        plan["host"],
        bool(data(snapshot, "kernel")["container"]),
        {check: row["verdict"] for check, row in checks.items()},
        {c: row for c, row in checks.items() if c in fault.caught or row["verdict"] not in UNUSED},
    )


@pytest.mark.parametrize("name", BY_NAME)
def test_a_fault_is_caught_by_its_checks_alone(name: str) -> None:
    fault, before = BY_NAME[name], healthy_verdicts(BY_NAME[name].healthy)
    assert {
        check: verdict for check, verdict in before.items() if verdict not in HEALTHY[fault.healthy]
    } == DIFFER.get(fault.healthy, {})
    found = broken(name)
    after = found.checks
    changed = {check for check in before if found.verdicts[check] != before[check]}
    if found.in_container:
        changed -= OF_THE_MACHINE - set(fault.caught)
    assert changed == set(fault.caught)
    for check, caught in fault.caught.items():
        assert after[check]["verdict"] == caught.verdict
        assert caught.cause in after[check]["cause"]
        assert caught.remedy in after[check]["remedy"]
    shown = [
        check
        for check in fault.caught
        if "explained_by" not in after[check] and after[check]["verdict"] != "NOT-DECLARED"
    ]
    assert (len(shown) > 1) is (name in SEVERAL), shown


@pytest.mark.parametrize("healthy", HEALTHY)
def test_a_healthy_host_lacks_nothing(healthy: Break) -> None:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    healthy(plan, snapshot)
    assert changes(plan, snapshot) == []


COMPONENTS = {
    "toolkit",
    "cudnn",
    "stack",
    "environment",
    "linker",
    "default_link",
    "driver",
    "network",
    "containers",
}
# Remedies for which a plain text says it all; the texts with a command are built as data.
COMMAND = re.compile(r"\./gpufleet (?:provision|remove)\b")


def test_each_remedy_is_data_that_says_who_repairs_what() -> None:
    """provision did nothing to hosts whose remedy named it: it could not read what was printed."""
    wrong = []
    for name, fault in BY_NAME.items():
        found = broken(name)
        for check in found.checks.values():
            if check["verdict"] in UNUSED:
                continue
            parts = check.get("repairs", [])
            for part in parts:
                by = part["by"]
                good = {
                    "provision": part.get("component", "toolkit") in COMPONENTS
                    and f"--limit {found.host}" in part.get("command", ""),
                    "command": part.get("command", "").startswith("./gpufleet "),
                    "person": bool(part.get("act")) and not COMMAND.search(part.get("act", "")),
                }[by]
                reported = part.get("command") or part.get("act", "")
                if not good or reported not in check["remedy"]:
                    wrong.append((fault.area, fault.name, check["id"], part, check["remedy"]))
            if not parts:
                wrong.append((fault.area, fault.name, check["id"], None, check["remedy"]))
    assert wrong == []


def test_every_check_is_proven_by_a_fault() -> None:
    # These two are broken in test_restart.py and test_stack.py.
    others = {"driver.pending", "stack.gpu"}
    assert {check for fault in FAULTS for check in fault.caught} | others == set(CHECKS)
