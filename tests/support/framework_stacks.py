"""PyTorch and JAX beside TensorFlow, as documents: what the workload printed in real environments
on a host without a GPU (tests/fixtures/frameworks), and a stand-in for the same with GPUs."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from gpufleet.catalog import facts
from gpufleet.frameworks import FRAMEWORKS
from tests.support.healthy_host import Document, data, document
from tests.support.host_parts import with_gpus

RELEASES = {"pytorch": "2.6.0", "jax": "0.5.3"}


def run_of(name: str) -> Document:
    """The document of a real run."""
    return document(f"frameworks/{name}.json")


def with_frameworks(plan: Document, snapshot: Document) -> None:
    """Add a stack of PyTorch and one of JAX to a healthy host without GPUs."""
    for framework, release in RELEASES.items():
        add_stack(plan, snapshot, framework, release, run_of(f"{framework}-{release}"))


def with_frameworks_on_gpus(plan: Document, snapshot: Document) -> None:
    """The same on two GPUs."""
    with_gpus(plan, snapshot)
    with_frameworks(plan, snapshot)
    for framework in RELEASES:
        on_gpus(run(snapshot, framework), 2)


def run(snapshot: Document, framework: str) -> Document:
    """The run of the stack of this framework."""
    found: Document = next(
        stack for stack in data(snapshot, "stacks")["stacks"] if stack.get("runs") == framework
    )
    return found["framework"]


def planned(plan: Document, framework: str) -> Document:
    found: Document = next(stack for stack in plan["stacks"] if stack.get("framework") == framework)
    return found


def receipt_of(snapshot: Document, framework: str) -> Document:
    found: Document = next(
        row
        for row in data(snapshot, "receipts")["receipts"]
        if row["id"] == f"{framework}-{RELEASES[framework]}"
    )
    return found


def add_stack(
    plan: Document, snapshot: Document, framework: str, release: str, ran: Document
) -> None:
    """One stack that was installed from wheels, with its receipt."""
    build = facts.build(framework, release)
    assert build
    name = f"{framework}-{release}"
    venv, carrier = f"/opt/gpufleet/stacks/{name}", FRAMEWORKS[framework].distributions[0]
    was = ran["build"]
    stack = deepcopy(plan["stacks"][0]) | {
        "name": name,
        "framework": framework,
        "distribution": carrier,
        "version": release,
        "venv": venv,
        "cuda": was["cuda"],
        "cuda_source": "pip",
        "toolkit_path": None,
        "cudnn": was["cudnn"],
        "sonames": build.sonames,
        "sonames_optional": [],
        "requirements": [f"{carrier}=={release}"],
        "lock": f"{name}-py3.11.lock",
        "build": {"cuda": was["cuda"], "cudnn_major": int(str(was["cudnn"]).partition(".")[0])},
        "compute_capability": {"min": "5.0", "native": build.native, "ptx": []},
        "activation": f"/opt/gpufleet/environment/{name}.sh",
    }
    plan["stacks"].append(stack)
    packages = {carrier: release, "numpy": "2.4.6"}
    there = data(snapshot, "stacks")
    there["stacks"].append(
        deepcopy(there["stacks"][0])
        | {
            "name": name,
            "venv": venv,
            "realpath": venv,
            "packages": dict(packages),
            "runs": framework,
            "framework": ran,
            "bound_to": f"{venv}/lib",
            "start": there["stacks"][0]["start"] | {"prefix": venv},
        }
    )
    there["occupied"].append(venv)
    rows = data(snapshot, "receipts")["receipts"]
    model = next(row for row in rows if row["kind"] == "stack")
    rows.append(
        deepcopy(model)
        | {
            "id": name,
            "version": release,
            "path": venv,
            "packages": packages,
            "libraries": list(ran["mapped"]),
            "binding": [f"{venv}/lib"],
            "activation": stack["activation"],
        }
    )
    if scrub := data(snapshot, "receipts").get("scrub"):
        scrub["components"].append(
            deepcopy(scrub["components"][0])
            | {"component": f"stack-{name}", "installed": model["installed"]}
        )


def on_gpus(ran: Document, count: int) -> None:
    """Turn a run on the CPU into one on GPUs: a stand-in, with what such a run reports."""
    devices = [f"/GPU:{number}" for number in range(count)]

    def moved(entry: dict[str, Any], device: str, **more: Any) -> dict[str, Any]:
        return {**entry, "requested": device, "device": device, **more}

    ran["matmul"] = [
        moved(entry, device, n=2048, tflops=17.1) for device in devices for entry in ran["matmul"]
    ]
    ran["convolution"] = [moved(ran["convolution"][0], device) for device in devices]
    ran["tower_sum"]["devices"] = devices
    ran.update(no_gpu=None, capabilities=["8.0"] * count, devices=["cpu", *devices])
    ran["loader"] = {
        "ran": True,
        "failed": [],
        "opened": [*ran["loader"]["opened"], "libcuda.so.1"],
    }
    if ran.get("compile"):
        ran["compile"] = {
            "device": "cuda:0",
            "wrong": 0,
            "lacks": None,
            "error": None,
            "seconds": 6.1,
        }
