"""Real RDMA devices: soft RoCE in two virtual machines, which write to each other's memory.

On virtual machines under software emulation, with Debian's generic kernel: a container shows the
machine's own devices, and the lab has no adapter. What the probe reads of a kernel's own files is
judged like the planted ones. One story, in its order; both faults at once, each on its own host.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.components.base import counters
from gpufleet.components.base import ports as roles
from gpufleet.on_host import payload
from lab import vm
from tests.support import rdma_machines
from tests.support.lab_fleet import Fleet
from tests.support.rdma_host import declared
from tests.support.rdma_tree import Tree
from tests.support.virtual_machine import booted

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# An emulated processor is slow, and slower beside other work: a section may take eight minutes.
UNHURRIED = 7200
# The GID of the interface's IPv4 address: the first one is of the link-local address.
GID = 1
PORTS = [{"ports": "rxe0", "link_layer": "Ethernet", "gid_index": GID, "gid_type": "v2"}]
NETWORK = ("network.errors", "network.gpudirect", "network.ports", "network.settings")
RELOAD = f"networkctl reload; networkctl reconfigure {vm.LINK}"
PORT = "/sys/class/infiniband/rxe0/ports/1"
# The probe reads these sections alone: the others take an emulated processor a minute.
SECTIONS = """
from gpufleet.on_host import runner
runner.SECTIONS = {name: runner.SECTIONS[name] for name in ("network", "kernel")}
main('{"deadline_s": %d}')
"""


@pytest.fixture(scope="module")
def machines() -> Iterator[list[vm.Machine]]:
    with booted(vm.RDMA, 2) as found:
        for number, machine in enumerate(found, 1):
            network = f"[Match]\nName={vm.LINK}\n[Network]\nAddress={address(number)}/24\n"
            machine.on(f"cat >/etc/systemd/network/70-link.network; {RELOAD}", stdin=network)
            machine.on(f"modprobe rdma_rxe; rdma link add rxe0 type rxe netdev {vm.LINK}")
            healthy(machine)
        yield found


def address(number: int) -> str:
    return f"192.168.7.{number}"


def healthy(machine: vm.Machine) -> None:
    """Wait until the port carries data and has the GID of its interface's address."""
    wanted = f"grep -q ACTIVE {PORT}/state && grep -q :ffff:c0a8: {PORT}/gids/{GID}"
    machine.on(f"timeout 300 sh -c 'until {wanted}; do sleep 0.2; done'")


def read(machine: vm.Machine) -> dict[str, Any]:
    """The data of each section that the probe reads on a machine."""
    begin, mark, _ = payload.probe().rpartition("\nmain(")
    assert mark
    printed = machine.on("python3 -I -S -", stdin=begin + SECTIONS % UNHURRIED)
    sections = json.loads(printed.splitlines()[-1])["sections"]
    assert {name: row["state"] for name, row in sections.items()} == dict.fromkeys(sections, "ok")
    return {name: row["data"] for name, row in sections.items()}


def reading(machine: vm.Machine) -> tuple[dict[str, int], str, counters.Reading, float]:
    """The counters of the port; its GUID, its error counters, and when they were read."""
    found = read(machine)
    port = roles.ports(found["network"], [declared(ports=["rxe0"])])[0]
    ((guid, errors),) = counters.readings([port], found["kernel"]["boot_id"])
    assert port.port
    assert port.port["hw_counters"]
    return port.port["hw_counters"], guid, errors, time.monotonic()


