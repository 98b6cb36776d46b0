# Apache-2.0, see LICENSE
"""Print every few seconds which hosts a long task is waiting for."""

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: aggregate
short_description: Shows the progress of long tasks
description:
  - Ansible prints nothing while a task runs. This callback prints a line after every few seconds,
    with the time since the task started and the hosts that have not answered yet.
options:
  interval:
    description: Seconds between two lines.
    type: float
    default: 5
    env: [{name: GPUFLEET_PROGRESS_INTERVAL}]
    ini: [{section: callback_progress, key: interval}]
requirements: [enabled in the configuration]
"""

import os
import sys
import threading
import time

from ansible.plugins.callback import CallbackBase

SHOWN_HOSTS = 6


class CallbackModule(CallbackBase):
    """Starts a thread with each task that prints its progress, and stops it at the task's end."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        self._waiting = {}
        self._ended = threading.Event()

    def _tick(self, name, started, ended):
        interval = self.get_option("interval")
        while not ended.wait(interval):
            hosts = sorted(self._waiting)
            if not hosts:
                continue
            more = " and {} more".format(len(hosts) - SHOWN_HOSTS) if hosts[SHOWN_HOSTS:] else ""
            line = "   ... {:.0f} s: {} on {}{}\n".format(
                time.monotonic() - started, name, ", ".join(hosts[:SHOWN_HOSTS]), more
            )
            # Not through the display: its lock could be held by this thread at a fork.
            os.write(sys.stdout.fileno(), line.encode())

    def _start(self, name):
        self._stop()
        self._waiting.clear()
        self._ended = threading.Event()
        threading.Thread(
            target=self._tick, args=(name, time.monotonic(), self._ended), daemon=True
        ).start()

    def _stop(self):
        self._ended.set()

    def v2_playbook_on_task_start(self, task, is_conditional):
        self._start(task.get_name())

    def v2_playbook_on_handler_task_start(self, task):
        self._start(task.get_name())

    def v2_runner_on_start(self, host, task):
        self._waiting[host.get_name()] = True

    def _answered(self, result):
        self._waiting.pop(result.host.get_name(), None)

    def v2_runner_on_ok(self, result):
        self._answered(result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._answered(result)

    def v2_runner_on_skipped(self, result):
        self._answered(result)

    def v2_runner_on_unreachable(self, result):
        self._answered(result)

    def v2_playbook_on_stats(self, stats):
        self._stop()
