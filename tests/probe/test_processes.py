"""Processes that crash."""

from __future__ import annotations

import signal

from gpufleet.probe.processes import in_child


def test_a_library_that_crashes_is_an_error_of_its_own() -> None:
    state, value, error = in_child(signal.raise_signal, (signal.SIGKILL,), 5)
    assert (state, value, error) == ("error", None, "killed by SIGKILL")
