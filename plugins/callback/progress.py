# Apache-2.0, see LICENSE
"""Print every few seconds which hosts a long task is waiting for."""

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: aggregate
short_description: Shows the progress of long tasks
description:
  - Ansible prints nothing while a task runs. This callback prints a line after every few seconds
    for each task that has run longer than that, with the time since it started and the hosts that
    have not answered yet. Hosts can be at different tasks.
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
    """Remembers what each host is at; a thread prints what takes long."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        self._running = {}  # {host: (task, when it started)}
        self._ended = threading.Event()

    def _tick(self):
        while not self._ended.wait(self.get_option("interval")):
            for line in self._lines(time.monotonic()):
                # Not through the display: its lock could be held by this thread at a fork.
                os.write(sys.stdout.fileno(), line.encode())

    def _lines(self, now):
        long_ones = {}
        for host, (name, started) in dict(self._running).items():
            if now - started >= self.get_option("interval"):
                long_ones.setdefault(name, []).append((started, host))
        for name, waiting in long_ones.items():
            hosts = sorted(host for _, host in waiting)
            more = " and {} more".format(len(hosts) - SHOWN_HOSTS) if hosts[SHOWN_HOSTS:] else ""
            yield "   ... {:.0f} s: {} on {}{}\n".format(
                now - min(waiting)[0], name, ", ".join(hosts[:SHOWN_HOSTS]), more
            )

    def v2_playbook_on_start(self, playbook):
        threading.Thread(target=self._tick, daemon=True).start()

    def v2_runner_on_start(self, host, task):
        self._running[host.get_name()] = (task.get_name(), time.monotonic())

    def _answered(self, result):
        self._running.pop(result.host.get_name(), None)

    def v2_runner_on_ok(self, result):
        self._answered(result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._answered(result)

    def v2_runner_on_skipped(self, result):
        self._answered(result)

    def v2_runner_on_unreachable(self, result):
        self._answered(result)

    def v2_playbook_on_stats(self, stats):
        self._ended.set()
