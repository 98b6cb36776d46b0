"""The place of a GPU in an NVLink fabric: its domain and the clique in it. Pure.

A clique's number repeats in other racks, so it means something only beside its domain's UUID. A
domain whose UUID is all zero is that of one host. A UUID alone makes no rack: the GPUs of a host
with NVSwitches of its own may have one.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.catalog.smi import no_value
from gpufleet.documents.sections.gpu import Smi, SmiDevice


@dataclass(frozen=True)
class Place:
    """The UUID of an NVLink domain, and the number of a clique of it as nvidia-smi prints it."""

    domain: str
    clique: str

    @property
    def in_rack(self) -> bool:
        """True if the domain is more than one host's own."""
        return bool(self.domain.strip("0-"))


def place_of(card: SmiDevice) -> Place | None:
    """The place of a GPU; None where it has not registered, or does not report its place."""
    elements = card.get("elements") or {}
    domain, clique = (elements.get(f"fabric/{name}", "") for name in ("clusterUuid", "cliqueId"))
    if elements.get("fabric/state") != "Completed" or no_value(domain) or no_value(clique):
        return None
    return Place(domain.lower(), clique)


def host_place(smi: Smi) -> Place | None:
    """The place that all GPUs of a host have; None if they have several, or one has none."""
    found = {place_of(card) for card in smi["devices"]}
    return found.pop() if len(found) == 1 else None
