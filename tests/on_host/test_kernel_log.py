"""The lines of NVIDIA's driver, of NVSwitches and of the PCI bus in every form that is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpufleet.catalog import facts, xids
from gpufleet.on_host.host import Host
from gpufleet.on_host.sections import kernel_log
from gpufleet.on_host.sections.kernel_log import devices_below, kernel_events, parse_stamped

CODES = sorted(facts.document("xids/codes.yml")["xids"])
SXIDS = sorted(facts.document("xids/sxids.yml")["codes"])
ADDRESS = "0000:3b:00.0"
# (address as printed, address, process as printed, pid, name)
PLACES = (
    ("PCI:0000:3b:00", ADDRESS),
    ("PCI:0000:3B:00", ADDRESS),
    ("0000:3b:00", ADDRESS),
    ("PCI:00000000:3b:00.0", ADDRESS),
    ("PCI:0018:01:00", "0018:01:00.0"),
    ("PCI:0000:3b:00 GPU-I:05", ADDRESS),
    ("PCI:0000:3b:00 GPU-I:05 GPU-CI:00", ADDRESS),
)
PROCESSES = (
    ("", None, None),
    ("pid='<unknown>', name=<unknown>, ", None, None),
    ("pid=812, name=python3, ", 812, "python3"),
    ("pid=812, ", 812, None),
    ("pid=7, name=VLLM::Worker, ", 7, "VLLM::Worker"),
    ("pid=812, name=<unknown>, ", 812, None),
)
NVLINK = "nvidia-nvlink: Nvlink Core is being initialized, major device number 236"


def found(*lines: str) -> list[dict[str, Any]]:
    return kernel_events([(float(at), line) for at, line in enumerate(lines)])


def codes(*lines: str) -> list[tuple[Any, ...]]:
    return [(row["kind"], row["code"], row["address"], row["count"]) for row in found(*lines)]


def xid(code: int, text: str = "what happened", place: str = "PCI:0000:3b:00") -> str:
    return f"NVRM: Xid ({place}): {code}, {text}"


# -- Xids ------------------------------------------------------------------------------------------


def test_every_number_is_read_in_every_printing() -> None:
    for code in (*CODES, 177, 4711):
        for place, address in PLACES:
            for process, pid, name in PROCESSES:
                line = xid(code, f"{process}Ch 00000008, what happened", place)
                (row,) = found(line)
                assert [row[key] for key in ("kind", "code", "address", "pid", "process")] == [
                    "xid",
                    code,
                    address,
                    pid,
                    name,
                ], line
                assert xids.message(code, row["text"]) == "Ch 00000008, what happened", line


@pytest.mark.parametrize(
    "stamp",
    [
        "[  130.456250] {}",
        "[  130.456250] gpu01 kernel: {}",
        "[  130.456250][ T1946] {}",
        "[  130.456250] [ T1946] {}",
        "[130.456250] gpu01 kernel: [ T1946] {}",
        "[  130.456250][    C7] {}",
    ],
)
def test_a_line_is_read_behind_every_stamp(stamp: str) -> None:
    """Kernels that print the caller behind the time lost every line of dmesg."""
    assert parse_stamped(stamp.format(xid(79))) == [(130.45625, xid(79))]


def test_the_log_reaches_the_boot_also_where_the_caller_is_printed() -> None:
    assert parse_stamped("[    0.000000][    T0] Linux version 6.8.0") == [
        (0.0, "Linux version 6.8.0")
    ]


LOST = (
    "NVRM: The NVIDIA GPU 0000:3b:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


@pytest.mark.parametrize(
    "lines",
    [
        LOST,
        ["\n".join(LOST)],
        ["#012".join(LOST)],
        ["\\x0a".join(LOST)],
        [NVLINK, *LOST, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.54.03"],
    ],
)
def test_a_card_that_is_lost_at_load_is_79(lines: Sequence[str]) -> None:
    """The address stands in the first of three lines, the words in the third: nothing was seen."""
    assert codes(*lines) == [("xid", 79, ADDRESS, 1)]


def test_a_message_over_three_lines_keeps_its_time_and_its_end() -> None:
    out = "[    4.2] gpu01 kernel: " + "\n                    ".join(LOST) + "\n[   5.0] a: b\n"
    assert [row["uptime_s"] for row in kernel_events(parse_stamped(out))] == [4.2]
    assert codes(LOST[0], LOST[1], xid(48), LOST[2]) == [("xid", 48, ADDRESS, 1)]


def test_what_is_printed_beside_79_counts_once() -> None:
    assert codes(
        xid(79, "GPU has fallen off the bus."), f"NVRM: GPU {ADDRESS}: GPU has fallen off the bus."
    ) == [("xid", 79, ADDRESS, 1)]


def test_texts_that_ask_for_different_things_stay_apart() -> None:
    """Once only the last line of each number was kept, and a harmless one hid the failure before."""
    nvlink = "RLW_SRC_TRACK {} XC1 i0 Link 03 (0x{:08x} 0x{:08x} 0x0 0x0 0x0 0x0)"
    for code, bad, good in (
        (
            64,
            "Row Remapper Error: (0x1) - All reserved rows for bank are remapped",
            "Row Remapper: (0x{:x}) - Attempting to remap a row that is already pending remapping",
        ),
        (
            74,
            "NVLink: fatal error detected on link 1(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
            "NVLink: fatal error detected on link {}(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
        ),
        (145, nvlink.format("Fatal", 0x040988E2, 1), nvlink.format("Nonfatal", 0x040988E2, 2)),
    ):
        lines = [xid(code, bad), *(xid(code, good.format(at)) for at in range(50))]
        assert sorted(count for *_, count in codes(*lines)) == [1, 50], code
        effects = {xids.meaning(code, row["text"], 570).effect for row in found(*lines)}
        assert "fail" in effects
        assert len(effects) == 2


def test_a_storm_of_different_texts_stays_small() -> None:
    storm = [xid(145, f"RLW Nonfatal XC1 i0 Link 01 (0x{at:08x} 0x1 0x0)") for at in range(3000)]
    rows = found(*storm, xid(145, "RLW Fatal XC1 i0 Link 01 (0xffffffff 0x1 0x0)"), *storm)
    assert len(rows) < 40
    assert sum(row["count"] for row in rows) == 6001
    assert any(" Fatal " in row["text"] for row in rows)


# -- what ends a message's time --------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        NVLINK,
        "nvidia-nvlink: Unregistered the Nvlink Core, major device number 236",
        "nvidia-nvlink: Unregistered Nvlink Core, major device number 236",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build",
        "pci 0000:3b:00.0: [10de:2330] type 00 class 0x030200",
        "vfio-pci 0000:3b:00.0: reset done",
        "gpufleet: GPU 0000:3b:00.0 was reset",
        "gpu01 gpufleet: GPU 0000:3b:00.0 was reset",
    ],
)
def test_a_driver_that_was_loaded_or_a_card_that_was_reset_begins_again(line: str) -> None:
    """A card that was reset kept its failure until the next boot."""
    assert codes(xid(95), xid(48), line) == []
    assert codes(xid(95), line, xid(48)) == [("xid", 48, ADDRESS, 1)]


def test_the_reset_of_one_card_does_not_clear_another_one_or_the_machine() -> None:
    other, machine = xid(79, place="PCI:0000:86:00"), "EDAC MC0: 1 UE memory read error"
    assert [
        code
        for _, code, *_ in codes(xid(79), other, machine, "gpufleet: GPU 0000:3b:00.0 was reset")
    ] == [79, None]


def test_a_switch_whose_driver_was_loaded_begins_again() -> None:
    line = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 62 LTSSM Fault Up"
    assert codes(
        line, xid(74), "nvidia-nvswitch: Probing device 0000:05:00.0, Vendor Id = 0x10de"
    ) == [("xid", 74, ADDRESS, 1)]


def test_what_a_load_reports_before_it_names_the_driver_stays() -> None:
    assert codes(
        xid(48),
        NVLINK,
        "nvidia: probe of 0000:3b:00.0 failed with error -1",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.54.03",
    ) == [("init-failed", None, ADDRESS, 1)]


OF_THE_GPU = "NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:2330)"


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (
            (
                OF_THE_GPU,
                "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
            ),
            "needs-open-module",
        ),
        (
            (
                OF_THE_GPU,
                "NVRM: installed in this system is not supported by open",
                "NVRM: nvidia.ko because it does not include the required GPU",
                "NVRM: System Processor (GSP).",
                "NVRM: Please see the 'Open Linux Kernel Modules' and 'GSP",
            ),
            "needs-proprietary-module",
        ),
        (
            (
                "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
                "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:3b:00.0)",
            ),
            "no-memory-region",
        ),
        (
            (
                OF_THE_GPU,
                "NVRM: installed in this system is not supported by the",
                "NVRM: NVIDIA 580.65.06 driver release.",
            ),
            "unsupported-card",
        ),
    ],
)
def test_why_the_driver_refuses_a_card_is_read_with_its_address(
    lines: Sequence[str], kind: str
) -> None:
    one = [(kind, None, ADDRESS, 1)]
    assert codes(*lines) == one
    assert codes("\n".join(lines)) == one
    assert codes(*lines, NVLINK) == []


def test_why_the_driver_refuses_a_card_is_read_where_another_line_hides_its_address() -> None:
    assert codes(
        OF_THE_GPU,
        xid(48),
        "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
    ) == [("xid", 48, ADDRESS, 1), ("needs-open-module", None, None, 1)]


NOT_LOADED = (
    "NVRM: The NVIDIA probe routine failed for 1 device(s).",
    "NVRM: None of the NVIDIA devices were initialized.",
)
UNREGISTERED = "nvidia-nvlink: Unregistered Nvlink Core, major device number 236"


@pytest.mark.parametrize("said", NOT_LOADED)
def test_what_a_failed_load_logged_stands_though_the_driver_unloads_itself(said: str) -> None:
    probe = "nvidia: probe of 0000:3b:00.0 failed with error -1"
    lines = (xid(48), NVLINK, *LOST, probe, said, UNREGISTERED)
    assert ("xid", 79, ADDRESS, 1) in codes(*lines)
    assert ("init-failed", None, ADDRESS, 1) in codes(*lines)
    assert not any(code == 48 for _, code, *_ in codes(*lines))


def test_a_load_that_succeeds_clears_what_the_failed_one_before_it_logged() -> None:
    failed = (NVLINK, *LOST, *NOT_LOADED, UNREGISTERED)
    assert codes(*failed, NVLINK) == []
    assert codes(*failed, NVLINK, xid(95), UNREGISTERED) == []
    assert codes(*failed, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.54.03") == []


FORGED = (
    "gpufleet: GPU 0000:3b:00.0 was reset",
    "pci 0000:3b:00.0: [10de:2330] type 00",
    NVLINK,
    "nvidia-nvlink: Unregistered Nvlink Core",
    "NVRM: loading NVIDIA UNIX",
    xid(95),
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 62",
    *LOST,
)
CRASHED = "python3[812]: segfault at 0 ip 00401106 sp 00007ffc error 4 in {}[401000+1000]"


@pytest.mark.parametrize("between", [" ", "\n", "#012", "\\x0a"])
def test_a_program_s_name_neither_clears_nor_makes_an_error(between: str) -> None:
    """The kernel names the file in which a program crashed: any user could clear a lost card."""
    for text in FORGED:
        line = CRASHED.format(f"a{between}{text}{between}b")
        assert codes(xid(79), line) == [("xid", 79, ADDRESS, 1)]
        out = f"[ 1.5] gpu01 kernel: {xid(79)}\n[ 2.5] gpu01 kernel: {line}\n"
        assert [row["code"] for row in kernel_events(parse_stamped(out))] == [79]


def test_only_the_end_of_a_large_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of gigabytes took all of the section's time, and as much memory."""
    monkeypatch.setattr(kernel_log, "MOST_BYTES", 300)
    host = Host({"root": str(tmp_path), "mode": "full"})
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("btime 1795172400\n")
    (tmp_path / "var/log").mkdir(parents=True)
    line = "2026-11-20T11:00:05Z gpu01 kernel: [    5.000000] {}\n"
    (tmp_path / "var/log/kern.log").write_text(
        line.format("Linux version 6") + line.format("usb") * 99 + line.format(xid(79))
    )
    found = kernel_log.file_lines(host)
    assert found[1][-1] == (5.0, xid(79))
    assert len(found[1]) < 6


