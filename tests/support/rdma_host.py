"""RDMA devices of a host, as documents: healthy ones, to be broken by each test in its own way."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

MODULES = (
    "ib_core",
    "ib_uverbs",
    "ib_umad",
    "rdma_ucm",
    "mlx5_core",
    "mlx5_ib",
    "efa",
    "nvidia_peermem",
    "nv_peer_mem",
    "gdrdrv",
)
COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_xmit_wait",
    "port_xmit_data",
)
LINK = {
    "current_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_speed": "32.0 GT/s PCIe",
    "max_link_width": "16",
}
DOWN = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": "10 Gb/sec (4X SDR)"}


def port(number: int, **changes: Any) -> Document:
    """An InfiniBand port of a device with this number."""
    return {
        "port": 1,
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "gids": [
            {
                "index": 0,
                "gid": f"fe80:0000:0000:0000:a088:c203:00ab:{number:04x}",
                "kind": "link-local",
                "type": "IB/RoCE v1",
                "interface": None,
            }
        ],
        "pkeys": ["0xffff"],
        "counters": dict.fromkeys(COUNTERS, 0),
        "hw_counters": {"out_of_buffer": 0, "packet_seq_err": 0},
        **changes,
    }


def roce_port(number: int, **changes: Any) -> Document:
    """A RoCE port, with the GIDs that an interface with an IPv4 address has."""
    local = f"fe80:0000:0000:0000:a288:c2ff:feab:{number:04x}"
    mapped = f"0000:0000:0000:0000:0000:ffff:0a00:{number:04x}"
    kinds = ("IB/RoCE v1", "RoCE v2")
    return port(
        number,
        **{
            "link_layer": "Ethernet",
            "gids": [
                {
                    "index": at,
                    "gid": gid,
                    "kind": "link-local" if gid is local else "IPv4",
                    "type": kinds[at % 2],
                    "interface": f"ens{number}np0",
                }
                for at, gid in enumerate((local, local, mapped, mapped))
            ],
            **changes,
        },
    )


def device(number: int, own: Document | None = None, **changes: Any) -> Document:
    """A ConnectX-7 below a PCI port of its own."""
    return {
        "name": f"mlx5_{number}",
        "type": "MT4129",
        "firmware": "28.41.1000",
        "board": "MT_0000000838",
        "guid": f"a088:c203:00ab:{number:04x}",
        "driver": "mlx5_core",
        "vendor": "0x15b3",
        "device": "0x1021",
        "address": f"0000:{0x40 + number:02x}:00.0",
        "path": [f"0000:{number:02x}:01.0", f"0000:{number:02x}:02.0"],
        "numa": number % 2,
        "iommu": "identity",
        "bridge": False,
        "link": dict(LINK),
        "above": {"address": f"0000:{number:02x}:02.0", "vendor": "0x1000", **LINK},
        "max_read_request": 4096,
        "relaxed_ordering": True,
        "traffic_gb_s": 0.0,
        "ports": [own or port(number)],
        "error": None,
        **changes,
    }


def interface(number: int, **changes: Any) -> Document:
    """The network interface of the device with this number."""
    return {
        "name": f"ens{number}np0",
        "address": f"0000:{0x40 + number:02x}:00.0",
        "driver": "mlx5_core",
        "type": 1,
        "operstate": "up",
        "carrier": 1,
        "carrier_changes": 2,
        "carrier_up_count": 1,
        "speed": 400000,
        "index": 3 + number,
        "mtu": 9000,
        "dev_port": 0,
        "master": None,
        "lossless": None,
        "default_route": False,
        **changes,
    }


def network(devices: list[Document], gpus: int = 0, **changes: Any) -> Document:
    """The section with these devices, and as many GPUs, each beside the device of its number."""
    nodes = []
    for at, row in enumerate(devices):
        nodes.append(
            {
                "path": f"/dev/infiniband/uverbs{at}",
                "device": row["name"],
                "port": None,
                "exists": True,
            }
        )
        nodes += [
            {
                "path": f"/dev/infiniband/umad{at}",
                "device": row["name"],
                "port": own["port"],
                "exists": True,
            }
            for own in row["ports"] or []
        ]
    return {
        "devices": devices,
        "interfaces": [],
        "adapters": [
            {
                "address": row["address"],
                "vendor": row["vendor"],
                "device": row["device"],
                "class": "0x020700",
                "driver": row["driver"],
            }
            for row in devices
        ],
        "gpus": [
            {
                "address": f"0000:{number:02x}:00.0",
                "path": [f"0000:{number:02x}:01.0", f"0000:{number:02x}:03.0"],
                "numa": number % 2,
                "iommu": "identity",
            }
            for number in range(gpus)
        ],
        "access_control": {
            f"0000:{number:02x}:{slot}.0": 0
            for number in range(max(gpus, len(devices)))
            for slot in ("01", "02", "03")
        },
        "peermem": None,
        "modules": {name: name.startswith(("ib_", "mlx5_", "rdma_")) for name in MODULES},
        "nodes": nodes,
        **changes,
    }


REPOSITORY = {
    "uri": "https://mirror.example/doca/",
    "key": "https://mirror.example/doca/key.asc",
    "fingerprints": ["AB" * 20],
}
BOOT_MODULES = ["mlx5_ib", "ib_uverbs", "ib_umad", "rdma_ucm"]
ROLE_FILES = [
    "/etc/systemd/system/gpufleet-network.service",
    "/etc/systemd/system/multi-user.target.wants/gpufleet-network.service",
    "/opt/gpufleet/network/pci_settings.py",
    "/etc/modules-load.d/gpufleet-network.conf",
]


def not_set_up(**changes: Any) -> Document:
    """The probe's reading of a host on which the role network wrote nothing."""
    kernels = "kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko"
    return {
        "files": [],
        "modules": None,
        "settings": None,
        "on_disk": {"mlx5_core": kernels, **dict.fromkeys(BOOT_MODULES, "kernel/x.ko")},
        "loaded_driver": "ABC",
        "installed_driver": None,
        "unit": None,
        "enabled": None,
        "active": None,
        **changes,
    }


