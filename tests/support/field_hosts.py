"""Hosts of public reports (tests/field): what a report shows, planted on a healthy host.

A report shows few facts of its host. What follows from them is planted as well, by rules for kinds
of facts: another driver is that of all its files, and a card without a driver computes nothing.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from gpufleet.catalog import facts
from gpufleet.components.resolver import resolve
from gpufleet.on_host.smi_document import parse_smi
from lab.gpus.smi_text import DRIVER, HEALTHY, smi_text
from tests.support.framework_stacks import RELEASES, with_frameworks, with_frameworks_on_gpus
from tests.support.healthy_host import Document, data, document
from tests.support.host_documents import gpu_host
from tests.support.host_parts import held_by_ann, no_gpu_for_programs, with_gpus
from tests.support.planted_gpu_host import CARDS, KERNEL, GpuHost

# The probe reads these on a host whose files a report changes.
READ_IN_FILES = ("kernel", "gpus", "driver")
NO_ANSWER = {"state": "hung", "data": None, "error": "no answer within 20 s", "seconds": 20.0}
MIG_DEVICE = {
    "mig_devices/mig_device/gpu_instance_id": "1",
    "mig_devices/mig_device/ecc_error_count/volatile_count/sram_uncorrectable": "0",
}
RELEASE = "/framework/version"
# Parts that the healthy host lacks, whole.
WHOLE = {
    "imex": {"unit": None, "enabled": None, "active": None, "nodes": [], "channels": 0},
    "setup": {"files": [], "modules": None, "settings": None, "on_disk": None}
    | {"loaded_driver": None, "installed_driver": None}
    | {"unit": None, "enabled": None, "active": None},
    "nvlsm": {"program": "/opt/nvidia/nvlsm/sbin/nvlsm", "running": True, "modules": []},
}
SMI_FAILS = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver., exit status 9"
)
# The lines of a kernel's log that name a card.
OF_CARDS = re.compile(r"NVRM|nvidia|Xid", re.IGNORECASE)
ADDRESS = re.compile(
    r"(?<![\w.])(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<place>[0-9a-f]{2}:[0-9a-f]{2})(?P<function>\.[0-7])?(?![\w:])",
    re.IGNORECASE,
)


# -- cards ----------------------------------------------------------------------------------------


def on_two_cards(report: Document) -> Document:
    """The report with its cards and adapters at the places of the planted host's."""
    report = _on_two_adapters(report)
    given = report["input"]
    lines = [line for line in given.get("klog", ()) if OF_CARDS.search(line)]
    lines.append(str((given.get("programs") or {}).get("nvidia-smi")))
    named = dict.fromkeys(
        found["place"].lower()
        for line in lines
        for found in ADDRESS.finditer(line)
        if found["domain"] or found["function"]
    )
    places = [address[5:10] for address in CARDS]
    if set(named) <= set(places) and not _lost_a_card(given):
        return report
    if _speaks_of_a_later_card(given):
        places.reverse()
    at = dict(zip(named, places, strict=False))

    def moved(found: re.Match[str]) -> str:
        place = at.get(found["place"].lower())
        if place is None:
            return found[0]
        domain = "0" * len(found["domain"]) + ":" if found["domain"] else ""
        return f"{domain}{place}{found['function'] or ''}"

    return _with(report, lambda text: ADDRESS.sub(moved, text))


def _with(report: Document, changed: Callable[[str], str]) -> Document:
    """The report with another text of its input, and of what is expected of it."""
    parts = json.dumps({name: report[name] for name in ("input", "expect")})
    return {**report, **json.loads(changed(parts))}


def _on_two_adapters(report: Document) -> Document:
    """The report with its later adapters by the name of the planted host's last."""
    paths = report["input"].get("snapshot") or {}
    numbers = {found[1] for path in paths if (found := re.match(r"network/devices/(\d+)", path))}
    later = "|".join(number for number in numbers if int(number) >= len(CARDS))
    last = f"mlx5_{len(CARDS) - 1}"
    return _with(report, lambda text: re.sub(rf"\bmlx5_(?:{later})\b", last, text)) if later else report