def test_a_program_s_name_is_no_recovery_action() -> None:
    text = xid(
        154,
        "pid=7, name=a, to 0x0 (None, GPU recovery action changed from 0x0 (None)"
        " to 0x1 (GPU Reset Required)",
    )
    assert xids.recovery_action(text) == (1, "GPU Reset Required")


def test_lines_of_a_file_clear_no_card_and_the_kernel_s_own_do() -> None:
    """Any user can add a line to syslog's file in the kernel's name (logger -t kernel)."""

    def read(written: Sequence[str], own: Sequence[str] = ()) -> list[int | None]:
        return [
            row["code"]
            for row in kernel_events(
                *([(float(at), line) for at, line in enumerate(lines)] for lines in (own, written))
            )
        ]

    failed = "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0xffff:1266)"
    for line in FORGED[:5]:
        assert read([xid(95), line]) == [95]
        assert read([xid(95)], [line]) == []
    assert read([failed, NVLINK]) == []


# -- SXids -----------------------------------------------------------------------------------------


def sxid(code: int, text: str) -> str:
    return f"nvidia-nvswitch2: SXid (PCI:0000:85:00.0): {code:05d}, {text}"


def test_every_sxid_is_read_with_and_without_a_word() -> None:
    """Only lines with the word Fatal were seen."""
    for code in (*SXIDS, 29999):
        for word in ("Fatal, ", "Non-fatal, ", "Correctable, ", ""):
            line = sxid(code, f"{word}Link 61 what happened (First)")
            assert codes(line) == [("sxid", code, "0000:85:00.0", 1)]


