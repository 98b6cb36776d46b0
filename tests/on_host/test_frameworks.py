"""Which framework an environment has, and what is said of the GPUs that it leaves out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpufleet.frameworks import FRAMEWORKS
from gpufleet.on_host import frameworks
from gpufleet.on_host.host import Host
from gpufleet.on_host.venvs import framework_of
from gpufleet.on_host.workload_run import TELLING
from gpufleet.workload.command import FRAMEWORKS as RUN
from gpufleet.workload.distributed import PROGRAMS
from tests.support.planted_host import probe_tree, put

VENV = "/opt/gpufleet/stacks/s"


def test_hosts_know_the_frameworks_of_the_table() -> None:
    assert list(FRAMEWORKS) == list(frameworks.FRAMEWORKS)
    assert {name: (each.name, each.title, each.module) for name, each in RUN.items()} == {
        name: (each.id, each.title, each.module) for name, each in FRAMEWORKS.items()
    }
    assert {name: (each.NAME, each.TITLE, each.MODULE) for name, each in PROGRAMS.items()} == {
        name: (each.id, each.title, each.module) for name, each in FRAMEWORKS.items()
    }


@pytest.mark.parametrize(
    ("packages", "declared", "framework"),
    [
        (["torch"], None, "pytorch"),
        (["jax", "jaxlib"], None, "jax"),
        (["tensorflow-gpu"], None, "tensorflow"),
        # As it was before there were others.
        (["torch", "tensorflow"], None, "tensorflow"),
        (["torch", "tensorflow"], "pytorch", "pytorch"),
        (["torch", "jax"], "jax", "jax"),
        ([], None, "tensorflow"),
        ([], "jax", "jax"),
    ],
)
def test_an_environment_runs_what_is_declared_else_what_it_has(
    packages: list[str], declared: str | None, framework: str
) -> None:
    host = Host({"frameworks": {VENV: declared} if declared else {}})
    assert framework_of(host, VENV, dict.fromkeys(packages, "1")) == framework


def test_each_stack_is_run_with_its_own_framework(root: Path) -> None:
    venv = root / VENV[1:]
    put(venv, "pyvenv.cfg", "version = 3.11.2\n")
    put(
        venv,
        "lib/python3.11/site-packages/torch-2.6.0.dist-info/METADATA",
        "Name: torch\nVersion: 2.6.0\n",
    )
    put(venv, "bin/python", '#!/bin/sh\nprintf "%s|" "$@" >&2; exit 3\n', 0o755)
    found = probe_tree(root, mode="full", matmul="print()", expect_gpus=0, deadline_s=10)
    stack = found["stacks"]["stacks"][0]
    assert (stack["runs"], stack["framework"]["framework"]) == ("pytorch", "pytorch")
    assert (
        "matmul.py|--framework|pytorch|--expect-gpus|0|--deadline|8.0|"
        in stack["framework"]["error"]
    )


def test_what_users_cannot_read_of_a_framework_is_found(root: Path) -> None:
    venv = root / VENV[1:]
    put(venv, "pyvenv.cfg", "version = 3.11.2\n")
    for name in ("torch", "tensorflow"):
        (venv / "lib/python3.11/site-packages" / name).mkdir(parents=True, mode=0o700)
    found = probe_tree(root, mode="facts", frameworks={VENV: "pytorch"})["stacks"]["stacks"][0]
    assert [Path(entry["path"]).name for entry in found["closed"]] == ["torch"]


@pytest.mark.parametrize(
    "line",
    [
        # TensorFlow
        "Ignoring visible gpu device: the minimum required Cuda capability is 3.5.",
        # PyTorch
        "NVIDIA B200 with CUDA capability sm_100 is not compatible with the current PyTorch"
        " installation.",
        "torch/cuda/__init__.py:129: UserWarning: CUDA initialization: The NVIDIA driver on your system"
        " is too old (found version 11040).",
        "The minimum cuda capability supported by this library is 3.7.",
        # JAX
        "An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed."
        " Falling back to cpu.",
        "WARNING:jax._src.xla_bridge:CUDA backend failed to initialize: Unable to load cuSPARSE. Is it"
        " installed?",
        "ERROR:jax._src.xla_bridge:Jax plugin configuration error: Exception when calling"
        " jax_plugins.xla_cuda12.initialize()",
    ],
)
def test_what_a_framework_says_of_a_gpu_that_it_leaves_out_is_reported(line: str) -> None:
    assert TELLING.findall(f"before\n{line}\nafter\n") == [line]
    assert json.dumps(TELLING.findall("2 devices are fine\n")) == "[]"
