"""Processes that crash, and those that are late."""

from __future__ import annotations

import os
import signal
import time

import pytest

from gpufleet.on_host import processes
from gpufleet.on_host.processes import in_child, queued_s, run_command


def test_a_library_that_crashes_is_an_error_of_its_own() -> None:
    state, value, error = in_child(signal.raise_signal, (signal.SIGKILL,), 5)
    assert (state, value, error) == ("error", None, "killed by SIGKILL")


@pytest.mark.parametrize(("queued", "state"), [(0.0, "hung"), (60.0, "ok")])
def test_who_waits_for_a_processor_is_late_and_not_hung(
    queued: float, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host with forty ready processes a healthy library was reported as hung."""
    monkeypatch.setattr(processes, "queued_s", lambda pid: queued)
    assert in_child(time.sleep, (0.3,), 0.05)[0] == state
    status, _, error = run_command(["/bin/sleep", "0.3"], 0.05)
    assert (status, error) == ((0, "") if queued else (None, "no answer within 0.05 s"))


def test_the_time_in_the_queue_is_the_kernel_s() -> None:
    assert 0 <= queued_s(os.getpid()) < time.monotonic()
    assert queued_s(1 << 30) == 0
