"""The settings of adapters and ports: firmware, boards, PCIe, GIDs, what programs open.

What is declared is compared with the declaration; the rest among siblings, where one that differs
from most others is the one to look at. Versions of firmware are compared within a board (PSID).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from gpufleet.components.base import subjects
from gpufleet.components.base.ports import COMPUTE, ETHERNET, INFINIBAND, MANAGEMENT, Port
from gpufleet.components.base.registry import AS_ROOT, INSPECT, Evidence, Finding, check
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan, PlannedPorts
from gpufleet.documents.sections.network import Network
from gpufleet.documents.text import quoted
from gpufleet.documents.verdict import Verdict

from .mtu import differing_mtus
from .pcie import pcie_links
from .reading import Ports, Value, declared, have, named, none_declared, not_judged, odd, ports_of

LINK_LOCAL = "link-local"
# The GID of a port whose interface has no IP address.
NO_ROUTE = (-1, "none")
ROCE = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}
READ_REQUEST = "MaxReadReq"
PCI_SETTING = (
    "on the host: compare `lspci -vv -s ADDRESS` of both (MaxReadReq, RlxdOrd); declare MaxReadReq"
    " (gpu_network: {max_read_request_bytes: 4096}) and provision; set the other by the firmware's"
    " settings, or by setpci and again at each boot"
)


@check(
    "network.settings",
    reads=("network", "kernel"),
    repair=INSPECT,
    severity="major",
    skip_reason=none_declared,
)
def alike(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Adapters and ports of one role have the same settings, and programs can open them."""
    found = ports_of(plan, observed)
    yield from not_judged(plan, observed, found)
    yield from _firmware(found)
    for group in found.groups:
        devices = [port for port in group if port.device]
        if not devices or group[0].role == MANAGEMENT:
            continue
        row = declared(plan)[group[0].row] if group[0].row is not None else None
        yield from _declared_firmware(devices, row)
        yield from _boards(devices, row)
        yield from _pci_settings(devices, observed)
        yield from pcie_links(devices, row)
        yield from differing_mtus(devices)
        if row and row["gid_index"] is not None:
            yield from _declared_gid(devices, row)
        elif group[0].role == COMPUTE:
            yield from _tables(devices)
        if group[0].role == COMPUTE:
            yield from _nodes(devices, found.network)
    modules = found.network["modules"] or {}
    if found.groups and modules:
        loaded = sorted(name for name, there in modules.items() if there)
        yield Evidence(f"modules: {', '.join(loaded) or 'none'}")


def _listed(values: dict[Value, list[Port]], text: Callable[[Value], str] = str) -> str:
    return "; ".join(
        f"{have(ports, 'has', 'have')} {text(value)}" for value, ports in values.items()
    )


def _firmware(found: Ports) -> Iterator[Finding]:
    """Versions of firmware within a board. A device is one, however many ports it has."""
    by_board: dict[str, dict[str, Port]] = defaultdict(dict)
    for port in found.judged if found.groups else []:
        if port.device and port.device["board"]:
            by_board[port.device["board"]].setdefault(port.device["name"], port)
    for group in found.groups:
        nameless = [port for port in group if port.device and not port.device["board"]]
        if nameless and any(port.device and port.device["board"] for port in group):
            yield Finding(
                f"The board of {named(nameless)} cannot be read",
                "on the host: read it by hand (ibstat, or ethtool -i)",
                verdict=Verdict.INCONCLUSIVE,
            )
    for board, devices in by_board.items():
        common, others = odd(list(devices.values()), _firmware_of)
        if others:
            most = f", most have {common}" if common else ""
            yield Finding(
                f"Adapters of one board ({board}) have different firmware: {_listed(others)}{most}",
                "update the others (on the host: mlxfwmanager --query, or flint; then mlxfwreset or"
                " a power cycle); of a cloud's instance: report it to the provider",
            )
        known = [port for port in devices.values() if _firmware_of(port)]
        if known and len(known) < len(devices):
            unread = [port for port in devices.values() if not _firmware_of(port)]
            yield Finding(
                f"The firmware of {named(unread)} cannot be read",
                "on the host: read it by hand (ibstat, or ethtool -i)",
                verdict=Verdict.INCONCLUSIVE,
            )


def _firmware_of(port: Port) -> str | None:
    return port.device["firmware"] if port.device else None