def test_the_three_lines_of_an_sxid_are_one_message_and_severities_stay_apart() -> None:
    severity, data = "Severity {} Engine instance 62 Sub-engine instance 00", "Data {0x1, 0x0}"
    rows = found(
        sxid(20012, "Fatal, Link 62 what"),
        sxid(20012, severity.format(1)),
        sxid(20012, data),
        sxid(20012, "Non-fatal, Link 61 what"),
        sxid(20012, severity.format(0)),
        sxid(20012, data),
    )
    assert [(row["count"], xids.switch_meaning(20012, row["text"]).effect) for row in rows] == [
        (1, "fail"),
        (1, "note"),
    ]
    # The first line may be lost.
    (row,) = found(sxid(20002, severity.format(1)))
    assert xids.switch_meaning(20002, row["text"]).effect == "fail"


# -- the PCI bus -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Tra", ADDRESS),
        ("nvidia 0000:3b:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal)", ADDRESS),
        ("pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0", ADDRESS),
        (
            "pcieport 0000:3a:00.0: AER: Multiple Uncorrectable (Non-Fatal) error message received from"
            " 0000:3b:00.0",
            ADDRESS,
        ),
        ("pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: id=3a00", "0000:3a:00.0"),
        ("pcieport 0000:3a:00.0: AER: device recovery failed", "0000:3a:00.0"),
        (
            "pcieport 0000:3a:00.0: DPC: containment event, status:0x1f01 source:0x0000",
            "0000:3a:00.0",
        ),
        ("nvidia 0000:3b:00.0: AER: can't recover (no error_detected callback)", ADDRESS),
    ],
)
def test_an_error_on_the_bus_is_read_with_its_address(line: str, address: str) -> None:
    assert codes(line) == [("pcie-error", None, address, 1)]


