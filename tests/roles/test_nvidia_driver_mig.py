"""The role's tasks for MIG that is pending or fails, with stand-ins for their modules."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.warm_start import run_playbook

ROOT = Path(__file__).resolve().parents[2]
# An action that answers with one prepared result after the other, and then repeats the last one.
STAND_IN = """
import json
from pathlib import Path
from ansible.plugins.action import ActionBase

NAMES = ("plan", "layout", "msg", "reboot_timeout", "keep_marker", "name", "state", "enabled", "daemon_reload")

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        place = Path({place!r})
        _, given = self.validate_argument_spec({{name: {{"type": "raw"}} for name in NAMES}})
        first, *rest = json.loads(place.read_text())
        place.write_text(json.dumps(rest or [first]))
        with place.with_name("ran").open("a") as ran:
            said = [str(given[name]) for name in ("keep_marker", "state") if given[name]]
            ran.write(" ".join([place.stem, *said]) + chr(10))
        return first
"""
PLAY: dict[str, Any] = {
    "hosts": "localhost",
    "connection": "local",
    "gather_facts": False,
    "vars": {
        "gpu_plan": {"driver": {"mig": {}}, "os": {"id": "x", "version_id": "1", "family": "x"}},
        "gpu_changes": [],
        "nvidia_driver_reboot_timeout": 1,
    },
    "tasks": [
        {"gpu_mig_layout": {"layout": {}}, "register": "__nvidia_driver_mig"},
        {
            "ansible.builtin.include_role": {
                "name": "nvidia_driver",
                "tasks_from": "mig_pending",
            }
        },
    ],
}
WAITS = {"pending": [0], "because": "The MIG mode of GPU 0 is pending", "changed": True}
REBOOTED = [{"rebooted": True, "changed": True}]
# The unit that creates the instances at boot is a job for a moment.
SYSTEMCTL = """#!/bin/sh
echo systemctl >> {root}/ran
rm {root}/job 2> /dev/null && echo Job=7 || echo Job=
"""
DONE = {"pending": [], "because": "", "changed": True}


def decided(*actions: str) -> list[dict[str, Any]]:
    """The answers of the module that decides about a restart."""
    return [{"action": each, "because": "the reason", "remedy": "the remedy"} for each in actions]


def carry_out(
    root: Path, play: dict[str, Any] = PLAY, **answers: list[dict[str, Any]]
) -> tuple[int, str]:
    """The status and output of a run of the role's tasks."""
    role = shutil.copytree(ROOT / "roles/nvidia_driver", root / "roles/nvidia_driver")
    for tasks in role.glob("tasks/*.yml"):
        text = tasks.read_text().replace("delay: 5", "delay: 0")
        for name in answers:
            text = re.sub(rf"(ansible\.builtin|gpufleet\.gpu)\.{name}:", f"{name}:", text)
        tasks.write_text(text)
    (root / "action_plugins").mkdir()
    for name, results in answers.items():
        place = root / f"{name}.json"
        place.write_text(json.dumps(results))
        (root / f"action_plugins/{name}.py").write_text(STAND_IN.format(place=str(place)))
    systemctl = root / "bin/systemctl"
    systemctl.parent.mkdir()
    (root / "job").touch()
    systemctl.write_text(SYSTEMCTL.format(root=root))
    systemctl.chmod(0o755)
    (root / "play.json").write_text(json.dumps([play]))
    interpreter = f"ansible_python_interpreter={sys.executable}"
    path = f"{systemctl.parent}:{os.environ['PATH']}"
    done = run_playbook(root / "play.json", "-e", interpreter, PATH=path)
    return done.returncode, " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("decisions", "layouts", "status", "says"),
    [
        (("wait",), [WAITS], 0, "A reboot is pending: the reason. the remedy"),
        (("none",), [WAITS], 2, "The MIG mode of GPU 0 is pending"),
        (("stuck",), [WAITS], 2, "does not run as declared: the reason. Remedy: the remedy"),
        (("reboot", "none"), [WAITS, DONE], 0, "Configure MIG after the reboot"),
        (("reboot", "none"), [WAITS, WAITS], 2, "The MIG mode of GPU 0 is pending"),
    ],
    ids=["left to a person", "unknown", "in vain", "rebooted", "rebooted and pending"],
)
def test_a_pending_mig_mode_ends_in_instances_a_message_or_a_failure(
    tmp_path: Path,
    decisions: tuple[str, ...],
    layouts: list[dict[str, Any]],
    status: int,
    says: str,
) -> None:
    found, output = carry_out(
        tmp_path,
        gpu_restart=decided(*decisions),
        gpu_mig_layout=layouts,
        reboot=REBOOTED,
        gpu_reboot_pending=[{"changed": True}],
    )
    assert found == status, output
    assert says in output