def _board_of(port: Port) -> str | None:
    return port.device["board"] if port.device else None


def _declared_firmware(ports: list[Port], row: PlannedPorts | None) -> Iterator[Finding]:
    for key, value, remedy in (
        ("firmware", _firmware_of, "update it (on the host: mlxfwmanager, or flint)"),
        ("board", _board_of, "replace the adapter by one of the declared board"),
    ):
        wanted = row["firmware"] if row and key == "firmware" else row["board"] if row else None
        if not wanted:
            continue
        others: dict[str, list[Port]] = defaultdict(list)
        for port in ports:
            if value(port) != wanted:
                others[value(port) or "none that can be read"].append(port)
        for own, wrong in others.items():
            unread = own == "none that can be read"
            yield Finding(
                f"{have(wrong, 'has', 'have')} {key} {own}, declared is {wanted}",
                f"{remedy}, or correct {ports[0].because}",
                verdict=Verdict.INCONCLUSIVE if unread else Verdict.FAIL,
            )


def _boards(ports: list[Port], row: PlannedPorts | None) -> Iterator[Finding]:
    """One board that differs from most others of its role and model is a card of another make."""
    if ports[0].role != COMPUTE or (row and row["board"]):
        return
    types = {port.device["type"] for port in ports if port.device}
    common, others = odd(ports, _board_of)
    if common and others and len(types) == 1:
        yield Finding(
            f"{_listed(others, lambda board: f'board {board}')}, the other adapters of this role"
            f" {common}: another product has other firmware and other limits",
            "replace the adapter by one of the same board, or declare both in gpu_expect.network,"
            " each with its board",
        )


def _pci_settings(ports: list[Port], observed: Sections) -> Iterator[Finding]:
    """MaxReadReq and relaxed ordering are the same on all adapters of a model."""
    settings: tuple[tuple[str, Callable[[Port], int | None]], ...] = (
        (READ_REQUEST, lambda port: port.device["max_read_request"] if port.device else None),
        (
            "relaxed ordering",
            lambda port: port.device["relaxed_ordering"] if port.device else None,
        ),
    )
    by_type: dict[str | None, list[Port]] = defaultdict(list)
    for port in ports:
        if port.device and port.device["address"]:
            by_type[port.device["type"]].append(port)
    for own in by_type.values():
        for name, value in settings:
            common, others = odd(own, value)
            if others:
                most = f", its siblings {_shown(common)}" if common is not None else ""
                yield Finding(
                    f"{name} differs: {_listed(others, _shown)}{most}",
                    PCI_SETTING,
                    about=(subjects.READ_REQUEST,) if name == READ_REQUEST else (),
                )
        unread = [port for port in own if any(value(port) is None for _, value in settings)]
        # A device without these settings has them nowhere; without rights none can be read.
        if unread and (len(unread) < len(own) or observed.snapshot.get("euid")):
            yield Finding(
                f"MaxReadReq and relaxed ordering of {named(unread)} cannot be read",
                AS_ROOT,
                verdict=Verdict.INCONCLUSIVE,
            )


