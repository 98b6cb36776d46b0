"""The figures of a certificate: what was measured, each with its bound. Pure.

The bounds are those of the checks that judge the same values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from gpufleet.components.base.sections import Sections
from gpufleet.components.compute.peer_rates import least_peer
from gpufleet.components.compute.speed import kept_tflops
from gpufleet.components.gpu.links import pcie_links
from gpufleet.components.gpu.rates import measured
from gpufleet.documents.collectives import FabricTest
from gpufleet.documents.commission import Figure
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.compute import ComputeDevice, ComputeRun, LinkLoad
from gpufleet.documents.snapshot import Snapshot

# A bound and where it comes from; None: none is declared or known.
Bound = tuple[float | None, str]
TFLOPS, GIB_S = "TFLOP/s", "GiB/s"
EXACT: Bound = (0, "each product is compared with the exact one")
# No check judges what a link carries beside all others: nobody has published what is least there.
LOADED: Bound = (
    None,
    "no bound is known while all links are loaded at once; the stage deep measures each one alone",
)
UNCHANGED: Bound = (0, "the last block of each round is compared with what was sent")


def figures_of(plan: Plan, snapshot: Snapshot | None) -> list[Figure]:
    """The measurements of the newest toolkit, or of a stack's own CUDA, in a snapshot."""
    if snapshot is None:
        return []
    observed = Sections(snapshot, ())
    compute = observed.read_elsewhere().get("compute")
    runs = compute["runs"] if compute else []
    if not runs:
        return []
    return [
        *_products(plan, observed, runs),
        *_of_run(plan, observed, runs[-1]),
        *_host_copies(snapshot, runs[-1]),
        *_peer_copies(observed, runs[-1]),
        *_loaded_links(runs[-1]),
    ]


def _products(plan: Plan, observed: Sections, runs: Sequence[ComputeRun]) -> Iterator[Figure]:
    """The fastest of several toolkits counts, as it does for gpu.throughput."""
    best: dict[int, tuple[float, ComputeDevice | None]] = {}
    for run in runs:
        devices = {device["index"]: device for device in run["devices"]}
        for product in run["cublas"]:
            gpu, rate = product["gpu"], product["tflops"] or 0
            if gpu not in best or rate > best[gpu][0]:
                best[gpu] = rate, devices.get(gpu)
    for gpu, (rate, device) in sorted(best.items()):
        bound = measured(observed, gpu, device, rate).least_tflops(plan)
        yield at_least(gpu, "float32 products", rate, TFLOPS, bound)


def _of_run(plan: Plan, observed: Sections, run: ComputeRun) -> Iterator[Figure]:
    devices = {device["index"]: device for device in run["devices"]}
    for entry in run["sustained"] or ():
        each = measured(observed, entry["gpu"], devices.get(entry["gpu"]), kept_tflops(entry))
        what = f"float32 products after {entry['seconds'] or 0:.0f} s of load"
        yield at_least(each.gpu, what, each.rate, TFLOPS, each.least_tflops(plan))
        hottest = [
            sample["temperature_c"]
            for sample in entry["samples"]
            if sample["temperature_c"] is not None
        ]
        if hottest:
            card = each.card
            yield at_most(
                each.gpu,
                "temperature under load",
                max(hottest),
                "degrees",
                (card["temperature_slowdown_c"] if card else None, "where it lowers its clocks"),
            )
        if entry["wrong"] is not None:
            what = f"wrong of {entry.get('checked', 0)} products under load"
            yield at_most(each.gpu, what, entry["wrong"], "", EXACT)
    for copy in run["bandwidth"] or ():
        each = measured(observed, copy["gpu"], devices.get(copy["gpu"]), copy["gib_s"] or 0)
        floors = each.floors()
        yield at_least(
            each.gpu,
            "copies of its memory",
            each.rate,
            GIB_S,
            (floors.gib_s, floors.gib_s_because) if floors else (None, ""),
        )
    yield from _formats(run)


def _host_copies(snapshot: Snapshot, run: ComputeRun) -> Iterator[Figure]:
    """For each GPU its copies with the host, with the bound that its link sets."""
    observed = Sections(snapshot, ("smi", "gpus"))
    links = pcie_links(observed) if {"smi", "gpus"} <= {*observed.read_elsewhere()} else ()
    bounds = {link.card["address"] or "": link.least_copies() for link in links}
    for device in run["devices"]:
        copies = device.get("copies")
        bound = bounds.get(device["address"] or "", (None, ""))
        for what, rate in (
            ("copies from the host", copies and copies["to_device_gib_s"]),
            ("copies to the host", copies and copies["from_device_gib_s"]),
        ):
            if rate is not None:
                yield at_least(device["index"], what, rate, GIB_S, bound)


