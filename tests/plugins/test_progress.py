"""The progress callback: silence is broken every few seconds, with the hosts still waited for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars:
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
  tasks:
    - name: Take a while
      ansible.builtin.command: sleep 1
"""


def test_a_long_task_says_what_it_waits_for(tmp_path: Path) -> None:
    playbook = tmp_path / "long.yml"
    playbook.write_text(PLAYBOOK)
    said = subprocess.run(
        [ROOT / ".venv" / "bin" / "ansible-playbook", "-i", "localhost,", playbook],
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "GPUFLEET_PROGRESS_INTERVAL": "0.2",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert "s: Take a while on localhost" in said.stdout
