"""Write the files that show a lab host its stand-in GPUs, as an archive of paths below `/`."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lab.gpus.smi_text import smi_text
from lab.gpus.tree import TEXTS, GpuTree
from lab.hosts import STAND_IN_MAJOR
from lab.settings import host_number

HERE = Path(__file__).parent
PLACE = f"/{TEXTS}"
UNIT = "stand-in-gpus.service"
# The driver that is shown, with the newest CUDA that it supports.
DRIVER, CUDA, CUDA_NUMBER = "535.261.03", "12.2", 12020
MODEL = "NVIDIA H100 80GB HBM3 (stand-in)"
# The text of nvidia-smi about a host's only card, once it is lost, and its exit status.
LOST, GPU_IS_LOST = (
    "Unable to determine the device handle for GPU {}: GPU is lost."
    "  Reboot the system to recover this GPU\n",
    15,
)
# CUDA_ERROR_NO_DEVICE, as libcuda starts on a host without a card.
NO_DEVICE = 100
NODES = ("nvidiactl", "nvidia-uvm")
# Files of the host that stand outside of the directory, beside the tree that is mounted.
PROGRAMS = {"scontrol": "usr/bin/scontrol", "squeue": "usr/bin/squeue"}
UNIT_FILE = f"etc/systemd/system/{UNIT}"
PERSISTENCE = "etc/systemd/system/nvidia-persistenced.service"


@dataclass(frozen=True)
class Cards:
    """The stand-in GPUs of one host: how many, and what is wrong with the last one."""

    count: int
    fault: str | None = None


@cache
def faults() -> dict[str, dict[str, Any]]:
    """The faults that a card may have, by name."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(
        (HERE / "faults.yml").read_text(encoding="utf-8")
    )
    return found


@cache
def record() -> dict[str, Any]:
    """The record of a real H100."""
    found: dict[str, Any] = json.loads((HERE / "recorded/h100.json").read_text(encoding="utf-8"))
    return found


def packed(name: str, cards: Cards) -> bytes:
    """An archive of all that a host with these cards is given, by its paths below `/`."""
    with tempfile.TemporaryDirectory() as place, io.BytesIO() as stream:
        root = Path(place)
        write(root, name, cards)
        with tarfile.open(fileobj=stream, mode="w") as archive:
            # Without directories: those of the host keep their modes.
            for path in sorted(root.rglob("*")):
                if path.is_symlink() or not path.is_dir():
                    archive.add(path, path.relative_to(root), filter=_owned_by_root)
        return stream.getvalue()


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def identities(name: str, count: int) -> list[dict[str, Any]]:
    """The address, UUID and name of each card of a host, as CUDA shows them."""
    return [
        {
            "index": at,
            "address": f"0000:{at + 1:02x}:00.0",
            "uuid": f"GPU-57a4d000-0000-4000-8000-{host_number(name):06}{at:06}",
            "name": MODEL,
        }
        for at in range(count)
    ]


def write(root: Path, name: str, cards: Cards) -> None:
    """Write all that a host with these cards is given below a directory."""
    fault = faults()[cards.fault] if cards.fault else {}
    known = identities(name, cards.count)
    listed = known if fault.get("listed", True) else known[:-1]
    host = GpuTree(root, place="")
    cuinit = 0 if listed else NO_DEVICE
    host.write_cuda(DRIVER, CUDA_NUMBER, cuinit)
    host.write_nvml(DRIVER, len(listed))
    if listed:
        _write_smi(host, name, listed, fault.get("smi", {}))
    else:
        host.write_smi(LOST.format(known[0]["address"]), "", "", status=GPU_IS_LOST)
    _write_mounted(GpuTree(root / TEXTS / "tree"), known, fault.get("log", []))
    for source in ("python", "playback.py", "show.sh"):
        shutil.copy(HERE / "host" / source, root / TEXTS / source)
    played = {
        "cards": listed,
        "cuda": CUDA,
        "cuinit": cuinit,
        "record": record()["compute"],
        "fault": fault.get("played", {}),
    }
    host.put(f"{TEXTS}/played.json", json.dumps(played))
    host.put(PROGRAMS["scontrol"], (HERE / "host/scontrol").read_text(encoding="utf-8"), 0o755)
    host.put(PROGRAMS["squeue"], "#!/bin/sh\n# A stand-in for Slurm's squeue: no jobs.\n", 0o755)
    host.put(UNIT_FILE, (HERE / "host" / UNIT).read_text(encoding="utf-8"))
    host.put(
        PERSISTENCE,
        "[Unit]\nDescription=A stand-in for NVIDIA's persistence daemon\n"
        "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n"
        "[Install]\nWantedBy=multi-user.target\n",
    )
    own = [path.relative_to(root) for path in root.rglob("*") if not path.is_dir()]
    outside = [str(path) for path in own if not path.is_relative_to(TEXTS)]
    host.put(f"{TEXTS}/files", "\n".join(sorted(outside)) + "\n")


def _write_smi(
    host: GpuTree, name: str, listed: list[dict[str, Any]], faulty: Mapping[str, str]
) -> None:
    texts = [
        {
            "product_name": MODEL,
            "uuid": card["uuid"],
            "serial": f"STAND-IN-{host_number(name):02}{at:02}",
            "vbios_version": "stand-in",
            **(faulty if at == len(listed) - 1 else {}),
        }
        for at, card in enumerate(listed)
    ]
    lines = [f"GPU {card['index']}: {MODEL} (UUID: {card['uuid']})\n" for card in listed]
    modes = [f"{card['index']}, Disabled\n" for card in listed]
    host.write_smi(
        smi_text(texts, DRIVER, CUDA, healthy=record()["smi"]), "".join(lines), "".join(modes)
    )


def _write_mounted(tree: GpuTree, known: list[dict[str, Any]], messages: list[str]) -> None:
    """Write what is mounted over the host's own files, and the list of device nodes."""
    tree.load_modules(DRIVER)
    for card in known:
        tree.card(card["address"])
        tree.put(f"proc/driver/nvidia/gpus/{card['address']}/information", f"Model: {MODEL}\n")
    lines = [
        "[    0.000000] Linux version 6.1.0 (stand-in: the kernel's log of a lab host with GPUs)",
        f"[    4.300000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {DRIVER}",
    ]
    bus = known[-1]["address"].removesuffix(".0")
    for at, message in enumerate(messages):
        lines.append(f"[{3600 + at:5}.000000] " + message.format(bus=bus, uuid=known[-1]["uuid"]))
    tree.put("dmesg.txt", "\n".join(lines) + "\n")
    tree.put("usr/bin/dmesg", f"#!/bin/sh\nexec cat {PLACE}/tree/dmesg.txt\n", 0o755)
    nodes = [*NODES, *(f"nvidia{card['index']}" for card in known)]
    tree.put("nodes", "".join(f"{node} {STAND_IN_MAJOR} {at}\n" for at, node in enumerate(nodes)))
