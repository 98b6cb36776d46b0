"""A healthy host as documents, to be broken by each test in its own way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gpufleet.components.checks import CHECKS
from gpufleet.judge import judge
from gpufleet.on_host.smi_document import parse_smi
from lab.gpus.smi_text import MEMORY_MIB, MODEL, smi_text
from tests.support import rdma_host

FIXTURES = Path(__file__).parents[1] / "fixtures"

Document = dict[str, Any]
Break = Callable[[Document, Document], None]


def document(name: str) -> Document:
    """A fresh copy of a saved document."""
    found: Document = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
    return found


def excused(plan: Document) -> dict[str, str]:
    """The declaration of a plan that excuses a check, by check."""
    reasons = {name: check.skip_reason(plan) for name, check in CHECKS.items()}
    return {name: reason for name, reason in reasons.items() if reason}


EXCUSED = excused(document("plan.json"))
# The checks of other frameworks than TensorFlow.
OF_OTHERS = tuple(
    name for name, reason in EXCUSED.items() if reason.startswith("gpu_stacks: none is ")
)

# Checks of what only some hosts with GPUs declare: a rack, IMEX, a lossless class, drivers of
# adapters, a manifest.
OF_SITES = (
    "gpu.rack",
    "driver.imex",
    "driver.memory-mode",
    "network.lossless",
    "network.setup",
    "host.manifest",
)


@pytest.fixture
def plan() -> Document:
    """A host without a GPU, one stack: TensorFlow 2.13.1, CUDA 11.8, cuDNN 8.6."""
    return document("plan.json")


@pytest.fixture
def snapshot() -> Document:
    """The same host, as it should be."""
    return document("snapshot.json")


def verdicts(plan: Document, snapshot: Document) -> dict[str, str]:
    """The verdict of each check."""
    return {check["id"]: check["verdict"] for check in judge.judge(plan, snapshot)["checks"]}


def other_than(verdict: str, found: Mapping[str, str]) -> dict[str, str]:
    """The checks with another verdict: compared with none, a failure names them."""
    return {check: each for check, each in found.items() if each != verdict}


def in_page(page: str) -> Document:
    """The document in the HTML page, of which its script shows the hosts."""
    found: Document = json.loads(
        page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    )
    return found


def of_page(page: str) -> dict[tuple[str, str], str]:
    """The verdicts in the page's document, by host and check; test_page.py tests their display."""
    shown = in_page(page)
    return {
        (host["name"], check): shown["letters"][letter]
        for host in shown["hosts"]
        for (check, _), letter in zip(shown["checks"], host["checks"], strict=True)
        if letter != "."
    }


def data(snapshot: Document, section: str) -> Any:
    """The data of a section, to be changed."""
    return snapshot["sections"][section]["data"]


DRIVER = "535.261.03"
PIN = "/etc/apt/preferences.d/gpufleet-driver"
CORE = ("libcuda1", "nvidia-kernel-dkms", "nvidia-smi")


def with_driver(plan: Document, snapshot: Document) -> None:
    """Have gpufleet manage the driver of the healthy pair, with everything as it should be."""
    plan["driver"].update(
        branch="535", source="distro", managed=True, module="proprietary", module_because="declared"
    )
    kernel = data(snapshot, "kernel")
    for row in kernel["installed"]:
        row.update(
            headers=True,
            modules=[
                {
                    "name": "nvidia",
                    "path": f"/lib/modules/{row['version']}/updates/dkms/nvidia.ko",
                    "version": DRIVER,
                    "license": "NVIDIA",
                    "error": None,
                }
            ],
        )
    data(snapshot, "driver").update(
        library=DRIVER,
        on_disk=DRIVER,
        cuinit=100,
        blocked=[],
        nouveau={"loaded": False, "blacklisted": True},
        persistence={"unit": "nvidia-persistenced.service", "enabled": True, "active": False},
        dkms=[
            {
                "module": "nvidia",
                "version": DRIVER,
                "kernel": kernel["running"],
                "state": "installed",
            }
        ],
    )
    data(snapshot, "packages").update(
        driver=[
            {"name": name, "version": f"{DRIVER}-1", "status": "installed", "held": True}
            for name in CORE
        ],
        pins=[{"path": PIN, "packages": [*CORE], "pin": f"version {DRIVER}-1", "priority": 1001}],
        unattended={"installed": True, "excluded": True},
    )
    data(snapshot, "receipts")["receipts"].append(
        {
            "schema": 1,
            "kind": "driver",
            "id": "driver",
            "path": "/",
            "version": DRIVER,
            "source": "distro",
            "module": "proprietary",
            "branch": "535",
            "previous": None,
            "packages": dict.fromkeys(CORE, f"{DRIVER}-1"),
            "repository": None,
            "installed": "now",
            "files": 3,
            "changed": [],
            "libraries": [],
            "unlisted": [],
            "exposed": [],
        }
    )


