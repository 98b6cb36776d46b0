# Apache-2.0, see LICENSE
"""Show which hosts a long task is waiting for."""

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: aggregate
short_description: Shows the progress of long tasks
description:
  - Ansible prints nothing while a task runs. On a terminal this callback keeps one line up to date,
    with the task that has run longest, for how long, and the hosts that have not answered yet.
    Elsewhere, as in a file or a log, it prints nothing, unless an interval is set, and then a line
    for each task that has run longer than that, every so many seconds. Hosts can be at different
    tasks.
options:
  interval:
    description: Seconds between two lines where the output is not a terminal; 0 for none.
    type: float
    default: 0
    env: [{name: GPUFLEET_PROGRESS_INTERVAL}]
    ini: [{section: callback_progress, key: interval}]
requirements: [enabled in the configuration]
"""

import os
import shutil
import sys
import threading
import time

from ansible.plugins.callback import CallbackBase

SHOWN_HOSTS = 6
# Seconds between two updates of the line on a terminal, and how a terminal clears a line.
UPDATE_INTERVAL = 1.0
CLEAR_LINE = b"\r\x1b[K"


class CallbackModule(CallbackBase):
    """Records which task each host runs; a thread shows the tasks that take long."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        self._running = {}  # {host: (task, when it started)}
        self._ended = threading.Event()
        self._in_place = sys.stdout.isatty()
        self._line_shown = False
        if self._in_place:
            self._clear_before_display()

    def _clear_before_display(self):
        """Remove the line in place before anything else is printed; workers print through here."""
        shown, process = self._display.display, os.getpid()

        def display(msg, *args, **kwargs):
            if self._line_shown and os.getpid() == process:
                self._line_shown = False
                os.write(sys.stdout.fileno(), CLEAR_LINE)
            shown(msg, *args, **kwargs)

        self._display.display = display

    def _tick(self):
        interval = UPDATE_INTERVAL if self._in_place else self.get_option("interval")
        while not self._ended.wait(interval):
            lines = list(self._lines(time.monotonic(), interval))
            # Not through the display: its lock could be held by this thread at a fork.
            if not self._in_place:
                os.write(sys.stdout.fileno(), "".join(line + "\n" for line in lines).encode())
            elif lines:
                self._line_shown = True
                width = shutil.get_terminal_size().columns - 1
                os.write(sys.stdout.fileno(), CLEAR_LINE + lines[0][:width].encode())

    def _lines(self, now, interval):
        """A line for each task that has run for `interval` seconds, the longest first."""
        tasks = {}
        for host, (name, started) in dict(self._running).items():
            if now - started >= interval:
                tasks.setdefault(name, []).append((started, host))
        for name, waiting in sorted(tasks.items(), key=lambda task: min(task[1])):
            hosts = sorted(host for _, host in waiting)
            more = " and {} more".format(len(hosts) - SHOWN_HOSTS) if hosts[SHOWN_HOSTS:] else ""
            yield "   ... {:.0f} s: {} on {}{}".format(
                now - min(waiting)[0], name, ", ".join(hosts[:SHOWN_HOSTS]), more
            )

    def v2_playbook_on_start(self, playbook):
        if self._in_place or self.get_option("interval") > 0:
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
