"""Where Ansible plans a host: a Python that its modules do not run under.

RHEL 8 has 3.6 (https://github.com/ansible/ansible/issues/82068).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.gpufleet.gpu.plugins.action import gpu_plan

from lab import pythons
from lab.errors import LabError
from tests.support.host_documents import snapshot
from tests.support.machine import deadline

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("version", ["3.6", "3.7"])
def test_a_python_that_is_too_old_is_named_with_a_remedy(tmp_path: Path, version: str) -> None:
    try:
        python = pythons.find(version, os.environ) / f"bin/python{version}"
    except LabError as error:
        pytest.skip(str(error))
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(json.dumps([{
        "hosts": "localhost", "connection": "local", "gather_facts": False,
        "vars": {"ansible_python_interpreter": str(python)},
        "tasks": [{"gpufleet.gpu.gpu_plan": None}],
    }]))  # fmt: skip
    done = subprocess.run(
        [ROOT / ".venv" / "bin" / "ansible-playbook", "-i", "localhost,", playbook],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=deadline(60),
    )  # fmt: skip
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2
    assert f"do not run under {python}, which is older than Python 3." in output
    assert "name it in the inventory (ansible_python_interpreter: /usr/bin/python3.12)" in output


def test_a_host_whose_architecture_was_not_read_is_not_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
    action = object.__new__(gpu_plan.ActionModule)
    action._task = SimpleNamespace(
        args={}, get_play=lambda: SimpleNamespace(_uuid="play"), check_mode=False
    )
    action._templar = SimpleNamespace(template=lambda value: value)
    found = snapshot()
    found["sections"]["os"] = {"state": "hung", "seconds": 40, "error": "no answer within 40 s"}
    monkeypatch.setattr(action, "_execute_module", lambda *words, **more: {"snapshot": found})
    with pytest.raises(AnsibleError) as caught:
        action.run(None, {"inventory_hostname": "gpu07", "gpu_toolkits": ["12.5"]})
    assert "Nothing was changed on gpu07: its operating system" in str(caught.value)
    assert "no answer within 40 s" in str(caught.value)
