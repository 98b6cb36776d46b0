"""What processors, memory and firmware report of the machine's own errors."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.probe.sections.kernel_log import kernel_events


def found(*lines: str) -> list[dict[str, Any]]:
    return kernel_events([(float(at), line) for at, line in enumerate(lines)])


def kinds(*lines: str) -> list[str]:
    return [row["kind"] for row in found(*lines)]


@pytest.mark.parametrize(
    "line",
    [
        "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 5: bea0000000000108",
        "mce: [Hardware Error]: CPU 5: Machine Check: 0 Bank 5: bea0000000000108",
        "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 7: fe00000000800400",
        "[Hardware Error]: System Fatal error.",
        "[Hardware Error]: Uncorrected, software restartable error.",
        "[Hardware Error]: Uncorrected, software containable error.",
        "EDAC MC0: 1 UE on mc#0csrow#1channel#1",
    ],
)
def test_an_error_that_nothing_corrected_is_of_the_machine(line: str) -> None:
    assert kinds(line) == ["machine-check"]


@pytest.mark.parametrize(
    "line",
    [
        "mce: [Hardware Error]: CPU 5: Machine Check: 0 Bank 5: 9c00000000000108",
        "mce: [Hardware Error]: CPU 5: Machine Check: 0 Bank 5: dc2040000000011b",
        "mce: [Hardware Error]: Machine check events logged",
        "[Hardware Error]: Corrected error, no action required.",
        "[Hardware Error]: Deferred error, no action required.",
        "[Hardware Error]: CPU:0 (19:11:1) MC17_STATUS[Over|CE|MiscV|-|-]: 0x9c2040000000011b",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
    ],
)
def test_an_error_that_was_corrected_is_none(line: str) -> None:
    assert kinds(line) == []
