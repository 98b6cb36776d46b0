"""The settings of a host's probe by its variables: paths to read, and the number of GPUs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufleet.model.problems import Problems
from gpufleet.model.spec import ContainersSpec

from . import expectation
from .parse import read


def probe_settings(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the probe's settings that the spec decides: directories, engine, account."""
    spec = read(variables, Problems())
    return {
        "prefix": spec.prefix,
        "stack_root": spec.stack_root,
        "tmpdir": spec.tmpdir,
        "pythons": [stack.interpreter for stack in spec.stacks if stack.interpreter],
        "mig": spec.mig is not None,
        "containers": spec.containers and _containers(spec.containers),
        "service_user": spec.service_user,
    }


def visible_gpus(variables: Mapping[str, Any]) -> int | None:
    """How many GPUs CUDA shows a program on a host; None where that is not declared."""
    spec = read(variables, Problems())
    return expectation.visible(spec.expect.get("count"), spec.mig)


def _containers(spec: ContainersSpec) -> dict[str, str | None]:
    """Which engine to query, and which image to run."""
    return {"engine": spec.engine, "image": spec.image}
