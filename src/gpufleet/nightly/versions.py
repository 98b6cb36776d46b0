"""Versions, drivers, kernels and cards that are others than when they were last seen. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from .change import Change

KINDS = {"driver": "driver", "kernel": "kernel", "gpus": "gpu"}


def of_texts(texts: Mapping[tuple[str, str], tuple[str | None, str]],
             known: Mapping[str, Collection[str]]) -> Iterator[Change]:
    """Versions, drivers, kernels and cards that are others than when last seen.

    `known`: by host, the cards that it had in any of the nights before.
    """
    places = {card: host for (host, name), (_, after) in texts.items() if name == "gpus"
              for card in cards(after)}
    for (host, name), (before, after) in texts.items():
        if before is None or before == after:
            continue
        if name == "gpus":
            yield from of_cards(host, cards(before), cards(after), places, known.get(host, ()))
            continue
        what = name.partition(".")[0]
        yield Change(KINDS.get(what, "version"), host, None, before, after,
                     f"{_title(name)}: {after}, and was {before}.",
                     f"if nobody meant it: ./gpufleet plan --limit {host}", "note")


def cards(text: str) -> dict[str, tuple[str, str]]:
    """{UUID: (address, model)} of the measure `gpus`."""
    rows = (row.split(" ", 2) for row in text.split("; "))
    # A model's name may have a semicolon in it: what follows is no row.
    return {row[1]: (row[0], row[2]) for row in rows if len(row) == 3 and row[1] != "-"}


def of_cards(
    host: str, before: Mapping[str, tuple[str, str]], after: Mapping[str, tuple[str, str]],
    places: Mapping[str, str], known: Collection[str] = (),
) -> Iterator[Change]:
    """Cards by their UUIDs: swapped, moved, gone, back, new.

    `places`: on which host each is tonight; `known`: those that the host had before.
    """
    now = {address: uuid for uuid, (address, _) in after.items()}
    swapped: set[str] = set()

    def change(uuid: str | None, new: str | None, text: str, remedy: str, weight: str) -> Change:
        return Change("gpu", host, None, uuid, new, text, remedy, weight)

    for uuid, (address, model) in before.items():
        other = now.get(address)
        if uuid in after:
            if after[uuid][0] != address:
                yield change(uuid, uuid, f"{uuid} ({model}) is at {after[uuid][0]} now, and was at"
                             f" {address}.", "", "note")
        elif other and other not in before:
            swapped.add(other)
            gone = f"; {uuid} is in {places[uuid]} now" if uuid in places else ""
            yield change(uuid, other, f"At {address} is another card: {other} ({after[other][1]}),"
                         f" and was {uuid} ({model}){gone}.",
                         "put the new UUID into gpu_expect.uuids, where they are declared", "note")
        elif uuid in places:
            yield change(uuid, None, f"{uuid} ({model}) is in {places[uuid]} now.", "", "note")
        else:
            yield change(uuid, None, f"{uuid} ({model}) at {address} is gone.",
                         "see gpu.count and kernel.log; look whether it sits in its slot and has"
                         " power", "bad")
    for uuid, (address, model) in after.items():
        if uuid in before or uuid in swapped:
            continue
        if uuid in known:
            yield change(None, uuid, f"{uuid} ({model}) is back at {address}.", "", "good")
        else:
            yield change(None, uuid, f"{uuid} ({model}) at {address} is new.",
                         "declare it in gpu_expect", "note")


def _title(name: str) -> str:
    plain = {"driver.version": "Driver", "kernel.running": "Running kernel",
             "os.version": "Operating system", "toolkits": "CUDA toolkits", "stacks": "Stacks",
             "containers.engine": "Container engine",
             "containers.toolkit": "NVIDIA's container toolkit"}
    if name in plain:
        return plain[name]
    for start, title in (("toolkit.", "CUDA {}"), ("cudnn.", "cuDNN of {}"), ("stack.", "{}")):
        if name.startswith(start):
            inner, _, what = name.removeprefix(start).rpartition(".")
            return title.format(inner) + ("" if what == "version" else f", its {what.title()}")
    return name
