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


def played(folder: Path, playbook: str, hosts: str) -> str:
    """What a playbook prints."""
    path = folder / "long.yml"
    path.write_text(playbook)
    return subprocess.run(
        [ROOT / ".venv" / "bin" / "ansible-playbook", "-i", hosts, path],
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "GPUFLEET_PROGRESS_INTERVAL": "0.2",
        },
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_a_long_task_says_what_it_waits_for(tmp_path: Path) -> None:
    assert "s: Take a while on localhost" in played(tmp_path, PLAYBOOK, "localhost,")


TWO_HOSTS = """
- hosts: all
  connection: local
  gather_facts: false
  strategy: ansible.builtin.host_pinned
  vars:
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
  tasks:
    - name: Take a while
      ansible.builtin.command: sleep 1
      when: inventory_hostname == "slow"
    - name: Take another while
      ansible.builtin.command: sleep 1
      when: inventory_hostname == "fast"
"""


def test_hosts_at_different_tasks_have_a_line_each(tmp_path: Path) -> None:
    said = played(tmp_path, TWO_HOSTS, "slow,fast,")
    assert "s: Take a while on slow\n" in said
    assert "s: Take another while on fast\n" in said
