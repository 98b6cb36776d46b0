"""Parts of the healthy host's documents, by name; and the same host with two GPUs in full use."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from gpufleet.on_host.smi_document import parse_smi
from lab.gpus.smi_text import smi_text
from tests.support.healthy_host import Document, data, with_cards

LIB = "/usr/local/cuda-11.8/targets/x86_64-linux/lib"
PROVISION = "./gpufleet provision --limit gpu01"


def cudnn_tree(snapshot: Document) -> Document:
    found: Document = data(snapshot, "cudnn")["trees"][0]
    return found


def stack(snapshot: Document) -> Document:
    found: Document = data(snapshot, "stacks")["stacks"][0]
    return found


def receipt(snapshot: Document, kind: str) -> Document:
    return next(r for r in data(snapshot, "receipts")["receipts"] if r["kind"] == kind)


def with_gpus(plan: Document, snapshot: Document, count: int = 2) -> None:
    """Turn the healthy pair into a healthy host that has GPUs."""
    with_cards(plan, snapshot, count)
    place = "/job:localhost/replica:0/task:0/device:GPU:"
    with_gpus_in_containers(plan, snapshot, count)
    run = data(snapshot, "containers")["run"]
    stack(snapshot)["framework"]["matmul"] = [
        {
            "requested": f"/GPU:{n}",
            "device": f"{place}{n}",
            "n": 2048,
            "wrong": 0,
            "first_s": 0.5,
            "steady_s": 0.001,
            "tflops": 17.1,
            "error": None,
        }
        for n in range(count)
    ]
    run["framework"]["matmul"] = deepcopy(stack(snapshot)["framework"]["matmul"])


def with_gpus_in_containers(plan: Document, snapshot: Document, count: int) -> None:
    """Declare and show a number of GPUs in containers."""
    plan["containers"]["gpus"] = count
    there = data(snapshot, "containers")
    there["cdi"] = [
        {
            "path": "/run/cdi/nvidia.yaml",
            "driver_version": "535.261.03",
            "devices": [*map(str, range(count)), "all"],
            "error": None,
        }
    ]
    there["run"]["gpus"] = [
        {"node": f"/dev/nvidia{n}", "error": None, "code": None} for n in range(count)
    ]
    there["run"]["starts"] = [
        {"by": by, "state": "ok", "error": None, "gpus": deepcopy(there["run"]["gpus"])}
        for by in ("nvidia-docker run", "docker run --gpus all", "docker run --runtime=nvidia")
    ]
    numbers = {f"/dev/nvidia{n}": f"195:{n}" for n in range(count)} | {"/dev/nvidiactl": "195:255"}
    there["run"]["unit"] = {
        "unit": "docker-11aa.scope",
        "name": None,
        "policy": "strict",
        "allow": ["char-pts rwm", *(f"/dev/char/{at} rwm" for at in numbers.values()), "char-* m"],
        "nodes": [{"node": node, "numbers": at} for node, at in numbers.items()],
    }
    there.update(running=[], majors={"nvidia": 195})


def compute_run(snapshot: Document) -> Document:
    found: Document = data(snapshot, "compute")["runs"][0]
    return found


def framework(snapshot: Document) -> Document:
    found: Document = data(snapshot, "stacks")["stacks"][0]["framework"]
    return found


def no_gpu_for_programs(snapshot: Document, seen: int = 0, wanted: int = 2) -> None:
    """Make toolkits, TensorFlow and containers report fewer GPUs."""
    run = compute_run(snapshot)
    for part in ("devices", "cublas", "cudnn", "bandwidth", "sustained"):
        run[part] = run[part][:seen]
    run["nvrtc"]["ran"] = run["nvrtc"]["ran"][:seen]
    run["peer"] = []
    tensorflow_sees(framework(snapshot), seen)
    containers = data(snapshot, "containers")["run"]
    for each in (containers, *containers["starts"]):
        each["gpus"] = each["gpus"][:seen]
    containers["framework"]["matmul"] = containers["framework"]["matmul"][:seen] or [
        {**containers["framework"]["matmul"][0], "requested": "/CPU:0", "device": "/CPU:0"}
    ]


def tensorflow_sees(found: Document, seen: int) -> None:
    for entry in found["matmul"][seen:]:
        entry.update(
            wrong=None,
            device=None,
            tflops=None,
            error=f"TensorFlow reports {seen} GPU{'' if seen == 1 else 's'}",
        )
    if not seen:
        found["tower_sum"] = {"devices": [], "wrong": None, "error": "no device computed"}
        found["small"].update(gpu_device_name="", placement=["/device:CPU:0"])
    small = found["small"]["local_devices"]
    gpus = [device for device in small if device["type"] == "GPU"]
    found["small"]["local_devices"] = [
        device for device in small if device["type"] != "GPU"
    ] + gpus[:seen]
    found["capabilities"] = found["capabilities"][:seen]


def held_by_ann(snapshot: Document) -> None:
    """Somebody computes on the host; the persistence daemon only keeps it awake."""
    data(snapshot, "driver")["holders"] = [
        {
            "pid": 900,
            "user": "nvidia-persistenced",
            "command": "nvidia-persiste",
            "nodes": ["/dev/nvidia0"],
        },
        {"pid": 4711, "user": "ann", "command": "python3", "nodes": ["/dev/nvidia0"]},
    ]
    data(snapshot, "smi")["devices"][0]["memory_free_mib"] = 300


RUNNING, LATER = "6.1.0-27-amd64", "6.1.0-50-amd64"


def package(snapshot: Document, name: str) -> Document:
    rows = data(snapshot, "packages")["driver"]
    found: Document = next(row for row in rows if row["name"] == name)
    return found


def kernel(snapshot: Document) -> Document:
    found: Document = data(snapshot, "kernel")["installed"][0]
    return found


def from_nvidia(plan: Document, snapshot: Document) -> None:
    """The driver is from NVIDIA's repository."""
    plan["driver"]["source"] = "nvidia_repo"
    data(snapshot, "receipts")["receipts"][-1]["source"] = "nvidia_repo"


