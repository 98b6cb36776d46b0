"""The section of a snapshot about RDMA devices, their ports, and network interfaces."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from gpufleet.documents.types import Hung, Path, Text


class Gid(TypedDict):
    """An entry of a port's GID table that is in use."""

    index: int
    gid: Text
    kind: Annotated[Text, "of its address: `link-local`, `IPv4` or `IPv6`"]
    type: Annotated[Text | None, "`IB/RoCE v1` or `RoCE v2`"]
    interface: Annotated[Text | None, "the network interface of the GID"]


class RdmaPort(TypedDict):
    """A port of an RDMA device, as the kernel prints its values."""

    port: int
    state: Annotated[Text | None, "such as 4: ACTIVE"]
    phys_state: Annotated[Text | None, "such as 5: LinkUp"]
    rate: Annotated[Text | None, "such as 400 Gb/sec (4X NDR)"]
    link_layer: Annotated[Text | None, "`InfiniBand`, or `Ethernet` (RoCE); EFA has another one"]
    gids: Annotated[list[Gid] | None, "null where there is no table"]
    pkeys: Annotated[list[Text] | None, "null where there is no table"]
    counters: Annotated[
        dict[str, int | None] | None,
        "counters that the device does not have are left out; null where it has none",
    ]
    hw_counters: Annotated[dict[str, int | None] | None, "the same of the driver's own counters"]


class DeviceLink(TypedDict):
    """The PCIe link of a device."""

    current_link_speed: Annotated[Text | None, "such as 32.0 GT/s PCIe"]
    current_link_width: Text | None
    max_link_speed: Text | None
    max_link_width: Text | None


class PortAbove(DeviceLink):
    """The PCI port above a device."""

    address: Text
    vendor: Text | None


class RdmaDevice(TypedDict):
    """An RDMA device; null: not read."""

    name: Annotated[Text, "such as mlx5_0"]
    type: Annotated[Text | None, "its model, such as MT4129 for a ConnectX-7"]
    firmware: Text | None
    board: Annotated[Text | None, "the board's id (PSID)"]
    guid: Annotated[Text | None, "the node GUID"]
    driver: Text | None
    vendor: Annotated[Text | None, "the PCI vendor, such as 0x15b3"]
    device: Annotated[Text | None, "the PCI device, such as 0x1021"]
    address: Annotated[Text | None, "null for a device that is not on a PCI bus"]
    path: Annotated[list[Text], "the PCI ports above it, the root port first"]
    numa: Annotated[int | None, "the NUMA node; -1: none"]
    iommu: Annotated[Text | None, "such as `identity` or `DMA`; `none`: no IOMMU is used"]
    bridge: Annotated[
        bool | None,
        "a bridge to the NVSwitches, whose ports are not read; null: its product data cannot be"
        " read",
    ]
    link: DeviceLink | None
    above: PortAbove | None
    max_read_request: Annotated[int | None, "in bytes"]
    relaxed_ordering: bool | None
    traffic_gb_s: NotRequired[
        Annotated[float | None, "what it moved in both directions while it was read, in Gb/s"]
    ]
    ports: Annotated[list[RdmaPort] | None, "null where they were not read, so also of a bridge"]
    error: Annotated[Text | None, "why nothing of it was read"]
    hung: NotRequired[Hung]


class Lossless(TypedDict):
    """Settings of a lossless class. A mask has a bit for each priority; null: not read."""

    pfc: Annotated[int | None, "the priorities with flow control"]
    trust: Annotated[Text | None, "what gives a packet its priority, `dscp` or `pcp`"]
    notify: Annotated[int | None, "the priorities of which a receiver reports congestion (ECN)"]
    react: Annotated[int | None, "the priorities in which a sender slows down then"]
    traffic_class: Annotated[
        int | None, "of RoCE packets of programs that set none; -1: no such value is set"
    ]


class Interface(TypedDict):
    """A network interface that has a device."""

    name: Text
    address: Annotated[Text, "of its device: a PCI address, mostly"]
    driver: Text | None
    type: Annotated[int | None, "1: Ethernet, 32: InfiniBand"]
    operstate: Text | None
    carrier: Annotated[int | None, "null where the interface is not set up"]
    carrier_changes: int | None
    carrier_up_count: Annotated[int | None, "how often it got a carrier since the driver's load"]
    speed: Annotated[int | None, "in Mb/s; -1: unknown"]
    index: Annotated[int | None, "another number after each load of its driver"]
    mtu: int | None
    dev_port: Annotated[int | None, "the port of its device, the first is 0"]
    master: Annotated[Text | None, "the bond or bridge that it is a part of"]
    lossless: NotRequired[Annotated[Lossless | None, "null where it was not asked"]]
    default_route: Annotated[bool, "it, or what it is a part of, has a default route"]


NetworkFunction = TypedDict(
    "NetworkFunction",
    {
        "address": Text,
        "vendor": Text | None,
        "device": Text | None,
        "class": Annotated[Text, "such as 0x020700 for InfiniBand"],
        "driver": Annotated[Text | None, "null: no driver has it"],
    },
)


class GpuPlace(TypedDict):
    """Where a GPU is on the PCI bus."""

    address: Text
    path: Annotated[list[Text], "the PCI ports above it, the root port first"]
    numa: int | None
    iommu: Text | None


class RdmaNode(TypedDict):
    """A device file of RDMA, or of GDRCopy, which belongs to no device."""

    path: Path
    device: Annotated[Text | None, "the RDMA device"]
    port: int | None
    exists: bool


class PciSettings(TypedDict):
    """The PCI settings that the unit gpufleet-network.service applies at boot."""

    max_read_request: Annotated[int | None, "in bytes"]
    acs_off: bool
    adapters: Annotated[list[Text], "their PCI addresses"]


class NetworkSetup(TypedDict):
    """The setup by the role network, and the driver that the running kernel would load."""

    files: Annotated[list[Path], "the files that it wrote"]
    modules: Annotated[list[Text] | None, "loaded at boot by its file; null without the file"]
    settings: Annotated[PciSettings | None, "null without the unit"]
    on_disk: Annotated[
        dict[str, Text] | None,
        "the file of each kernel module below /lib/modules/KERNEL; null: not read",
    ]
    loaded_driver: Annotated[Text | None, "the source version of the loaded mlx5_core"]
    installed_driver: Annotated[
        Text | None, "of the one on disk, where it is not the kernel's own (DOCA)"
    ]
    unit: Annotated[Text | None, "null: there is none"]
    enabled: Annotated[bool | None, "it starts at boot"]
    active: Annotated[bool | None, "its last start succeeded; null: not known"]
    command: NotRequired[Text | None]


class Network(TypedDict):
    """RDMA devices and network interfaces, without virtual functions of this host."""

    devices: Annotated[list[RdmaDevice] | None, "null where /sys is not there"]
    interfaces: Annotated[list[Interface] | None, "null where they gave no answer"]
    adapters: Annotated[list[NetworkFunction], "the network functions on the PCI bus"]
    gpus: Annotated[list[GpuPlace], "NVIDIA's GPUs on the PCI bus"]
    access_control: Annotated[
        dict[str, int | None],
        "by PCI port above a GPU or an RDMA device: the control word of its ACS, 0 where it has"
        " none; null: not read",
    ]
    peermem: Annotated[Text | None, "the version of the loaded module nvidia_peermem"]
    modules: Annotated[dict[str, bool] | None, "whether a kernel module is loaded, by its name"]
    nodes: Annotated[list[RdmaNode], "the device files that programs open"]
    setup: NotRequired[NetworkSetup]