def test_fatal_errors_on_the_bus_stay_apart_from_others() -> None:
    line = "pcieport 0000:3a:00.0: AER: Uncorrected ({}) error received: id=3a00"
    assert len(found(line.format("Fatal"), line.format("Non-Fatal"))) == 2


def test_the_cards_behind_a_port_are_known(tmp_path: Path) -> None:
    """A fatal error of the port that a card is plugged into was nobody's."""
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    port = tmp_path / "sys/devices/pci0000:3a/0000:3a:00.0"
    for place, vendor in (
        (port, "0x8086"),
        (port / ADDRESS, "0x10de"),
        (port.parent / "0000:3a:01.0/0000:5e:00.0", "0x10de"),
    ):
        place.mkdir(parents=True)
        (place / "vendor").write_text(vendor + "\n", encoding="utf-8")
        (devices / place.name).symlink_to(place)
    host = Host({"root": str(tmp_path)})
    assert devices_below(host, "0000:3a:00.0") == [ADDRESS]
    assert devices_below(host, ADDRESS) == []


# (name of a process, at most 15 bytes; name of its file): what any account may choose.
CHOSEN = (
    ("NVRM: x", "0000:3b:00.0 GPU has fallen off the bus"),
    ("NVRM: x", "is not supported by the NVIDIA"),
    ("NVRM: x", f"a#012{xid(79)}"),
    ("EDAC MC0: 1 UE ", "x"),
    ("EDAC MC0: 1 UE", "x"),
    ("x", "Memory failure: 0x1"),
    ("x", "Machine Check Exception"),
    ("mce: x", "Machine Check Exception"),
    ("x", "x 0000:3b:00.0: PCIe Bus Error: severity=Uncorrect"),
    ("a 0000:3b:00.0:", "AER: Uncorrect"),
    ("XFS (a):", "Corruption"),
    ("x", "EXT4-fs error (device sda1): x"),
    ("I/O error, dev ", "sda, x"),
    ("I/O error, dev", "x"),
    ("nvme a", "timeout, reset"),
    ("x", "Loading of unsigned module is rejected"),
    ("INFO: task a:1 ", "a:1 blocked for more than"),
    ("x", "Out of memory: Killed process 1 (x)"),
    ("gpufleet: GPU", "0000:3b:00.0 was reset"),
    ("x", f"\n{xid(79)}"),
)


