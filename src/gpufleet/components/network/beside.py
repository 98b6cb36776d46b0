"""The GPUs without an adapter beside them, where most have one: an adapter may be gone.

One that has fallen off the bus leaves nothing that could be judged. One adapter for all GPUs, or
none near a GPU, as with Grace, is how a host is built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpufleet.components.base.ports import COMPUTE, Port
from gpufleet.components.base.registry import Finding, shortened
from gpufleet.components.base.sections import Sections
from gpufleet.documents.sections.network import GpuPlace, Network
from gpufleet.documents.text import quoted
from gpufleet.documents.verdict import Verdict

# So many GPUs with an adapter beside them are a board that has one for each of its parts.
LEAST_NEAR = 3


def without_adapter(group: list[Port], network: Network, observed: Sections) -> Iterator[Finding]:
    """GPUs that share no PCI port with a port of a derived group, though most others do.

    They are no more than have one adapter beside them: that of one is gone.
    """
    if group[0].role != COMPUTE or group[0].row is not None:
        return
    gpus = _alike(network, observed)
    paths = [set(port.device["path"]) for port in group if port.device]
    alone = [gpu for gpu in gpus if all(path.isdisjoint(gpu["path"]) for path in paths)]
    near = len(gpus) - len(alone)
    cards = len({port.card for port in group})
    if near >= LEAST_NEAR and cards > 1 and 0 < len(alone) * cards <= near:
        yield Finding(
            f"No adapter is beside the GPU at {shortened([gpu['address'] for gpu in alone])}:"
            f" {near} of {len(gpus)} GPUs share a PCI port with one",
            "on the host: look for the adapter (lspci) and for messages of its driver (dmesg | grep"
            " mlx5), reboot, and seat or replace it; if it was never there, declare gpu_expect:"
            f" {{network: [{{ports: {quoted(group[0].name)}, role: compute}}, ...]}}",
            verdict=Verdict.INCONCLUSIVE,
        )


def _alike(network: Network, observed: Sections) -> list[GpuPlace]:
    """The GPUs without those of another model than most: one for displays needs no adapter."""
    every = observed.read_elsewhere()
    listed = every["gpus"]["pci"] if "gpus" in every else []
    addresses = {gpu["address"] for gpu in network["gpus"]}
    models = {row["address"]: row["device"] for row in listed if row["address"] in addresses}
    (usual, _), *_ = Counter(models.values()).most_common(1) or [("", 0)]
    return [gpu for gpu in network["gpus"] if models.get(gpu["address"], usual) == usual]
