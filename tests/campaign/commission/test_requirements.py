"""The needs of the collectives are known before any GPU is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpufleet.campaign.commission.attempts import fabric_options
from gpufleet.campaign.commission.requirements import unmet
from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.fleet.judging import plan_of, result_of
from gpufleet.fleet.session import HostRun
from gpufleet.watch.history import History
from lab.gpus.smi_text import MODEL
from tests.support.commission_site import Site
from tests.support.healthy_host import data
from tests.support.recorded_hosts import RecordedHosts

UNREACHED: Any = {"verdict": "UNREACHABLE", "checks": []}
NCCL = {"gpu_nccl_dir": "/opt/nccl"}
DECLARED = {"gpu_expect": {"count": 8, "model": MODEL, "bus_bandwidth_gb_s": 40}}


def test_several_gpus_without_an_nccl_load_nothing(tmp_path: Path) -> None:
    """It was not known before the collectives, after hours of load."""
    site = Site(tmp_path, ["gpu01"], gpus=2)
    assert site.run() == 3
    assert site.hosts.probes("gpu01") == ["read"]
    assert not list(site.state.glob("*.json"))


def test_siblings_without_an_nccl_load_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path, ["gpu01", "gpu02"])
    site.hosts.write_inventory(gpu01=NCCL)
    # It has passed all stages alone: its collectives are due again for siblings.
    assert site.run("--limit", "gpu01") == 0
    with History(site.database) as history:
        history.flag("gpu01", "state", None)
    site.hosts.forget()
    assert site.run("--limit", "gpu01", "--siblings", "gpu02") == 3
    assert site.hosts.probes("gpu01") == ["read"]
    assert "no sibling has an NCCL: gpu02: " in capsys.readouterr().out


def test_single_gpus_without_an_nccl_are_certified_together_as_they_are_alone(
    tmp_path: Path,
) -> None:
    """The first one was not judged, and the second one was certified."""
    site = Site(tmp_path, ["gpu01", "gpu02"])
    assert site.run() == 0
    for name in ("gpu01", "gpu02"):
        [note] = site.record(name)["stages"]["collectives"]["notes"]
        assert "takes part in no collective" in note


# -- the figure ------------------------------------------------------------------------------------


class Group:
    """Hosts with an NCCL, as a first reading finds them."""

    def __init__(self, place: Path, count: int, gpus: int = 8, device: str = "0x20b5") -> None:
        self.recorded = RecordedHosts(place, [f"gpu{n}" for n in range(count)], gpus)
        self.device = device
        self.hosts = [self.host(name) for name in self.recorded.names]

    def host(self, name: str, **variables: Any) -> InventoryHost:
        return InventoryHost(
            name, {**self.recorded.variables, **NCCL, **variables}, Connection(name)
        )

    def seen(self) -> dict[str, HostRun]:
        found = {}
        for host in self.hosts:
            snapshot: Any = self.recorded.recorded(host.name, "read")
            for card in data(snapshot, "gpus")["pci"]:
                card["device"] = self.device
            plan = plan_of(host, snapshot)
            found[host.name] = HostRun(
                host.name, snapshot, plan, result_of(plan, snapshot, UNREACHED)
            )
        return found

    def lacking(self) -> dict[str, str]:
        measure = fabric_options(len(self.hosts)).measure
        found = unmet(self.hosts, [], self.seen(), measure)
        return {name: why["cause"] for name, why in found.items()}


def test_a_host_whose_bandwidth_nobody_knows_lacks_a_figure(tmp_path: Path) -> None:
    """Cards without NVLink have no figure in the catalog."""
    group = Group(tmp_path, 1)
    assert "declared for gpu0" in group.lacking()["gpu0"]
    group.hosts = [group.host("gpu0", **DECLARED)]
    assert group.lacking() == {}


def test_a_group_is_named_with_the_hosts_that_declare_nothing(tmp_path: Path) -> None:
    group = Group(tmp_path, 2)
    group.hosts[0] = group.host("gpu0", **DECLARED)
    causes = group.lacking()
    assert causes.keys() == {"gpu0", "gpu1"}
    assert causes["gpu0"].endswith("is declared for gpu1")


@pytest.mark.parametrize(
    ("count", "gpus", "device"),
    [
        pytest.param(1, 8, "0x2330", id="the catalog has a figure"),
        pytest.param(2, 8, "0x2330", id="the catalog has one between hosts"),
        pytest.param(1, 1, "0x20b5", id="one GPU alone has no collective"),
        pytest.param(8, 1, "0x20b5", id="eight hosts are compared with each other"),
    ],
)
def test_a_figure_that_may_become_known_is_no_reason_to_stop(
    tmp_path: Path, count: int, gpus: int, device: str
) -> None:
    assert Group(tmp_path, count, gpus, device).lacking() == {}


def test_ports_whose_drivers_are_not_installed_are_not_missing(tmp_path: Path) -> None:
    group = Group(tmp_path, 2, device="0x2330")
    seen = group.seen()
    for run in seen.values():
        assert run.snapshot
        data(run.snapshot, "network")["devices"] = []
        for check in run.result["checks"]:
            if check["id"] == "network.setup":
                check["verdict"] = "FAIL"
    measure = fabric_options(2).measure
    assert unmet(group.hosts, [], seen, measure) == {}
