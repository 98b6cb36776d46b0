"""Read what is declared of a host's GPUs (`gpu_expect`), and of the account that uses them.

What is not declared is None, and then not checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpufleet.documents.problems import Code
from gpufleet.documents.text import quantity

from . import expected_network as network
from .reader import Reader

# More than a host can have; work is done for each of them.
MOST_GPUS = 1024
# The driver has 32 bits for a clique.
MOST_CLIQUES = (1 << 32) - 1
RACK = r"[A-Za-z0-9_.:-]{1,64}"
KEYS = (
    "count",
    "model",
    "memory_mib",
    "uuids",
    "power_limit_w",
    "ecc",
    "compute_mode",
    "pcie",
    "nvlinks",
    "fabric",
    "tflops",
    "bus_bandwidth_gb_s",
    "governor",
    "imex",
    "memory_mode",
    "modules",
    "network",
)
COMPUTE_MODES = ("default", "exclusive_process")
# The kernel's governors. Left out is userspace, which leaves the frequency to a program.
GOVERNORS = ("performance", "powersave", "schedutil", "ondemand", "conservative")
# Kernel modules of GPUDirect, which a host may do without: DMA-BUF copies without a module.
GPUDIRECT_MODULES = ("nvidia_peermem", "gdrdrv")
# The manager of memory that a GPU shares with its CPU: the driver (CDMM), or the kernel.
MEMORY_MODES = ("driver", "numa")
# Keys that take one of a few values; the inventory's schema lists them.
CHOICES = {
    "compute_mode": COMPUTE_MODES,
    "governor": GOVERNORS,
    "memory_mode": MEMORY_MODES,
}
_UUID = re.compile(r"(?i:GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_.-]{0,31}\$?")
_WHERE = "gpu_expect"


def visible(count: int | None, layout: Mapping[str, Any] | None) -> int | None:
    """How many of `count` GPUs CUDA shows a program: where GPUs are split by MIG, one instance."""
    return min(count, 1) if count and any((layout or {}).values()) else count


def read(reader: Reader, value: Any) -> dict[str, Any]:
    """`gpu_expect`; values of a wrong type become problems and are left out."""
    if value is None:
        return {}
    entry = reader.mapping(value, _WHERE, KEYS)

    def count(key: str, wanted: str) -> int | None:
        return reader.count(entry.get(key), f"{_WHERE}.{key}", wanted)

    number = reader.count(
        entry.get("count"),
        f"{_WHERE}.count",
        f"a number up to {MOST_GPUS}, 0 for no GPU",
        MOST_GPUS,
    )
    found: dict[str, Any] = {
        "count": number,
        "model": reader.text(entry.get("model"), f"{_WHERE}.model", "as nvidia-smi shows it"),
        "uuids": _uuids(reader, entry.get("uuids"), number),
        "memory_mib": count("memory_mib", "a number of MiB"),
        "power_limit_w": count("power_limit_w", "a number of watts"),
        "ecc": _switch(reader, entry.get("ecc"), f"{_WHERE}.ecc"),
        "pcie": network.pcie_link(reader, entry.get("pcie"), f"{_WHERE}.pcie"),
        "nvlinks": count("nvlinks", "a number, 0 for cards without a bridge"),
        "fabric": _fabric(reader, entry.get("fabric"), f"{_WHERE}.fabric"),
        "tflops": reader.amount(entry.get("tflops"), f"{_WHERE}.tflops", "such as 12.5"),
        "bus_bandwidth_gb_s": reader.amount(
            entry.get("bus_bandwidth_gb_s"),
            f"{_WHERE}.bus_bandwidth_gb_s",
            "such as 380",
        ),
        "modules": _modules(reader, entry.get("modules"), f"{_WHERE}.modules"),
        "imex": _imex(reader, entry.get("imex"), f"{_WHERE}.imex"),
        "network": network.read(reader, entry.get("network"), f"{_WHERE}.network"),
        **{
            key: reader.choice(entry.get(key), f"{_WHERE}.{key}", choices)
            for key, choices in CHOICES.items()
        },
    }
    # The UUIDs imply the number.
    if number is None and found["uuids"]:
        found["count"] = len(found["uuids"])
    return {key: part for key, part in found.items() if part is not None}


def service_user(reader: Reader, value: Any) -> str | None:
    """The name of the account that must be able to use the GPUs."""
    name = reader.text(value, "gpu_service_user", "an account's name")
    if name and not _ACCOUNT.fullmatch(name):
        reader.wrong(name, "gpu_service_user", "an account's name, such as slurm")
        return None
    return name


def _switch(reader: Reader, value: Any, where: str) -> str | None:
    """`on` or `off`; YAML reads them as true and false when they have no quotes."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return reader.choice(value, where, ("on", "off"))


