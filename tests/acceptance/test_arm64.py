"""An ARM64 host: probed, provisioned and judged as any other, on a processor that QEMU emulates.

A toolkit and cuDNN of NVIDIA's `sbsa` files with JAX on them, then PyTorch with its own CUDA beside
them. The tests of this module are one story on one host, and run in their order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gpufleet.on_host import payload
from lab import emulation
from tests.support.lab_fleet import ROOT, Fleet, fresh, lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ARTIFACTS = (
    "cuda_12.5.1_555.42.06_linux_sbsa.run",
    "cudnn-linux-sbsa-9.3.0.75_cuda12-archive.tar.xz",
)
STACK = {"jax": "0.5.3", "cuda": "12.5", "cudnn": "9.3"}
PYTORCH = {"pytorch": "2.11.0"}
# Everything takes several times as long as on a processor of its own.
DEADLINE = ("--deadline", "1800")
# {payload: the module that is started, and the package of its sources}
PAYLOADS = {
    "probe": (payload.PROBE, "on_host"),
    "workload": (payload.WORKLOAD, "workload"),
    "distributed": ("gpufleet.workload.distributed", "workload"),
    "collective": ("gpufleet.workload.collective", "workload"),
    "as_owner": ("gpufleet.on_host.as_owner", "on_host"),
}
# Reads a list of names and texts in turn; prints the machine, and the names that compile.
COMPILE = """
import json, os, sys
parts = json.load(sys.stdin)
for name, text in zip(parts[::2], parts[1::2]):
    compile(text, name, "exec")
print(json.dumps([os.uname().machine, parts[::2]]))
"""


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    if lacking := emulation.missing():
        pytest.skip(f"apt-get install --no-install-recommends {' '.join(lacking)}")
    with fresh("arm64") as made:
        lab(made, "artifacts", *(word for name in ARTIFACTS for word in ("--file", name)))
        lab(made, "up", "--hosts", "lab1", "--suite", "arm64-bookworm")
        yield made


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The arguments that declare the stack, with locks of its own."""
    locks = tmp_path_factory.mktemp("locks")
    variables = {"gpu_stacks": [STACK], "gpu_locks_dir": str(locks)}
    # Named, so that the command does not start the default lab's hosts.
    return "-i", "inventory/lab", "--limit", "lab1", "-e", json.dumps(variables), *DEADLINE


def planned(fleet: Fleet, declared: tuple[str, ...]) -> dict[str, Any]:
    """The host's plan, after a probe that runs no framework."""
    document = json.loads(fleet.gpufleet("plan", *declared, "--json").stdout)
    found: dict[str, Any] = document["hosts"]["lab1"]
    return found


def pending(fleet: Fleet, declared: tuple[str, ...]) -> list[dict[str, Any]]:
    """The host's changes."""
    rows: list[dict[str, Any]] = planned(fleet, declared)["changes"]
    return rows


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_compiles_on_both_processors(fleet: Fleet, name: str) -> None:
    entry, package = PAYLOADS[name]
    texts = payload.workload_sources() if package == "workload" else payload.sources(package)
    modules = json.dumps(payload.joined(entry, texts).split("\0"))
    here = [sys.executable, "-I", "-S", "-c", COMPILE]
    there = [sys.executable, "-m", "lab", "exec", "lab1", "--", "python3", *here[1:]]
    found = [
        json.loads(
            subprocess.run(
                words,
                input=modules,
                cwd=ROOT,
                env=fleet.environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for words in (here, there)
    ]
    assert found[0] == [os.uname().machine, json.loads(modules)[::2]]
    assert found[1] == ["aarch64", json.loads(modules)[::2]]


def test_a_fresh_host_says_what_it_is(fleet: Fleet, declared: tuple[str, ...]) -> None:
    host = planned(fleet, declared)
    assert host["problems"] == []
    assert {row["what"] for row in host["changes"]} >= {"toolkit", "cudnn", "stack"}
    assert [row["artifact"]["file"] for row in host["toolkits"]] == [ARTIFACTS[0]]
    assert [row["artifact"]["file"] for row in host["cudnn"]] == [ARTIFACTS[1]]


def test_provision_makes_it_healthy(fleet: Fleet, declared: tuple[str, ...]) -> None:
    done = fleet.gpufleet("provision", *declared, "--json")
    checks = {check["id"]: check for check in json.loads(done.stdout)["hosts"]["lab1"]["checks"]}
    for name in ("toolkit.files", "cudnn.links", "stack.release", "stack.mapped", "stack.matmul"):
        assert checks[name]["verdict"] == "PASS", checks[name]
    kind = fleet.on("lab1", "od -An -tx1 -j18 -N2 /usr/local/cuda-12.5/lib64/libcudart.so.12")
    # The machine of its ELF header: 183, AArch64.
    assert kind.split() == ["b7", "00"]


def test_a_second_run_changes_nothing(fleet: Fleet, declared: tuple[str, ...]) -> None:
    done = fleet.gpufleet("provision", "--force", "--check", *declared)
    assert "changed=0 " in done.stdout
    assert pending(fleet, declared) == []


def test_a_removed_library_is_found_and_would_be_repaired(
    fleet: Fleet, declared: tuple[str, ...]
) -> None:
    fleet.on("lab1", "rm /usr/local/cuda-12.5/lib64/libcudnn.so.9")
    assert "cudnn" in {row["what"] for row in pending(fleet, declared)}


def test_pytorch_with_its_own_cuda_is_installed_beside_it(
    fleet: Fleet, declared: tuple[str, ...]
) -> None:
    both = *declared, "-e", json.dumps({"gpu_stacks": [STACK, PYTORCH]})
    done = fleet.gpufleet("provision", *both, "--json")
    checks = {check["id"]: check for check in json.loads(done.stdout)["hosts"]["lab1"]["checks"]}
    for name in ("stack.release", "stack.mapped", "stack.matmul"):
        assert checks[name]["verdict"] == "PASS", checks[name]
        assert "pytorch-2.11.0" in checks[name]["evidence"]
        assert "jax-0.5.3" in checks[name]["evidence"]
    kind = fleet.on(
        "lab1",
        "od -An -tx1 -j18 -N2 /opt/gpufleet/stacks/pytorch-*/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so",
    )
    assert kind.split() == ["b7", "00"]
