"""The action plugin that gets a driver to run: what it asks of the host, and in which order."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.ansible_modules import PLUGINS
from tests.support.restart_hosts import HELD, NEW, OLD, host, marker, plan

SPECIFICATION = importlib.util.spec_from_file_location(
    "gpu_restart", PLUGINS / "action" / "gpu_restart.py"
)
assert SPECIFICATION is not None
assert SPECIFICATION.loader is not None
PLUGIN: Any = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(PLUGIN)

FAILED = {"failed": True, "msg": "The kernel modules were not reloaded: No such device"}


class Played:
    """A run of the plugin against a host that looks like this, and then like that."""

    def __init__(
        self, *looks: Any, given: Any = None, reload: Any = None, check: bool = False,
        transport: str = "ssh", keep: bool = False,
    ) -> None:  # fmt: skip
        self.looks, self.asked = list(looks), []  # type: ignore[var-annotated]
        self.mig: list[bool] = []
        self.reload = reload or {"changed": True}
        task = SimpleNamespace(
            args={"plan": given or plan(), "keep_marker": keep}, check_mode=check, async_val=0, environment=None,
            _parent=None, diff=False,
        )  # fmt: skip
        connection = SimpleNamespace(transport=transport, _shell=SimpleNamespace(tmpdir="/tmp"))
        self.plugin = PLUGIN.ActionModule(task, connection, None, None, None, None)
        self.plugin._execute_module = self.answer

    def answer(self, name: str, module_args: Any, task_vars: Any) -> Any:
        """The results of the modules."""
        name = name.removeprefix("gpufleet.gpu.")
        if name == "gpu_facts":
            self.mig.append(module_args["mig"])
            return {"snapshot": self.looks.pop(0).snapshot}
        self.asked.append((name, module_args.get("version") or module_args.get("state")))
        return self.reload if name == "gpu_driver_reload" else {"changed": True}

    def run(self) -> Any:
        """The plugin's answer."""
        return self.plugin.run(task_vars={})


def test_a_reload_that_suffices_leaves_nothing_pending() -> None:
    played = Played(host(OLD), host())
    answer = played.run()
    assert (answer["action"], answer["changed"]) == ("none", True)
    assert played.asked == [("gpu_driver_reload", NEW), ("gpu_reboot_pending", "absent")]


def test_a_reload_that_fails_leads_to_a_reboot_that_is_noted_first() -> None:
    refused = {"boot_id": "boot-2", "said": "No such device"}
    played = Played(host(None), host(None, reboot_pending=marker(failed=refused)), reload=FAILED)
    answer = played.run()
    assert answer["action"] == "reboot"
    assert not answer.get("failed")
    assert answer["changed"]
    assert played.asked == [("gpu_driver_reload", NEW), ("gpu_reboot_pending", "tried")]


def test_a_reload_that_fails_and_leaves_a_driver_that_runs_is_a_failure() -> None:
    answer = Played(host(OLD), host(), reload=FAILED).run()
    assert answer["failed"]
    assert "No such device" in answer["msg"]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("reboot", ["auto", "always"])
def test_a_holder_that_the_probe_did_not_see_leaves_the_reload_to_the_next_run(
    reboot: str, check: bool
) -> None:
    """It may be a monitor's nvidia-smi, or a job that somebody has just begun."""
    held = {**FAILED, "held": ["nvidia-smi (pid 9 of root)"]}
    played = Played(host(OLD), given=plan(reboot=reboot), reload=held, check=check)
    answer = played.run()
    assert answer["action"] == "reload"
    assert "the GPU is held by nvidia-smi (pid 9 of root)" in answer["because"]
    assert played.asked == [("gpu_driver_reload", NEW)]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(("reboot", "action"), [("auto", "reboot"), ("never", "wait")])
def test_a_holder_that_the_probe_saw_and_that_stays_needs_a_reboot(
    reboot: str, action: str, check: bool
) -> None:
    held = {**FAILED, "held": ["python (pid 77 of ada)"]}
    seen = host(OLD, holders=HELD)
    answer = Played(seen, given=plan(reboot=reboot), reload=held, check=check).run()
    assert answer["action"] == action
    assert "the GPU is held by python (pid 77 of ada)" in answer["because"]
    assert not answer.get("failed")


@pytest.mark.parametrize(("check", "action"), [(False, "none"), (True, "reload")])
def test_a_holder_that_ends_after_the_probe_leaves_a_reload(check: bool, action: str) -> None:
    played = Played(host(OLD, holders=HELD), host(), check=check)
    assert played.run()["action"] == action
    assert played.asked[0] == ("gpu_driver_reload", NEW)


def test_check_mode_probes_once_and_promises_the_reload() -> None:
    played = Played(host(OLD), check=True)
    answer = played.run()
    assert (answer["action"], answer["changed"]) == ("reload", True)
    assert played.asked == [("gpu_driver_reload", NEW)]


def test_a_reload_that_was_killed_is_finished_where_the_driver_runs() -> None:
    cut = {**marker(), "reload": {"boot_id": "boot-2", "modules": [], "services": ["dcgm"]}}
    played = Played(host(reboot_pending=cut), host(reboot_pending=marker()))
    assert played.run()["action"] == "none"
    assert played.asked == [("gpu_driver_reload", NEW), ("gpu_reboot_pending", "absent")]


def test_a_marker_that_is_taken_away_is_a_change() -> None:
    assert Played(host(reboot_pending=marker())).run()["changed"]


def test_a_marker_that_a_later_task_removes_is_kept() -> None:
    played = Played(host(reboot_pending=marker(True, "boot-1")), keep=True)
    assert played.run()["action"] == "none"
    assert played.asked == []


def test_a_reboot_is_noted_also_where_a_later_task_removes_the_marker() -> None:
    held = {**FAILED, "held": ["python (pid 77 of ada)"]}
    played = Played(host(OLD, holders=HELD), reload=held, keep=True)
    assert played.run()["action"] == "reboot"
    assert played.asked[-1] == ("gpu_reboot_pending", "tried")


@pytest.mark.parametrize(
    ("seen", "given", "runs"),
    [
        (host(), plan(), True),
        (host(OLD, OLD), plan(reboot="never"), False),
        (host(None, cards=("nouveau",)), plan(reboot="never"), False),
        (host(OLD), plan(0), False),
    ],
)
def test_the_answer_says_whether_the_installed_driver_runs(
    seen: Any, given: Any, runs: bool
) -> None:
    assert Played(seen, given=given).run()["runs"] is runs


@pytest.mark.parametrize("reboot", ["auto", "always"])
def test_this_machine_itself_is_not_rebooted(reboot: str) -> None:
    held = {**FAILED, "held": ["python (pid 77 of ada)"]}
    played = Played(
        host(OLD, holders=HELD), given=plan(reboot=reboot), reload=held, transport="local"
    )
    assert played.run()["action"] == "wait"
    assert played.asked == [("gpu_driver_reload", NEW)]


@pytest.mark.parametrize(("mig", "asked"), [(None, False), ({"all": []}, True)])
def test_the_mig_mode_is_probed_only_where_it_is_declared(mig: Any, asked: bool) -> None:
    given = plan()
    given["driver"]["mig"] = mig
    played = Played(host(), given=given)
    played.run()
    assert played.mig == [asked]
