"""The role of each port: by declaration, else by the places of adapters and GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.components.base import ports as roles
from tests.support.rdma_host import Document, declared, device, network, port, roce_port

ETHERNET = {"type": "MT41692", "board": "MT_0000000884", "device": "0xa2dc"}


def found(
    devices: list[Document], rows: Sequence[Document] = (), gpus: int = 2, **more: object
) -> dict[str, str | None]:
    """The role of each port."""
    section = network(devices, gpus, **more)
    return {each.name: each.role for each in roles.ports(section, list(rows), 0)}


def interface(row: Document, name: str, **changes: object) -> Document:
    """The network interface of a device."""
    return {
        "name": name,
        "address": row["address"],
        "driver": "mlx5_core",
        "type": 1,
        "operstate": "up",
        "carrier": 1,
        "carrier_changes": 2,
        "carrier_up_count": 1,
        "speed": 100000,
        "index": 5,
        "mtu": 9000,
        "dev_port": 0,
        "master": None,
        "default_route": False,
        **changes,
    }


def test_one_model_near_and_far_from_the_gpus_serves_both() -> None:
    assert found([device(0), device(1), device(5), device(6)]) == {
        "mlx5_0": "compute",
        "mlx5_1": "compute",
        "mlx5_5": "storage",
        "mlx5_6": "storage",
    }


def test_another_board_beside_the_gpus_serves_storage_unless_it_completes_them() -> None:
    other = device(2, path=device(0)["path"], board="MT_0000000970")
    assert found([device(0), device(1), other])["mlx5_2"] == "storage"
    replaced = device(2, board="MT_0000000970")
    assert found([device(0), device(1), replaced], gpus=3)["mlx5_2"] == "compute"


def test_the_kind_with_most_ports_serves_gpus_that_no_port_is_near() -> None:
    far = [device(number) for number in (5, 6, 7)]
    slow = device(8, roce_port(8), **ETHERNET)
    assert found([*far, slow]) == {
        "mlx5_5": "compute",
        "mlx5_6": "compute",
        "mlx5_7": "compute",
        "mlx5_8": "storage",
    }


def test_a_port_with_the_default_route_is_for_management() -> None:
    row = device(8, roce_port(8), **ETHERNET)
    own = interface(row, "ens8np0", default_route=True)
    assert found([device(0), device(1), row], interfaces=[own])["mlx5_8"] == "management"


def test_a_host_without_gpus_has_no_compute_ports() -> None:
    assert set(found([device(0), device(1)], gpus=0).values()) == {"storage"}


def test_the_first_entry_that_names_a_port_gives_its_role() -> None:
    rows = [
        declared(ports=["mlx5_[01]"]),
        declared(ports=["ens5np0", "eno1"], role="management"),
        declared(ports=["mlx5_*"], role="storage"),
    ]
    five = device(5, roce_port(5), **ETHERNET)
    board = interface({"address": "0000:f0:00.0"}, "eno1")
    interfaces = [interface(five, "ens5np0"), board]
    assert found([device(0), device(1), five, device(6)], rows, interfaces=interfaces) == {
        "mlx5_0": "compute",
        "mlx5_1": "compute",
        "mlx5_5": "management",
        "mlx5_6": "storage",
        "eno1": "management",
    }


def test_a_port_that_no_entry_names_has_no_role() -> None:
    assert found([device(0), device(1)], [declared(ports=["mlx5_1"])])["mlx5_0"] is None


def test_the_second_port_of_a_device_has_a_name_of_its_own() -> None:
    two = device(0, ports=[port(0), port(0, port=2)])
    assert list(found([two])) == ["mlx5_0", "mlx5_0/2"]


def test_a_bridge_is_no_port() -> None:
    bridge = device(7, bridge=True, ports=None)
    assert list(found([device(0), bridge])) == ["mlx5_0"]
    assert roles.bridges(network([device(0), bridge])) == ["mlx5_7"]


def test_no_interface_is_read_as_a_port_of_its_own_where_its_device_was_not_read() -> None:
    silent = device(7, ports=None, bridge=None, error="no answer within 4 s")
    own = interface(silent, "ens7np0")
    assert list(found([device(0), silent], interfaces=[own])) == ["mlx5_0"]


def soft(**changes: object) -> tuple[Document, Document]:
    """A soft RoCE device, which is on no bus, and its interface."""
    own = roce_port(0, counters=None, hw_counters={"link_downed": 0, "sent_pkts": 7})
    row = device(0, own, address=None, path=[], type=None, board=None, name="rxe0", vendor=None)
    return row, interface({"address": "virtio3"}, "ens0np0", carrier_up_count=0, **changes)


def test_a_device_without_a_bus_has_the_interface_of_its_gids() -> None:
    row, own = soft()
    (port,) = roles.ports(network([row], interfaces=[own]), [], 1)
    assert (port.name, port.role) == ("rxe0", "compute")
    assert port.names == ["rxe0", "rxe0/1", "ens0np0"]
    (port,) = roles.ports(network([row], interfaces=[{**own, "default_route": True}]), [], 1)
    assert port.role == "management"


def test_a_port_had_a_link_if_only_its_drivers_own_counter_says_so() -> None:
    row, own = soft()
    section = network([row], interfaces=[own])
    assert not roles.ports(section, [], 1)[0].was_up
    row["ports"][0]["hw_counters"]["link_downed"] = 1
    assert roles.ports(section, [], 1)[0].was_up


def test_a_roce_port_is_switched_off_where_its_interface_is_not_set_up() -> None:
    off = {"state": "1: DOWN", "phys_state": "3: Disabled"}
    row = device(0, roce_port(0, **off))
    for carrier, expected in ((0, False), (None, True)):
        section = network([row], interfaces=[interface(row, "ens0np0", carrier=carrier)])
        assert roles.ports(section, [], 1)[0].disabled is expected
