"""The settings of a host's probe by its spec: paths to read, and the number of GPUs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufleet.catalog import facts
from gpufleet.catalog.gpus import Gpu, capabilities, native_to_build
from gpufleet.catalog.records import Build
from gpufleet.documents.spec import ContainersSpec, Spec, StackSpec

from .base import expectation

# The seconds in which a stack's PTX is compiled for a GPU at most: 20 minutes were reported of
# TensorFlow on a GPU that is newer than its build.
COMPILE_S = 1800
# The seconds that each further GPU adds to a stack: its context, operands and checked products.
STACK_GPU_S = 5


def probe_settings(spec: Spec, *, warm: bool = False) -> dict[str, Any]:
    """The part of the probe's settings that the spec decides: directories, engine, account, time.

    With `warm` stacks have time to compile their code also where the GPUs' model is not declared.
    """
    return {
        "prefix": spec.prefix,
        "stack_root": spec.stack_root,
        "tmpdir": spec.tmpdir,
        "pythons": [stack.interpreter for stack in spec.stacks if stack.interpreter],
        "mig": spec.mig is not None,
        "containers": spec.containers and _containers(spec.containers),
        "service_user": spec.service_user,
        "compiles": _compiles(spec, warm=warm),
        # A stack may need a toolkit that is not declared by itself.
        "toolkits": len(spec.toolkits) + len(spec.stacks),
        "frameworks": {_venv(spec, stack): stack.framework for stack in spec.stacks},
    }


def _venv(spec: Spec, stack: StackSpec) -> str:
    return f"{spec.stack_root}/{stack.name}"


def _compiles(spec: Spec, *, warm: bool) -> dict[str, dict[str, Any]]:
    """Return, for each stack on a host with GPUs, the capabilities that it has machine code for,
    and how long it may compile for others, if the declared GPUs need that."""
    if spec.without_gpu:
        return {}
    labels = spec.gpus or [str(spec.expect.get("model") or "")]
    arch = spec.arch or facts.X86_64
    cards = [Gpu(each, label, "") for label in labels for each in capabilities(label)]
    builds = (
        (stack, facts.build_for(stack.framework, stack.release, stack.cuda, arch))
        for stack in spec.stacks
    )
    return {
        _venv(spec, stack): {
            "native": build.native,
            "seconds": _compile_seconds(build, cards, unknown=warm),
        }
        for stack, build in builds
        if build and not build.unavailable
    }


def _compile_seconds(build: Build, cards: list[Gpu], *, unknown: bool) -> int:
    native = all(native_to_build(card, build) for card in cards) if cards else not unknown
    return 0 if native else COMPILE_S


def more_seconds(spec: Spec, settings: Mapping[str, Any]) -> float:
    """The seconds that a probe may take beyond its deadline, which is for one GPU."""
    gpus = max(1, visible_gpus(spec) or 1)
    compiled: int = sum(stack["seconds"] for stack in settings["compiles"].values())
    return STACK_GPU_S * len(spec.stacks) * (gpus - 1) + compiled


def visible_gpus(spec: Spec) -> int | None:
    """How many GPUs CUDA shows a program on a host; None where that is not declared."""
    return expectation.visible(spec.expect.get("count"), spec.mig)


def _containers(spec: ContainersSpec) -> dict[str, str | None]:
    """Which engine to query, and which image to run."""
    return {"engine": spec.engine, "image": spec.image}
