"""Hosts of public reports (tests/field): what a report shows, planted on a healthy host.

A report shows few facts of its host. What follows from them is planted as well, by rules for kinds
of facts: another driver is that of all its files, and a card without a driver computes nothing.
"""

from __future__ import annotations

import json
import re
import tempfile
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from gpufleet.catalog import facts
from gpufleet.components.resolver import resolve
from lab.gpus.smi_text import DRIVER
from tests.support import field_smi
from tests.support.field_cards import device_of
from tests.support.field_changes import NO_ANSWER, change
from tests.support.framework_stacks import RELEASES, with_frameworks, with_frameworks_on_gpus
from tests.support.healthy_host import Document, data, document
from tests.support.host_documents import gpu_host
from tests.support.host_parts import no_gpu_for_programs, with_gpus
from tests.support.planted_gpu_host import CARDS, KERNEL, GpuHost

# The probe reads these on a host whose files a report changes.
READ_IN_FILES = ("kernel", "gpus", "driver")
RELEASE = "/framework/version"
SMI_FAILS = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver., exit status 9"
)


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
    given = {
        **given,
        "files": {k: v for k, v in (given.get("files") or {}).items() if v is not None},
    }
    if given["files"] or "klog" in given:
        _read_files(snapshot, given)
    if _has_switches(given, changes):
        _connect(plan, snapshot)
    _declare(plan, snapshot, declared, changes)
    texts = field_smi.texts_of(given, changes)
    field_smi.name(plan, snapshot, texts)
    change(snapshot, {path: each for path, each in changes.items() if path[:4] != "smi/"})
    _fail(snapshot)
    field_smi.show(snapshot, texts, given)
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
    """Return whether the report is of a host with NVSwitches: it speaks of their manager."""
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
    """The variables of the report; nobody declares a driver on a host that cannot install one."""
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