def _modules(reader: Reader, value: Any, where: str) -> list[str] | None:
    """The kernel modules of GPUDirect that must be loaded."""
    found = [
        reader.choice(each, f"{where}[{at}]", GPUDIRECT_MODULES)
        for at, each in enumerate(reader.sequence(value, where))
    ]
    return [each for each in found if each] or None


def _fabric(reader: Reader, value: Any, where: str) -> dict[str, Any] | None:
    """The rack whose NVLink domain the host shares, and its clique."""
    if value is None:
        return None
    entry = reader.mapping(value, where, ("rack", "clique"))
    example = "a rack's name such as r12"
    rack = reader.text(entry.get("rack"), f"{where}.rack", example)
    if rack and not re.fullmatch(RACK, rack):
        reader.wrong(rack, f"{where}.rack", example)
        rack = None
    clique = reader.count(entry.get("clique"), f"{where}.clique", "a clique's number", MOST_CLIQUES)
    return {"rack": rack, "clique": clique} if rack or clique is not None else None


def _imex(reader: Reader, value: Any, where: str) -> dict[str, Any] | None:
    """The trays that share memory by IMEX, or that a job tells them."""
    if value is None:
        return None
    entry = reader.mapping(value, where, ("nodes", "per_job", "channels"))
    listed = reader.sequence(entry.get("nodes"), f"{where}.nodes")
    read = [
        reader.text(each, f"{where}.nodes[{at}]", "a tray's address")
        for at, each in enumerate(listed)
    ]
    nodes = [each for each in read if each]
    per_job = reader.flag(entry.get("per_job"), f"{where}.per_job")
    channels = reader.count(entry.get("channels"), f"{where}.channels", "a number of channels")
    if nodes and per_job:
        reader.problems.add(
            Code.EXPECT_CLASH,
            f"{where} has nodes, and its jobs write them (per_job)",
            where,
            "declare one of the two",
        )
        return None
    if not nodes and not per_job and channels is None:
        return None
    return {"nodes": nodes or None, "per_job": per_job, "channels": channels}


def _uuids(reader: Reader, value: Any, count: int | None) -> list[str] | None:
    """The UUIDs of this host's GPUs: as many as are declared, and none twice."""
    if value is None:
        return None
    where, found = f"{_WHERE}.uuids", []
    for at, each in enumerate(reader.sequence(value, where)):
        text = reader.text(each, f"{where}[{at}]", "as nvidia-smi -L shows it")
        if text and not _UUID.fullmatch(text):
            reader.wrong(text, f"{where}[{at}]", "a UUID as nvidia-smi -L shows it (GPU-...)")
        elif text:
            found.append("GPU-" + text[4:].lower())
    if len(set(found)) != len(found):
        reader.problems.add(
            Code.EXPECT_CLASH,
            f"{where} names a GPU twice",
            where,
            "name each GPU of this host once",
        )
    elif found and count is not None and count != len(found):
        reader.problems.add(
            Code.EXPECT_CLASH,
            f"{where} names {quantity(len(found), 'GPU')}, gpu_expect.count is {count}",
            where,
            "name all of this host's GPUs, or set gpu_expect.count to their number",
        )
    return found or None