def _lost_a_card(given: Document) -> bool:
    """Whether one of the cards no longer answers."""
    lines = given.get("klog", ())
    fallen = any(re.search(r"\bXid \(PCI:[^)]*\): 79,", line) for line in lines)
    return fallen or "smi/attached" in (given.get("snapshot") or {})


def _speaks_of_a_later_card(given: Document) -> bool:
    """Whether the cards that the report names are not the first of its host."""
    if _lost_a_card(given):
        return True
    paths = [*(given.get("smi") or {}), *(given.get("snapshot") or {})]
    named = {found[1] for path in paths if (found := re.match(r"(?:gpus/pci/|gpu)(\d+)", path))}
    return bool(named and "0" not in named)


# Products that the catalog does not have.
OTHER_PRODUCTS = {"GTX 560 Ti": "1200", "GT 740M": "1292", "GTX 960M": "139b"}


@cache
def _products() -> list[tuple[frozenset[str], str, str]]:
    """The words, the PCI device id and the compute capability of each product."""
    return [
        (frozenset(re.findall(r"[a-z0-9]+", name.lower())), device, chip["compute_capability"])
        for chip in facts.document("pci.yml")["chips"]
        for device, names in chip["devices"].items()
        for name in names.split(" / ")
    ] + [
        (frozenset(name.lower().split()), device, "5.0")
        for name, device in OTHER_PRODUCTS.items()
    ]


def _product(name: str) -> tuple[str, str] | None:
    """The PCI device id and compute capability of the product whose name is most alike."""
    words = {*re.findall(r"[a-z0-9]+", name.lower())} - {"nvidia"}
    known, device, capability = max(
        _products(), key=lambda row: (len(words & row[0]), -len(row[0]))
    )
    return (device, capability) if re.search(r"\d", " ".join(words & known)) else None


def device_of(name: str) -> str:
    """The PCI device id of a product."""
    found = _product(name)
    assert found, f"no product is called {name}"
    return f"0x{found[0]}"


# -- documents ------------------------------------------------------------------------------------


@cache
def _healthy(frameworks: bool, cards: bool) -> str:
    """A healthy host's plan and snapshot as text; no card is at the host bridge's address."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    if cards:
        (with_frameworks_on_gpus if frameworks else with_gpus)(plan, snapshot)
    elif frameworks:
        with_frameworks(plan, snapshot)
    text = json.dumps([plan, snapshot])
    return text.replace("0000:01:00.0", CARDS[1]).replace("0000:00:00.0", CARDS[0])


def planted(given: Document) -> tuple[Document, Document]:
    """The plan and the snapshot of the host that a report's input describes."""
    changes, framework = _of_its_stack(dict(given.get("snapshot") or {}))
    declared = given.get("declare") or {}
    text = _healthy(framework is not None, declared.get("gpu_expect") != {"count": 0})
    text = _with_versions(text, changes, framework)
    plan, snapshot = json.loads(text)
    if not data(snapshot, "gpus")["pci"]:
        change(snapshot, changes)
        return plan, snapshot
    given = {**given, "files": {k: v for k, v in (given.get("files") or {}).items() if v is not None}}
    if given["files"] or "klog" in given:
        _read_files(snapshot, given)
    if _has_switches(given, changes):
        _connect(plan, snapshot)
    _declare(plan, snapshot, declared, changes)
    texts = _texts(given, changes)
    _name(plan, snapshot, texts)
    change(snapshot, {path: each for path, each in changes.items() if path[:4] != "smi/"})
    _fail(snapshot)
    _show(snapshot, texts, given)
    _run_programs(plan, snapshot, given, changes)
    # How many cards answer is shown by those that do.
    changes.pop("smi/attached", None)
    change(snapshot, {path: each for path, each in changes.items() if path[:4] == "smi/"})
    for name in ("smi", "kernel_log"):
        snapshot["sections"][f"{name}_after"] = deepcopy(snapshot["sections"][name])
    return plan, snapshot


