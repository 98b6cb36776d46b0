"""The probe on cards: what nvidia-smi prints, what the kernel's log says, who may open them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.on_host import payload
from gpufleet.on_host.host import Host
from gpufleet.on_host.sections.gpus import platform
from gpufleet.on_host.sections.kernel_log import kernel_events, syslog_time
from gpufleet.on_host.sections.smi import confidential_computing, is_ready, number_cards
from gpufleet.on_host.smi_document import parse_smi
from lab.gpus.smi_text import CONSUMER, HEALTHY, OLD, Texts, smi_text
from tests.support.machine import deadline
from tests.support.planted_gpu_host import CARDS, GpuHost
from tests.support.planted_host import interpreter, probe_tree, put


def first(texts: Texts, **more: Any) -> dict[str, Any]:
    """The parsed data of one card."""
    found: dict[str, Any] = parse_smi(smi_text([texts], **more))["devices"][0]
    return found


# -- nvidia-smi -----------------------------------------------------------------------------------


def test_a_card_of_a_new_driver() -> None:
    found = first({}, processes={0: [(4567, "/opt/a, b/python", "1024 MiB"), (8, "x", "N/A")]})
    elements = found.pop("elements")
    assert elements["pci/pci_gpu_link_info/pcie_gen/max_link_gen"] == "5"
    assert not [path for path in elements if path.startswith("processes")]
    assert found == {
        "index": 0,
        "address": "0000:01:00.0",
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-00000000-1111-2222-3333-444444444400",
        "memory_total_mib": 81559,
        "memory_used_mib": 4,
        "memory_free_mib": 81004,
        "compute_capability": None,
        "persistence": True,
        "compute_mode": "default",
        "ecc": True,
        "ecc_pending": True,
        "ecc_uncorrected_volatile": 0,
        "ecc_uncorrected_aggregate": 0,
        "retired_pending": None,
        "remap": {"pending": False, "failure": False, "correctable": 0, "uncorrectable": 0},
        "power_limit_w": 700.0,
        "power_default_w": 700.0,
        "power_max_w": 700.0,
        "power_w": 69.52,
        "temperature_c": 31,
        "temperature_slowdown_c": 89,
        "throttle": ["idle"],
        "clock_sm_mhz": 345,
        "clock_sm_max_mhz": 1980,
        "utilization_percent": 0,
        "pcie": {"generation": 5, "generation_max": 5, "width": 16, "width_max": 16},
        "processes": [
            {"pid": 4567, "name": "/opt/a, b/python", "memory_mib": 1024},
            {"pid": 8, "name": "x", "memory_mib": None},
        ],
        "raw_unknown": ["retired_pending"],
        "unanswered": [],
        "broken": None,
    }


def test_an_old_driver_s_names_are_read_too() -> None:
    card = first(OLD)
    assert (card["throttle"], card["power_limit_w"], card["power_w"]) == (["idle"], 300.0, 41.3)
    assert (card["ecc_uncorrected_volatile"], card["ecc_uncorrected_aggregate"]) == (0, 2)
    assert (card["retired_pending"], card["remap"]) == (False, None)
    assert card["memory_total_mib"] == 32480
    assert card["raw_unknown"] == ["remap"]


def test_what_is_no_value_is_none_and_never_nought() -> None:
    card = first(CONSUMER)
    assert [
        card[name]
        for name in (
            "ecc",
            "ecc_pending",
            "ecc_uncorrected_volatile",
            "ecc_uncorrected_aggregate",
            "remap",
        )
    ] == [None] * 5
    assert card["unanswered"] == []
    assert card["raw_unknown"] == [
        "ecc",
        "ecc_pending",
        "ecc_uncorrected_aggregate",
        "ecc_uncorrected_volatile",
        "remap",
        "retired_pending",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "N/A",
        "[N/A]",
        "[Not Supported]",
        "Not Supported",
        "[Unknown Error]",
        "Unknown Error",
        "ERR!",
        "GPU is lost",
        "[GPU requires reset]",
        "[Insufficient Permissions]",
        "",
        "9223372036854775794",
        "9223372036854775794 MiB",
        "18446744073709551615",
        "4294967295",
        "None",
        "-",
    ],
)
def test_a_trap_is_no_number(text: str) -> None:
    card = first({"fb_memory_usage/used": text})
    assert (card["memory_used_mib"], "memory_used_mib" in card["raw_unknown"]) == (None, True)
    assert card["memory_total_mib"] == 81559


@pytest.mark.parametrize("text", ["[Unknown Error]", "ERR!", "GPU is lost"])
def test_a_card_that_fails_to_answer_is_distinguished_from_one_that_has_no_such_thing(
    text: str,
) -> None:
    assert first({"temperature/gpu_temp": text})["unanswered"] == [f"temperature_c: {text}"]


@pytest.mark.parametrize("count", ["10", "100"])
def test_a_count_with_noughts_in_it_is_a_count(count: str) -> None:
    assert first({"ecc_errors/volatile/dram_uncorrectable": count})[
        "ecc_uncorrected_volatile"
    ] == int(count)


def test_errors_of_all_memories_are_counted_together() -> None:
    renamed: Texts = {
        "ecc_errors/volatile/sram_uncorrectable": None,
        "ecc_errors/volatile/sram_uncorrectable_parity": "1",
        "ecc_errors/volatile/sram_uncorrectable_secded": "2",
        "ecc_errors/volatile/dram_uncorrectable": "4",
        "ecc_errors/volatile/dram_correctable": "99",
        "ecc_errors/aggregate/sram_uncorrectable": "N/A",
    }
    card = first(renamed)
    assert (card["ecc_uncorrected_volatile"], card["ecc_uncorrected_aggregate"]) == (7, 0)


def test_commas_in_a_name_and_a_large_domain() -> None:
    card = first({"product_name": "NVIDIA A, B &amp; C", "pci/pci_bus_id": "00010000:3B:00.0"})
    assert (card["name"], card["address"]) == ("NVIDIA A, B & C", "10000:3b:00.0")


def test_mig_instances_are_no_cards_and_their_memory_is_not_the_card_s() -> None:
    inside = (
        "<mig_device><index>0</index><fb_memory_usage><total>40192 MiB</total>"
        "</fb_memory_usage></mig_device>" * 2
    )
    found = parse_smi(
        smi_text(
            [
                {
                    "mig_mode/current_mig": "Enabled",
                    "mig_devices": inside,
                    "utilization/gpu_util": "N/A",
                }
            ]
        )
    )["devices"]
    assert [card["memory_total_mib"] for card in found] == [81559]
    assert found[0]["utilization_percent"] is None


def test_a_document_that_breaks_off_still_tells_its_cards() -> None:
    """The card at which it breaks off keeps its address and what was said of it before."""
    whole = smi_text()
    cut = whole[: whole.index("<gpu id", whole.index("</gpu>")) + 200]
    found = parse_smi(cut + "Unable to determine the device handle for GPU 0000:02:00.0")
    assert ([card["index"] for card in found["devices"]], found["driver_version"]) == (
        [0, 1],
        "535.261.03",
    )
    assert (found["complete"], found["attached"]) == (False, 2)
    first_card, last = found["devices"]
    assert (first_card["broken"], first_card["temperature_c"]) == (None, 31)
    assert (last["address"], last["name"], last["temperature_c"], last["raw_unknown"]) == (
        "0000:02:00.0",
        "NVIDIA H100 80GB HBM3",
        None,
        [],
    )
    assert "breaks off" in last["broken"]
    assert parse_smi("no XML at all <gpu id='1'> <a> </gpu>")["devices"] == []


@pytest.mark.parametrize(
    "name",
    [
        "train\x01.py",
        "a & b",
        "a < b",
        "</gpu>",
        'x</gpu><gpu id="00000000:0F:00.0">',
        "&#1;",
        "\x1b[0m",
        "&amp;",
        "]]>",
    ],
)
def test_a_process_s_name_hides_no_card_and_shifts_none(name: str) -> None:
    """One control character in a name made a card vanish, and the next took its number."""
    found = parse_smi(smi_text([{}] * 3, processes={1: [(7, name, "1 MiB")]}))
    assert [
        (card["index"], card["address"], card["broken"], card["temperature_c"])
        for card in found["devices"]
    ] == [(at, f"0000:0{at + 1}:00.0", None, 31) for at in range(3)]
    assert [len(card["processes"]) for card in found["devices"]] == [0, 1, 0]


@pytest.mark.parametrize(
    "text", ["", "<a/>", "<a />", "<!-- <b> -->", "&lt;b&gt;", "<a b='c'></a>"]
)
def test_other_forms_of_the_same_document_are_whole(text: str) -> None:
    found = parse_smi(
        smi_text([{}, {"fan_speed": text, "processes": None, "accounted_processes": ""}])
    )["devices"]
    assert [(card["broken"], card["temperature_c"]) for card in found] == [(None, 31)] * 2


@pytest.mark.parametrize("text", ["<b>", "</a>", "<", "<fan_speed>"])
def test_a_card_that_cannot_be_read_keeps_its_number_and_address(text: str) -> None:
    found = parse_smi(smi_text([{}, {"fan_speed": text}, {}]))["devices"]
    assert [(card["index"], card["address"], bool(card["broken"])) for card in found] == [
        (0, "0000:01:00.0", False),
        (1, "0000:02:00.0", True),
        (2, "0000:03:00.0", False),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Unknown Error",
        "GPU is lost",
        "GPU requires reset",
        "Corrupted infoROM",
        "Timeout",
        "Function Not Found",
        "Not Found",
        "GPU access blocked by the operating system",
        "Insufficient Permissions",
        "Driver Not Loaded",
        "In use by another client",
        "Uninitialized",
        "Interrupt Request Issue",
        "Insufficient External Power",
        "Argument version mismatch",
        "Invalid Argument",
        "Insufficient Memory",
        "No data",
        "No Data",
        "Insufficient Size",
        "Ran out of critical resources, other than memory",
        "System is not in ready state",
        "Driver/library version mismatch",
        "NVML Shared Library Not Found",
        "ERR!",
        "[Unknown Error]",
        "Resource not in correct state to perform requested operation",
    ],
)
def test_an_error_is_neither_a_value_nor_no_value(text: str) -> None:
    """In numbers 15 of 24 of these read as "has none", and in texts as a value."""
    for path, field in (
        ("ecc_errors/volatile/dram_uncorrectable", "ecc_uncorrected_volatile"),
        ("product_name", "name"),
        ("compute_mode", "compute_mode"),
        ("persistence_mode", "persistence"),
        ("temperature/gpu_temp", "temperature_c"),
    ):
        card = first({path: text})
        assert (card[field], card["unanswered"]) == (None, [f"{field}: {text}"])
    for block, field in (
        ("ecc_errors", "ecc_uncorrected_volatile"),
        ("remapped_rows", "remap"),
        ("clocks_event_reasons", "throttle"),
        ("temperature", "temperature_c"),
        ("pci", "pcie.width"),
    ):
        texts: Texts = {name: None for name in HEALTHY if name.startswith(f"{block}/")}
        card = first(
            {**texts, "pci/pci_bus_id": None, block: text}
            if block == "pci"
            else {**texts, block: text}
        )
        assert any(output.startswith(field) for output in card["unanswered"]), block
        assert card["elements"][block] == text


def test_counters_that_were_not_all_read_are_no_healthy_sum() -> None:
    volatile = "ecc_errors/volatile/"
    card = first({volatile + "dram_uncorrectable": "GPU is lost"})
    assert card["ecc_uncorrected_volatile"] is None
    card = first(
        {volatile + "dram_uncorrectable": "GPU is lost", volatile + "sram_uncorrectable": "3"}
    )
    assert card["ecc_uncorrected_volatile"] == 3


def test_power_limits_one_level_further_down_are_read() -> None:
    """Branch 610 prints them so."""
    flat = "gpu_power_readings/"
    card = first(
        {
            flat + "current_power_limit": None,
            flat + "default_power_limit": None,
            flat + "gpu_ceiling_power_limit/current_power_limit": "600.00 W",
            flat + "gpu_ceiling_power_limit/default_power_limit": "700.00 W",
        }
    )
    assert (card["power_limit_w"], card["power_default_w"], card["power_max_w"]) == (600, 700, 700)


def test_a_card_has_the_number_that_nvml_has_for_its_address() -> None:
    """nvidia-smi leaves out a card that it cannot open, and `nvidia-smi -i` still counts it."""
    devices = parse_smi(
        smi_text([{"pci/pci_bus_id": "00000000:01:00.0"}, {"pci/pci_bus_id": "00000000:03:00.0"}])
    )["devices"]
    number_cards(devices, [("0000:01:00.0", "9.0"), (None, None), ("0000:03:00.0", "8.0")])
    assert [(card["index"], card["compute_capability"]) for card in devices] == [
        (0, "9.0"),
        (2, "8.0"),
    ]
    number_cards(devices, [])
    assert [card["index"] for card in devices] == [0, 2]


@pytest.fixture
def host(tmp_path: Path) -> GpuHost:
    tmp_path.chmod(0o755)
    return GpuHost(tmp_path / "host")


def section(host: GpuHost, name: str) -> Any:
    found = host.snapshot()["sections"][name]
    assert found["state"] == "ok", found["error"]
    return found["data"]


def test_neither_nvidia_smi_nor_the_log_is_asked_in_mode_facts(host: GpuHost) -> None:
    found = probe_tree(host.root)
    assert found["smi"] == {
        "asked": False,
        "program": None,
        "status": None,
        "error": None,
        "remarks": None,
        "driver_version": None,
        "cuda_version": None,
        "nvlink": None,
        "nvml": {"status": None, "version": None, "count": None},
        "devices": [],
    }
    assert found["kernel_log"] == {
        "source": None,
        "error": None,
        "since_boot": False,
        "complete": False,
        "events": [],
    }


def test_nvml_and_nvidia_smi_are_asked(host: GpuHost) -> None:
    found = section(host, "smi")
    assert (found["program"], found["status"], found["error"]) == ("/usr/bin/nvidia-smi", 0, None)
    assert found["remarks"] is None
    assert (found["driver_version"], found["cuda_version"]) == ("535.261.03", "12.2")
    assert found["nvml"] == {"status": 0, "version": "535.261.03", "count": 2}
    host.smi_says(smi_text() + "WARNING: infoROM is corrupted at gpu 0000:02:00.0\n", 14)
    found = section(host, "smi")
    assert len(found["devices"]) == 2
    assert found["error"] == "WARNING: infoROM is corrupted at gpu 0000:02:00.0"
    host.smi_says(smi_text() + "WARNING: infoROM is corrupted at gpu 0000:02:00.0\n")
    found = section(host, "smi")
    assert (found["error"], found["remarks"], len(found["devices"])) == (
        None,
        "WARNING: infoROM is corrupted at gpu 0000:02:00.0",
        2,
    )
    host.smi_says("")
    assert section(host, "smi")["error"].startswith("it printed no document")
    host.remove("usr/bin/nvidia-smi")
    host.nvml(18)
    found = section(host, "smi")
    assert (found["program"], found["nvml"]["status"]) == (None, 18)


@pytest.mark.parametrize(
    ("feature", "status", "found"),
    [(1, 0, {"confidential": True}), (0, 0, {"confidential": False}), (1, 3, {})],
)
def test_nvml_says_whether_gpus_compute_confidentially(
    feature: int, status: int, found: dict[str, object]
) -> None:
    def state(place: Any) -> int:
        place[0], place[1] = 2, feature
        return status

    def unsupported(_: object) -> int:
        return 3

    old = SimpleNamespace(nvmlSystemGetConfComputeState=state)
    assert confidential_computing(old) == found
    old.nvmlSystemGetConfComputeSettings = unsupported
    assert confidential_computing(old) == found
    assert confidential_computing(SimpleNamespace()) == {}


def test_nvml_says_whether_confidential_gpus_are_ready() -> None:
    def ready(place: Any) -> int:
        place._obj.value = 1
        return 0

    assert is_ready(SimpleNamespace(nvmlSystemGetConfComputeGpusReadyState=ready)) is True
    assert is_ready(SimpleNamespace(nvmlSystemGetConfComputeGpusReadyState=lambda _: 0)) is False
    assert is_ready(SimpleNamespace(nvmlSystemGetConfComputeGpusReadyState=lambda _: 3)) is None
    assert is_ready(SimpleNamespace()) is None


@pytest.mark.parametrize(
    ("feature", "mode", "confidential"), [(0, 0, False), (1, 0, True), (0, 1, True), (1, 2, True)]
)
def test_nvml_says_how_several_gpus_compute_confidentially(
    feature: int, mode: int, confidential: bool
) -> None:
    """In the mode Protected PCIe the state alone says that they do not."""

    def settings(place: Any) -> int:
        if place[0] != 0x01000014:
            return 25
        place[1], place[2], place[4] = 2, feature, mode
        return 0

    def state(place: Any) -> int:
        place[0], place[1] = 2, feature
        return 0

    nvml = SimpleNamespace(
        nvmlSystemGetConfComputeSettings=settings, nvmlSystemGetConfComputeState=state
    )
    assert confidential_computing(nvml) == {"confidential": confidential, "multi_gpu_mode": mode}


@pytest.mark.costly
@pytest.mark.parametrize("minor", [6, 8, 13])
def test_old_and_new_pythons_read_the_same(host: GpuHost, minor: int) -> None:
    host.log(XID)
    words = [
        f"{key}={json.dumps(value)}"
        for key, value in {
            "root": str(host.root),
            "mode": "full",
            "matmul": None,
            "deadline_s": deadline(20),
        }.items()
    ]
    ended = subprocess.run(
        [interpreter(minor), "-I", "-S", "-", *words],
        input=payload.probe().encode(),
        capture_output=True,
        timeout=deadline(60),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    found, here = json.loads(ended.stdout.splitlines()[-1])["sections"], host.snapshot()["sections"]
    for name in ("smi", "kernel_log"):
        assert found[name]["data"] == here[name]["data"]
    for row in found["gpus"]["data"]["node_access"]:
        row["major"] = row["major"] or 195  # As in the planted host's own snapshot.
    assert found["gpus"]["data"]["node_access"] == here["gpus"]["data"]["node_access"]


# -- who may open the cards -----------------------------------------------------------------------


def test_virtual_functions_are_no_gpus(host: GpuHost) -> None:
    """They are for virtual machines; each was called a GPU that nvidia-smi does not list."""
    bus = host.root / "sys/bus/pci/devices"
    shutil.copytree(bus / "0000:01:00.0", bus / "0000:01:00.4", symlinks=True)
    (bus / "0000:01:00.4/physfn").symlink_to("../0000:01:00.0")
    assert [card["address"] for card in section(host, "gpus")["pci"]] == [*CARDS]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can try what others may")


@needs_root
@pytest.mark.parametrize(
    ("user", "mode", "kind", "reason"),
    [
        (None, 0o666, None, None),
        (None, 0o660, "permission", "permission denied"),
        (None, 0o600, "permission", "permission denied"),
        ("root", 0o600, None, None),
        ("slurm", 0o660, None, None),
        ("jupyter", 0o660, "permission", "permission denied"),
        ("nobody-here", 0o666, "no-account", "there is no account nobody-here"),
    ],
)
def test_an_account_s_access_is_tried_and_nothing_is_opened(
    host: GpuHost, user: str | None, mode: int, kind: str | None, reason: str | None
) -> None:
    host.put("etc/group", "video:x:44:slurm\n")
    host.put(
        "etc/passwd",
        "root:x:0:0::/:/bin/sh\nslurm:x:64030:64030::/:/bin/false\n"
        "jupyter:x:64031:64031::/:/bin/false\n",
    )
    for path in (host.root / "dev").iterdir():
        path.chmod(mode)
        os.chown(path, 0, 44)
    host.service_user = user
    rows = section(host, "gpus")["node_access"]
    assert {(row["tried"], row["kind"], row["error"], row["mode"]) for row in rows} == {
        (True, kind, reason, f"{mode:04o}")
    }
    assert {row["gid"] for row in rows} == {44}
    assert [row["path"] for row in rows] == [
        "/dev/nvidia0",
        "/dev/nvidia1",
        "/dev/nvidia-uvm",
        "/dev/nvidiactl",
    ]


def test_a_container_has_the_cards_that_it_was_given(host: GpuHost) -> None:
    host.put("proc/driver/nvidia/gpus/0000:02:00.0/information")
    assert len(section(host, "gpus")["pci"]) == 2
    host.put("run/systemd/container", "docker\n")
    assert [card["address"] for card in section(host, "gpus")["pci"]] == ["0000:02:00.0"]


# -- the kernel's log -----------------------------------------------------------------------------


def events(*lines: str) -> list[tuple[Any, ...]]:
    found = kernel_events([(float(at), line) for at, line in enumerate(lines)])
    return [
        (row["kind"], row["code"], row["address"], row["pid"], row["process"], row["count"])
        for row in found
    ]


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (
            "NVRM: Xid (PCI:0000:3B:00): 79, pid=812, GPU has fallen off the bus.",
            ("xid", 79, "0000:3b:00.0", 812, None, 1),
        ),
        (
            "NVRM: Xid (0000:03:00): 31, Ch 00000001, engmask 00000101",
            ("xid", 31, "0000:03:00.0", None, None, 1),
        ),
        (
            "NVRM: Xid (PCI:0000:41:00 GPU-I:05): 13, pid=77, name=python3, Graphics SM Exception",
            ("xid", 13, "0000:41:00.0", 77, "python3", 1),
        ),
        (
            "NVRM: Xid (PCI:0000:41:00): 119, pid='<unknown>', name=<unknown>, Timeout of RPC",
            ("xid", 119, "0000:41:00.0", None, None, 1),
        ),
        (
            "NVRM: GPU 0000:02:00.0: GPU has fallen off the bus.",
            ("xid", 79, "0000:02:00.0", None, None, 1),
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 32 egress",
            ("sxid", 12028, "0000:c1:00.0", None, None, 1),
        ),
        (
            "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x26:0xffff:1266)",
            ("init-failed", None, "0000:01:00.0", None, None, 1),
        ),
        (
            "NVRM: rm_init_adapter failed, device minor number 0",
            ("init-failed", None, None, None, None, 1),
        ),
        (
            "nvidia: probe of 0000:01:00.0 failed with error -1",
            ("init-failed", None, "0000:01:00.0", None, None, 1),
        ),
        (
            "nvidia 0000:00:06.0: probe with driver nvidia failed with error -1",
            ("init-failed", None, "0000:00:06.0", None, None, 1),
        ),
        ("Loading of unsigned module is rejected", ("key-rejected", None, None, None, None, 1)),
        (
            "NVRM: API mismatch: the client has the version 1",
            ("api-mismatch",) + (None,) * 4 + (1,),
        ),
        (
            "nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            ("pcie-error", None, "0000:01:00.0", None, None, 1),
        ),
        (
            "INFO: task nvidia-smi:991 blocked for more than 120 seconds.",
            ("hung-task", None, None, 991, "nvidia-smi", 1),
        ),
        (
            "Out of memory: Killed process 55 (python) total-vm:1kB",
            ("out-of-memory", None, None, 55, "python", 1),
        ),
        ("blk_update_request: I/O error, dev sda, sector 12", ("io-error",) + (None,) * 4 + (1,)),
        (
            "mce: Uncorrected hardware memory error in user-access at 1",
            ("machine-check",) + (None,) * 4 + (1,),
        ),
    ],
)
def test_a_line_of_the_kernel_is_understood(line: str, event: tuple[Any, ...]) -> None:
    assert events("before", line, "after") == [event]


@pytest.mark.parametrize(
    "line",
    [
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "PKCS#7 signature not signed with a trusted key",
        "I/O error, dev sr0, sector 0",
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
        "NVRM: loading NVIDIA UNIX",
        "a person wrote Xid 79 somewhere",
    ],
)
def test_a_healthy_host_s_lines_are_no_events(line: str) -> None:
    assert events(line) == []


def test_the_same_is_reported_once_with_its_number_and_its_last_words() -> None:
    lines = [f"NVRM: Xid (PCI:0000:01:00): 31, pid={pid}, name=python, MMU" for pid in range(500)]
    assert events(*lines) == [("xid", 31, "0000:01:00.0", 499, "python", 500)]


def test_what_a_driver_said_that_was_loaded_again_since_is_past() -> None:
    assert events(
        "NVRM: Xid (PCI:0000:01:00): 119, Timeout",
        "Out of memory: Killed process 1 (a)",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 236",
        "NVRM: Xid (PCI:0000:01:00): 62, halt",
    ) == [("out-of-memory", None, None, 1, "a", 1), ("xid", 62, "0000:01:00.0", None, None, 1)]


XID = "NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus."


def syslog(seconds: float) -> str:
    return time.strftime("%b %d %H:%M:%S", time.localtime(seconds))


def test_lines_of_syslog_are_of_this_boot_or_dropped(host: GpuHost) -> None:
    """A year ago to the day looks like today: syslog's lines carry no year."""
    old = syslog(host.booted - 3 * 86400)
    host.put(
        "var/log/kern.log.1", f"{old} gpu01 kernel: Linux version 6.1\n{old} gpu01 kernel: {XID}\n"
    )
    found = section(host, "kernel_log")
    assert found == {
        "source": "file:/var/log/kern.log",
        "error": None,
        "since_boot": True,
        "complete": True,
        "events": [],
    }
    host.log(XID)
    assert section(host, "kernel_log")["events"][0]["uptime_s"] == 3600.0
    host.log(whole=False)
    assert section(host, "kernel_log")["complete"] is False


