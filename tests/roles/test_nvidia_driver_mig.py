"""What the role does about a pending MIG mode: its tasks, run with stand-ins for their modules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A module that answers with one prepared result after the other, and then repeats the last one.
STAND_IN = """#!/usr/bin/python
import json
from pathlib import Path
from ansible.module_utils.basic import AnsibleModule
place = Path({place!r})
names = ("plan", "layout", "msg", "reboot_timeout")
module = AnsibleModule(argument_spec={{name: {{"type": "raw"}} for name in names}})
first, *rest = json.loads(place.read_text())
place.write_text(json.dumps(rest or [first]))
module.exit_json(**first)
"""
PLAY = {
    "hosts": "localhost",
    "connection": "local",
    "gather_facts": False,
    "vars": {
        "gpu_plan": {"driver": {"mig": {}}, "os": {"id": "x", "version_id": "1", "family": "x"}},
        "gpu_changes": [],
        "nvidia_driver_reboot_timeout": 1,
    },
    "tasks": [
        {"gpufleet.gpu.gpu_mig_layout": {"layout": {}}, "register": "__nvidia_driver_mig"},
        {
            "ansible.builtin.include_role": {
                "name": "gpufleet.gpu.nvidia_driver",
                "tasks_from": "mig_pending",
            }
        },
    ],
}
WAITS = {"pending": [0], "because": "The MIG mode of GPU 0 is pending", "changed": True}
DONE = {"pending": [], "because": "", "changed": True}


def decided(*actions: str) -> list[dict[str, Any]]:
    """The answers of the module that decides about a restart."""
    return [{"action": each, "because": "the reason", "remedy": "the remedy"} for each in actions]


def carry_out(root: Path, **answers: list[dict[str, Any]]) -> tuple[int, str]:
    """The status and output of a run of the role's tasks."""
    collection = root / "ansible_collections/gpufleet/gpu"
    shutil.copytree(ROOT / "roles/nvidia_driver", collection / "roles/nvidia_driver")
    shutil.copy(ROOT / "galaxy.yml", collection)
    restart = collection / "roles/nvidia_driver/tasks/restart.yml"
    restart.write_text(
        restart.read_text().replace("ansible.builtin.reboot:", "gpufleet.gpu.reboot:")
    )
    modules = collection / "plugins/modules"
    modules.mkdir(parents=True)
    for name, results in answers.items():
        place = root / f"{name}.json"
        place.write_text(json.dumps(results))
        (modules / f"{name}.py").write_text(STAND_IN.format(place=str(place)))
    systemctl = root / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text("#!/bin/sh\necho Job=\n")
    systemctl.chmod(0o755)
    (root / "play.json").write_text(json.dumps([PLAY]))
    program = Path(sys.executable).with_name("ansible-playbook")
    interpreter = f"ansible_python_interpreter={sys.executable}"
    done = subprocess.run(
        [program, "-i", "localhost,", "-e", interpreter, root / "play.json"],
        cwd=root, capture_output=True, text=True, check=False,
        env={**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
             "PATH": f"{systemctl.parent}:{os.environ['PATH']}", "ANSIBLE_NOCOLOR": "1",
             "ANSIBLE_COLLECTIONS_PATH": str(root)},
    )  # fmt: skip
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
    reboots = [{"rebooted": True, "changed": True}]
    found, output = carry_out(
        tmp_path, gpu_restart=decided(*decisions), gpu_mig_layout=layouts, reboot=reboots
    )
    assert found == status, output
    assert says in output
