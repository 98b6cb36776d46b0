"""The repair ladder: a printed remedy is followed step by step, and never in a circle."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.campaign.provision.ladder import Ladder, person_has_to_look
from gpufleet.components.resolver import resolve
from gpufleet.judge.due import components
from tests.support.host_documents import declaration

PLAN = resolve(declaration("2.13.1"), None, "lab1")
STACK, TOOLKIT, CUDNN = "stack tensorflow-2.13.1", "toolkit 11.8", "cudnn 11.8-8"


def failing(check: str, *names: str, **more: Any) -> dict[str, Any]:
    """A result in which a check fails, and provisioning these components is the remedy."""
    command = "./gpufleet provision --limit lab1"
    repairs = [{"by": "provision", "command": command, "component": name.partition(" ")[0],
                "name": name.partition(" ")[2]} for name in names]  # fmt: skip
    row = {"id": check, "verdict": "FAIL", "statement": "", "cause": "it fails", "evidence": "",
           "remedy": command, "repairs": repairs, **more}  # fmt: skip
    return {"verdict": "FAIL", "checks": [row]}


def climbed(result: dict[str, Any], differing: dict[str, str] | None = None) -> list[Any]:
    """The rungs of each round until nothing is left to try, while the check goes on failing."""
    ladder, rounds = Ladder(), []
    while found := ladder.next(PLAN, result, differing or {}):
        rounds.append({name: rung for name, (rung, _) in found.items()})
        assert len(rounds) < 10, "a circle"
    return rounds


def test_a_check_that_goes_on_failing_climbs_the_ladder_once() -> None:
    """Provision said "nothing to do" to a host whose remedy was provision."""
    assert climbed(failing("toolkit.files", TOOLKIT)) == [
        {TOOLKIT: "contents"},
        {TOOLKIT: "reinstall"},
        {TOOLKIT: "recreate"},
    ]


def test_what_a_stack_loads_is_compared_with_it_and_reinstalled_last() -> None:
    assert climbed(failing("stack.libraries", STACK, CUDNN, TOOLKIT)) == [
        {STACK: "contents", CUDNN: "contents", TOOLKIT: "contents"},
        {STACK: "reinstall"},
        {STACK: "recreate", CUDNN: "reinstall", TOOLKIT: "reinstall"},
    ]


def test_what_differs_by_its_metadata_is_repaired_by_that_first() -> None:
    """And what the repair left unfinished is recreated, not compared: its journal blocked it."""
    assert climbed(failing("toolkit.files", TOOLKIT), {TOOLKIT: "changed"}) == [
        {TOOLKIT: "metadata"},
        {TOOLKIT: "recreate"},
    ]


def test_what_differs_by_its_content_alone_is_compared_first() -> None:
    """The metadata step left it as it was: Ansible on the host saw nothing to do."""
    result = failing("toolkit.files", TOOLKIT)
    result["checks"][0]["repairs"][0]["command"] += " --contents"
    assert climbed(result, {TOOLKIT: "changed"})[0] == {TOOLKIT: "contents"}


def test_what_has_only_its_role_is_tried_once() -> None:
    assert climbed(failing("driver.held", "driver driver")) == []  # not managed by this plan
    link = f"default_link {PLAN['default_link']['path']}"
    assert climbed(failing("toolkit.default-link", link)) == [{link: "contents"}]


@pytest.mark.parametrize(
    "more",
    [
        {"verdict": "PASS"},
        {"verdict": "NOT-DECLARED"},
        {"explained_by": "driver.loaded"},
        {"repairs": [{"by": "person", "act": "service the hardware"}]},
        {"repairs": []},
    ],
)
def test_nothing_is_repaired_for_what_provisioning_does_not_repair(more: dict[str, Any]) -> None:
    """A driver that does not run makes every stack fail: none of them is reinstalled for it."""
    assert climbed(failing("stack.matmul", STACK, **more)) == []


def test_after_the_last_step_a_person_has_to_decide() -> None:
    ladder, result = Ladder(), failing("stack.matmul", STACK)
    while ladder.next(PLAN, result, {}):
        pass
    (check,) = result["checks"]
    assert ladder.exhausted(check) == [STACK]
    reported = person_has_to_look(check, [STACK], ladder.taken[STACK])
    assert reported["remedy"].startswith("a person has to look: provision has compared and"
                                     f" reinstalled and recreated {STACK}")  # fmt: skip
    assert components(reported) == []
    assert [part["by"] for part in reported["repairs"]] == ["person"]


def test_a_stack_waits_for_the_repair_of_what_it_loads() -> None:
    """One missing link of cuDNN had the contents of the stack and its toolkit compared."""
    checks = [
        *failing("stack.libraries", STACK, CUDNN, TOOLKIT)["checks"],
        *failing("cudnn.files", CUDNN)["checks"],
    ]
    result: Any = {"verdict": "FAIL", "checks": checks}
    ladder = Ladder()
    first = ladder.next(PLAN, result, {CUDNN: "only links changed"})
    assert {name: rung for name, (rung, _) in first.items()} == {CUDNN: "metadata"}
    result = failing("stack.libraries", STACK, CUDNN, TOOLKIT)
    assert ladder.next(PLAN, result, {})[STACK] == ("contents", "stack.libraries fails")