def test_after_a_restart_within_the_minute_the_last_boot_s_lines_count(host: GpuHost) -> None:
    before, after = syslog(host.booted - 60), syslog(host.booted + 5)
    host.put("var/log/kern.log", f"{before} a kernel: {XID}\n{after} a kernel: Linux version 6\n")
    assert section(host, "kernel_log")["events"] == []


def test_a_line_of_syslog_long_after_the_boot_is_no_boot(host: GpuHost) -> None:
    """logger -t kernel 'Linux version 6' made a log whole, and took all before it away."""
    host.log(XID, "Linux version 6", whole=False)
    found = section(host, "kernel_log")
    assert (found["complete"], found["events"][0]["code"]) == (False, 79)


def test_a_file_gives_what_a_short_log_has_lost_and_hides_nothing_of_it(host: GpuHost) -> None:
    """syslog may have ended long ago: its whole file hid what only dmesg had."""
    host.log(XID.replace("79", "119"))
    host.put(
        "usr/bin/dmesg", f"#!/bin/sh\nprintf '[ 9000.5] usb 1-1: new\\n[ 9001.5] {XID}\\n'\n", 0o755
    )
    found = section(host, "kernel_log")
    assert (found["source"], found["complete"]) == ("file:/var/log/kern.log", True)
    assert [row["code"] for row in found["events"]] == [119, 79]


