"""Containers: the engine and NVIDIA's container toolkit as the plan carries them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpufleet.model.spec import Spec

Row = dict[str, Any]


def describe(spec: Spec) -> Row | None:
    """The plan's `containers`; None where they are not managed."""
    if spec.containers is None:
        return None
    return {**asdict(spec.containers), "gpus": spec.expect.get("count")}
