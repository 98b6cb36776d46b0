"""The MTU of RoCE ports: one with a smaller MTU than its siblings carries smaller packets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gpufleet.components.base.ports import COMPUTE, ETHERNET, Port
from gpufleet.components.base.registry import Finding
from gpufleet.documents.text import plain
from gpufleet.documents.verdict import Verdict

from .reading import have, odd


def differing_mtus(ports: list[Port]) -> Iterator[Finding]:
    """Ports of one role whose interfaces have another MTU than those of most others.

    Without a declaration the second ports of adapters may be for something else than the first.
    """
    groups: dict[tuple[str, int] | None, list[Port]] = defaultdict(list)
    for port in ports:
        if _compared(port):
            groups[port.position if port.row is None else None].append(port)
    for group in groups.values():
        yield from _differing(group)


def _differing(ports: list[Port]) -> Iterator[Finding]:
    common, others = odd(ports, _mtu)
    if not others:
        return
    listed = "; ".join(f"{have(own, 'has', 'have')} {mtu}" for mtu, own in others.items())
    most = f", its siblings {common}" if common is not None else ""
    wanted = common if common is not None else max(others)
    first = next(own[0] for mtu, own in others.items() if mtu != wanted)
    yield Finding(
        f"The MTU of the interfaces differs: {listed}{most}",
        f"on the host: {_command(first, wanted)}, and for the next boot in what sets it up"
        " (netplan, NetworkManager); the switch's port has to carry it. Ports for something else"
        " have a row of their own in gpu_expect.network",
        # Nothing says which of two values is meant, unless somebody declares them to be alike.
        verdict=Verdict.FAIL
        if common is not None or first.row is not None
        else Verdict.INCONCLUSIVE,
    )


def _compared(port: Port) -> bool:
    """Return whether the port must have the MTU of its siblings.

    A port with the default route is the way to the users. Without a declaration the role storage is
    of all that serves no GPU.
    """
    own = port.interface
    return bool(
        own
        and port.layer == ETHERNET
        and port.active
        and not own["default_route"]
        and (port.row is not None or port.role == COMPUTE)
    )


def _mtu(port: Port) -> int | None:
    return port.interface["mtu"] if port.interface else None


def _command(port: Port, mtu: int) -> str:
    """A bond's interfaces follow the bond, which is then the interface of the port's GIDs."""
    master = port.interface["master"] if port.interface else None
    gids = (port.port["gids"] if port.port else None) or []
    bond = master if master and master in {gid["interface"] for gid in gids} else None
    name = bond or (port.interface["name"] if port.interface else "")
    return f"ip link set {name if plain(name) else 'INTERFACE'} mtu {mtu}"
