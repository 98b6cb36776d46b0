# Apache-2.0, see LICENSE
"""Write what failed on which host into a file, for the program that runs the playbook."""

from __future__ import annotations

DOCUMENTATION = r"""
name: failures
type: aggregate
short_description: Keeps the last failure of each host
description:
  - Writes a line of JSON for each task that fails on a host into a file, with C(host), C(task),
    C(message), C(address), where the task's result names an address, whether the host was
    C(unreachable), and whether the message is the playbook's C(own).
  - Does nothing where no file is named.
options:
  path:
    description: The file.
    type: str
    default: ""
    env: [{name: GPUFLEET_FAILURES_FILE}]
requirements: [enabled in the configuration]
"""

import json

from ansible.plugins.callback import CallbackBase

# Actions that write their message on the control machine, by playbook and declaration alone.
OWN = {
    "ansible.builtin.assert",
    "ansible.builtin.fail",
    "assert",
    "fail",
    "gpufleet.gpu.gpu_plan",
    "gpu_plan",
}
# Characters of a message.
MOST = 4000


def message_of(result):
    """Return the message of a failed task, or of its first item that failed, and its address."""
    failed = [row for row in result.get("results") or () if row.get("failed")]
    row = failed[0] if failed else result
    text = row.get("msg") or row.get("stderr") or row.get("module_stderr") or ""
    # The message of a failed command is only its status; its standard error says why.
    if row.get("stderr") and "non-zero return code" in str(text):
        text = row["stderr"]
    return str(text)[-MOST:].strip(), str(row.get("url") or "")


class CallbackModule(CallbackBase):
    """Appends to the file when a host fails."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "failures"
    CALLBACK_NEEDS_ENABLED = True

    def _write(self, result):
        path = self.get_option("path")
        if not path:
            return
        message, address = message_of(result.result)
        row = {
            "host": result.host.get_name(),
            "task": result.task.get_name(),
            "message": message,
            "address": address,
            "unreachable": bool(result.result.get("unreachable")),
            "own": result.task.action in OWN,
        }
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def v2_runner_on_failed(self, result, ignore_errors=False):
        if not ignore_errors:
            self._write(result)

    def v2_runner_on_unreachable(self, result):
        self._write(result)
