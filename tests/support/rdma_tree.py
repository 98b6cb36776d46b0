"""Plant machines with RDMA devices below a directory, for the probe to read.

What a machine has is derived from public descriptions of its kind: the models, counts and rates of
its adapters. Where its adapters and GPUs are on the PCI bus, their firmware, addresses, GIDs and
counters are made up.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from gpufleet.on_host.host import Host
from gpufleet.on_host.sections.network import section_network

GEN5 = "32.0 GT/s PCIe"
SOFTWARE_COUNTERS = ("link_downed", "rcvd_pkts", "retry_exceeded_err", "send_err", "sent_pkts")
DOWN = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": "10 Gb/sec (4X SDR)"}


def config(read_request: int = 4096, *, relaxed: bool = True) -> bytes:
    """The standard part of a device's PCI configuration, its capabilities in a chain of two."""
    found = bytearray(256)
    found[0:2] = b"\xb3\x15"
    found[0x06] = 0x10
    found[0x34] = 0x40
    found[0x40], found[0x41] = 0x01, 0x60
    found[0x60], found[0x61] = 0x10, 0
    control = (read_request.bit_length() - 8) << 12 | (0x10 if relaxed else 0)
    struct.pack_into("<H", found, 0x68, control)
    return bytes(found)


def port_config(control: int | None = 0) -> bytes:
    """The whole configuration of a PCI port, with access control in a chain of two."""
    found = bytearray(4096)
    if control is not None:
        struct.pack_into("<I", found, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)
        struct.pack_into("<IHH", found, 0x148, 0x000D | 1 << 16, 0x5F, control)
    return bytes(found)