def _with_versions(text: str, changes: Document, framework: str | None) -> str:
    """The host with the report's driver, kernel and framework wherever it names its own."""
    shown = ("driver/loaded", "driver/on_disk", "network/peermem")
    if version := next((changes[path] for path in shown if changes.get(path)), None):
        branch = version.partition(".")[0]
        cuda = _cuda_of(branch) or "12.2"
        text = text.replace(DRIVER, version).replace('"535"', f'"{branch}"')
        text = text.replace('"cuda_version": "12.2"', f'"cuda_version": "{cuda}"')
    if "kernel/installed" not in changes and (kernel := changes.get("kernel/running")):
        text = text.replace(KERNEL, kernel)
    release = next((each for path, each in changes.items() if path.endswith(RELEASE)), None)
    if framework and release:
        text = text.replace(RELEASES[framework], release)
    return text


def _of_its_stack(changes: Document) -> tuple[Document, str | None]:
    """The changes with the place of the stack that they are of, and its framework, if no
    TensorFlow."""
    named = changes.get("stacks/stacks/0/framework/framework")
    if any(re.search("/framework/(workers|compile|numpy)$", path) for path in changes):
        named = "pytorch"
    framework = changes.pop("stacks/stacks/0/runs", named)
    if framework not in RELEASES:
        return changes, None
    at = 1 + [*RELEASES].index(framework)
    version = f"stacks/stacks/0{RELEASE}"
    if version in changes:
        changes[version] = changes[version].partition("+")[0]
    moved = {re.sub("^stacks/stacks/0/", f"stacks/stacks/{at}/", p): v for p, v in changes.items()}
    return moved, framework


def _cuda_of(branch: str) -> str | None:
    rows = facts.document("drivers.yml")["branches"]
    return next((row["cuda_max_native"] for row in rows if row["branch"] == branch), None)


def _has_switches(given: Document, changes: Document) -> bool:
    """Whether the report is of a host with NVSwitches: it speaks of their manager."""
    managed = any(path.startswith("driver/fabric/") for path in changes)
    waits = (given.get("programs") or {}).get("cuInit") == 802
    return (managed or waits) and "gpus/nvswitches" not in changes


def _connect(plan: Document, snapshot: Document) -> None:
    """Put NVSwitches between the cards, with the manager that they need."""
    driver = data(snapshot, "driver")
    plan["driver"]["fabric_manager"] = True
    data(snapshot, "gpus")["nvswitches"] = [f"0000:c{number}:00.0" for number in range(4)]
    unit = {"unit": "nvidia-fabricmanager.service", "enabled": True, "active": True}
    driver["fabric"] = {**unit, "version": driver["loaded"]}


def _declare(plan: Document, snapshot: Document, declared: Document, changes: Document) -> None:
    """What the report declares; nobody declares a driver on a host that cannot install one."""
    cards = [each[2:] for each in (device_of("H100 SXM5 80GB"),) * len(CARDS)]
    wishes = {key: each for key, each in declared.items() if key.startswith("gpu_")}
    resolved: Any = resolve(wishes, gpu_host("debian-12", *cards))
    expected = {"count": len(CARDS)} | {
        key: each
        for key, each in resolved["expect"].items()
        if key in wishes.get("gpu_expect", ()) and key != "count"
    }
    plan["expect"].update(expected)
    if wishes.get("gpu_manifest"):
        plan["manifest"] = resolved["manifest"]
    if mig := wishes.get("gpu_mig") or (wishes.get("gpu_driver") or {}).get("mig"):
        plan["driver"]["mig"] = mig
        layout = {str(number): mig["all"] for number in range(len(CARDS))} if "all" in mig else mig
        unit = {"unit": "gpufleet-mig.service", "enabled": True, "active": True}
        data(snapshot, "driver")["mig_boot"] = {**unit, "layout": layout}
    own = wishes.get("gpu_driver") or {}
    plan["driver"].update({key: own[key] for key in ("branch", "source", "module") if key in own})
    given_elsewhere = changes.get("driver/of_container") or "packages/manager" in changes
    if own.get("source") == "preinstalled" or (
        given_elsewhere and changes.get("packages/manager") is None
    ):
        plan["driver"].update(source="preinstalled", managed=False)