@pytest.mark.parametrize(
    "line",
    [
        "{comm}[4711]: segfault at 0 ip 0000000000001139 sp 00007ffd error 4 in {file}[1000+1000]",
        "traps: {comm}[4711] general protection fault ip:1139 sp:7ffd error:0 in {file}[1000+1000]",
        "{comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "{comm}: page allocation failure: order:4, mode:0x40dc0, nodemask=(null),cpuset={file}",
    ],
)
def test_no_name_of_a_process_or_file_is_a_fault_or_a_reset(line: str) -> None:
    """Any account could have a healthy card reported as lost, and a lost one as reset."""
    for comm, file in CHOSEN:
        assert len(comm) <= 15
        assert codes(xid(48), line.format(comm=comm, file=file)) == [("xid", 48, ADDRESS, 1)], comm


# -- a kernel that failed, a processor that was stuck, a card that is not reached ------------------

OOPS = (
    "BUG: unable to handle page fault for address: ffffb3c8c1a2f000",
    "#PF: supervisor read access in kernel mode",
    "Oops: 0000 [#1] PREEMPT SMP NOPTI",
    "CPU: 3 PID: 4711 Comm: nvidia-smi Tainted: P           OE      6.1.0-27-amd64 #1",
)
MODULES = "Modules linked in: nvidia_uvm(POE) nvidia(POE) ext4"
END = "---[ end trace 0000000000000000 ]---"
LOCKUP = "watchdog: BUG: soft lockup - CPU#7 stuck for 23s! [{}:25222]"


