"""Changes of versions, kernels, GPUs, links and ports since they were last recorded. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from gpufleet.documents.nightly import Weight
from gpufleet.documents.text import is_number

from . import port_states
from .change import Change
from .port_states import PORTS, port_changes, states

KINDS = {"driver": "driver", "kernel": "kernel", "gpus": "gpu"}


Texts = Mapping[tuple[str, str], tuple[str | None, str]]


def card_hosts(texts: Texts) -> dict[str, str]:
    """Each card's host tonight. `texts`: by host and measure, the last recorded and tonight's."""
    return {
        card: host
        for (host, name), (_, after) in texts.items()
        if name == "gpus"
        for card in cards(after)
    }


def version_changes(
    texts: Texts, places: Mapping[str, str], known: Collection[str]
) -> Iterator[Change]:
    """Yield a change for each text of a host that differs from the last recorded one.

    `texts`: by host and measure, the last recorded text and tonight's. `places`: `card_hosts()` of
    all hosts. `known`: the cards that the host had in any of the nights before.
    """
    for (host, name), (before, after) in texts.items():
        if before is None or before == after or name == "skus":
            # Cards that differ in their SKU differ in `gpus`, too.
            continue
        if name == "gpus":
            yield from card_changes(host, cards(before), cards(after), places, known)
            continue
        if name == "nvlinks":
            yield from link_changes(host, links(before), links(after))
            continue
        if name == PORTS:
            yield from port_changes(host, states(before), states(after))
            continue
        what = name.partition(".")[0]
        yield Change(
            KINDS.get(what, "version"),
            host,
            None,
            before,
            after,
            f"{_title(name)} changed from {before} to {after}.",
            f"if this was not intended: ./gpufleet plan --limit {host}",
            "note",
        )


def cards(text: str) -> dict[str, tuple[str, str]]:
    """Address and model of each card of the measure `gpus`, by UUID."""
    rows = (row.split(" ", 2) for row in text.split("; "))
    # A model's name may contain a semicolon: the text after it is not a row.
    return {row[1]: (row[0], row[2]) for row in rows if len(row) == 3 and row[1] != "-"}


def card_changes(
    host: str,
    before: Mapping[str, tuple[str, str]],
    after: Mapping[str, tuple[str, str]],
    places: Mapping[str, str],
    known: Collection[str] = (),
) -> Iterator[Change]:
    """Yield the changes of a host's cards by UUID: replaced, moved, missing, returned, new.

    `before` and `after` are `cards()`; `places`: each card's host tonight; `known`: the cards
    that the host had before.
    """
    now = {address: uuid for uuid, (address, _) in after.items()}
    swapped: set[str] = set()

    def change(uuid: str | None, new: str | None, text: str, remedy: str, weight: Weight) -> Change:
        return Change("gpu", host, None, uuid, new, text, remedy, weight)

    for uuid, (address, model) in before.items():
        other = now.get(address)
        if uuid in after:
            if after[uuid][0] != address:
                yield change(
                    uuid,
                    uuid,
                    f"{uuid} ({model}) moved from {address} to {after[uuid][0]}.",
                    "",
                    "note",
                )
        elif other and other not in before:
            swapped.add(other)
            moved = f"; {uuid} is in {places[uuid]} now" if uuid in places else ""
            yield change(
                uuid,
                other,
                f"The card at {address} was replaced: {other}"
                f" ({after[other][1]}) instead of {uuid} ({model}){moved}.",
                "if gpu_expect.uuids is declared, put the new UUID into it",
                "note",
            )
        elif uuid in places:
            yield change(uuid, None, f"{uuid} ({model}) is in {places[uuid]} now.", "", "note")
        else:
            yield change(
                uuid,
                None,
                f"{uuid} ({model}) at {address} is missing.",
                "see gpu.count and kernel.log; check that the card is seated in its slot"
                " and has power",
                "bad",
            )
    for uuid, (address, model) in after.items():
        if uuid in before or uuid in swapped:
            continue
        if uuid in known:
            yield change(None, uuid, f"{uuid} ({model}) is back at {address}.", "", "good")
        else:
            yield change(
                None,
                uuid,
                f"{uuid} ({model}) at {address} is new.",
                "declare it in gpu_expect",
                "note",
            )


def links(text: str) -> dict[str, int]:
    """The number of active NVLinks of each GPU of the measure `nvlinks`, by address."""
    rows = (row.split(" ") for row in text.split("; "))
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and is_number(row[1])}


def last_known(name: str, texts: Sequence[str]) -> str | None:
    """The last text of a measure in the nights before; of ports and links, each one's last."""
    if name == PORTS and texts:
        return port_states.last_known(texts)
    if name == "nvlinks":
        known = {address: count for text in texts for address, count in links(text).items()}
        if known:
            return "; ".join(f"{address} {count}" for address, count in sorted(known.items()))
    return texts[-1] if texts else None


def link_changes(
    host: str, before: Mapping[str, int], after: Mapping[str, int]
) -> Iterator[Change]:
    """Yield a change for each GPU that has fewer active NVLinks than before, or more.

    How many a GPU in a PCIe slot has depends on its bridges: no table knows it, its past does.
    """
    for address in before.keys() & after.keys():
        was, now = before[address], after[address]
        if was == now:
            continue
        lost = now < was
        yield Change(
            "gpu",
            host,
            None,
            str(was),
            str(now),
            f"The GPU at {address} has {now} active NVLinks, {was} before.",
            "see gpu.nvlink and kernel.log; check that the NVLink bridges are seated; declare"
            " gpu_expect.nvlinks, and each verification compares it"
            if lost
            else "",
            "bad" if lost else "good",
        )


def _title(name: str) -> str:
    plain = {
        "driver.version": "Driver",
        "kernel.running": "Running kernel",
        "os.version": "Operating system",
        "toolkits": "CUDA toolkits",
        "stacks": "Stacks",
        "containers.engine": "Container engine",
        "containers.toolkit": "NVIDIA's container toolkit",
    }
    if name in plain:
        return plain[name]
    for start, title in (("toolkit.", "CUDA {}"), ("cudnn.", "cuDNN of {}"), ("stack.", "{}")):
        if name.startswith(start):
            inner, _, what = name.removeprefix(start).rpartition(".")
            return title.format(inner) + ("" if what == "version" else f" ({what.title()})")
    return name