@pytest.mark.parametrize(
    ("text", "now", "output"),
    [
        ("Dec 31 23:59:00", "2027-01-01T00:10:00", "2026-12-31T23:59:00"),
        ("Feb 29 12:00:00", "2026-11-20T12:00:00", "2024-02-29T12:00:00"),
        ("Nov  2 12:00:00", "2026-11-20T12:00:00", "2026-11-02T12:00:00"),
        ("Nov 21 01:00:00", "2026-11-20T12:00:00", "2026-11-21T01:00:00"),
    ],
)
def test_the_year_is_the_last_that_is_past(text: str, now: str, output: str) -> None:
    def local(moment: str) -> float:
        return time.mktime(time.strptime(moment, "%Y-%m-%dT%H:%M:%S"))

    assert syslog_time(text, local(now)) == local(output)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-20T12:00:00.123456+01:00", 1795172400.0),
        ("2026-11-20T11:00:00Z", 1795172400.0),
        ("2026-11-20T06:30:00-0430", 1795172400.0),
        ("2026-nonsense", None),
    ],
)
def test_a_full_date_is_read_with_its_zone(text: str, seconds: float | None) -> None:
    assert syslog_time(text, 0) == seconds


def test_of_a_rotated_journal_and_a_whole_dmesg_the_whole_one_is_read(host: GpuHost) -> None:
    host.put(
        "usr/bin/journalctl", "#!/bin/sh\nprintf '[ 9.5] gpu01 kernel: usb 1-1: new\\n'\n", 0o755
    )
    host.put(
        "usr/bin/dmesg",
        "#!/bin/sh\nprintf '[ 0.0] Linux version 6\\n[ 8.0] " + XID + "\\n'\n",
        0o755,
    )
    found = section(host, "kernel_log")
    assert (found["source"], found["complete"], found["events"][0]["code"]) == ("dmesg", True, 79)