def _peer_copies(observed: Sections, run: ComputeRun) -> Iterator[Figure]:
    """For each GPU its slowest copies to another one, by what their connection allows."""
    devices = {device["index"]: device for device in run["devices"]}
    found: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
    for entry in run["peer"] or ():
        if entry["gib_s"] is not None:
            least, because = least_peer(observed, devices, entry)
            why = f"{because}, to GPU {entry['to']}"
            found[entry["from"]].append((entry["gib_s"], least, why))
    for gpu, rates in sorted(found.items()):
        rate, least, why = min(rates, key=lambda each: each[0] / max(each[1], 1e-9))
        yield at_least(gpu, "copies to other GPUs, the slowest", rate, GIB_S, (least, why))


def _loaded_links(run: ComputeRun) -> Iterator[Figure]:
    """For each GPU what its links carry beside all other load, and what changed on the way."""
    entries = [entry for entry in run.get("fabric") or () if entry["checked"]]
    for gpu in sorted({entry["from"] for entry in entries if entry["from"] is not None}):
        own = [entry for entry in entries if gpu in {entry["from"], entry["to"]}]
        ways: tuple[tuple[str, list[LinkLoad]], ...] = (
            ("copies from the host under load", [e for e in own if e["from"] is None]),
            ("copies to the host under load", [e for e in own if e["to"] is None]),
            (
                "copies to other GPUs under load, the slowest",
                [e for e in own if e["from"] == gpu and e["to"] is not None],
            ),
        )
        for what, links in ways:
            rates = [link["gib_s"] for link in links if link["gib_s"] is not None]
            if rates:
                yield at_least(gpu, what, min(rates), GIB_S, LOADED)
        checked, wrong = (sum(entry[key] for entry in own) for key in ("checked", "wrong"))
        yield at_most(gpu, f"wrong of {checked} blocks copied under load", wrong, "", UNCHANGED)


def _formats(run: ComputeRun) -> Iterator[Figure]:
    """For each GPU the wrong numbers in all formats together."""
    computed = [
        entry
        for entry in run.get("formats", [])
        if not entry["not_applicable"] and entry["wrong"] is not None
    ]
    for gpu in dict.fromkeys(entry["gpu"] for entry in computed):
        own = [entry for entry in computed if entry["gpu"] == gpu]
        names = ", ".join(entry["format"] for entry in own)
        count = sum(entry["checked"] for entry in own)
        wrong = sum(entry["wrong"] or 0 for entry in own)
        yield at_most(gpu, f"wrong numbers in {count} products in {names}", wrong, "", EXACT)


def of_fabric(found: FabricTest) -> list[Figure]:
    """The bus bandwidth of the last test of each group."""
    last = {tuple(test["hosts"]): test for test in found["tests"] if test["gb_per_s"] is not None}
    return [
        _figure(
            f"{len(hosts)} hosts" if len(hosts) > 1 else hosts[0],
            f"bus bandwidth of {found['compared']['operation']},"
            f" {found['compared']['bytes'] >> 20} MiB, with {', '.join(hosts)}",
            test["gb_per_s"] or 0,
            "GB/s",
            (test["least_gb_per_s"], f"slow means {found['slow']}"),
        )
        for hosts, test in last.items()
    ]


def at_least(gpu: int, what: str, value: float, unit: str, bound: Bound) -> Figure:
    """A value of a GPU that may not be below its bound."""
    return _figure(f"GPU {gpu}", what, value, unit, bound)


def at_most(gpu: int, what: str, value: float, unit: str, bound: Bound) -> Figure:
    """A value of a GPU that may not be above its bound."""
    return {**_figure(f"GPU {gpu}", what, value, unit, bound), "side": "at most"}


def _figure(part: str, what: str, value: float, unit: str, bound: Bound) -> Figure:
    return {
        "part": part,
        "what": what,
        "value": value,
        "unit": unit,
        "bound": bound[0],
        "side": "at least",
        "because": bound[1] or "no bound is known",
    }
