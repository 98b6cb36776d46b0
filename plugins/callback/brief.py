# Apache-2.0, see LICENSE
"""Print what changes, what fails and what roles say, and nothing around it."""

from __future__ import annotations

DOCUMENTATION = r"""
name: brief
type: stdout
short_description: Ansible's default output without what only repeats the playbook
description:
  - As C(ansible.builtin.default). Where C(display_ok_hosts) is off, files that are included are not
    listed, and the messages of the module debug are lines of text.
  - An item of a loop is cut to a line, and the item of a task that fails is not printed before its
    message.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements: [set as stdout in the configuration]
"""

from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback.default import CallbackModule as Default

# Characters of an item.
SHOWN = 80


class CallbackModule(Default):
    """Leaves out what a reader of the output has no use for."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "brief"

    def v2_runner_on_ok(self, result):
        if self.get_option("display_ok_hosts"):
            super().v2_runner_on_ok(result)
        elif not isinstance(result.task, TaskInclude):
            self._show_message(result)
            super().v2_runner_on_ok(result)

    def _show_message(self, result):
        """Print the message of a debug task, whose result is not shown."""
        if result.task.action in {"debug", "ansible.builtin.debug"} and not result.is_changed():
            answers = result.result.get("results", [result.result])
            for message in [answer.get("msg") for answer in answers]:
                if message:
                    self._display.display("{}: {}".format(result.host.get_name(), message))

    def v2_playbook_on_include(self, included_file):
        if self.get_option("display_ok_hosts"):
            super().v2_playbook_on_include(included_file)

    def _get_item_label(self, result):
        label = super()._get_item_label(result)
        text = str(label)
        return text[:SHOWN] + "..." if text[SHOWN:] else label

    def _dump_results(self, result, *args, **kwargs):
        loop = {"ansible_loop_var", "ansible_index_var", result.get("ansible_loop_var", "item")}
        kept = {key: value for key, value in result.items() if key not in loop}
        return super()._dump_results(kept, *args, **kwargs)