def kinds(*lines: str) -> list[str]:
    return [row["kind"] for row in found(*lines)]


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("RIP: 0010:_nv012345rm+0x12/0x30 [nvidia]", "driver-oops"),
        ("RIP: 0010:uvm_va_block_find+0x1/0x9 [nvidia_uvm]", "driver-oops"),
        ("pc : nvidia_ioctl+0x30/0x900 [nvidia]", "driver-oops"),
        (" nvidia_unlocked_ioctl+0x21/0x30 [nvidia]", "driver-oops"),
        (" ? nvidia_unlocked_ioctl+0x21/0x30 [nvidia]", "oops"),
        ("RIP: 0010:ext4_readdir+0x12/0x30 [ext4]", "oops"),
        (MODULES, "oops"),
    ],
)
@pytest.mark.parametrize(
    "first",
    [
        OOPS,
        OOPS[:1],
        OOPS[2:3],
        ["general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP"],
        ["kernel BUG at mm/slub.c:321!", "invalid opcode: 0000 [#1] SMP"],
        ["Unable to handle kernel NULL pointer dereference at virtual address 0000000000000010"],
        ["Internal error: Oops: 0000000096000004 [#1] SMP"],
    ],
)
def test_an_oops_is_of_the_driver_where_its_code_failed(
    first: Sequence[str], place: str, kind: str
) -> None:
    assert kinds(*first, MODULES, place, END) == [kind]


def test_an_oops_ends_with_its_trace_and_its_moment() -> None:
    line = "RIP: 0010:_nv012345rm+0x12/0x30 [nvidia]"
    assert kinds(*OOPS, END, line) == ["oops"]
    later = [(1.0, OOPS[0]), (1.1, xid(31)), (60.0, line)]
    assert sorted(row["kind"] for row in kernel_events(later)) == ["oops", "xid"]
    assert kinds(*OOPS, line, END, OOPS[0]) == ["driver-oops", "oops"]


@pytest.mark.parametrize(
    ("process", "place", "kind"),
    [
        ("nvidia-smi", "RIP: 0010:smp_call_function+0x1/0x9", "driver-lockup"),
        ("nv_queue", MODULES, "driver-lockup"),
        ("python3", "RIP: 0010:_nv01rm+0x1/0x9 [nvidia]", "driver-lockup"),
        ("python3", "RIP: 0010:smp_call_function+0x1/0x9", "lockup"),
    ],
)
def test_a_processor_that_was_stuck_in_the_driver_or_its_tools(
    process: str, place: str, kind: str
) -> None:
    for line in (LOCKUP, LOCKUP.replace("watchdog", "NMI watchdog")):
        assert kinds(line.format(process), place) == [kind]


@pytest.mark.parametrize(
    ("place", "kind"),
    [("RIP: 0010:_nv012345rm+0x1f/0x60 [nvidia]", "driver-lockup"), (MODULES, "lockup")],
)
@pytest.mark.parametrize("first", ["NMI watchdog: ", "watchdog: CPU3: "])
def test_a_processor_that_no_longer_took_interrupts(first: str, place: str, kind: str) -> None:
    """Linux 6.11 began to say which processor speaks."""
    assert kinds(f"{first}Watchdog detected hard LOCKUP on cpu 3", MODULES, place) == [kind]


