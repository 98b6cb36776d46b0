"""Show progress on standard error; standard output is for results.

On a terminal a spinner shows the step in progress; elsewhere each step is a plain line, and a
long one says from time to time that it is still at it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

HEARTBEAT_S = 10.0


class Step:
    """A step in progress; `detail` says how far it is."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.detail = ""
        self.started = time.monotonic()

    def __str__(self) -> str:
        seconds = time.monotonic() - self.started
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.title}{detail} ({seconds:.0f} s)"


class Progress:
    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self.console.print(escape(text))

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        step = Step(title)
        over = threading.Event()
        shown = self._spin if self.console.is_terminal else self._beat
        watcher = threading.Thread(target=shown, args=(step, over), daemon=True)
        watcher.start()
        try:
            yield step
        finally:
            over.set()
            watcher.join()
        self.say(f"{title}: done in {time.monotonic() - step.started:.1f} s")

    def _spin(self, step: Step, over: threading.Event) -> None:
        with self.console.status(escape(str(step))) as status:
            while not over.wait(0.5):
                status.update(escape(str(step)))

    def _beat(self, step: Step, over: threading.Event) -> None:
        self.say(f"{step.title} ...")
        while not over.wait(HEARTBEAT_S):
            self.say(f"  {step}")
