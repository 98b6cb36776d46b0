"""The order of the sections on a host with a loaded driver, and the time that each has."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host import runner
from gpufleet.on_host.host import DEFAULTS, Host
from gpufleet.on_host.processes import Child, await_all
from gpufleet.on_host.schedule import ROUNDS, Schedule, patience, slowness
from gpufleet.on_host.sections.driver import section_driver
from lab.stubs import library
from lab.stubs.library import Function
from tests.support.machine import deadline
from tests.support.planted_gpu_host import GpuHost
from tests.support.planted_host import probe_tree, put

NAMES = ("driver", "gpus", "smi", "compute", "stacks", "containers", "kernel_log")


@pytest.fixture
def host(tmp_path: Path) -> GpuHost:
    tmp_path.chmod(0o755)
    return GpuHost(tmp_path / "host")


def timed(root: Path, monkeypatch: pytest.MonkeyPatch, **config: Any) -> dict[str, Any]:
    """The begin and the end of each section, each of them 50 ms long."""

    def section(_: Host) -> dict[str, float]:
        begin = time.monotonic()
        while time.monotonic() < begin + 0.05:
            pass
        return {"begin": begin, "end": time.monotonic()}

    monkeypatch.setattr(runner, "SECTIONS", dict.fromkeys(NAMES, section))
    monkeypatch.setattr(Schedule, "hold_cards", lambda self: None)
    return probe_tree(root, **config)


def test_a_loaded_driver_is_started_first_and_read_again_last(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors that the load itself causes came after the only reading of the cards."""
    put(root, "proc/driver/nvidia/version", "")
    found = timed(root, monkeypatch, mode="full", expect_gpus=2)
    order = ("driver", "smi", "compute", "stacks", "containers", "smi_after")
    for first, second in itertools.pairwise(order):
        assert found[first]["end"] <= found[second]["begin"], (first, second)
    assert found["driver"]["end"] <= found["gpus"]["begin"]
    assert found["containers"]["end"] <= found["kernel_log_after"]["begin"]
    assert found["kernel_log"]["begin"] < found["compute"]["begin"]


@pytest.mark.parametrize(
    ("config", "loaded"),
    [
        ({"mode": "facts", "expect_gpus": 2}, True),
        ({"mode": "full", "expect_gpus": 0}, True),
        ({"mode": "full", "expect_gpus": 2}, False),
    ],
)
def test_without_work_on_a_card_nothing_is_read_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], loaded: bool
) -> None:
    if loaded:
        put(root, "proc/driver/nvidia/version", "")
    found = timed(root, monkeypatch, **config)
    assert set(found) == set(NAMES)


def planted_cards(root: Path, count: int) -> Host:
    for number in range(count):
        for key, value in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
            put(root, f"sys/bus/pci/devices/0000:0{number}:00.0/{key}", value + "\n")
    return Host({"root": str(root)})


def test_the_driver_may_start_eight_cards_without_persistence(root: Path) -> None:
    """Eight cards take 18 s and more to start: 20 s less a fifth was called a hung driver."""
    host = planted_cards(root, 8)
    assert patience(host, 300) == 100
    put(root, "run/nvidia-persistenced/socket")
    assert patience(host, 300) == 50
    assert patience(host, 900) == 150
    # A short deadline leaves half of it to the others.
    assert patience(host, 60) == 30
    assert patience(host, 1.5) == 1.5


@pytest.mark.parametrize(
    ("deadline_s", "section_s"), [(5, 5), (120, 20), (300, 20), (900, 60), (1800, 120)]
)
def test_a_longer_deadline_gives_a_slow_host_more_time_for_each_section(
    root: Path, deadline_s: float, section_s: float
) -> None:
    """An emulated processor needed 30 s for a section, whatever the deadline."""
    settings = dict(DEFAULTS, root=str(root), mode="full", deadline_s=deadline_s)
    plan = Schedule(settings, runner.SECTIONS)
    assert {plan.deadline_of(name, deadline_s) for name in ("os", "driver", "network")} == {
        section_s
    }


@pytest.mark.parametrize(("deadline_s", "expect_gpus"), [(300, 8), (900, 8), (300, None)])
def test_no_section_of_a_slow_driver_has_less_than_its_cards_need(
    root: Path, deadline_s: float, expect_gpus: int | None
) -> None:
    planted_cards(root, 8)
    put(root, "proc/driver/nvidia/version", "")
    settings = dict(
        DEFAULTS, root=str(root), mode="full", deadline_s=deadline_s, expect_gpus=expect_gpus
    )
    plan = Schedule(settings, runner.SECTIONS)
    left_s, spent = float(deadline_s), {}
    for name in ("driver", "smi", "compute", "stacks", "containers", "smi_after"):
        spent[name] = plan.deadline_of(name, left_s)
        # A healthy start takes 20 s.
        left_s -= 20 if name in {"driver", "smi"} else spent[name]
    assert min(spent.values()) >= 30
    assert spent["driver"] >= 100
    assert plan.deadline_of("gpus", deadline_s) * 0.4 > 25  # what nvidia-smi has for MIG
    assert left_s >= 0


