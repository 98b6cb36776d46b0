"""NVMe drives that differ from the others of their model in this host: in their link or size.

A link that came up with fewer lanes, and a drive whose namespace is gone, are reported by nothing
else. Slots may differ by design, so the host is left unjudged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from gpufleet.catalog.fabric import pcie_generation
from gpufleet.components.base.registry import Finding
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.machine import Drive, Machine
from gpufleet.documents.text import quoted
from gpufleet.documents.verdict import Verdict

# The generation of a PCIe link, and its lanes.
Link = tuple[int, int]
# So many drives with the same link are on a backplane. A workstation's slots differ by design.
LEAST_ALIKE = 4


def unlike_siblings(machine: Machine, plan: Plan) -> Iterator[Finding]:
    """Drives with a slower link or no size, where most drives of their model have more.

    Links that a manifest declares are compared with it alone.
    """
    models: dict[str, list[Drive]] = defaultdict(list)
    for drive in machine["drives"]:
        # A drive that was given up is reported as faulty, whatever it shows.
        if drive["model"] and drive["state"] != "dead":
            models[drive["model"]].append(drive)
    links = _links(machine)
    for own in models.values():
        if "pci.links" not in (plan.get("manifest") or {}):
            yield from _slower(own, links)
        yield from _empty(own)


def _links(machine: Machine) -> Mapping[str, Link]:
    found = {}
    for row in machine["pci"]["links"]:
        generation, lanes = pcie_generation(row["speed"]), row["width"] or ""
        if generation is not None and lanes.isdecimal():
            found[row["address"]] = generation, int(lanes)
    return found


def _slower(own: Sequence[Drive], links: Mapping[str, Link]) -> Iterator[Finding]:
    has = {drive["name"]: links[at] for drive in own if (at := drive["address"] or "") in links}
    (usual, number), *_ = Counter(has.values()).most_common(1) or [((0, 0), 0)]
    if number < LEAST_ALIKE or 2 * number <= len(has):
        return
    for name, link in has.items():
        if link[0] < usual[0] or link[1] < usual[1]:
            yield Finding(
                f"The PCIe link of {quoted(name)} is {_shown(link)}, that of {number} others of its"
                f" model {_shown(usual)}",
                "on the host: see dmesg and lspci -vv; seat the drive, check its cable, reboot;"
                " if its slot is made so, declare pci.links in gpu_manifest",
                verdict=Verdict.INCONCLUSIVE,
            )


def _shown(link: Link) -> str:
    return f"generation {link[0]} with {link[1]} lane{'s' if link[1] > 1 else ''}"


def _empty(own: Sequence[Drive]) -> Iterator[Finding]:
    empty = [drive for drive in own if not drive["gb"]]
    if empty and 2 * len(empty) < len(own):
        for drive in empty:
            yield Finding(
                f"{quoted(drive['name'])} has no namespace, {len(own) - len(empty)} others of its"
                " model have one: nothing can be stored on it",
                f"on the host: nvme list-ns --all /dev/{drive['name']}, and see dmesg; create and"
                " attach its namespace again, or replace the drive"
                if drive["name"].isalnum()
                else "on the host: see nvme list, and dmesg",
                verdict=Verdict.INCONCLUSIVE,
            )