@pytest.mark.parametrize(
    ("line", "kind", "address"),
    [
        (
            "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED]"
            " (0x00000062) returned from status @ kernel_channel.c:2874",
            "driver-error",
            None,
        ),
        (
            "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus"
            " [NV_ERR_GPU_IS_LOST] (0x0000000F) returned from rmStatus @ kernel_ce_gv100.c:106",
            "driver-error",
            None,
        ),
        (
            "NVRM: GPU6 _kgspBootGspRm: (the GPU is likely in a bad state and may need to be reset)",
            "driver-error",
            None,
        ),
        (
            "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
            "link-training",
            None,
        ),
        (
            "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
            "link-training",
            None,
        ),
        (
            "nvidia 0000:3b:00.0: Unable to change power state from D3cold to D0, device"
            " inaccessible",
            "power-state",
            ADDRESS,
        ),
        *(
            (
                f"nvidia 0000:3b:00.0: Unable to change power state from {state} to D0, device"
                " inaccessible",
                "power-state",
                ADDRESS,
            )
            for state in ("D3hot", "unknown")
        ),
        (
            "nvidia 0000:3b:00.0: can't change power state from D3cold to D0 (config space"
            " inaccessible)",
            "power-state",
            ADDRESS,
        ),
        ("pcieport 0000:3a:00.0: pciehp: Slot(2): Link Down", "link-down", "0000:3a:00.0"),
        ("pcieport 0000:3a:00.0: pciehp: Slot(0-3): Card not present", "link-down", "0000:3a:00.0"),
    ],
)
def test_what_the_driver_and_the_bus_log_beside_xids(
    line: str, kind: str, address: str | None
) -> None:
    assert [(row["kind"], row["address"]) for row in found(line)] == [(kind, address)]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: nvCheckOkFailedNoLog: Check failed: Requested object not found"
        " [NV_ERR_OBJECT_NOT_FOUND] (0x00000057) returned from status",
        "NVRM: GPU0 nvAssertFailedNoLog: Assertion failed: (status == NV_OK) || (status =="
        " NV_ERR_GPU_IN_FULLCHIP_RESET) @ mem.c:178",
        "pcieport 0000:3a:00.0: pciehp: Slot(2): Link Up",
        "traps: python3[4711] general protection fault ip:7f12 sp:7ffd error:0 in libc.so.6",
    ],
)
def test_what_is_no_fault_of_a_card_is_not_kept(line: str) -> None:
    assert kinds(line) == []


def test_programs_that_other_xids_ended_stay_apart() -> None:
    """The last line of Xid 45 hid the one that named the Xid before it."""
    ended = "pid=5, name=python3, Ch 00000001"
    rows = found(xid(45, f"{ended} caused by previous Xid 149"), xid(45, ended), xid(45, ended))
    assert [(row["count"], "149" in row["text"]) for row in rows] == [(1, True), (2, False)]


def legacy(name: str, branch: int, driver: str) -> tuple[str, ...]:
    return (
        f"NVRM: The NVIDIA {name} GPU installed in this system is",
        f"NVRM:  supported through the NVIDIA {branch}.xx Legacy drivers. Please",
        "NVRM:  visit http://www.nvidia.com/object/unix.html for more",
        f"NVRM:  information.  The {driver} NVIDIA driver will ignore",
        "NVRM:  this GPU.  Continuing probe...",
    )


UNLOAD = "nvidia-nvlink: Unregistered Nvlink Core, major device number 236"
ENDED = ("needs-older-branch", 580, None, 1)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (legacy("Tesla P100-PCIE-16GB", 580, "595.71.05"), [ENDED]),
        ((NVLINK, *legacy("Tesla V100-SXM2-16GB", 580, "595.58.03"), UNLOAD), [ENDED]),
        (
            (NVLINK, *legacy("Tesla V100-SXM2-16GB", 580, "595.58.03") * 2, UNLOAD),
            [("needs-older-branch", 580, None, 2)],
        ),
        (legacy("GeForce GT 710", 470, "580.105.08"), [("needs-older-branch", 470, None, 1)]),
        ((*legacy("Tesla P100-PCIE-16GB", 580, "595.71.05"), NVLINK), []),
        (("#012".join(legacy("Tesla P100-PCIE-16GB", 580, "595.71.05")),), [ENDED]),
    ],
)
def test_a_card_whose_branch_ended(lines: Sequence[str], expected: list[Any]) -> None:
    """The module unloads again: its last line ends nothing before another driver is loaded."""
    assert codes(*lines) == expected
    for row in found(*lines):
        assert row["text"].startswith("NVRM: The NVIDIA ")
        assert "will ignore" in row["text"]