@pytest.fixture(scope="module")
def inventory(machines: list[vm.Machine], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both machines, with their ports declared."""
    own = {"gpu_stacks": [], "gpu_toolkits": [], "gpu_expect": {"count": 0, "network": PORTS}}
    hosts = {f"gpu-vm{n}": {**machine.variables, **own} for n, machine in enumerate(machines, 1)}
    file = tmp_path_factory.mktemp("rdma") / "hosts.yml"
    file.write_text(json.dumps({"all": {"children": {"gpu_hosts": {"hosts": hosts}}}}))
    return file


def judged(inventory: Path, status: int) -> dict[str, dict[str, dict[str, Any]]]:
    """The network checks of verify, by host and check id."""
    fleet = Fleet("vm")
    found = fleet.verdicts(status, "--deadline", str(UNHURRIED), "-i", str(inventory))
    return {host: {name: checks[name] for name in NETWORK} for host, checks in found.items()}


def verdicts(checks: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: check["verdict"] for name, check in checks.items()}


HEALTHY = dict.fromkeys(NETWORK, "PASS")


def test_the_planted_device_is_like_the_real_one(
    machines: list[vm.Machine], tmp_path: Path
) -> None:
    network = read(machines[0])["network"]
    tree = Tree(tmp_path)
    rdma_machines.soft_roce(tree)
    (real,), planted = network["devices"], tree.read()["devices"][0]
    assert real.pop("guid") == "5054:00ff:fe00:0001"
    planted.pop("guid")
    (own,), (other,) = real.pop("ports"), planted.pop("ports")
    assert real == planted
    for name in ("gids", "hw_counters"):
        assert own[name]
        assert other[name]
    own_gids, other_gids = (
        [(gid["index"], gid["kind"], gid["type"]) for gid in port.pop("gids")]
        for port in (own, other)
    )
    assert own_gids == other_gids
    assert other.pop("hw_counters").keys() < own.pop("hw_counters").keys()
    assert own == other
    assert [node["device"] for node in network["nodes"] if node["exists"]] == ["rxe0"]


def test_the_port_has_the_interface_of_its_gids(machines: list[vm.Machine]) -> None:
    found = roles.ports(read(machines[0])["network"], gpus=2)
    of = {port.name: (port.interface and port.interface["name"], port.role) for port in found}
    assert of.pop("rxe0") == (vm.LINK, "compute")
    ((name, role),) = of.values()
    assert (name != vm.LINK, role) == (True, "management")


def test_the_counters_move_with_what_a_peer_writes(machines: list[vm.Machine]) -> None:
    before = [reading(machine) for machine in machines]
    server, client = machines
    command = f"ib_write_bw --ib-dev=rxe0 --gid-index={GID} --iters=100 --CPU-freq"
    server.on(f"systemd-run --quiet --unit=server {command}")
    server.on("timeout 300 sh -c 'until ss -Hlt | grep -q :18515; do sleep 0.2; done'")
    printed = client.on(f"timeout 300 {command} {address(1)}")
    assert ["65536", "100"] in [line.split()[:2] for line in printed.splitlines()]
    after = [reading(machine) for machine in machines]
    (received, sent) = (
        now[0][name] - then[0][name]
        for then, now, name in zip(before, after, ("rcvd_pkts", "sent_pkts"), strict=True)
    )
    # 100 writes of 64 KiB, each in packets of 1 KiB.
    assert received >= 100 * 64
    assert sent >= 100 * 64
    for (_, guid, then, began), (_, later, now, ended) in zip(before, after, strict=True):
        assert guid == later
        grown = {each.counter: each for each in counters.rates(then, now, ended - began)}
        assert grown["link_downed"].growth == 0
        assert [each.text for each in grown.values() if each.state != "known" or each.limit] == []


def test_a_port_goes_down_with_its_interface_and_a_gid_with_its_address(
    machines: list[vm.Machine], inventory: Path
) -> None:
    one, two = machines
    _, guid, then, began = reading(one)
    one.on(f"ip link set {vm.LINK} down")
    two.on(f"ip address del {address(2)}/24 dev {vm.LINK}")
    found = judged(inventory, 1)

    down = found["gpu-vm1"]["network.ports"]
    assert verdicts(found["gpu-vm1"]) == {**HEALTHY, "network.ports": "FAIL"}
    assert "rxe0 is down (1: DOWN, 3: Disabled): it is declared" in down["cause"]
    assert f"ip link set {vm.LINK} up" in down["remedy"]

    half = found["gpu-vm2"]["network.settings"]
    assert verdicts(found["gpu-vm2"]) == {**HEALTHY, "network.settings": "FAIL"}
    assert f"rxe0 has no GID with index {GID}" in half["cause"]
    assert f"give {vm.LINK} its IP address" in half["remedy"]

    _, later, now, ended = reading(one)
    assert guid == later
    grown = {each.counter: each for each in counters.rates(then, now, ended - began)}
    assert grown["link_downed"].growth == 1
    assert grown["link_downed"].limit
    assert grown["link_downed"].limit.fatal


def test_both_are_healthy_again_after_the_remedies(
    machines: list[vm.Machine], inventory: Path
) -> None:
    one, two = machines
    one.on(f"ip link set {vm.LINK} up")
    two.on(f"ip address add {address(2)}/24 dev {vm.LINK}")
    for machine in machines:
        healthy(machine)
    found = judged(inventory, 0)
    assert {host: verdicts(checks) for host, checks in found.items()} == {
        "gpu-vm1": HEALTHY,
        "gpu-vm2": HEALTHY,
    }
    assert "rxe0: 1 of 1 active" in found["gpu-vm1"]["network.ports"]["evidence"]
