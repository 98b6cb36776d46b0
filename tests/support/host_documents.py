"""Documents for these specifications: declarations, and snapshots of hosts that fit them or do not."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from gpufleet.components.resolver import resolve
from gpufleet.components.stacks import environment_plan as environment

Row = dict[str, Any]

DEBIAN_12 = {
    "id": "debian",
    "version_id": "12",
    "codename": "bookworm",
    "arch": "x86_64",
    "glibc": "2.36",
    "hostname": "lab1",
    "pythons": [{"path": "/usr/bin/python3.11", "version": "3.11.2"}],
}
SYSTEMS: Row = yaml.safe_load((Path(__file__).parent / "os_facts.yml").read_text(encoding="utf-8"))
KERNEL = "6.1.0-50-amd64"
ROOMY = {
    "free_mib": {"/": 500_000, "/tmp": 500_000, "/usr/local": 500_000, "/opt": 500_000},
    "filesystem": {"/": "1", "/tmp": "1", "/usr/local": "1", "/opt": "1"},
    "noexec": [],
    "readonly": [],
}


def declaration(*stacks: Any, **others: Any) -> Row:
    """Wishes for stacks given as releases or as entries, with the licence accepted."""
    entries = [{"tensorflow": each} if isinstance(each, str) else each for each in stacks]
    given = {"gpu_stacks": entries} if entries else {}
    return {**given, "gpu_accept_nvidia_eula": True, **others}


def snapshot(**sections: Any) -> Row:
    """A bare Debian 12 host; a section given replaces that one's data, a str its state."""
    data: Row = {
        "os": deepcopy(DEBIAN_12),
        "disks": deepcopy(ROOMY),
        "kernel": {"running": KERNEL, "container": None, "next_boot": KERNEL, "installed": []},
        "gpus": {"pci": [], "nodes": [], "nvswitches": [], "mig": None},
        "driver": {"loaded": None, "library": None, "modules": []},
        "packages": {
            "manager": "dpkg",
            "driver": [],
            "broken": [],
            "pins": [],
            "sources": [],
            "unattended": {"installed": False, "excluded": False},
        },
        "receipts": {"receipts": [], "journal": [], "unreadable": []},
        "toolkits": {
            "trees": [],
            "default": default_link("missing"),
            "occupied": [],
        },
        "cudnn": {"trees": []},
        "linker": {"files": [], "cache": [], "unregistered": []},
        "stacks": {"stacks": []},
    }
    for name, given in sections.items():
        data[name] = {**data.get(name, {}), **given} if isinstance(given, dict) else given
    return {
        "schema": 1,
        "host": "lab1",
        "sections": {
            name: {"state": part, "seconds": None, "data": None, "error": "planted"}
            if isinstance(part, str)
            else {"state": "ok", "seconds": 0.1, "data": part, "error": None}
            for name, part in data.items()
        },
    }


def gpu_host(system: str, *devices: str, **sections: Any) -> Row:
    """A host of one of the systems in os_facts.yml, with GPUs of these PCI device ids."""
    pythons = deepcopy(DEBIAN_12["pythons"])
    cards = [
        {"address": f"0000:{at:02x}:00.0", "vendor": "0x10de", "device": f"0x{each}"}
        for at, each in enumerate(devices, 1)
    ]
    own = {"os": {**SYSTEMS[system], "pythons": pythons}}
    gpus = {"pci": cards, "nodes": [], "nvswitches": [], **sections.pop("gpus", {})}
    return snapshot(**own, gpus=gpus, **sections)


def with_pythons(*versions: str) -> Row:
    """A host with these interpreters."""
    found = [{"path": f"/usr/bin/python{each}", "version": f"{each}.1"} for each in versions]
    return snapshot(os={**DEBIAN_12, "pythons": found})


def converged(plan: Row) -> Row:
    """The snapshot of a host on which everything in the plan was done."""
    receipts = []
    trees, cudnn, cache, stacks = [], [], [], []
    for row in plan["toolkits"]:
        patches = [{key: patch[key] for key in ("file", "checksum")} for patch in row["patches"]]
        made = _receipt("toolkit", row["short"], row["version"], row["artifact"])
        receipts.append({**made, "patches": patches})
        trees.append(toolkit_tree(row["path"], short=row["short"], receipt=True))
        if row["registered"]:
            cache.append(_cached(row["path"], "libcudart.so"))
    for row in plan["cudnn"]:
        identity = f"{row['toolkit']}-{row['major']}"
        receipts.append(_receipt("cudnn", identity, row["version"], row["artifact"]))
        cudnn.append(cudnn_tree(row["toolkit_path"], libraries=[cudnn_library(row["soname"])]))
        if f"{row['toolkit_path']}/lib64" in plan["linker"]["directories"]:
            cache.append(_cached(row["toolkit_path"], row["soname"]))
    for row in plan["stacks"]:
        packages = {row["distribution"]: row["version"], "numpy": "1.24.3"}
        root = row["toolkit_path"] or row["venv"]
        bound = [f"{root}/lib64/{name}" for name in row["sonames"][:1]]
        receipts.append(
            {
                **_receipt("stack", row["name"], row["version"], {"sha256": None}),
                "packages": packages,
                "python": f"{row['python']}.2",
                "binding": bound,
                "activation": row["activation"],
            }
        )
        stacks.append({"name": row["name"], "venv": row["venv"], "packages": dict(packages)})
    if plan["environment"]:
        receipts.append(
            {**_receipt("environment", "files", "1", {"sha256": None}), "texts": _texts(plan)}
        )
    link = plan["default_link"]
    state = "link" if link else "missing"
    target = link["target"] if link else None
    linked = [{"path": plan["linker"]["file"], "directories": plan["linker"]["directories"]}]
    library = "535.261.03" if plan["driver_library"] else None
    driver: Row = {"driver": {"library": library}}
    if (plan["driver"] or {}).get("managed"):
        driver = _driven(plan["driver"])
        receipts.append(driver.pop("receipt"))
    return snapshot(
        **driver,
        receipts={"receipts": receipts},
        toolkits={
            "trees": trees,
            "default": default_link(state, target),
        },
        cudnn={"trees": cudnn},
        linker={"files": linked, "cache": cache},
        stacks={"stacks": stacks},
    )