def set_up(adapters: list[str], **changes: Any) -> Document:
    """The probe's reading of a host on which the role network did everything."""
    return not_set_up(
        **{
            "files": [*ROLE_FILES],
            "modules": [*BOOT_MODULES],
            "settings": {"max_read_request": 4096, "acs_off": True, "adapters": adapters},
            "unit": "gpufleet-network.service",
            "enabled": True,
            "active": True,
            **changes,
        }
    )


def planned_setup(adapters: list[str], **changes: Any) -> Document:
    """The plan's `network`: the distribution's driver, and both PCI settings."""
    return {
        "driver": "inbox",
        "packages": ["rdma-core", "ibverbs-providers", "infiniband-diags"],
        "repository": None,
        "modules": [*BOOT_MODULES],
        "max_read_request": 4096,
        "acs_off": True,
        "adapters": adapters,
        **changes,
    }


def declared(**changes: Any) -> Document:
    """An entry of gpu_expect.network in a plan."""
    return {
        "ports": ["mlx5_*"],
        "role": "compute",
        "count": None,
        "rate": None,
        "link_layer": None,
        "firmware": None,
        "board": None,
        "gid_index": None,
        "gid_type": None,
        "lossless_priority": None,
        "pcie": None,
        **changes,
    }


def derived(plan: Document, snapshot: Document, *more: Document, gpus: int = 8) -> list[Document]:
    """Declare no ports, and give each of eight GPUs an adapter; the devices."""
    del plan["expect"]["network"]
    devices = [device(number) for number in range(gpus)] + list(more)
    snapshot["sections"]["network"]["data"] = network(devices, gpus)
    return devices
