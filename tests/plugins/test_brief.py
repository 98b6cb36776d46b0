"""The output of a playbook: what changes, what fails and what roles say, and nothing around it."""

from __future__ import annotations

from pathlib import Path

from tests.support.warm_start import run_playbook

MESSAGE = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars:
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
  tasks:
    - name: Change nothing
      ansible.builtin.set_fact: {count: 1}
    - name: Read other tasks
      ansible.builtin.include_tasks: included.yml
"""
INCLUDED = """
- name: Show a message
  ansible.builtin.debug: {msg: Restart its services}
- name: Try each
  ansible.builtin.command:
    argv: ["{{ item.program }}"]
  changed_when: true
  loop:
    - program: "true"
      facts: "FIRST{{ 'x' * 500 }}"
    - program: "false"
      facts: "SECOND{{ 'x' * 500 }}"
"""


def played(folder: Path, display_ok_hosts: str = "false") -> list[str]:
    """The lines that a playbook with a message, an included file and a failed item prints."""
    (folder / "included.yml").write_text(INCLUDED)
    path = folder / "long.yml"
    path.write_text(MESSAGE)
    done = run_playbook(path, hosts="localhost,", ANSIBLE_DISPLAY_OK_HOSTS=display_ok_hosts)
    assert done.returncode == 2, done.stdout + done.stderr
    return (done.stdout + done.stderr).splitlines()


def test_messages_changes_and_failures_are_shown_and_nothing_else(tmp_path: Path) -> None:
    lines = played(tmp_path)
    text = "\n".join(lines)
    assert "localhost: Restart its services" in lines
    assert "Change nothing" not in text and "included: " not in text
    assert any(line.startswith("changed: [localhost] => (item={") for line in lines)
    assert "non-zero return code" in text


def test_an_item_is_a_line_at_most_and_not_before_the_message(tmp_path: Path) -> None:
    lines = played(tmp_path)
    assert max(len(line) for line in lines) < 200
    failed = "\n".join(lines).partition("failed: ")[2]
    assert failed.index("non-zero return code") and failed.count("SECOND") == 1


def test_all_of_it_is_shown_where_it_is_asked_for(tmp_path: Path) -> None:
    text = "\n".join(played(tmp_path, "true"))
    assert "Change nothing" in text and "included: " in text
