"""The faults of the checks: breaks of a healthy host's documents, with the checks that catch each.

A module in tests/components/faults names its healthy host, and registers its breaks:

    fault, harmless = faults_on(with_cards)

    @fault("gpu.pcie", cause="uses 8 of 16 PCIe lanes", remedy="reseat the GPU")
    def half_of_the_lanes(plan, snapshot): ...

A break has a decorator for each check that catches it, or `@harmless`: no check changes.
`tests/components/test_faults.py` runs them all.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.healthy_host import Break, Document


@dataclass(frozen=True)
class Caught:
    """The report of a check on a fault: its verdict, and words of its cause and remedy."""

    verdict: str
    cause: str
    remedy: str


@dataclass
class Fault:
    """A break of a healthy host, and {check: what it reports} of every check that changes."""

    area: str
    name: str
    healthy: Break
    apply: Break
    caught: dict[str, Caught] = field(default_factory=dict)


# {area and name: fault}
REGISTRY: dict[str, Fault] = {}


def no_gpus(plan: Document, snapshot: Document) -> None:
    """The healthy host as it is saved: without GPUs, its driver not managed."""


def faults_on(
    healthy: Break,
) -> tuple[Callable[..., Callable[[Break], Break]], Callable[[Break], Break]]:
    """The decorators `fault` and `harmless` for breaks of this healthy host."""

    def harmless(function: Break) -> Break:
        area = function.__module__.rpartition(".")[2]
        key = f"{area}-{function.__name__}"
        if key in REGISTRY and REGISTRY[key].apply is not function:
            raise ValueError(f"two faults have the name {key}")
        REGISTRY.setdefault(key, Fault(area, function.__name__, healthy, function))
        return function

    def fault(
        *checks: str, cause: str, remedy: str, verdict: str = "FAIL"
    ) -> Callable[[Break], Break]:
        def register(function: Break) -> Break:
            harmless(function)
            found = REGISTRY[f"{function.__module__.rpartition('.')[2]}-{function.__name__}"]
            for check in checks:
                if check in found.caught:
                    raise ValueError(f"{found.name}: {check} is named twice")
                found.caught[check] = Caught(verdict, cause, remedy)
            return function

        return register

    return fault, harmless


def faults() -> list[Fault]:
    """All faults of all areas."""
    package = importlib.import_module("tests.components.faults")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return list(REGISTRY.values())
