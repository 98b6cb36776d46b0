"""GPUs in containers: what a host lacks of the planned engine and container toolkit, as sentences.

Both `change` and the checks use it. What needs a GPU is not required of a host declared without
one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Literal

from gpufleet.catalog import versions
from gpufleet.components.base.host import Host, mapping, mappings
from gpufleet.documents.text import quantity
from gpufleet.documents.types import Row

RECEIPT: tuple[Literal["containers"], str] = ("containers", "engine")
RUNTIME, RUNTIME_PROGRAM = "nvidia", "nvidia-container-runtime"
# The first Docker Engine that reads CDI specifications, if its feature is on.
CDI_SINCE = "25.0"
# Names by number of a GPU or MIG instance in nvidia-ctk: 0 and 0:1, or gpu0 and mig0:1.
INDEX = re.compile(r"(?:gpu|mig)?(\d+)(:\d+)?")
# The capability of a MIG instance that programs compute in, and the node by which they have it.
COMPUTE_INSTANCE = re.compile(r"gpu\d+/mig/gi\d+/ci\d+/access")
CAPABILITY_NODE = "/dev/nvidia-caps/nvidia-cap"
# Nodes that a container may lose and still compute: profilers and displays use these.
UNNEEDED_NODES = ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
# The cause of a missing /dev/char link: systemd from 240 on, with a runc of its time, needs none.
WITHOUT_LINK = (
    "with systemd before 240, or an older runc, a container that was given this device loses it at"
    " a systemctl daemon-reload"
)


def lacking(wanted: Mapping[str, Any], host: Host) -> Iterator[str]:
    """Yield what differs from the plan in engine and toolkit, with or without a GPU."""
    observed = host.containers
    engine, toolkit = mapping(observed.get("engine")), mapping(observed.get("toolkit"))
    name = wanted["engine"]
    if not engine:
        yield f"{name} is not installed"
    elif engine.get("error"):
        yield f"{name} does not answer: {engine['error']}"
    if not toolkit:
        yield "NVIDIA's container toolkit is not installed"
    else:
        version = str(toolkit.get("version"))
        if toolkit_differs(wanted, toolkit):
            yield f"the container toolkit is {version}, planned is {wanted['toolkit']}"
        if not toolkit.get("held"):
            yield f"the container toolkit {version} is not held: an upgrade would change it"
    if name == "docker" and engine and not engine.get("error"):
        yield from _daemon(wanted, observed, engine)
    if not observed.get("wrapper"):
        yield "there is no nvidia-docker command"
    receipt = host.receipt(*RECEIPT) or {}
    if receipt and receipt.get("engine") != name:
        yield f"{receipt.get('engine')} was set up, planned is {name}"
    for changed in mappings(receipt.get("changed"))[:1]:
        yield f"changed since it was installed: {changed.get('path')} ({changed.get('what')})"


def toolkit_differs(wanted: Mapping[str, Any], toolkit: Mapping[str, Any] | None) -> bool:
    """Return whether the container toolkit is missing, or another release than planned."""
    if not toolkit:
        return True
    release = str(toolkit.get("version")).partition("-")[0]
    return bool(wanted["toolkit"]) and release != wanted["toolkit"]


def _daemon(wanted: Mapping[str, Any], observed: Row, engine: Row) -> Iterator[str]:
    """The settings that Docker's configuration file and the running daemon lack."""
    written = mapping(observed.get("daemon"))
    path = written.get("path")
    registered = mapping(written.get("runtimes"))
    if RUNTIME not in registered:
        yield f"{path} does not register the runtime {RUNTIME}"
    elif PurePosixPath(str(registered[RUNTIME])).name != RUNTIME_PROGRAM:
        yield f"{path} has {registered[RUNTIME]} as the runtime {RUNTIME}, not {RUNTIME_PROGRAM}"
    elif RUNTIME not in _texts(engine.get("runtimes")):
        yield f"the running Docker does not know the runtime {RUNTIME}, which {path} registers"
    if written.get("live_restore") is not True:
        yield f"{path} does not set live-restore: a restart of Docker stops all containers"
    elif engine.get("live_restore") is not True:
        yield f"the running Docker has no live-restore, though {path} sets it"
    if wanted["data_root"] and written.get("data_root") != wanted["data_root"]:
        yield f"{path} has the data-root {written.get('data_root')}, not {wanted['data_root']}"
    if knows_cdi(engine.get("version")) and written.get("cdi") is not True:
        yield f"{path} does not turn on features.cdi"