def _read_files(snapshot: Document, given: Document) -> None:
    """The sections that the probe reads in the host's files, with the report's in them."""
    with tempfile.TemporaryDirectory() as folder:
        host = GpuHost(Path(folder) / "host")
        for name, text in given["files"].items():
            host.put(name, text)
        if not given["files"]:
            # A host without a driver is read in no turns.
            host.loaded(None)
            host.remove("dev/nvidiactl")
        host.log(*list(given.get("klog", ())) * int(given.get("klog_times", 1)))
        wanted = ("kernel_log", *(READ_IN_FILES if given["files"] else ()))
        # No firmware below a directory tells a machine from a virtual one.
        machine = data(snapshot, "gpus")["hypervisor"]
        snapshot["sections"].update(host.read(*wanted))
        data(snapshot, "gpus")["hypervisor"] = machine


def _texts(given: Document, changes: Document) -> list[Document]:
    """The elements of nvidia-smi's document that the report changes, of each card."""
    cards: list[Document] = [{} for _ in CARDS]
    for path, text in (given.get("smi") or {}).items():
        found = re.fullmatch(r"(?:gpu(\d+):)?(.*)", path)
        assert found
        numbers = range(len(CARDS)) if found[1] is None else [min(int(found[1]), len(CARDS) - 1)]
        for number in numbers if found[2] != "pci/pci_bus_id" else ():
            cards[number][found[2]] = text
    return cards


def _name(plan: Document, snapshot: Document, texts: list[Document]) -> None:
    """Another product than the healthy host's: by all who name it."""
    name = texts[0].get("product_name")
    if name is None:
        return
    plan["expect"].update(model=name, memory_mib=None)
    for run in data(snapshot, "compute")["runs"]:
        for device in run["devices"]:
            device["name"] = name
    if found := _product(name):
        device, capability = found
        # The saved figures and links are those of the healthy host's product.
        for row in data(snapshot, "smi")["nvlink"]:
            if "SXM" not in name and device not in facts.document("pci.yml")["fabric"]:
                row["links"] = []
        for run in data(snapshot, "compute")["runs"]:
            run.update(bandwidth=[], sustained=[])
        data(snapshot, "compute")["deep"] = False
        for row in data(snapshot, "gpus")["pci"]:
            row["device"] = f"0x{device}"
        for card in texts:
            card.setdefault("pci/pci_device_id", f"{device.upper()}10DE")
        for run in data(snapshot, "compute")["runs"]:
            for row in run["devices"]:
                row["compute_capability"] = capability


def _show(snapshot: Document, texts: list[Document], given: Document) -> None:
    """The document of nvidia-smi, of the cards that it lists, with their MIG instances."""
    gpus, driver = data(snapshot, "gpus"), data(snapshot, "driver")
    rows = gpus["mig"] or []
    if len(rows) > 1 and all(card.get("mig_mode/current_mig") == "Enabled" for card in texts):
        rows[1] = {**rows[0], "gpu": 1}
    for card, row in zip(texts, rows, strict=False):
        if row["instances"]:
            card.update({"mig_devices": None, **MIG_DEVICE})
            for cdi in data(snapshot, "containers")["cdi"]:
                names = [f"{row['gpu']}:{number}" for number in range(len(row["instances"]))]
                cdi["devices"] = [*names, *(e for e in cdi["devices"] if e != str(row["gpu"]))]
            card.setdefault("mig_mode/current_mig", "Enabled")
            card.setdefault("mig_mode/pending_mig", "Enabled")
    own = [{"pci/pci_bus_id": f"0000{address}", **c} for c, address in zip(texts, CARDS, strict=True)]
    listed = own[:1] if _lost_a_card(given) else own
    if any(re.match(r"[1-9]\d", card.get("utilization/gpu_util", "")) for card in texts):
        held_by_ann(snapshot)
    if (driver["loaded"] or DRIVER) > DRIVER:
        listed = [{**_newer_elements(), **card} for card in listed]
    document = parse_smi(smi_text(listed, driver["loaded"] or DRIVER, driver["cuda_version"]))
    data(snapshot, "smi").update(document)
    if len(listed) < len(CARDS):
        data(snapshot, "smi")["nvml"]["count"] = len(listed)
        data(snapshot, "smi")["nvlink"] = data(snapshot, "smi")["nvlink"][: len(listed)]
        no_gpu_for_programs(snapshot, len(listed))


