"""All sections together: what hangs, what is denied, what waits for another."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from gpufleet.on_host import runner
from gpufleet.on_host.host import DEFAULTS, Host
from gpufleet.on_host.runner import SECTIONS, probe
from gpufleet.on_host.schedule import COMPUTING
from tests.support.planted_host import LIB, probe_tree, put


def test_a_name_that_is_no_utf8_stays_legible(root: Path) -> None:
    (root / os.fsdecode(f"{LIB}/libcudnn_\udcff.so.8".encode("utf-8", "surrogateescape"))).touch()
    libraries = probe_tree(root)["cudnn"]["trees"][0]["libraries"]
    assert f"/{LIB}/libcudnn_?.so.8" in [library["path"] for library in libraries]


def test_cards_and_driver_from_planted_kernel_trees(root: Path) -> None:
    for number, (vendor, kind) in enumerate(
        [
            ("0x10de", "0x030200"),
            ("0x10de", "0x040300"),
            ("0x8086", "0x030000"),
            ("0x10de", "0x068000"),
        ]
    ):
        card = root / f"sys/bus/pci/devices/0000:0{number}:00.0"
        for key, value in (("vendor", vendor), ("device", "0x2330"), ("class", kind)):
            put(card, key, value + "\n")
        (card / "driver").symlink_to("../../../drivers/nvidia")
    put(root, "dev/nvidia0")
    put(root, "proc/modules", "nvidia_uvm 1 0\nnvidia 1 1\nnouveau 1 0\next4 1 0\n")
    put(
        root,
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build\n",
    )
    put(root, "usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03")
    found = probe_tree(root)
    assert found["gpus"] == {
        "nodes": ["/dev/nvidia0"],
        "node_access": found["gpus"]["node_access"],
        "nvswitches": ["0000:03:00.0"],
        "mps": [],
        "mig": None,
        "hypervisor": None,
        "platform": None,
        "pci": [
            {
                "vendor": "0x10de",
                "device": "0x2330",
                "class": "0x030200",
                "driver": "nvidia",
                "port": None,
                "address": "0000:00:00.0",
            }
        ],
    }
    absent = {"unit": None, "enabled": None, "active": None}
    assert found["driver"] == {
        "of_container": False,
        "loaded": "550.163.01",
        "library": "535.261.03",
        "library_path": None,
        "cuda_version": None,
        "cuinit": None,
        "capabilities": None,
        "nvlsm": {"program": None, "running": None, "modules": []},
        "imex": {**absent, "nodes": None, "channels": 0},
        "coherent_memory": {"mode": None, "nodes": []},
        "mig_boot": {**absent, "layout": None},
        "modules": ["nvidia_uvm", "nvidia", "nouveau"],
        "on_disk": None,
        "dkms": [],
        "blocked": [],
        "nouveau": {"loaded": True, "blacklisted": False},
        "persistence": absent,
        "fabric": {**absent, "version": None},
        "holders": [],
        "reboot_pending": None,
    }


@pytest.mark.parametrize(
    ("gpus", "node", "apart"),
    [(2, True, True), (None, True, True), (0, True, False), (2, False, False)],
)
def test_on_a_gpu_one_section_computes_after_the_other(
    root: Path, monkeypatch: pytest.MonkeyPatch, gpus: int | None, node: bool, apart: bool
) -> None:
    def computing(host: Host) -> list[float]:
        begin = time.monotonic()
        time.sleep(0.3)
        return [begin, time.monotonic()]

    monkeypatch.setattr(runner, "SECTIONS", dict.fromkeys(COMPUTING, computing))
    if node:
        put(root, "dev/nvidiactl")
    found = probe_tree(root, mode="full", expect_gpus=gpus)
    times = [found[name] for name in ("compute", "stacks", "containers")]
    ended = [one[1] <= other[0] for one, other in itertools.pairwise(times)]
    assert ended == [apart, apart]


def test_one_that_hangs_on_a_gpu_leaves_time_to_the_others(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        runner,
        "SECTIONS",
        {
            "stacks": lambda host: time.sleep(60),
            "containers": lambda host: "c",
            "compute": lambda host: time.sleep(60),
        },
    )
    put(root, "dev/nvidiactl")
    begin = time.monotonic()
    found = probe({"root": str(root), "mode": "full", "expect_gpus": 1, "deadline_s": 1.5})
    assert {name: section["state"] for name, section in found["sections"].items()} == {
        "compute": "hung",
        "stacks": "hung",
        "containers": "ok",
    }
    assert time.monotonic() - begin < 3


def test_the_minutes_of_load_are_beside_the_toolkits_share(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SECTIONS", dict.fromkeys(COMPUTING, lambda host: host.inner_s))
    put(root, "dev/nvidiactl")
    found = probe_tree(root, mode="full", expect_gpus=1, deadline_s=660, deep=True)
    assert found["compute"] - 2 * DEFAULTS["sustained_s"] > 90
    assert found["containers"] < 660


def test_a_section_that_hangs_is_abandoned_and_the_others_are_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runner.SECTIONS, "driver", lambda host: signal.pause())
    begin = time.monotonic()
    found = probe({"root": str(root), "deadline_s": 1.5})
    assert time.monotonic() - begin < 4
    states = {name: section["state"] for name, section in found["sections"].items()}
    assert states.pop("driver") == "hung"
    assert set(states.values()) == {"ok"}
    assert found["sections"]["driver"]["data"] is None
    assert found["sections"]["driver"]["error"] == "no answer within 1.5 s"


def test_an_interpreter_that_gives_no_answer_is_not_one_that_is_not_there(root: Path) -> None:
    put(root, "usr/bin/python3.11", "#!/bin/sh\nexec sleep 60\n", 0o755)
    found = probe({"root": str(root), "deadline_s": 1.5})["sections"]["os"]
    assert (found["state"], found["data"]) == ("hung", None)
    assert "/usr/bin/python3.11 gave no answer within" in found["error"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_denied_as_user(root: Path) -> None:
    put(root, "proc/uptime", "1 1", 0o000)
    assert probe({"root": str(root)})["sections"]["kernel"]["state"] == "denied"


def test_what_may_not_be_read_is_denied(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    def refuse(host: object) -> None:
        raise PermissionError("no")

    monkeypatch.setitem(SECTIONS, "kernel", refuse)
    section = probe({"root": str(root)})["sections"]["kernel"]
    assert (section["state"], section["error"], section["data"]) == ("denied", "no", None)


def test_every_section_and_field_of_the_snapshot_is_there(root: Path) -> None:
    found = probe({"root": str(root)})
    assert list(found) == [
        "schema",
        "host",
        "mode",
        "euid",
        "started",
        "finished",
        "unseen",
        "sections",
    ]
    assert list(found["sections"]) == list(SECTIONS)
    for section in found["sections"].values():
        assert list(section) == ["state", "seconds", "error", "data"]
    assert set(found["sections"]["disks"]["data"]["free_mib"]) == {
        "/",
        "/tmp",
        "/var/tmp",
        "/usr/local",
        "/opt/gpufleet/stacks",
        "/var/lib/gpufleet",
        "/var/cache/gpufleet",
    }
