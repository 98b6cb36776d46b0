"""The ports and NVLinks of the hosts in the page, and the rails of the fleet. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpufleet.documents.text import cut
from gpufleet.documents.verdict import LETTERS, Verdict
from gpufleet.fleet.host_fabric import HostFabric, LinkRow, PortRow, State, read_fabric
from gpufleet.fleet.session import Session

# The mark of a port's state is that of the verdict which it gives.
VERDICTS: Mapping[State, Verdict] = {
    "up": Verdict.PASS,
    "down": Verdict.FAIL,
    "slower": Verdict.FAIL,
    "unread": Verdict.INCONCLUSIVE,
    "idle": Verdict.NOT_DECLARED,
}
FAULTS: tuple[State, ...] = ("down", "slower", "unread")
# A rail is a port that serves GPUs, by its place among those of its host.
LEAST_RAILS, MOST_RAILS, MOST_HOSTS = 2, 32, 50
# Characters of a text, and of the texts of all ports and links in a page.
MOST_TEXT, MOST_TEXTS = 1000, 300_000


def fabrics(session: Session) -> dict[str, HostFabric]:
    """The ports and links of each host, by host, from snapshots where they were not read before."""
    return {
        host.name: host.fabric or read_fabric(host.snapshot, host.plan) for host in session.hosts
    }


@dataclass(frozen=True)
class Cell:
    """A rail of a host."""

    port: str
    state: State
    verdict: str


@dataclass(frozen=True)
class Rails:
    """The rails of a fleet, of the `hosts` that have several.

    `names`: of each rail the most common port; `faults`: on how many hosts it is at fault. `rows`:
    these hosts, each with all of its rails.
    """

    names: list[str] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)
    rows: list[tuple[str, list[Cell]]] = field(default_factory=list)
    hosts: int = 0


def rails(found: Mapping[str, HostFabric]) -> Rails:
    """The rails of the hosts that have several."""
    several = {
        name: fabric.rails[:MOST_RAILS]
        for name, fabric in found.items()
        if len(fabric.rails) >= LEAST_RAILS
    }
    count = max(map(len, several.values()), default=0)
    ports: list[Counter[str]] = [Counter() for _ in range(count)]
    faults = [0] * count
    rows = []
    for name, own in several.items():
        for place, (port, state) in enumerate(own):
            ports[place][port] += 1
            faults[place] += state in FAULTS
        if any(state in FAULTS for _, state in own):
            rows.append((name, [Cell(port, state, VERDICTS[state].value) for port, state in own]))
    # The hosts that have most faults first.
    rows.sort(key=lambda row: -sum(cell.state in FAULTS for cell in row[1]))
    names = [counted.most_common(1)[0][0] for counted in ports]
    return Rails(names, faults, rows, len(several))


def port_row(row: PortRow) -> list[str]:
    """A row of ports as the page has it: the letter of its state, then its texts."""
    state = row.text if row.state != "slower" else f"{row.text}; slower"
    texts = (row.names, row.role, row.because, row.layer, state, row.rate, row.firmware, row.errors)
    return [LETTERS[VERDICTS[row.state]], *(cut(text, MOST_TEXT) for text in texts)]


def link_row(row: LinkRow) -> list[str]:
    """A row of GPUs with their NVLinks."""
    return [cut(text, MOST_TEXT) for text in (row.gpus, row.active, row.version, row.errors)]