def test_the_journal_comes_first_and_then_dmesg(host: GpuHost) -> None:
    output = "[    0.000000] gpu01 kernel: Linux version 6.1\\n[ 3.5] gpu01 kernel: " + XID
    host.put("usr/bin/dmesg", "#!/bin/sh\nprintf '[    7.1] Linux version 6\\n'\n", 0o755)
    assert section(host, "kernel_log") == {
        "source": "dmesg",
        "error": None,
        "since_boot": True,
        "complete": True,
        "events": [],
    }
    host.put("usr/bin/journalctl", f"#!/bin/sh\nprintf '{output}\\n'\n", 0o755)
    found = section(host, "kernel_log")
    assert (found["source"], found["complete"], found["events"][0]["code"]) == ("journal", True, 79)
    assert found["events"][0]["uptime_s"] == 3.5


def test_a_log_that_only_root_may_read_says_so(host: GpuHost) -> None:
    host.remove("var/log")
    for name, output in (
        ("journalctl", "Not opened due to insufficient permissions."),
        ("dmesg", "read kernel buffer failed: Operation not permitted"),
    ):
        host.put(f"usr/bin/{name}", f"#!/bin/sh\necho '{output}' >&2; exit 1\n", 0o755)
    found = section(host, "kernel_log")
    assert (found["source"], found["error"]) == (
        None,
        "journalctl: insufficient permissions; dmesg: not permitted",
    )


def test_a_container_without_a_card_reads_nobody_s_log(tmp_path: Path) -> None:
    put(tmp_path, "run/systemd/container", "podman\n")
    put(tmp_path, "usr/bin/dmesg", "#!/bin/sh\necho '[ 1.0] Linux version 6'\n", 0o755)
    assert probe_tree(tmp_path, mode="full")["kernel_log"]["source"] is None


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"}, "wsl"),
        ({"dev/dxg": ""}, "wsl"),
        ({"proc/device-tree/compatible": "nvidia,p3737\0nvidia,tegra234\0"}, "jetson"),
        ({"proc/device-tree/compatible": "raspberrypi,4\0"}, None),
        ({"proc/sys/kernel/osrelease": "5.15.0-1053-azure\n"}, None),
        ({}, None),
    ],
)
def test_machines_whose_gpus_are_on_no_pci_bus(
    tmp_path: Path, files: dict[str, str], kind: str | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert platform(Host({"root": str(tmp_path)}, 20)) == kind