class Tree:
    """A machine's files below `root`; each method adds one part."""

    def __init__(self, root: Path) -> None:
        self.root, self.functions = root, 0
        (root / "sys/class").mkdir(parents=True)

    def put(self, name: str, text: str | bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())

    def link(self, name: str, target: str) -> None:
        """A link to a file of the tree, relative as in sysfs."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(Path(*[".."] * (len(Path(name).parts) - 1), target))

    def function(self, domain: str, path: tuple[str, ...], **files: str | bytes) -> str:
        """A PCI function below these ports; its directory."""
        place = f"sys/devices/pci{domain}"
        for number, address in enumerate(path):
            place += f"/{address}"
            if number < len(path) - 1 and not (self.root / place / "vendor").exists():
                self.put(f"{place}/vendor", "0x1000")
                self.put(f"{place}/config", port_config())
                self.link(f"sys/bus/pci/devices/{address}", place)
                self.pcie(place)
        for name, text in files.items():
            self.put(f"{place}/{name}", text)
        self.link(f"sys/bus/pci/devices/{path[-1]}", place)
        return place

    def pcie(self, place: str, width: int = 16, speed: str = GEN5) -> None:
        """The PCIe link of a function."""
        for kind in ("current", "max"):
            self.put(f"{place}/{kind}_link_width", str(width))
            self.put(f"{place}/{kind}_link_speed", speed)

    def gpu(self, switch: int, device: str = "0x2330", *, domain: str | None = None) -> None:
        """A GPU below a PCI switch of this number, which no IOMMU group has."""
        area = domain or f"{switch:04x}:00"
        path = self.below(switch, "03", domain)
        self.function(area, path, **{"class": "0x030200", "vendor": "0x10de", "device": device})

    def below(self, switch: int, slot: str, domain: str | None = None) -> tuple[str, ...]:
        """The ports above a device in a slot of a PCI switch, and its own address."""
        area = (domain or f"{switch:04x}:00").partition(":")[0]
        self.functions += 1
        bus = f"{area}:{0x20 + self.functions:02x}"
        return f"{area}:00:01.0", f"{area}:01:00.0", f"{area}:02:{slot}.0", f"{bus}:00.0"

    def adapter(
        self,
        name: str,
        place: str,
        *,
        model: str = "MT4129",
        board: str = "MT_0000000838",
        firmware: str = "28.41.1000",
        vpd: bytes | None = b"\x82NVIDIA ConnectX-7",
        driver: str = "mlx5_core",
        ports: int = 1,
        **port: Any,
    ) -> None:
        """The RDMA device of a PCI function."""
        (self.root / place).mkdir(parents=True, exist_ok=True)
        self.pcie(place)
        self.put(f"{place}/numa_node", "0")
        self.put(f"{place}/config", config())
        self.link(f"{place}/driver", f"sys/bus/pci/drivers/{driver}")
        self.put(f"sys/module/{driver}/refcnt", "1")
        if vpd is not None:
            self.put(f"{place}/vpd", vpd)
        own = f"{place}/infiniband/{name}"
        number = len(list((self.root / "sys/class").glob("infiniband/*")))
        self.link(f"{own}/device", place)
        self.link(f"sys/class/infiniband/{name}", own)
        for file, text in (
            ("hca_type", model),
            ("board_id", board),
            ("fw_ver", firmware),
            ("node_guid", f"a088:c203:00ab:{number:04x}"),
        ):
            self.put(f"{own}/{file}", text)
        self.put(f"{place}/infiniband_verbs/uverbs{number}/ibdev", name)
        self.node(f"infiniband_verbs/uverbs{number}", ibdev=name)
        for index in range(1, ports + 1):
            self.port(f"{own}/ports/{index}", number, **port)
            if port.get("link_layer", "InfiniBand") == "InfiniBand":
                self.node(f"infiniband_mad/umad{number}", ibdev=name, port=str(index))

    def node(self, name: str, **files: str) -> None:
        """A device file, and its entry of the class."""
        for file, text in files.items():
            self.put(f"sys/class/{name}/{file}", text)
        self.put(f"dev/infiniband/{Path(name).name}", "")

    def port(
        self,
        place: str,
        number: int,
        *,
        state: str = "4: ACTIVE",
        phys_state: str = "5: LinkUp",
        rate: str = "400 Gb/sec (4X NDR)",
        link_layer: str = "InfiniBand",
        counters: dict[str, int] | None = None,
        address: int | None = None,
    ) -> None:
        """A port of an RDMA device; `address`: of a RoCE port's interface."""
        for file, text in (
            ("state", state),
            ("phys_state", phys_state),
            ("rate", rate),
            ("link_layer", link_layer),
        ):
            self.put(f"{place}/{file}", text)
        local = f"fe80:0000:0000:0000:a088:c203:00ab:{number:04x}"
        gids = [(local, "IB/RoCE v1")]
        if address is not None:
            mapped = f"0000:0000:0000:0000:0000:ffff:0a00:{address:04x}"
            gids = [(gid, kind) for gid in (local, mapped) for kind in ("IB/RoCE v1", "RoCE v2")]
        self.gids(place, gids, f"ens{number}np0" if link_layer == "Ethernet" else None)
        for index in range(16):
            self.put(f"{place}/pkeys/{index}", "0x0000" if index else "0xffff")
        # The device of EFA has no classic counters.
        if link_layer != "Unspecified":
            given = {"symbol_error": 0, "link_downed": 0, "port_xmit_data": 1 << 45}
            for name, value in {**given, **(counters or {})}.items():
                self.put(f"{place}/counters/{name}", str(value))
            self.put(f"{place}/counters/VL15_dropped", "N/A (no PMA)")
        self.put(f"{place}/hw_counters/out_of_buffer", "0")
        self.put(f"{place}/hw_counters/lifespan", "10")

    def gids(self, place: str, used: list[tuple[str, str]], interface: str | None) -> None:
        """The GID table of a port: (GID, type) of the entries in use, which come first."""
        for index in range(16):
            self.put(f"{place}/gids/{index}", "0000:" * 7 + "0000")
        for index, (gid, kind) in enumerate(used):
            self.put(f"{place}/gids/{index}", gid)
            self.put(f"{place}/gid_attrs/types/{index}", kind)
            if interface:
                self.put(f"{place}/gid_attrs/ndevs/{index}", interface)

    def software(self, name: str, number: int, interface: str) -> None:
        """A soft RoCE device of an interface: it is on no bus, and has few of the files."""
        own = f"sys/devices/virtual/infiniband/{name}"
        self.link(f"sys/class/infiniband/{name}", own)
        self.node(f"infiniband_verbs/uverbs{number}", ibdev=name)
        for file, text in (
            ("fw_ver", ""),
            ("node_guid", f"5054:00ff:fe00:{number:04x}"),
            ("parent", interface),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/phys_state", "5: LinkUp"),
            ("ports/1/rate", "2.5 Gb/sec (1X SDR)"),
            ("ports/1/link_layer", "Ethernet"),
            ("ports/1/pkeys/0", "0xffff"),
            ("ports/1/hw_counters/lifespan", "10"),
            *((f"ports/1/hw_counters/{each}", "0") for each in SOFTWARE_COUNTERS),
        ):
            self.put(f"{own}/{file}", text)
        local = f"fe80:0000:0000:0000:5054:00ff:fe00:{number:04x}"
        mapped = f"0000:0000:0000:0000:0000:ffff:c0a8:{number:04x}"
        self.gids(f"{own}/ports/1", [(local, "RoCE v2"), (mapped, "RoCE v2")], interface)

    def interface(self, name: str, place: str, **files: str) -> None:
        """A network interface of a PCI function."""
        own = f"{place}/net/{name}"
        self.link(f"{own}/device", place)
        self.link(f"sys/class/net/{name}", own)
        given = {"operstate": "up", "carrier": "1", "carrier_changes": "2", "speed": "400000"}
        for file, text in {**given, "type": "1", "dev_port": "0", **files}.items():
            self.put(f"{own}/{file}", text)

    def mlx(self, name: str, switch: int, slot: str, device: str = "0x1021", **more: Any) -> str:
        """An adapter of NVIDIA in a slot of a PCI switch; its directory."""
        layer = more.get("link_layer", "InfiniBand")
        kind = "0x020700" if layer == "InfiniBand" else "0x020000"
        path = self.below(switch, slot, more.pop("domain", None))
        place = self.function(
            f"{path[0].partition(':')[0]}:00",
            path,
            **{"class": kind, "vendor": "0x15b3", "device": device},
        )
        self.adapter(name, place, **more)
        return place

    def bridge(self, number: int) -> None:
        """A bridge to the NVSwitches, which looks like an adapter with two-lane ports."""
        self.mlx(
            f"mlx5_{number}",
            number,
            "01",
            vpd=b"\x82Nvidia\x90\x20\x00V2SMDL=SW_MNG",
            board="NVD0000000079",
            firmware="28.47.2526",
            rate="100 Gb/sec (2X HDR)",
        )

    def route(self, name: str) -> None:
        """Give an interface the default route."""
        fields = [name, "00000000", "0100000A", "0003", "0", "0", "100", "00000000", "0", "0", "0"]
        self.put("proc/net/route", "Iface Destination\n" + "\t".join(fields))

    def read(self) -> dict[str, Any]:
        """The section as the probe reads it."""
        found: dict[str, Any] = section_network(Host({"root": str(self.root)}, 20))
        return found