@pytest.mark.parametrize(
    ("second", "marker"), [(DONE, ["gpu_reboot_pending absent"]), (WAITS, [])], ids=["ok", "vain"]
)
def test_the_marker_outlasts_a_reboot_that_did_not_apply_the_mig_mode(
    tmp_path: Path, second: dict[str, Any], marker: list[str]
) -> None:
    """The next run then fails with the reason, and does not reboot once more."""
    carry_out(
        tmp_path,
        gpu_restart=decided("reboot", "none"),
        gpu_mig_layout=[WAITS, second],
        reboot=REBOOTED,
        gpu_reboot_pending=[{"changed": True}],
    )
    assert (tmp_path / "ran").read_text().splitlines() == [
        "gpu_mig_layout",
        "gpu_restart",
        "reboot",
        # The driver is probed when the unit's job has ended.
        "systemctl",
        "systemctl",
        "gpu_restart True",
        "gpu_mig_layout",
        *marker,
    ]


def test_a_rollback_whose_plan_does_not_name_mig_waits_for_no_unit(tmp_path: Path) -> None:
    role = {"name": "nvidia_driver", "tasks_from": "restart"}
    plan = {**PLAY["vars"]["gpu_plan"], "driver": {"managed": True}}
    play = {
        **PLAY,
        "vars": {**PLAY["vars"], "gpu_plan": plan},
        "tasks": [{"ansible.builtin.include_role": role}],
    }
    answers = decided("reboot", "none")
    found, output = carry_out(tmp_path, play, gpu_restart=answers, reboot=REBOOTED)
    assert found == 0, output
    assert (tmp_path / "ran").read_text().splitlines() == ["gpu_restart", "reboot", "gpu_restart"]


@pytest.mark.parametrize("there", [True, False], ids=["containers", "no containers"])
@pytest.mark.parametrize("changed", [True, False], ids=["changed", "unchanged"])
def test_instances_that_a_failed_change_made_are_described_to_engines(
    tmp_path: Path, changed: bool, there: bool
) -> None:
    """The change failed at a later GPU: those before it have other instances now."""
    unit = tmp_path / "gpufleet-containers.service"
    if there:
        unit.touch()
    role = {"name": "nvidia_driver", "tasks_from": "mig"}
    # The paths of the role's own variables are not those of this machine.
    places = {
        "__nvidia_driver_containers_unit": str(unit),
        "__nvidia_driver_mig_unit": str(tmp_path / "mig.service"),
        "__nvidia_driver_mig_link": str(tmp_path / "wants/mig.service"),
        "__nvidia_driver_pending": {"runs": True},
    }
    play = {**PLAY, "tasks": [{"ansible.builtin.include_role": role, "vars": places}]}
    failed = {"failed": True, "changed": changed, "msg": "GPU 3 is in use"}
    found, output = carry_out(
        tmp_path, play, gpu_mig_layout=[failed], systemd_service=[{"changed": True}]
    )
    assert found == 2, output
    assert "GPU 3 is in use" in output
    written = "Write the specification of the GPUs for container engines] *** changed:"
    assert (re.sub(r"\*+", "***", output).count(written) == 1) is (changed and there), output
