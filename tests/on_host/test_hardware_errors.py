"""Reports of processors, memory and firmware on the machine's own errors."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.on_host.sections.kernel_log import kernel_events


def found(*lines: str) -> list[dict[str, Any]]:
    return kernel_events([(at / 1000, line) for at, line in enumerate(lines)])


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


def test_a_corrected_error_is_kept_for_what_stands_beside_it() -> None:
    assert kinds("mce: [Hardware Error]: Machine check events logged") == ["corrected-error"]
    assert kinds("EDAC MC0: 1 CE memory read error on CPU_SrcID#0") == ["corrected-error"]


@pytest.mark.parametrize(
    "line",
    [
        "mce: [Hardware Error]: CPU 5: Machine Check: 0 Bank 5: 9c00000000000108",
        "mce: [Hardware Error]: CPU 5: Machine Check: 0 Bank 5: dc2040000000011b",
        "[Hardware Error]: Corrected error, no action required.",
        "[Hardware Error]: Deferred error, no action required.",
        "[Hardware Error]: CPU:0 (19:11:1) MC17_STATUS[Over|CE|MiscV|-|-]: 0x9c2040000000011b",
    ],
)
def test_an_error_that_was_corrected_is_none(line: str) -> None:
    assert kinds(line) == []


# -- records of the firmware -----------------------------------------------------------------------

MARK = "{1}[Hardware Error]:"


def record(
    severity: str, *errors: tuple[str, str, str | None], mark: str = MARK, spelt: str = "_"
) -> list[str]:
    """The lines of a record: its severity; of each error its own, its kind and its device."""
    lines = [f"{mark} event severity: {severity}"]
    for number, (own, kind, device) in enumerate(errors):
        lines += [
            f"{mark}  Error {number}, type: {own}",
            f"{mark}  fru_text: Slot 3",
            f"{mark}   section{spelt}type: {kind}",
            f"{mark}   command: 0x0547, status: 0x4010",
        ]
        lines += [f"{mark}   device_id: {device}"] if device else []
        lines += [f"{mark}   vendor_id: 0x10de, device_id: 0x2330"]
    return lines


BUS = ("recoverable", "PCIe error", "0000:3b:00.0")
MEMORY = ("recoverable", "memory error", None)


@pytest.mark.parametrize(
    ("lines", "events"),
    [
        (record("recoverable", BUS), [("pcie-error", "0000:3b:00.0")]),
        (record("fatal", ("fatal", *BUS[1:])), [("pcie-error", "0000:3b:00.0")]),
        (record("recoverable", (*BUS[:2], None)), [("pcie-error", None)]),
        (record("recoverable", MEMORY), [("machine-check", None)]),
        (
            record("recoverable", BUS, ("corrected", "memory error", None)),
            [("pcie-error", "0000:3b:00.0")],
        ),
        (
            record("recoverable", (*BUS[:2], None), MEMORY),
            [("pcie-error", None), ("machine-check", None)],
        ),
        (
            record(
                "fatal", ("fatal", "unknown, 81212a96-09ed-4996-9471-8d729c8e69ed", None), spelt=" "
            ),
            [("machine-check", None)],
        ),
        # The log ends, or another record begins, before what it is about.
        (record("recoverable"), [("machine-check", None)]),
        (record("recoverable", BUS)[:2], [("machine-check", None)]),
        ([*record("fatal"), *record("corrected")], [("machine-check", None)]),
        (record("corrected", ("corrected", *BUS[1:])), []),
        (record("info", ("info", *BUS[1:])), []),
    ],
)
def test_a_record_of_the_firmware_is_of_what_it_names(
    lines: list[str], events: list[tuple[str, str | None]]
) -> None:
    """Servers whose firmware handles the bus reported each of its errors as one of the memory."""
    assert [(row["kind"], row["address"]) for row in found(*lines)] == events


def test_other_lines_come_between_those_of_a_record() -> None:
    lines = record("recoverable", BUS)
    mixed = [text for line in lines for text in (line, "EDAC MC0: 1 UE on mc#0csrow#1channel#1")]
    assert sorted(kinds(*mixed)) == ["machine-check", "pcie-error"]


def test_a_record_that_stays_open_ends_with_its_moment() -> None:
    first, *others = record("recoverable", BUS)
    events = kernel_events([(1.0, first), *((60.0, line) for line in others)])
    assert [(row["kind"], row["uptime_s"]) for row in events] == [("machine-check", 1.0)]


@pytest.mark.parametrize("error", [BUS, MEMORY])
def test_what_the_firmware_kept_of_the_boot_before_is_not_of_this_one(error: Any) -> None:
    """A host that was repaired failed until its next reboot."""
    lines = record("fatal", error, mark="[Hardware Error]:")
    (row,) = found("BERT: Error records from previous boot:", *lines)
    assert (row["kind"], row["address"]) == ("previous-boot", None)
    assert error[1] in row["text"]


def test_fatal_errors_of_the_firmware_s_records_stay_apart_from_others() -> None:
    lines = [*record("fatal", ("fatal", *BUS[1:])), *record("recoverable", BUS)]
    assert kinds(*lines) == ["pcie-error", "pcie-error"]