@cache
def _newer_elements() -> Document:
    """What newer drivers print of a healthy card beyond the healthy host's."""
    rules = facts.document("smi_rules.yml")["rules"]
    return {
        row["paths"][0]: str(row["good"][0])
        for row in rules
        if row.get("good")
        and "each" not in row
        and not row["paths"][0].startswith("mig_mode/")
        and not {*row["paths"]} & {*HEALTHY}
    }


def _fail(snapshot: Document) -> None:
    """A framework that failed before it computed has no results."""
    for stack in data(snapshot, "stacks")["stacks"]:
        ran = stack["framework"]
        if ran["state"] == "failed":
            ran.update({part: [] for part in ("matmul", "convolution") if part in ran})
            ran.update(tower_sum=None)


def _run_programs(plan: Document, snapshot: Document, given: Document, changes: Document) -> None:
    """The answers of nvidia-smi and CUDA; neither has one where no driver is loaded."""
    programs = dict(given.get("programs") or {})
    driver, smi = data(snapshot, "driver"), data(snapshot, "smi")
    if driver["loaded"] is None:
        programs = {"cuInit": 100, "nvidia-smi": SMI_FAILS, **programs}
        driver["modules"] = changes.get("driver/modules", [])
        driver["persistence"]["active"] = False
        gpus = data(snapshot, "gpus")
        gpus.update(nodes=[], node_access=[], mig=None)
        for number, row in enumerate(gpus["pci"]):
            if f"gpus/pci/{number}/driver" not in changes:
                row["driver"] = None
    started = programs.get("cuInit", driver["cuinit"])
    started = started if isinstance(started, int) else None
    if "cuInit" in programs or started:
        driver["cuinit"] = started
        no_gpu_for_programs(snapshot)
        plan.update(stacks=[], containers=None)
        for run in data(snapshot, "compute")["runs"]:
            run.update(driver={**run["driver"], "cuinit": started}, formats=[], consensus=[])
            run["host_copies"] = []
    if text := programs.get("nvidia-smi"):
        found = re.fullmatch(r"(.*?)(?:, exit status (\d+))?", text, re.DOTALL)
        assert found
        status = int(found[2] or 6)
        smi.update(status=status, error=found[1], driver_version=None, cuda_version=None)
        smi.update(devices=[], nvlink=[])
        smi["nvml"].update(status=status if status in (9, 18) else 0, count=0)
    for name, program in (("smi", "nvidia-smi"), ("driver", "cuInit")):
        if programs.get(program) == "no answer":
            snapshot["sections"][name] = dict(NO_ANSWER)


# -- changes --------------------------------------------------------------------------------------


def change(snapshot: Document, changes: Document) -> None:
    """Write each value at its path below the sections' data; `*` is every item, and
    after `//` the rest is one key. A position that the host does not have is its last."""
    tree = {name: section.get("data") for name, section in snapshot["sections"].items()}
    for path, value in changes.items():
        section, _, part = path.partition("/")
        if part in ("state", "data"):
            snapshot["sections"][section].update({part: value, "error": "no answer within 20 s"})
            continue
        before, slashes, after = path.partition("//")
        keys = [*before.split("/"), *([f"/{after}"] if slashes else [])]
        _put(tree, keys, value)


def _put(at: Any, keys: list[str], value: Any) -> None:
    key, rest = keys[0], keys[1:]
    if isinstance(at, list):
        numbers = range(len(at)) if key == "*" else [min(int(key), len(at) - 1)]
        for number in numbers:
            if rest:
                _put(at[number], rest, value)
            else:
                at[number] = deepcopy(value)
    elif key == "*":
        for each in at:
            _put(at, [each, *rest], value)
    elif rest:
        if at.get(key) is None:
            at[key] = deepcopy(WHOLE.get(key, {}))
        _put(at[key], rest, value)
    elif isinstance(at.get(key), dict) and isinstance(value, dict):
        at[key] = {**at[key], **deepcopy(value)}
    else:
        at[key] = _whole_rows(value, at.get(key))


def _whole_rows(value: Any, healthy: Any) -> Any:
    """A list's rows with what the healthy rows have besides."""
    rows = [each for each in healthy if isinstance(each, dict)] if isinstance(healthy, list) else []
    if not rows or not isinstance(value, list):
        return deepcopy(value)
    return [{**rows[0], **deepcopy(each)} if isinstance(each, dict) else each for each in value]