def _shown(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else f"{value} bytes"


def _declared_gid(ports: list[Port], row: PlannedPorts) -> Iterator[Finding]:
    """The declared entry of the GID table is there, and of the declared type."""
    # Flow control is of no use to packets that have no IP header with a DSCP.
    version = row["gid_type"] or ("v2" if row.get("lossless_priority") is not None else "")
    index, wanted = row["gid_index"], ROCE.get(version)
    kinds: dict[str, list[Port]] = defaultdict(list)
    for port in ports:
        if port.active is False:
            # It loses its GIDs with its interface's addresses; that it is down is the fault.
            continue
        gids = port.port["gids"] if port.port else None
        if gids is None:
            yield Finding(
                f"The GID table of {port.name} cannot be read",
                "on the host: read it by hand (show_gids)",
                verdict=Verdict.INCONCLUSIVE,
            )
            continue
        own = [gid for gid in gids if gid["index"] == index]
        interface = quoted(port.interface["name"]) if port.interface else "its interface"
        if not own:
            yield Finding(
                f"{port.name} has no GID with index {index}, which {port.because} declares",
                f"on the host: see show_gids, and give {interface} its IP address",
            )
        elif wanted and own[0]["type"] != wanted:
            yield Finding(
                f"The GID of {port.name} with index {index} is {own[0]['type'] or 'of no type'},"
                f" declared is {wanted}",
                f"on the host: see show_gids; set {interface} up again, or correct {port.because}",
            )
        else:
            kinds[own[0]["kind"]].append(port)
    local = kinds.pop(LINK_LOCAL, [])
    if local and kinds:
        yield Finding(
            f"The GID of {named(local)} with index {index} is only link-local, those of the"
            f" siblings are {' and '.join(kinds)} addresses",
            "on the host: see show_gids, and give each port's interface its IP address",
        )


def _routable(port: Port) -> tuple[int, str] | None:
    """The first routable GID of a port: its index, and the kind of its address."""
    gids = port.port["gids"] if port.port else None
    if gids is None:
        return None
    for gid in gids:
        if gid["type"] == ROCE["v2"] and gid["kind"] != LINK_LOCAL:
            return gid["index"], gid["kind"]
    return NO_ROUTE


def _keys(port: Port) -> frozenset[str] | None:
    return frozenset(port.port["pkeys"]) if port.port and port.port["pkeys"] is not None else None


def _tables(ports: list[Port]) -> Iterator[Finding]:
    """The GID tables of RoCE ports and the P_Keys of InfiniBand ports are like their siblings'."""
    active = [port for port in ports if port.active and port.port]
    roce = [port for port in active if port.layer == ETHERNET]
    infiniband = [port for port in active if port.layer == INFINIBAND]
    tables = [(roce, "GID table", _routable), (infiniband, "P_Keys", _keys)]
    for own, what, value in tables:
        unread = [port for port in own if value(port) is None]
        if unread and (what == "GID table" or len(unread) < len(own)):
            yield Finding(
                f"The {what} of {named(unread)} cannot be read",
                "on the host: read it by hand (ls /sys/class/infiniband/*/ports/*/gids, pkeys)",
                verdict=Verdict.INCONCLUSIVE,
            )
    common, others = odd(roce, _routable)
    if common not in (None, NO_ROUTE):
        for (index, kind), own in others.items():
            has = kind if index < 0 else f"{kind} at index {index}"
            yield Finding(
                f"{have(own, 'has', 'have')} another RoCE v2 GID than the siblings: {has}; theirs"
                f" is {common[1]} at index {common[0]}",
                "on the host: see show_gids, and give each port's interface its IP address; set the"
                " interface up again where only the index differs",
            )
    keys, differing = odd(infiniband, _keys)
    if keys and differing:
        for have_keys, own in differing.items():
            if lacking := sorted(keys - have_keys):
                yield Finding(
                    f"{have(own, 'lacks', 'lack')} P_Key {', '.join(lacking)}, which the siblings"
                    " have",
                    "have the subnet manager put the port into the same partitions",
                )


def _nodes(ports: list[Port], network: Network) -> Iterator[Finding]:
    """Programs can open the adapters: their device files are there."""
    modules = network["modules"]
    if modules is None:
        yield Finding(
            f"Whether programs can open {named(ports)} was not read",
            "on the host: see whether /sys is mounted (ls /sys/module)",
            verdict=Verdict.INCONCLUSIVE,
            entails=(subjects.MODULES,),
        )
        return
    there = {(row["device"], row["port"], row["path"]) for row in network["nodes"] if row["exists"]}
    verbs = {device for device, _, path in there if "/uverbs" in path}
    mads = {(device, port) for device, port, path in there if "/umad" in path}
    lost: dict[str, list[Port]] = defaultdict(list)
    for port in ports:
        if port.device is None or port.port is None:
            continue
        if port.device["name"] not in verbs:
            lost["ib_uverbs"].append(port)
        if port.layer == INFINIBAND and (port.device["name"], port.port["port"]) not in mads:
            lost["ib_umad"].append(port)
    for module, own in lost.items():
        node = module.removeprefix("ib_")
        why = "" if modules.get(module) else f": the module {module} is not loaded"
        use = "NCCL opens it" if module == "ib_uverbs" else "tools and subnet managers open it"
        yield Finding(
            f"{have(own, 'has', 'have')} no device file /dev/infiniband/{node}*{why}",
            f"on the host: modprobe {module} (at boot: a line in /etc/modules-load.d); {use}",
            about=(f"{subjects.MODULE}/{module}",),
        )
