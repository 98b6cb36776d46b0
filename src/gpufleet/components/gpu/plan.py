"""GPUs: which kinds a plan is for, as declared or as the probe found them on the PCI bus."""

from __future__ import annotations

from gpufleet.catalog import pci
from gpufleet.catalog.gpus import Gpu, capabilities, similar
from gpufleet.components.base.context import ResolveContext
from gpufleet.documents.problems import Code
from gpufleet.documents.text import cut

SHOWN = 60  # characters of a name that is not known


def select(context: ResolveContext) -> list[Gpu]:
    """The GPUs to plan for: gpu_gpus, else gpu_expect.model, else those that the probe found.

    Empty for a host declared without GPU. An unknown gpu_expect.model is no problem: the checks
    compare its name.
    """
    if context.spec.without_gpu:
        return []
    found: list[Gpu] = []
    named = [(label, f"gpu_gpus[{at}]") for at, label in enumerate(context.spec.gpus)]
    model = context.spec.expect.get("model")
    if not named and model and capabilities(model):
        named = [(model, "gpu_expect.model")]
    for label, where in named:
        known = capabilities(label)
        new = [each for each in known if each not in {card.capability for card in found}]
        found += [Gpu(capability, label, where) for capability in new]
        if not known:
            context.refuse(
                Code.GPU_UNKNOWN,
                f"the compute capability of {cut(label, SHOWN)!r} is not known",
                where,
                'write the compute capability, such as "8.9" (nvidia-smi --query-gpu=compute_cap)',
            )
    if named:
        _note_undeclared(context, found)
        return found
    if model:
        near = similar(model)
        meant = f"; did you mean {near}?" if near else ""
        context.note(f"The compute capability of {model!r} is not known{meant}")
    found = _observed(context)
    wanted = context.spec.stacks or context.spec.toolkits or context.spec.driver
    if wanted and not found:
        what = "known" if model else "declared (gpu_gpus, gpu_expect.model)"
        context.note(f"No GPU is {what} or found: their support is unchecked")
    return found


def _note_undeclared(context: ResolveContext, declared: list[Gpu]) -> None:
    """Note the GPUs that the probe found and that are of no declared kind."""
    kinds = {card.capability for card in declared}
    for card in _observed(context):
        if kinds and card.capability not in kinds:
            context.note(
                f"{card.text} is also in the host ({card.where}) and not declared: it is unchecked"
            )


def _observed(context: ResolveContext) -> list[Gpu]:
    """The GPUs on the host's PCI bus, each kind once; with a note where the chip is not known."""
    found: dict[str, Gpu] = {}
    for row in context.host.gpus:
        number, address = pci.digits(str(row.get("device"))), str(row.get("address"))
        card = pci.device(number)
        if card is None:
            context.note(
                f"The GPU at {address} (PCI id 10de:{number}) is not known: it is unchecked"
            )
        elif number not in found:
            found[number] = Gpu(card.capability, card.label, f"GPU {address}", number)
            if card.name is None:
                context.note(
                    f"The PCI id of the GPU at {address} is not known; by its range it "
                    f"is {card.label}"
                )
    return list(found.values())