def knows_cdi(version: Any) -> bool:
    """Return whether a Docker Engine of this version reads CDI specifications."""
    number = str(version or "").partition("+")[0]
    return versions.is_dotted(number) and versions.key(number) >= versions.key(CDI_SINCE)


def _texts(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def stale(wanted: Mapping[str, Any], host: Host) -> Iterator[str]:
    """Which CDI specifications and device links fit neither driver nor MIG instances."""
    loaded = host.driver
    if wanted["gpus"] == 0 or loaded is None:
        return
    specs = mappings(host.containers.get("cdi"))
    if not specs:
        yield f"there is no CDI specification, and the driver {loaded} is loaded"
    for spec in specs:
        if spec.get("error"):
            yield f"{spec.get('path')} cannot be read: {spec['error']}"
        elif spec.get("driver_version") != loaded:
            have = spec.get("driver_version") or "of unknown version"
            yield f"{spec.get('path')} is for driver {have}, and {loaded} is loaded"
        elif spec.get("devices") == []:
            yield f"{spec.get('path')} describes no GPU"
        else:
            yield from _other_instances(
                spec,
                mappings(mapping(host.section("gpus")).get("mig")),
                mapping(host.containers.get("mig_capabilities")),
            )
    missing = _texts(mapping(host.containers.get("dev_char")).get("missing"))
    if missing:
        yield f"{missing[0]} is missing: {WITHOUT_LINK}"


def _other_instances(spec: Row, mig: list[Row], capabilities: Row) -> Iterator[str]:
    """In what a specification's MIG instances differ from those that there are."""
    names = _texts(spec.get("devices"))
    # Names of another kind, such as UUIDs, do not say which GPU an instance belongs to.
    if not any(INDEX.fullmatch(name) for name in names):
        return
    named = Counter(at[1] for name in names if (at := INDEX.fullmatch(name)) and at[2])
    have = {str(row.get("gpu")): len(_texts(row.get("instances"))) for row in mig}
    off = [gpu for gpu, count in have.items() if named[gpu] != count]
    for gpu in off:
        yield (
            f"{spec.get('path')} names {quantity(named[gpu], 'MIG instance')} of GPU {gpu},"
            f" which has {have[gpu]}: it was written before they changed"
        )
    if not off and "mig_nodes" in spec:
        yield from _other_nodes(spec, capabilities)


def _other_nodes(spec: Row, capabilities: Row) -> Iterator[str]:
    """The first node of a MIG instance that differs.

    Instances of other sizes may have the names of those that were there.
    """
    numbers = set(spec["mig_nodes"])
    for name, number in sorted(capabilities.items()):
        # A GPU instance without a compute instance is no device.
        if COMPUTE_INSTANCE.fullmatch(name) and number not in numbers:
            yield (
                f"{spec.get('path')} does not name {CAPABILITY_NODE}{number} ({name}): it was"
                " written before the MIG instances changed"
            )
            return
    if gone := numbers - set(capabilities.values()) if capabilities else set():
        yield (
            f"{spec.get('path')} names {CAPABILITY_NODE}{min(gone)}, which belongs to no MIG"
            " instance: it was written before they changed"
        )


def running_with_gpus(host: Host) -> list[str]:
    """The running containers that have GPUs, by name; none where that was not read."""
    units = mappings(host.containers.get("running"))
    return [str(unit.get("name") or unit.get("unit")) for unit in units]


def lost_at_reload(unit: Mapping[str, Any], majors: Mapping[str, Any]) -> list[str]:
    """The nodes that a running container would lose if systemd reloaded its units."""
    allow = _texts(unit.get("allow"))
    # Without rules of its own a unit restricts nothing.
    if unit.get("policy") == "auto" and not allow:
        return []
    allowed = [
        name
        for name, _, access in (entry.partition(" ") for entry in allow)
        if {"r", "w"} <= set(access)
    ]
    groups = {str(number): name for name, number in majors.items()}
    return [
        str(node.get("node"))
        for node in mappings(unit.get("nodes"))
        if not _allowed(node, allowed, groups)
    ]


def _allowed(node: Row, allowed: list[str], groups: Mapping[str, str]) -> bool:
    """Return whether DeviceAllow has a node: by number, by path, or by its driver's name."""
    numbers = str(node.get("numbers"))
    names = [f"/dev/char/{numbers}", str(node.get("node"))]
    if group := groups.get(numbers.partition(":")[0]):
        names.append(f"char-{group}")
    return any(fnmatchcase(name, pattern) for name in names for pattern in allowed)