def test_the_cards_are_held_awake_while_the_probe_works(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the persistence daemon each process would start all cards again."""
    put(root, "proc/driver/nvidia/version", "")
    put(root, "dev/nvidia0")
    node = str(root / "dev/nvidia0")

    def held(_: Host) -> bool:
        ends = time.monotonic() + deadline(5)
        while not (found := holders_of(node)) and time.monotonic() < ends:
            pass
        return bool(found)

    monkeypatch.setattr(
        runner,
        "SECTIONS",
        {"driver": lambda host: {"cuinit": 0}, "smi": lambda host: None, "compute": held},
    )
    assert probe_tree(root, mode="full", expect_gpus=1)["compute"]
    ends = time.monotonic() + deadline(5)
    while left := holders_of(node):
        assert time.monotonic() < ends, left


def holders_of(node: str) -> list[str]:
    """The processes that have a file open."""
    found = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(descriptor.readlink()) == node:
                found.append(descriptor.parts[2])
        except OSError:
            continue
    return found


# -- the driver -----------------------------------------------------------------------------------


def test_device_files_are_listed_after_cuda_has_created_them(
    host: GpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first probe after a boot without the daemon failed driver.nodes."""
    for name in ("nvidia0", "nvidia1", "nvidia-uvm"):
        host.remove(f"dev/{name}")

    def start(_: Host) -> Any:
        for name in ("nvidia0", "nvidia1", "nvidia-uvm"):
            host.put(f"dev/{name}", mode=0o666)
        return section_driver(_)

    monkeypatch.setitem(runner.SECTIONS, "driver", start)
    assert "/dev/nvidia1" in probe_tree(host.root)["gpus"]["nodes"]


@pytest.mark.costly
@pytest.mark.parametrize(
    "place",
    ["usr/local/nvidia/lib64", "run/nvidia/driver/usr/lib/x86_64-linux-gnu", "usr/lib/wsl/lib"],
)
def test_a_driver_s_library_is_found_where_containers_have_it(root: Path, place: str) -> None:
    """A driver whose libraries are elsewhere was called not installed."""
    put(
        root,
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module"
        "  535.261.03  Wed Nov  1 00:00:00 UTC 2026\n",
    )
    library.write(
        root / place / "libcuda.so.535.261.03",
        "libcuda.so.1",
        {
            "cuInit": Function(0),
            "cuDriverGetVersion": Function(writes=12020, to=0),
            "cuDeviceGetCount": Function(writes=2, to=0),
            "cuDeviceGetAttribute": Function(writes=9, to=0),
        },
    )
    (root / place / "libcuda.so.1").symlink_to("libcuda.so.535.261.03")
    driver = probe_tree(root)["driver"]
    assert driver["library"] == "535.261.03"
    assert driver["library_path"] == f"/{place}/libcuda.so.535.261.03"
    assert (driver["cuinit"], driver["capabilities"]) == (0, ["9.9", "9.9"])
    # What an earlier driver left behind is not opened, whichever sorts last.
    for left in ("535.9.1", "580.95.05"):
        put(root, f"{place}/libcuda.so.{left}")
        assert probe_tree(root)["driver"]["library"] == "535.261.03"


def test_an_mps_server_of_another_account_is_named(root: Path) -> None:
    put(root, "proc/41/comm", "nvidia-cuda-mps\n")
    put(root, "proc/41/cmdline", "nvidia-cuda-mps-control\0-d\0")
    put(root, "proc/7/comm", "python3\n")
    (found,) = probe_tree(root)["gpus"]["mps"]
    assert (found["pid"], found["command"]) == (41, "nvidia-cuda-mps-control")


def test_a_section_has_more_time_where_the_same_work_takes_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At load 20 a part of the probe exceeded its 20 s, and everything was to be installed."""
    settings = {**DEFAULTS, "deadline_s": 300, "mode": "facts"}
    found = {}
    for times in (1, 3, 100):
        monkeypatch.setattr("gpufleet.on_host.schedule.slowness", lambda times=times: times)
        found[times] = Schedule(settings, runner.SECTIONS).section_s
    # What hangs ends before the probe all the same.
    assert found == {1: 20, 3: 60, 100: 150}


def test_slowness_is_the_time_of_fixed_work_and_never_below_one() -> None:
    assert slowness(0) == 1
    assert slowness(20 * ROUNDS) > 1


def test_a_section_that_waits_for_a_processor_is_not_called_hung(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late() -> str:
        time.sleep(0.4)
        return "read"

    monkeypatch.setattr("gpufleet.on_host.processes.queued_s", lambda pid: 30)
    child = Child(late, (), 0.1, patient=time.monotonic() + deadline(20))
    assert await_all([child])[0][:2] == ("ok", "read")
    # Not beyond the end of the probe.
    child = Child(late, (), 0.1, patient=time.monotonic() + 0.1)
    assert await_all([child])[0][0] == "hung"