PORT = {
    "vendor": "0x8086",
    "current_link_width": "16",
    "current_link_speed": "32.0 GT/s PCIe",
    "max_link_width": "16",
    "max_link_speed": "32.0 GT/s PCIe",
}


def nvlinks(index: int, links: int = 18, active: int = 18, **fields: object) -> Document:
    """The NVLinks of a GPU, so many of them active."""
    return {
        "index": index,
        "address": f"0000:0{index}:00.0",
        "mig": False,
        "errors": {"replay": 0},
        "effective_ber": None,
        "links": [
            {
                "link": n,
                "active": n < active,
                "status": 0,
                "version": 6,
                "remote": "switch",
                "remote_address": f"0000:c{n % 4}:00.0",
            }
            for n in range(links)
        ],
        "peers": peers(index, 2),
        **fields,
    }


def peers(index: int, count: int, **fields: object) -> list[Document]:
    """Peer access of a GPU to the ones after it."""
    return [
        {"index": other, "read": 0, "write": 0, "nvlink": 0, **fields}
        for other in range(index + 1, count)
    ]


def with_cards(plan: Document, snapshot: Document, count: int = 2) -> None:
    """Put cards into the host, and have its driver run them, whole."""
    with_driver(plan, snapshot)
    plan["expect"].update(count=count, model=MODEL, memory_mib=MEMORY_MIB, governor="performance")
    data(snapshot, "kernel")["frequency"] = [
        {"cpu": cpu, "governor": "performance", "driver": "intel_pstate"} for cpu in range(2)
    ]
    # Each has an adapter beside it.
    plan["expect"]["network"] = [rdma_host.declared(count=count, rate=400.0)]
    data(snapshot, "network").update(
        rdma_host.network([rdma_host.device(n) for n in range(count)], count)
    )
    plan["driver"]["mig"] = {"all": []}
    data(snapshot, "smi").update(
        program="/usr/bin/nvidia-smi",
        status=0,
        nvml={"status": 0, "version": DRIVER, "count": count},
        nvlink=[nvlinks(n, peers=peers(n, count)) for n in range(count)],
        **parse_smi(smi_text([{"pci/pci_bus_id": f"00000000:0{n}:00.0"} for n in range(count)])),
    )
    nodes = ["/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{n}" for n in range(count))]
    data(snapshot, "gpus")["node_access"] = [
        {
            "path": name,
            "mode": "0666",
            "uid": 0,
            "gid": 0,
            "major": 195,
            "tried": True,
            "error": None,
        }
        for name in nodes
    ]
    data(snapshot, "gpus").update(
        pci=[
            {
                "address": f"0000:0{n}:00.0",
                "vendor": "0x10de",
                "device": "0x2330",
                "class": "0x030200",
                "driver": "nvidia",
                "port": {**PORT, "address": f"0000:8{n}:01.0"},
            }
            for n in range(count)
        ],
        nodes=nodes,
        hypervisor=False,
        mig=[{"gpu": n, "mode": "off", "instances": []} for n in range(count)],
    )
    driver = data(snapshot, "driver")
    driver.update(loaded=DRIVER, cuinit=0, cuda_version="12.2", modules=["nvidia", "nvidia_uvm"])
    driver["persistence"]["active"] = True
    driver["mig_boot"] = {"unit": None, "enabled": None, "active": None, "layout": None}
    with_computing(plan, snapshot, count)
    # After all work everything is as before.
    for name in ("smi", "kernel_log"):
        snapshot["sections"][f"{name}_after"] = deepcopy(snapshot["sections"][name])