def later_kernel(snapshot: Document, **fields: object) -> None:
    """A kernel package was installed; its image boots next, DKMS did not build for it."""
    data(snapshot, "kernel").update(next_boot=LATER)
    data(snapshot, "kernel")["installed"].append(
        {
            "version": LATER,
            "image": True,
            "headers": False,
            "modules": [],
            "initramfs": f"/boot/initrd.img-{LATER}",
            "initramfs_nouveau": False,
            **fields,
        }
    )


def card(snapshot: Document, at: int = 0) -> Document:
    found: Document = data(snapshot, "smi")["devices"][at]
    return found


def printed(snapshot: Document, *cards: dict[str, str | None]) -> None:
    """Let nvidia-smi have said this of the cards, and CUDA name the same models."""
    places = [{"pci/pci_bus_id": f"00000000:0{at}:00.0", **texts} for at, texts in enumerate(cards)]
    data(snapshot, "smi").update(parse_smi(smi_text(places)))
    as_listed(snapshot)


def as_listed(snapshot: Document) -> None:
    """Let CUDA show the GPUs as nvidia-smi lists them."""
    listed = {row["address"]: row for row in data(snapshot, "smi")["devices"]}
    for run in data(snapshot, "compute")["runs"]:
        for device in run["devices"]:
            if row := listed.get(device["address"]):
                if row["name"] and "H100" not in row["name"]:
                    device["name"] = row["name"]
                device["uuid"] = row["uuid"] or device["uuid"]
                if mib := row["memory_total_mib"]:
                    device["memory_mib"] = mib - 559


def event(snapshot: Document, kind: str, **fields: Any) -> None:
    data(snapshot, "kernel_log")["events"].append(
        {
            "kind": kind,
            "code": None,
            "address": None,
            "pid": None,
            "process": None,
            "uptime_s": 100.5,
            "count": 1,
            "text": f"what the kernel said of {kind}",
            **fields,
        }
    )


GT_710, NEWER_THAN_THE_CATALOG = "0x128b", "0x3fff"
DISPLAY_ADDRESS = "0000:09:00.0"


def display_card(snapshot: Document, device: str) -> None:
    """Add a card for the display that no driver holds, and what the kernel logs of it."""
    data(snapshot, "gpus")["pci"].append(
        {
            "address": DISPLAY_ADDRESS,
            "vendor": "0x10de",
            "device": device,
            "class": "0x030000",
            "driver": None,
            "port": None,
        }
    )
    probe = f"nvidia: probe of {DISPLAY_ADDRESS} failed with error -1"
    event(snapshot, "init-failed", address=DISPLAY_ADDRESS, text=probe)
    routine = "NVRM: The NVIDIA probe routine failed for 1 device(s)."
    event(snapshot, "init-failed", text=routine)


WORKING: dict[str, str | None] = {
    "clocks_event_reasons/clocks_event_reason_gpu_idle": "Not Active",
    "clocks_event_reasons/clocks_event_reason_sw_power_cap": "Active",
    "utilization/gpu_util": "100 %",
    "temperature/gpu_temp": "80 C",
}
LINK = "pci/pci_gpu_link_info/"
