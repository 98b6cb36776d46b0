"""The values measured on a host, by name: numbers for charts, texts to detect changes. Pure.

A number's name ends in its unit. A value that could not be read has no entry. The lists (`gpus`,
`toolkits`, `stacks`) show what is missing; they exist only where their section was read.

    gpu.GPU-<uuid>.toolkit.11.8.tflops, .first_op_s, .wrong    through cuBLAS alone
    gpu.GPU-<uuid>.stack.tensorflow-2.13.1.tflops, ...         through the framework
    cpu.stack.tensorflow-2.13.1.tflops, ...                    on a host declared to have no GPU
    gpu.GPU-<uuid>.temperature_c, .power_w, .ecc_uncorrected, .bandwidth_gib_s
    gpu.GPU-<uuid>.to_device_gib_s, .from_device_gib_s         copies with the host's memory
    gpu.GPU-<uuid>.peer_gib_s                                  the median of its copies with others
    gpu.GPU-<uuid>.load.temperature_c, .clock_mhz, .power_w    after some time under full load
    gpu.GPU-<uuid>.pcie_replays.errors, ...                    counters of catalog/yardstick.yml
    stack.tensorflow-2.13.1.import_s                           time of the framework's import
    toolkit.11.8.cuinit_s                                      time until the driver is ready
    port.<guid>.symbol_error.reading, ...                      error counters of a port
    nvlink.GPU-<uuid>.replay.reading, ...                      error counters of a GPU's NVLinks
    port.<guid>.load.reading    a number for the boot and the driver load that they belong to
    gpus (address, UUID and model of each card), skus (UUID, multiprocessors and memory of each),
    gpus.declared (how many cards a program is declared to see),
    nvlinks (address and number of active links of each card that has any), ports (as in
    `port_states`), driver.version, kernel.running, os.version, toolkits, toolkit.11.8.version,
    cudnn.11.8.libcudnn.so.8.version, stacks, stack.tensorflow-2.13.1.version, .python,
    containers.engine, containers.toolkit
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from gpufleet.catalog import smi, yardstick
from gpufleet.components.base import counters
from gpufleet.components.base import ports as roles
from gpufleet.components.base.registry import visible_gpus
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.compute import ComputeRun, CublasResult, Sample
from gpufleet.documents.sections.gpu import SmiDevice
from gpufleet.documents.sections.stacks import Framework, Product
from gpufleet.documents.snapshot import SectionData, Snapshot
from gpufleet.documents.text import cut, is_number
from gpufleet.documents.validator import section_data
from gpufleet.errors import Defect, bounded
from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge import judge

from .port_errors import END, LOAD
from .port_states import PORTS, text_of

Pair = tuple[str, str | float | None]

# How the name of a counter of corrected errors ends.
ERRORS = ".errors"
# The value in the place of an unknown number of 32 bits.
SENTINEL_32 = (1 << 32) - 1
COUNT = re.compile(r"[0-9]{1,18}")
# The least seconds of a median of sensors under load.
LEAST_SAMPLES = 10

# How the names of devices begin, as runs of any framework have them; a number follows.
GPU, CPU = "/GPU:", "/CPU:"


# The number of cards that a host is declared to have.
DECLARED = "gpus.declared"
# The most values of one host and night in the history, and characters of a name and of a text.
MOST_MEASURES, MOST_NAME, MOST_TEXT = 5000, 300, 16_000


def measures(snapshot: Snapshot | None, plan: Plan) -> dict[str, float | str]:
    """Return the measured values of a host; none of sections that are damaged or hung."""
    if not snapshot:
        return {}
    data = section_data(snapshot)
    names = dict(_cards(data))
    found = [
        *_versions(data, plan),
        (DECLARED, visible_gpus(plan) if plan.get("expect") else None),
        *_gpus(data, names),
        *_products(data, plan, names),
        *_ports(data, plan),
        *_links(data),
    ]
    known = {
        name: cut(value, MOST_TEXT) if isinstance(value, str) else float(value)
        for name, value in found
        if _is_known(value) and len(name) <= MOST_NAME
    }
    return dict(list(known.items())[:MOST_MEASURES])


@dataclass(frozen=True)
class Measured:
    """A session and what was measured on each of its hosts, {host: `measures()`}."""

    session: Session
    values: Mapping[str, Mapping[str, float | str]]


def measured(session: Session) -> Measured:
    """Measure each host; a defect of gpufleet costs that host its verdict in the new session."""
    found = [(host.name, *_measured(host)) for host in session.hosts]
    return Measured(
        replace(session, hosts=[host for _, host, _ in found]),
        {name: values for name, _, values in found},
    )


def _measured(host: HostRun) -> tuple[HostRun, dict[str, float | str]]:
    def failed(defect: Defect) -> tuple[HostRun, dict[str, float | str]]:
        return host.with_result(judge.defective(defect, host.name, host.result)), {}

    return bounded("measured this host", lambda: (host, measures(host.snapshot, host.plan)), failed)


def _is_known(value: str | float | None) -> TypeGuard[str | float]:
    return bool(value) if isinstance(value, str) else value is not None and math.isfinite(value)


def _cards(data: SectionData) -> Iterator[tuple[float | str, str]]:
    """Map each card's number and its address to its measure's prefix, which has the UUID."""
    runs = data["compute"]["runs"] if "compute" in data else []
    cards = [
        (card["index"], card["uuid"], card["address"]) for run in runs for card in run["devices"]
    ]
    cards += [(card["index"], card["uuid"], card["address"]) for card in _devices(data)]
    for index, uuid, address in cards:
        name = f"gpu.{uuid or index}"
        yield from ((index, name), (address or "", name))


def _devices(data: SectionData) -> list[SmiDevice]:
    """The cards that nvidia-smi lists; none if it failed."""
    smi = data.get("smi")
    return smi["devices"] if smi and smi["status"] == 0 else []


def _versions(data: SectionData, plan: Plan) -> Iterator[Pair]:
    if system := data.get("os"):
        yield "os.version", f"{system['id']} {system['version_id']}"
    if kernel := data.get("kernel"):
        yield "kernel.running", kernel["running"]
    if driver := data.get("driver"):
        yield "driver.version", driver["loaded"] or driver["library"]
    if "toolkits" in data:
        trees = {tree["short"]: tree for tree in data["toolkits"]["trees"] if tree["short"]}
        yield "toolkits", ", ".join(sorted(trees, key=_order)) or "none"
        for short, tree in trees.items():
            yield f"toolkit.{short}.version", tree["version"]
    for found in data["cudnn"]["trees"] if "cudnn" in data else ():
        for library in found["loaded"]:
            short = _short(found["toolkit"], plan)
            yield f"cudnn.{short}.{library['soname']}.version", library["version"]
    if "stacks" in data:
        stacks = {stack["name"]: stack for stack in data["stacks"]["stacks"]}
        yield "stacks", ", ".join(sorted(stacks)) or "none"
        for name, stack in stacks.items():
            framework = stack["framework"]
            yield f"stack.{name}.version", framework and framework["version"]
            yield f"stack.{name}.python", stack["python"]
    if containers := data.get("containers"):
        engine, toolkit = containers["engine"], containers["toolkit"]
        yield "containers.engine", engine and engine["version"]
        yield "containers.toolkit", toolkit and toolkit["version"]


def _gpus(data: SectionData, names: Mapping[float | str, str]) -> Iterator[Pair]:
    if "smi" in data and data["smi"]["status"] == 0:
        yield (
            "gpus",
            "; ".join(
                sorted(
                    f"{card['address']} {card['uuid'] or '-'} {card['name'] or '-'}"
                    for card in _devices(data)
                )
            )
            or "none",
        )
    skus = {
        card["uuid"]: f"{card['sm_count']} SMs, {card['memory_mib']} MiB"
        for run in (data["compute"]["runs"] if "compute" in data else ())
        for card in run["devices"]
        if card["uuid"] and card["sm_count"] and card["memory_mib"]
    }
    yield "skus", "; ".join(f"{uuid} {sku}" for uuid, sku in sorted(skus.items()))
    yield "nvlinks", "; ".join(sorted(_active_links(data)))
    for card in _devices(data):
        name = names[card["index"]]
        yield f"{name}.temperature_c", card["temperature_c"]
        yield f"{name}.power_w", card["power_w"]
        yield f"{name}.ecc_uncorrected", card["ecc_uncorrected_aggregate"]
        elements = card.get("elements") or {}
        for counter in yardstick.counters():
            yield f"{name}.{counter.name}{ERRORS}", _count(elements, counter.shapes)


def _count(elements: Mapping[str, str], shapes: Sequence[Sequence[str]]) -> int | None:
    """The sum of the first of these shapes that a card prints; None if a part was not read."""
    texts = next(
        (
            found
            for shape in shapes
            if (found := [elements[path] for path in shape if path in elements])
        ),
        [],
    )
    # A card without one of several counters says so.
    counted = [text for text in texts if not smi.no_value(text)]
    if not counted or not all(COUNT.fullmatch(text) for text in counted):
        return None
    counts = [int(text) for text in counted]
    return sum(counts) if SENTINEL_32 not in counts else None


def _loaded(samples: Sequence[Sample]) -> Iterator[Pair]:
    """The median of each of a card's sensors in the second half of its load."""
    settled = [each for each in samples[len(samples) // 2 :] if each["tflops"]]
    readings: dict[str, list[float | None]] = {
        "temperature_c": [each["temperature_c"] for each in settled],
        "clock_mhz": [each["clock_sm_mhz"] for each in settled],
        "power_w": [each["power_w"] for each in settled],
    }
    for name, values in readings.items():
        known = [value for value in values if value is not None]
        if len(known) >= LEAST_SAMPLES:
            yield name, statistics.median(known)


def _copies(run: ComputeRun) -> Iterator[tuple[int, str, float | None]]:
    """The GPU, measure and GiB/s of copies on a card, with the host, and with other cards."""
    for copy in run["bandwidth"] or ():
        yield copy["gpu"], "bandwidth_gib_s", copy["gib_s"]
    for device in run["devices"]:
        copies = device.get("copies")
        if copies:
            yield device["index"], "to_device_gib_s", copies["to_device_gib_s"]
            yield device["index"], "from_device_gib_s", copies["from_device_gib_s"]
    # One slow card is slow in all of its copies, another one only in those with it.
    peers: dict[int, list[float]] = defaultdict(list)
    for between in run["peer"] or ():
        if between["gib_s"] is not None and not between["error"]:
            for number in (between["from"], between["to"]):
                peers[number].append(between["gib_s"])
    for number, rates in peers.items():
        yield number, "peer_gib_s", statistics.median(rates)


def _ports(data: SectionData, plan: Plan) -> Iterator[Pair]:
    """The state of each port, and the error counters of those that are judged."""
    if "network" not in data or "kernel" not in data:
        return
    found = roles.of_plan(data["network"], plan)
    if data["network"]["devices"] is not None:
        yield PORTS, text_of(found)
    judged = [port for group in roles.groups(found) for port in group if port.port]
    yield from _readings("port", counters.readings(judged, data["kernel"]["boot_id"]))


def _links(data: SectionData) -> Iterator[Pair]:
    """The error counters of the GPUs' NVLinks."""
    smi = data.get("smi")
    if smi and "kernel" in data:
        yield from _readings("nvlink", counters.link_readings(smi, data["kernel"]["boot_id"]))


def _readings(kind: str, found: Iterable[tuple[str, counters.Reading]]) -> Iterator[Pair]:
    for owner, reading in found:
        yield f"{kind}.{owner}.{LOAD}{END}", reading.load
        for name, value in reading.counters.items():
            yield f"{kind}.{owner}.{name}{END}", value


def _active_links(data: SectionData) -> Iterator[str]:
    """Each GPU's number of active NVLinks, where the state of all is known and MIG is off."""
    smi = data.get("smi")
    for card in (smi and smi.get("nvlink")) or ():
        active = [link["active"] for link in card["links"] or ()]
        if card["mig"] is False and active and None not in active:
            yield f"{card['address'] or card['index']} {active.count(True)}"


def _products(data: SectionData, plan: Plan, names: Mapping[float | str, str]) -> Iterator[Pair]:
    for run in data["compute"]["runs"] if "compute" in data else ():
        where, driver = f"toolkit.{_short(run['toolkit'], plan)}", run["driver"]
        if driver and driver["cuinit"] == 0:
            yield f"{where}.cuinit_s", driver.get("cuinit_s")
        for entry in run["cublas"]:
            yield from _product(f"{_gpu(names, entry['gpu'])}.{where}", entry)
        for card, measure, rate in _copies(run):
            yield f"{_gpu(names, card)}.{measure}", rate
        for load in run["sustained"] or ():
            if not load["error"] and not load["busy"] and load["wrong"] == 0:
                for measure, value in _loaded(load["samples"]):
                    yield f"{_gpu(names, load['gpu'])}.load.{measure}", value
    for stack in data["stacks"]["stacks"] if "stacks" in data else ():
        where, framework = f"stack.{stack['name']}", stack["framework"]
        if not framework:
            continue
        if framework["state"] == "ok":
            seconds = framework.get("seconds")
            took = seconds.get("import") if isinstance(seconds, dict) else None
            yield f"{where}.import_s", took if isinstance(took, int | float) else None
        addresses = dict(_addresses(framework))
        for product in framework["matmul"]:
            if "precision" in product:
                continue  # the measure is that of float32
            kind, number = product["requested"][:5], product["requested"][5:]
            if kind == GPU and is_number(number):
                name = names.get(addresses.get(int(number), ""), _gpu(names, int(number)))
                yield from _product(f"{name}.{where}", product)
            elif kind == CPU and (plan.get("expect") or {}).get("count") == 0:
                yield from _product(f"cpu.{where}", product)


def _product(name: str, entry: Product | CublasResult) -> Iterator[Pair]:
    """The values of a matrix product; a wrong or failed one has no throughput."""
    yield f"{name}.wrong", entry["wrong"]
    if not entry["error"] and not entry.get("busy") and entry["wrong"] == 0:
        yield f"{name}.tflops", entry["tflops"] or None
        yield f"{name}.first_op_s", entry["first_s"]


def _addresses(framework: Framework) -> Iterator[tuple[int, str]]:
    """The numbers and PCI addresses of TensorFlow's GPUs: it may number the fastest first.

    PyTorch and JAX do not tell addresses.
    """
    small = framework["small"]
    for device in (small and small["local_devices"]) or ():
        found = re.search(r"GPU:(\d{1,9})$", device["name"])
        address = re.search(r"pci bus id: ([^,\s]+)", device["description"] or "")
        if found and address:
            yield int(found[1]), address[1]


def _gpu(names: Mapping[float | str, str], number: int) -> str:
    return names.get(number, f"gpu.{number}")


def _short(path: str, plan: Plan) -> str:
    """X.Y of the toolkit at this path."""
    planned = {toolkit["path"]: str(toolkit["short"]) for toolkit in plan.get("toolkits") or []}
    return planned.get(path) or path.rpartition("cuda-")[2]


def _order(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if is_number(part)]