def default_link(state: str, target: str | None = None, **others: Any) -> Row:
    """The link to the default toolkit as the probe sends it."""
    realpath = f"/usr/local/{target}" if state == "link" else None
    found = {"path": "/usr/local/cuda", "state": state, "target": target, "realpath": realpath}
    return {**found, **others}


def toolkit_tree(path: str, **parts: Any) -> Row:
    """A toolkit's tree as the probe sends it; without parts one of which nothing could be read."""
    unknown = ("short", "version", "version_source", "nvcc", "nvcc_error")
    lists: dict[str, list[Any]] = {key: [] for key in ("cudart", "headers", "closed")}
    return {
        "path": path,
        "realpath": path,
        "receipt": False,
        **dict.fromkeys(unknown),
        **lists,
        **parts,
    }


def cudnn_tree(toolkit: str, **parts: Any) -> Row:
    """The cuDNN of a toolkit as the probe sends it; without parts an empty tree."""
    return {
        "toolkit": toolkit,
        **{key: [] for key in ("headers", "libraries", "links", "loaded", "closed")},
        **parts,
    }


def cudnn_library(path: str) -> Row:
    """A library whose SONAME has the major version alone."""
    name, _, version = path.rpartition("/")[2].partition(".so.")
    soname = f"{name}.so.{version.partition('.')[0]}"
    return {"path": path, "soname": soname, "size_bytes": 10, "mode": "0644", "error": None}


def mangled(document: Row) -> Iterator[Row]:
    """The document again and again, each time with something odd in one of its places."""

    def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in inside:
            yield (*path, key)
            if isinstance(part, dict | list):
                yield from places(part, (*path, key))

    for *path, last in list(places(document)):
        values: tuple[Any, ...] = (None, 3, "x", [], {}, [None], True)
        for odd in values:
            copy = deepcopy(document)
            inner: Any = copy
            for key in path:
                inner = inner[key]
            inner[last] = odd
            yield copy


def section(document: Row, name: str) -> Row:
    """A section's data, to plant something in it."""
    data: Row = document["sections"][name]["data"]
    return data


def receipt(document: Row, kind: str, identity: str) -> Row:
    """A receipt in a snapshot, to plant something in it."""
    rows: list[Row] = section(document, "receipts")["receipts"]
    return next(row for row in rows if (row["kind"], row["id"]) == (kind, identity))


def codes(plan: Row) -> list[str]:
    """The codes of a plan's problems, in order."""
    return [problem["code"] for problem in plan["problems"]]


def refusal(declared: Row, host: Row | None = None) -> Row:
    """The one problem that this declaration has."""
    problems: list[Row] = resolve(declared, host)["problems"]
    assert len(problems) == 1, f"{declared} has the problems {problems}"
    return problems[0]


def _driven(driver: Row) -> Row:
    """The sections of a host whose driver is as planned, and its receipt; it has no card."""
    version = driver["version"] or f"{driver['branch']}.261.03"
    package = f"{version}-1"
    names = ("libcuda1", "nvidia-kernel-dkms")
    licence = {"open": "Dual MIT/GPL", "proprietary": "NVIDIA"}[driver["module"]]
    module = {"name": "nvidia", "path": "nvidia.ko", "version": version, "license": licence}
    kernel = {"version": KERNEL, "image": True, "headers": True, "modules": [module]}
    held = {"version": package, "status": "installed", "held": True}
    pin = {
        "path": "/etc/apt/preferences.d/gpufleet-driver",
        "packages": list(names),
        "pin": f"version {package}",
        "priority": 1001,
    }
    return {
        "kernel": {"installed": [kernel]},
        "driver": {
            "library": version,
            "on_disk": version,
            "nouveau": {"loaded": False, "blacklisted": True},
        },
        "packages": {"driver": [{"name": name, **held} for name in names], "pins": [pin]},
        "receipt": {
            **_receipt("driver", "driver", version, {"sha256": None}),
            **{key: driver[key] for key in ("source", "branch", "module")},
            "packages": dict.fromkeys(names, package),
        },
    }


def _receipt(kind: str, identity: str, version: str, artifact: Row) -> Row:
    source = {"file": artifact.get("file"), "sha256": artifact["sha256"]}
    return {
        "kind": kind,
        "id": identity,
        "version": version,
        "source": source,
        "files": 3,
        "changed": [],
    }


def _texts(plan: Row) -> Row:
    digests = environment.digests(plan["environment"])
    return {
        row["path"]: {"sha256": digests[row["path"]], "for": row["for"]}
        for row in plan["environment"]
    }


def _cached(root: str, soname: str) -> Row:
    path = f"{root}/lib64/{soname}"
    return {"soname": soname, "path": path, "exists": True, "realpath": path}