# -- modules that the kernel refuses, and memory that it encrypts ----------------------------------


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("nvidia: Unknown symbol ipmi_create_user (err -2)", "nvidia"),
        (
            "hv_network_direct: disagrees about version of symbol vmbus_sendpacket",
            "hv_network_direct",
        ),
        ("nvidia-uvm: version magic '6.1.0-26 SMP' should be '6.1.0-27 SMP'", "nvidia-uvm"),
        (
            "gdrdrv: module using GPL-only symbols uses symbols x from proprietary module nvidia.",
            "gdrdrv",
        ),
        ("nv_peer_mem: exports duplicate symbol x (owned by ib_core)", "nv_peer_mem"),
    ],
)
def test_a_refused_module_is_named_once_with_its_first_reason(line: str, module: str) -> None:
    (row,) = found(line, f"{module}: Unknown symbol another (err -22)", line)
    assert (row["kind"], row["process"], row["text"]) == ("module-refused", module, line)


def test_a_refused_module_may_be_loaded_now(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/modules").write_text("nvidia_uvm 1 0\nnvidia 1 1 nvidia_uvm\n")
    assert kernel_log.is_loaded(Host({"root": str(tmp_path)}), "nvidia-uvm") is True
    assert kernel_log.is_loaded(Host({"root": str(tmp_path)}), "gdrdrv") is False
    (tmp_path / "proc/modules").unlink()
    assert kernel_log.is_loaded(Host({"root": str(tmp_path)}), "gdrdrv") is None


@pytest.mark.parametrize(
    ("features", "kinds"),
    [
        ("AMD Memory Encryption Features active: SME", ["memory-encryption"]),
        ("Memory Encryption Features active: AMD SME", ["memory-encryption"]),
        ("AMD Memory Encryption Features active: SEV SEV-ES SEV-SNP", []),
        ("Memory Encryption Features active: Intel TDX", []),
    ],
)
def test_memory_that_a_machine_encrypts_is_not_a_guests(features: str, kinds: list[str]) -> None:
    assert [row["kind"] for row in found(features)] == kinds


@pytest.mark.parametrize(
    ("line", "kind", "address"),
    [
        (
            "DMAR: [DMA Write] Request device [3b:00.0] fault addr f8139000 [fault reason 05] PTE"
            " Write access is not set",
            "iommu-fault",
            ADDRESS,
        ),
        (
            "DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0xf8139000 [fault"
            " reason 0x06] PTE Read access is not set",
            "iommu-fault",
            ADDRESS,
        ),
        (
            "nvidia 0000:3b:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0021"
            " address=0xc4e00000 flags=0x0030]",
            "iommu-fault",
            ADDRESS,
        ),
        (
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=3b:00.0 domain=0x0021 address=0x0",
            "iommu-fault",
            ADDRESS,
        ),
        ("rcu: INFO: rcu_sched self-detected stall on CPU", "stall", None),
        ("mce: [Hardware Error]: Machine check events logged", "corrected-error", None),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "corrected-error", None),
        ("mlx5_core 0000:5e:00.0 ens1np0: Link down", "port-down", "0000:5e:00.0"),
        ("ixgbe 0000:5e:00.0 eth0: NIC Link is Down", "port-down", "0000:5e:00.0"),
        (
            "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged",
            "port-down",
            "0000:5e:00.0",
        ),
    ],
)
def test_lines_of_the_platform(line: str, kind: str, address: str | None) -> None:
    assert codes(line, line) == [(kind, None, address, 2)]
