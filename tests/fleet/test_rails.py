"""Rails: which port of each host, with which GPUs, and who is at fault on one.

The hosts of the runs are this machine. NCCL is the lab's stand-in, whose ports are names alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpufleet.components.base import ports as roles
from gpufleet.errors import ConfigurationError
from gpufleet.fabric.conclusion import Culprit, Kind
from gpufleet.fabric.rounds import Outcome
from gpufleet.fleet.fabric_test import InUseError
from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.fleet.rails import Rail, RailsError, culprit_name, environment, nearest, rails_of
from lab import collectives
from tests.support import rdma_host
from tests.support.collective_hosts import CollectiveHosts
from tests.support.healthy_host import document
from tests.support.rdma_host import DOWN, device, network, port

NAMES = ["gpu01", "gpu02", "gpu03", "gpu04"]


def host(name: str, **expect: Any) -> InventoryHost:
    return InventoryHost(name, {"gpu_expect": expect}, Connection(name))


def snapshot(section: Any) -> Any:
    found = document("snapshot.json")
    found["sections"]["network"]["data"] = section
    return found


def found(sections: dict[str, Any], **expect: Any) -> dict[str, tuple[Rail, ...]]:
    hosts = [host(name, **expect) for name in sections]
    return rails_of(hosts, {name: snapshot(each) for name, each in sections.items()})


# -- which port, which GPUs ------------------------------------------------------------------------


def test_the_nth_compute_port_of_each_host_is_its_part_of_a_rail() -> None:
    usual = network([device(0), device(1), device(7)], 2)
    other = network([device(0, name="mlx5_3"), device(1, name="mlx5_10"), device(7)], 2)
    assert found({"a": usual, "b": other}) == {
        "a": (Rail("mlx5_0", "mlx5_0:1", (0,)), Rail("mlx5_1", "mlx5_1:1", (1,))),
        "b": (Rail("mlx5_3", "mlx5_3:1", (0,)), Rail("mlx5_10", "mlx5_10:1", (1,))),
    }


def test_a_declared_role_decides() -> None:
    rows = [
        rdma_host.declared(ports=["mlx5_[17]"]),
        rdma_host.declared(ports=["mlx5_0"], role="storage"),
    ]
    section = network([device(0), device(1), device(7)], 2)
    (own,) = found({"a": section}, network=rows).values()
    assert [rail.port for rail in own] == ["mlx5_1", "mlx5_7"]


def test_a_port_that_is_down_keeps_its_place_and_second_ports_without_a_cable_have_none() -> None:
    down = device(1, ports=[port(1, **DOWN)])
    (own,) = found({"a": network([device(0), down], 2)}).values()
    assert [(rail.port, rail.inactive) for rail in own] == [
        ("mlx5_0", ""),
        ("mlx5_1", "1: DOWN, 2: Polling"),
    ]
    two = [device(at, ports=[port(at), port(at, port=2, **DOWN)]) for at in (0, 1)]
    (own,) = found({"a": network(two, 2)}).values()
    assert [rail.port for rail in own] == ["mlx5_0", "mlx5_1"]


@pytest.mark.parametrize(
    ("switches", "gpus", "expected"),
    [
        (["a", "b"], ["a", "b"], [(0,), (1,)]),
        (["b", "a"], ["a", "b"], [(1,), (0,)]),
        (["a", "a"], ["a", "a"], [(0,), (1,)]),
        (["a", "b"], ["a", "a", "b", "b"], [(0, 1), (2, 3)]),
        (["a", "a", "b", "b"], ["a", "b"], [(0,), (0,), (1,), (1,)]),
        (["a", "b"], ["x", "y", "z", "z"], [(0, 2), (1, 3)]),
    ],
    ids=["own", "crossed", "shared", "two each", "two ports each", "nothing near"],
)
def test_each_port_has_the_gpus_below_the_same_switch(
    switches: Sequence[str], gpus: Sequence[str], expected: list[tuple[int, ...]]
) -> None:
    rows = [device(at, path=[each], numa=None) for at, each in enumerate(switches)]
    own = [roles.Port(row["name"], "InfiniBand", row) for row in rows]  # type: ignore[arg-type]
    places: Any = [{"address": str(at), "path": [each], "numa": 0} for at, each in enumerate(gpus)]
    assert nearest(own, places) == expected


def test_nccl_gets_exactly_these_ports_by_name() -> None:
    rails = [Rail("mlx5_3", "mlx5_3:1", (3,)), Rail("mlx5_4/2", "mlx5_4:2", (4,))]
    assert environment(rails)["NCCL_IB_HCA"] == "=mlx5_3:1,mlx5_4:2"
    assert environment([]) == {}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (network([device(0)], 2), "b: 1 compute ports: mlx5_0"),
        (None, "b: its ports were not read"),
        (network([], 2), "b: no active port is known to serve its GPUs"),
        (network([device(0, vendor="0x1d0f")], 2), "NCCL takes only RDMA ports by name, not EFA"),
        (network([device(5), device(6)], 0), "b: no active port is known to serve its GPUs"),
    ],
    ids=["fewer", "not read", "none", "EFA", "no GPU"],
)
def test_hosts_without_rails_in_common_are_refused_with_what_to_declare(
    other: Any, message: str
) -> None:
    with pytest.raises(RailsError) as error:
        found({"a": network([device(0), device(1)], 2), "b": other})
    assert message in error.value.message
    assert "gpu_expect: {network: [{ports:" in error.value.remedy


def test_culprits_have_the_names_that_the_hosts_have_for_them() -> None:
    rails = {
        "a": (Rail("mlx5_0", "mlx5_0:1", (0,)), Rail("mlx5_1", "mlx5_1:1", (1,))),
        "b": (Rail("mlx5_0", "mlx5_0:1", (0,)), Rail("mlx5_4", "mlx5_4:1", (1,), "1: DOWN, x")),
    }

    def name(kind: Kind, members: tuple[str, ...], own: tuple[int, ...]) -> str:
        return culprit_name(Culprit(kind, members, own, Outcome.SLOW, (), ()), rails)

    assert name(Kind.PORT, ("a",), (1,)) == "port mlx5_1 of a (rail 1)"
    assert name(Kind.PORT, ("b",), (1,)) == "port mlx5_4 of b (rail 1, 1: DOWN, x)"
    assert name(Kind.RAIL, (), (1,)) == "rail 1 (mlx5_1, mlx5_4)"
    assert name(Kind.MEMBER, ("a",), (0, 1)) == "a"


# -- runs ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collectives.build(tmp_path_factory.mktemp("nccl") / "stand-in")


@pytest.fixture
def hosts(tmp_path: Path, libraries: Path) -> Iterator[CollectiveHosts]:
    """Four hosts with two GPUs and two ports each; the second port of the last has another name."""
    made = CollectiveHosts(tmp_path, libraries, NAMES)
    made.scope, made.sizes = "rails", (1 << 19,)
    made.hosts = [
        replace(each, variables={**each.variables, "gpu_expect": {"count": 2}})
        for each in made.hosts
    ]
    for name in NAMES:
        made.gpus(name, 2)
        second = device(1, name="mlx5_4") if name == "gpu04" else device(1)
        made.sections[name] = {"network": network([device(0), second], 2)}
    yield made
    assert made.left_behind() == []


# Two ports of the stand-in take 30 ns for a byte. A quarter of that is asked, less the tolerance: a
# busy machine reaches it, and a port that is 18 times slower does not.
BOTH_GB_PER_S = 1 / 120


def test_healthy_rails_pass_alone_and_together(hosts: CollectiveHosts) -> None:
    tested = hosts.run(at_least=BOTH_GB_PER_S)
    assert (tested["verdict"], tested["ranks"], tested["unknown"]) == ("PASS", 8, [])
    assert [(each["rails"], each["outcome"]) for each in tested["tests"]] == [
        ([0, 1], "passed"),
        ([0], "passed"),
        ([1], "passed"),
    ]
    assert tested["ports"]["gpu04"] == ["mlx5_0", "mlx5_4"]
    assert tested["compared"]["scope"] == "rails"
    assert any(line.startswith("Each rail alone") for line in hosts.lines)


@pytest.mark.parametrize(
    ("faults", "culprit"),
    [
        pytest.param(
            {"gpu04": "port mlx5_4 18"},
            ("port", ["gpu04"], [1], "port mlx5_4 of gpu04 (rail 1)"),
            marks=pytest.mark.costly,
        ),
        pytest.param(
            {**dict.fromkeys(NAMES, "port mlx5_1 18"), "gpu04": "port mlx5_4 18"},
            ("rail", [], [1], "rail 1 (mlx5_1, mlx5_4)"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["port", "rail"],
)
def test_the_port_or_rail_at_fault_is_named(
    hosts: CollectiveHosts,
    faults: dict[str, str],
    culprit: tuple[str, list[str], list[int], str],
) -> None:
    for name, line in faults.items():
        hosts.plant(name, line)
    tested = hosts.run(at_least=BOTH_GB_PER_S)
    [own] = tested["culprits"]
    assert (own["kind"], own["hosts"], own["rails"]) == culprit[:3]
    assert own["statement"].startswith(f"{culprit[3]} is slow: test")
    assert tested["verdict"] == "FAIL"


def test_rails_of_hosts_that_others_use_are_refused_before_anything_runs(
    hosts: CollectiveHosts,
) -> None:
    driver = document("snapshot.json")["sections"]["driver"]["data"]
    holder = {"pid": 4711, "user": "ann", "command": "python3", "nodes": ["/dev/nvidia0"]}
    hosts.sections["gpu02"]["driver"] = {**driver, "holders": [holder]}
    hosts.shared = False
    with pytest.raises(InUseError) as error:
        hosts.run()
    assert "gpu02: pid 4711 (ann, python3)" in error.value.message
    assert not any("round" in line or line.startswith("Running") for line in hosts.lines)


def test_one_host_has_no_rail(hosts: CollectiveHosts) -> None:
    hosts.hosts = hosts.hosts[:1]
    with pytest.raises(ConfigurationError, match="A rail connects hosts"):
        hosts.run()