def modules(tree: Tree, *names: str) -> None:
    """The kernel modules that are loaded."""
    for name in names or ("ib_core", "ib_uverbs", "ib_umad", "mlx5_ib"):
        tree.put(f"sys/module/{name}/refcnt", "1")


def h100(tree: Tree) -> None:
    """HGX H100: eight NDR ports beside the GPUs, two of storage by another adapter."""
    modules(tree)
    for number in range(8):
        tree.gpu(number)
        tree.mlx(f"mlx5_{number}", number, "01")
    storage(tree, 8, "200 Gb/sec (4X HDR)")


def a100(tree: Tree) -> None:
    """HGX A100: eight HDR ports, two for each two GPUs, and two of the same adapter for storage."""
    modules(tree)
    cx6: dict[str, Any] = {"model": "MT4123", "board": "MT_0000000223", "firmware": "20.31.1014"}
    for number in range(8):
        tree.gpu(number // 2, "0x20b2")
        tree.mlx(f"mlx5_{number}", number // 2, "01", "0x101b", rate="200 Gb/sec (4X HDR)", **cx6)
    for number in (8, 9):
        tree.mlx(f"mlx5_{number}", number, "01", "0x101b", rate="100 Gb/sec (4X EDR)", **cx6)


def b200(tree: Tree) -> None:
    """HGX B200: eight NDR ports, and four bridges to the NVSwitches that look like two-lane ports."""
    modules(tree)
    for number in range(8):
        tree.gpu(number, "0x2901")
        tree.mlx(f"mlx5_{number}", number, "01")
    for number in range(8, 12):
        tree.bridge(number)


def efa(tree: Tree) -> None:
    """An instance of AWS: sixteen EFA devices, and ENA, which has the default route."""
    modules(tree, "ib_core", "ib_uverbs")
    for number in range(8):
        tree.gpu(number)
    for number in range(16):
        path = tree.below(number // 2, "01")
        place = tree.function(
            f"{path[0].partition(':')[0]}:00",
            path,
            **{"class": "0x020000", "vendor": "0x1d0f", "device": "0xefa2"},
        )
        tree.adapter(
            f"rdmap{number}s0",
            place,
            model="0xefa2",
            board="",
            firmware="0.0.0.0",
            vpd=None,
            driver="efa",
            rate="100 Gb/sec (4X EDR)",
            link_layer="Unspecified",
        )
    path = tree.below(20, "01")
    place = tree.function(
        f"{path[0].partition(':')[0]}:00",
        path,
        **{"class": "0x020000", "vendor": "0x1d0f", "device": "0xec20"},
    )
    tree.interface("ens5", place, speed="-1")
    tree.route("ens5")


def workstation(tree: Tree) -> None:
    """A workstation: one GPU, one RoCE port, and Ethernet on the board."""
    modules(tree)
    tree.gpu(0, "0x2684")
    place = tree.mlx(
        "mlx5_0",
        1,
        "01",
        "0x1015",
        model="MT4117",
        board="MT_2420110034",
        firmware="14.32.1010",
        link_layer="Ethernet",
        rate="25 Gb/sec (1X EDR)",
        address=7,
    )
    tree.interface("ens1np0", place, speed="25000")
    path = tree.below(2, "01")
    board = tree.function(
        f"{path[0].partition(':')[0]}:00",
        path,
        **{"class": "0x020000", "vendor": "0x8086", "device": "0x15f3"},
    )
    tree.interface("eno1", board, speed="1000")
    tree.route("eno1")


def gb200(tree: Tree) -> None:
    """A GB200 tray: four GPUs and four NDR ports in PCI domains of their own, two BlueField-3."""
    modules(tree)
    for number in range(4):
        tree.gpu(number, "0x2941")
        tree.mlx(f"mlx5_{number}", 8 + number, "01")
    for number in (4, 5):
        place = tree.mlx(
            f"mlx5_{number}",
            8 + number,
            "01",
            "0xa2dc",
            model="MT41692",
            board="MT_0000000884",
            firmware="32.39.2048",
            link_layer="Ethernet",
            rate="200 Gb/sec (4X HDR)",
            address=number,
        )
        tree.interface(f"ens{number}np0", place, speed="200000")


def storage(tree: Tree, first: int, rate: str) -> None:
    """Two ports far from the GPUs."""
    for number in (first, first + 1):
        tree.mlx(
            f"mlx5_{number}",
            number,
            "01",
            "0x101b",
            model="MT4123",
            board="MT_0000000224",
            firmware="20.35.1012",
            rate=rate,
        )


MACHINES = {
    "h100": h100,
    "a100": a100,
    "b200": b200,
    "efa": efa,
    "workstation": workstation,
    "gb200": gb200,
}
