"""The progress callback: silence is broken every few seconds, with the hosts still waited for."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.warm_start import run_playbook

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


def played(folder: Path, playbook: str, hosts: str, **variables: str) -> str:
    """The output of a playbook."""
    path = folder / "long.yml"
    path.write_text(playbook)
    variables = {"GPUFLEET_PROGRESS_INTERVAL": "0.2", **variables}
    done = run_playbook(path, hosts=hosts, ANSIBLE_DISPLAY_OK_HOSTS="false", **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_long_task_says_what_it_waits_for(tmp_path: Path) -> None:
    assert "s: Take a while on localhost" in played(tmp_path, PLAYBOOK, "localhost,")


def test_a_file_has_no_line_that_only_says_that_time_passes(tmp_path: Path) -> None:
    printed = played(tmp_path, PLAYBOOK, "localhost,", GPUFLEET_PROGRESS_INTERVAL="0")
    assert "... " not in printed and "changed: [localhost]" in printed


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
    printed = played(tmp_path, TWO_HOSTS, "slow,fast,")
    assert "s: Take a while on slow\n" in printed
    assert "s: Take another while on fast\n" in printed


@pytest.mark.costly
def test_a_terminal_has_one_line_that_is_updated_in_place(tmp_path: Path) -> None:
    (tmp_path / "long.yml").write_text(PLAYBOOK.replace("sleep 1", "sleep 3"))
    main, terminal = pty.openpty()
    with subprocess.Popen(
        [ROOT / ".venv" / "bin" / "ansible-playbook", "-i", "localhost,", tmp_path / "long.yml"],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "TERM": "xterm"},
        stdout=terminal,
        stderr=subprocess.DEVNULL,
    ) as playbook:
        os.close(terminal)
        output = b"".join(_read_until_closed(main))
    assert playbook.returncode == 0
    lines = output.decode().split("\n")
    updated = [line for line in lines if "s: Take a while on localhost" in line]
    assert len(updated) == 1
    assert updated[0].count("\r\x1b[K   ... ") >= 2
    assert updated[0].rindex("\r\x1b[K") > updated[0].rindex("Take a while on localhost")


def _read_until_closed(main: int) -> Iterator[bytes]:
    """The output of a terminal, until the last process that has it open ends."""
    while True:
        try:
            yield os.read(main, 4096)
        except OSError:
            os.close(main)
            return