def with_computing(plan: Document, snapshot: Document, count: int = 2) -> None:
    """Have its toolkit and stack compute on its cards, deeply, with everything as it should be."""
    compute, numbers = data(snapshot, "compute"), range(count)
    cards = data(snapshot, "smi")["devices"]
    run = compute["runs"][0]
    compute["deep"] = True
    done: Document = {"wrong": 0, "busy": None, "error": None}
    run["driver"] = {"cuinit": 0, "version": "12.2", "error": None}
    run["devices"] = [
        {
            "index": n,
            "uuid": cards[n]["uuid"],
            "address": f"0000:0{n}:00.0",
            "name": "NVIDIA H100 PCIe",
            "compute_capability": "9.0",
            "memory_mib": 81000,
            "free_mib": 80000,
            "sm_count": 114,
            "clock_mhz": 1755,
            "memory_clock_mhz": 1593,
            "memory_bus_bits": 5120,
            "l2_kib": 51200,
            "warp_size": 32,
            "link": {"generation": 5, "width": 16, "generation_max": 5, "width_max": 16},
            "copies": {"to_device_gib_s": 51.2, "from_device_gib_s": 50.9},
        }
        for n in numbers
    ]
    run["formats"] = [
        {**done, "gpu": n, "format": name, "checked": 5, "not_applicable": None}
        for n in numbers
        for name in ("fp64", "fp16", "int8", "tf32", "bf16", "fp8-e4m3", "fp8-e5m2")
    ]
    run["consensus"] = [
        {
            **done,
            "gpu": n,
            "format": name,
            "seed": 20783,
            "sums": [f"{name:0>14}{at:02}".encode().hex()[:16] for at in range(5)],
            "not_applicable": None,
        }
        for n in numbers
        for name in ("fp32", "fp64", "fp16", "int8", "tf32", "bf16", "fp8-e4m3", "fp8-e5m2")
    ]
    run["host_copies"] = [{**done, "gpu": n} for n in numbers]
    run["cublas"] = [
        {
            **done,
            "gpu": n,
            "n": 2048,
            "first_s": 0.4,
            "steady_s": 0.0005,
            "tflops": 34.4,
            "checked": 1001,
        }
        for n in numbers
    ]
    run["nvrtc"]["ran"] = [{"gpu": n, "arch": "sm_90", "wrong": 0, "error": None} for n in numbers]
    run["cudnn"] = [
        {**done, "gpu": n, "soname": "libcudnn.so.8", "version": "8.6.0"} for n in numbers
    ]
    run["bandwidth"] = [{**done, "gpu": n, "gib_s": 1600.0} for n in numbers]
    run["peer"] = [
        {"from": a, "to": b, "access": True, "gib_s": 20.0, "wrong": 0, "error": None}
        for a in numbers
        for b in numbers
        if a != b
    ]
    run["sustained"] = [
        {
            **done,
            "gpu": n,
            "n": 4096,
            "seconds": 120.2,
            "settled_s": 4.0,
            "checked": 30000,
            "samples": [
                {
                    "at_s": float(at),
                    "tflops": 38.0 - at / 60,
                    "temperature_c": 60 + at // 12,
                    "clock_sm_mhz": 1700,
                    "power_w": 340,
                    "throttle": ["sw-power-cap"],
                }
                for at in range(1, 121)
            ],
        }
        for n in numbers
    ]
    framework = data(snapshot, "stacks")["stacks"][0]["framework"]
    place = "/job:localhost/replica:0/task:0/device:GPU:"
    framework["capabilities"] = ["9.0"] * count
    framework["small"].update(gpu_device_name="/device:GPU:0", placement=[f"{place}0"])
    framework["small"]["local_devices"] += [
        {
            "name": f"/device:GPU:{n}",
            "type": "GPU",
            "memory_mib": 78000,
            "description": f"device: {n}, name: NVIDIA H100 PCIe, pci bus id: 0000:0{n}:00.0,"
            " compute capability: 9.0",
        }
        for n in numbers
    ]
