"""The lowest rate of healthy copies between two GPUs, by the links that connect them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufleet.catalog import fabric
from gpufleet.components.base.sections import Sections
from gpufleet.components.gpu.confidential import BECAUSE, is_confidential
from gpufleet.documents.sections.compute import ComputeDevice, PeerResult

# Copies between two GPUs whose links were not read; slower than any PCIe slot of theirs.
LEAST_PEER_GIB_S = 0.5
# A board with so many GPUs may have no NVSwitch: each GPU's links are divided among the others.
MOST_WITHOUT_SWITCH = 4


def least_peer(
    observed: Sections, devices: Mapping[int, ComputeDevice], entry: PeerResult
) -> tuple[float, str]:
    """The least rate of copies between two GPUs in GiB/s, and the source of that number."""
    if is_confidential(observed) and not entry["access"]:
        return 0.0, f"through the host, encrypted: {BECAUSE}"
    ends = [devices.get(gpu) for gpu in (entry["from"], entry["to"])]
    if nvlink := wired(ends):
        used = min(nvlink.links, _links_between(observed, len(devices), ends, nvlink.links))
        least = round(nvlink.gib_s * used / nvlink.links, 1)
        part = "" if used == nvlink.links else f"{used} of "
        return least, f"of {part}{nvlink.links} NVLinks"
    return _pcie_rate(ends, direct=bool(entry["access"]))


def wired(ends: Sequence[ComputeDevice | None]) -> fabric.Nvlinks | None:
    """The NVLinks that two GPUs of one model are wired with; else None."""
    models = [fabric.nvlinks((end and end["name"]) or "") for end in ends]
    return models[0] if models[0] and models[0].wired and models[0] == models[1] else None


def _links_between(
    observed: Sections, gpus: int, ends: Sequence[ComputeDevice | None], links: int
) -> int:
    """How many of their links two GPUs of a board use for each other.

    All of them, where they end at NVSwitches. NVML reports the other ends; where it does not, the
    switches on the PCI bus and the number of GPUs decide.
    """
    data = observed.read_elsewhere()
    first, second = [end and end["address"] for end in ends]
    rows = data["smi"].get("nvlink") or [] if "smi" in data else []
    own = [
        link
        for row in rows
        if first and row["address"] == first
        for link in row["links"] or []
        if link["active"]
    ]
    if any(link["remote"] == "switch" for link in own):
        return links
    if direct := sum(link["remote"] == "gpu" and link["remote_address"] == second for link in own):
        return direct
    switches = "gpus" in data and data["gpus"]["nvswitches"]
    if switches or gpus > MOST_WITHOUT_SWITCH:
        return links
    return max(1, links // max(1, gpus - 1))


def _pcie_rate(ends: Sequence[ComputeDevice | None], *, direct: bool) -> tuple[float, str]:
    """The minimum of copies over the PCIe links of two GPUs, by the slower one."""
    links = [link for end in ends if end and (link := end.get("link"))]
    carried = [
        rate for link in links if (rate := fabric.pcie_gib_s(link["generation"], link["width"]))
    ]
    if len(carried) < len(ends):
        return LEAST_PEER_GIB_S, "of any PCIe slot"
    share = fabric.share("peer_pcie" if direct else "peer_host")
    return round(share * min(carried), 1), (
        f"{share:.0%} of the slower PCIe link{'' if direct else ', through the host'}"
    )
