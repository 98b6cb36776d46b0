"""The time of a deep probe: each toolkit has what it needs, and the load fits beside them."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.probing import probe_config
from gpufleet.on_host.deep_time import SETTLE_S, UNDECLARED_GPUS
from gpufleet.on_host.host import DEFAULTS, Host
from gpufleet.on_host.runner import SECTIONS
from gpufleet.on_host.schedule import Schedule
from gpufleet.on_host.sections import compute
from tests.support.planted_host import put

LOADS_S = (1, 120, 300, 900, 1108, 3600, 14400)
# What other sections were seen to take before this one, on a host that is slow to start.
BEFORE_S = 45


def planted(root: Path, gpus: int) -> None:
    put(root, "proc/driver/nvidia/version", "")
    for number in range(gpus):
        for key, value in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
            put(root, f"sys/bus/pci/devices/0000:{number:02x}:00.0/{key}", value + "\n")


def config_of(root: Path, load_s: float | None, variables: dict[str, Any]) -> dict[str, Any]:
    host = InventoryHost("gpu01", variables, Connection("gpu01"))
    return {
        **DEFAULTS,
        **probe_config(host, ProbeOptions(deep=True, load_s=load_s)),
        "root": str(root),
    }


def shares_of(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], count: int
) -> tuple[list[tuple[float, float]], float]:
    """The seconds of each toolkit, of which each takes all, and the deadline of the section."""
    now = [0.0]
    plan = Schedule(config, SECTIONS)
    deadline_s = plan.deadline_of("compute", config["deadline_s"] - BEFORE_S)
    reserved = {"load_s": plan.load_s, "toolkits_s": plan.toolkits_s}
    monkeypatch.setattr(compute, "time", SimpleNamespace(monotonic=lambda: now[0]))
    found = []
    for share_s, load_s in compute.shares(
        Host({**config, "reserved": reserved}, deadline_s), count
    ):
        found.append((share_s, load_s))
        now[0] += share_s + load_s
    return found, deadline_s


@pytest.mark.parametrize(
    ("load_s", "toolkits", "gpus"), list(itertools.product(LOADS_S, (1, 2, 3), (1, 8, 16)))
)
def test_every_toolkit_and_the_load_have_their_time(
    root: Path, monkeypatch: pytest.MonkeyPatch, load_s: float, toolkits: int, gpus: int
) -> None:
    """With half an hour of burn-in each older one of two toolkits had one second, and hung."""
    planted(root, gpus)
    config = config_of(root, load_s, {"gpu_expect": {"count": gpus}})
    found, deadline_s = shares_of(monkeypatch, config, toolkits)
    for share_s, _ in found:
        assert share_s >= 30 + 5 * gpus
    assert [more_s for _, more_s in found[:-1]] == [0] * (toolkits - 1)
    # The load in float32, the other formats and the sums, until it is cool again.
    assert found[-1][1] >= 1.7 * load_s + SETTLE_S + 10 * (gpus - 1) + 0.4 * gpus * (gpus - 1)
    # The section reports before it is ended.
    assert sum(map(sum, found)) <= deadline_s - 10


def test_each_declared_toolkit_has_its_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(root, 8)
    versions = [{"cuda": each} for each in ("11.8", "12.1", "12.2", "12.4", "12.6")]
    config = config_of(
        root,
        3600,
        {
            "gpu_toolkits": versions,
            "gpu_stacks": [{"tensorflow": "2.13.1"}],
            "gpu_expect": {"count": 8},
        },
    )
    assert config["toolkits"] == 6
    found, _ = shares_of(monkeypatch, config, 6)
    assert min(share_s for share_s, _ in found) >= 30 + 5 * 8


@pytest.mark.parametrize("gpus", [1, 8])
def test_gpus_that_are_not_declared_are_those_on_the_bus(
    root: Path, monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    planted(root, gpus)
    config = config_of(root, None, {})
    assert config["expect_gpus"] is None
    plan = Schedule(config, SECTIONS)
    assert plan.load_s == 2 * 120 + SETTLE_S + 10 * (gpus - 1) + 0.4 * gpus * (gpus - 1)
    assert plan.toolkits_s == 3 * (30 + 5 * gpus)
    assert plan.total_s == 300 + (
        0 if gpus == UNDECLARED_GPUS else plan_of_undeclared() - plan.deep_s
    )


def plan_of_undeclared() -> float:
    return ProbeOptions(deep=True).deep_s(UNDECLARED_GPUS, {"toolkits": 0})


def test_a_deadline_that_is_too_short_for_the_load_leaves_time_to_the_others(root: Path) -> None:
    planted(root, 1)
    config = dict(config_of(root, 3600, {"gpu_expect": {"count": 1}}), deadline_s=900)
    plan = Schedule(config, SECTIONS)
    assert (plan.total_s, plan.load_s, plan.toolkits_s) == (240, 660, 0)


@pytest.mark.parametrize(("gpus", "deep"), [(0, True), (1, False)])
def test_without_a_load_nothing_is_reserved(root: Path, gpus: int, deep: bool) -> None:
    planted(root, 1)
    config = dict(config_of(root, None, {"gpu_expect": {"count": gpus}}), deep=deep)
    plan = Schedule(config, SECTIONS)
    assert (plan.load_s, plan.toolkits_s) == (0, 0)
