"""Cards: as many as are declared, the very ones, sound, and set as declared.

What nvidia-smi says of them is judged only where it was read; why it was not is `gpu.smi`'s to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpufleet.host_state import driver_running
from gpufleet.model.verdict import Verdict

from .registry import (
    HARDWARE,
    INSPECT,
    Document,
    Evidence,
    Finding,
    Sections,
    check,
    driver_findings,
    no_gpus_declared,
)


def _count_not_set(plan: Document) -> str | None:
    skip_reason = no_gpus_declared(plan)
    # That there is none is a declaration too, and can be wrong.
    return None if skip_reason and "count: 0" in skip_reason else skip_reason


@check("gpu.count", reads=("gpus",), repair=HARDWARE, skip_reason=_count_not_set)
def count(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """The host has as many NVIDIA GPUs on its PCI bus as are declared."""
    wanted, cards = plan["expect"]["count"], _own(observed)
    listed = ", ".join(f"{card['address']} ({card['device']})" for card in cards)
    if given := len(observed["gpus"]["pci"]) - len(cards):
        listed += f", and {given} of virtual machines ({driver_running.GIVEN_AWAY})"
    if len(cards) > wanted:
        yield Finding(
            f"{len(cards)} NVIDIA GPUs are in the host, declared is gpu_expect:"
            f" {{count: {wanted}}}",
            f"declare them for {plan['host']} in the inventory: gpu_expect: {{count:"
            f" {len(cards)}}}",
            listed,
        )
    elif len(cards) < wanted:
        yield Finding(
            f"{wanted - len(cards)} of {wanted} declared GPUs are not on the PCI bus",
            "look in the kernel log for Xid 79 (fallen off the bus), power the host off and on;"
            " if it stays away: reseat or replace the card",
            listed or "no NVIDIA GPU on the PCI bus",
        )
    yield Evidence(listed or "no NVIDIA GPU on the PCI bus")


def _own(observed: Sections) -> list[Document]:
    """The cards on the bus but for those that are given to virtual machines."""
    return [card for card in observed["gpus"]["pci"] if card["driver"] != driver_running.GIVEN_AWAY]


def _no_layout(plan: Document) -> str | None:
    if not (plan["driver"] or {}).get("mig"):
        return "gpu_mig: not set"
    return _without_card(plan)


def _without_card(plan: Document) -> str | None:
    skip_reason = no_gpus_declared(plan)
    return skip_reason if skip_reason and "count: 0" in skip_reason else None


@check("gpu.mig", reads=("gpus", "driver"), skip_reason=_no_layout)
def mig(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each GPU is split into the MIG instances that are declared for it, and no others."""
    if observed["gpus"]["mig"] is None:
        yield Finding(
            "Whether the GPUs are split as declared is not known: no driver could be asked",
            "see driver.loaded; then ./gpufleet verify", verdict=Verdict.INCONCLUSIVE)
        return
    known, cards = [row["gpu"] for row in observed["gpus"]["mig"]], len(_own(observed))
    if sorted(known) != list(range(cards)):
        yield Finding(
            f"The PCI bus has {cards} GPUs; whether they are split is told of"
            f" {', '.join(map(str, known)) or 'none'}",
            "see gpu.count", verdict=Verdict.INCONCLUSIVE)
    yield from driver_findings(driver_running.mig, plan, observed)
    yield Evidence("; ".join(f"GPU {row['gpu']}: MIG {row['mode'] or 'not known to it'}"
                             f" {' '.join(row['instances'])}".rstrip()
                             for row in observed["gpus"]["mig"]))


# -- as nvidia-smi tells it -----------------------------------------------------------------------

# What a card that answers at all can tell.
IDENTITY = ("name", "uuid", "memory_total_mib", "memory_used_mib", "temperature_c")
# By how much a card's memory may differ: ECC and drivers keep a part of it for themselves.
MEMORY_TOLERANCE = 0.07


def cards(observed: Sections) -> list[Document]:
    """What nvidia-smi said, card by card."""
    found: list[Document] = observed["smi"]["devices"]
    return found


def unknown_without_cards(observed: Sections, what: str) -> Iterator[Finding]:
    """Where no card was named nothing of them is known; why not, another check says."""
    if not cards(observed):
        yield Finding(f"{what} is not known: nvidia-smi named no card", "see gpu.smi and"
                      " driver.loaded; then ./gpufleet verify", verdict=Verdict.INCONCLUSIVE)


def label(card: Document) -> str:
    """A card as a person finds it: its number and its place."""
    return f"GPU {card['index']} ({card['address']})"


def missing_value(card: Document, field: str, value: object) -> Iterator[Finding]:
    """A value that a healthy card of any kind tells, or says that it has none, and that is not
    there."""
    failed = [text for text in card["unanswered"] if text.startswith(field + ":")]
    if value is None and (failed or field not in card["raw_unknown"]):
        yield Finding(f"{label(card)} does not tell its {field.replace('_', ' ')}"
                      f"{' (' + failed[0] + ')' if failed else ''}",
                      "on the host: nvidia-smi -q; then ./gpufleet verify",
                      verdict=Verdict.INCONCLUSIVE)


@check("gpu.smi", reads=("smi", "driver"), repair=INSPECT, skip_reason=no_gpus_declared)
def smi(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """nvidia-smi and NVML answer, name each card, and are of the loaded driver."""
    report, loaded = observed["smi"], observed["driver"]["loaded"]
    if not report["asked"] or report["program"] is None:
        yield Finding(
            "nvidia-smi was not asked" if not report["asked"] else "nvidia-smi is not installed",
            "take a snapshot in mode full" if not report["asked"] else "install it with the driver"
            " (Debian: apt-get install nvidia-smi)", verdict=Verdict.INCONCLUSIVE)
        return
    status = report["nvml"]["status"]
    if status == 18:
        yield Finding(
            "NVML: driver and library are of different versions (status 18): the libraries were"
            " upgraded under the loaded driver", f"see driver.loaded: reboot {plan['host']}")
    elif report["error"]:
        yield Finding(f"nvidia-smi fails (status {report['status']}): {report['error']}",
                      "see driver.loaded: the module must be loaded (dkms status, lsmod); if it is,"
                      f" reboot {plan['host']}" if not cards(observed) else
                      "see kernel.log for the card that it names; reboot, then replace that card",
                      f"NVML status {status}")
    elif report["status"] != 0 or report["driver_version"] is None:
        yield Finding("nvidia-smi does not say whose driver it speaks of",
                      "on the host: nvidia-smi -q -x", verdict=Verdict.INCONCLUSIVE)
    elif status:
        yield Finding(f"NVML does not start (status {status})",
                      f"see driver.loaded and driver.nodes; then reboot {plan['host']}")
    elif not cards(observed):
        yield Finding("nvidia-smi names no card", "see driver.loaded and gpu.count")
    elif status is None:
        yield Finding("NVML could not be asked: libnvidia-ml.so.1 cannot be opened",
                      "install the driver's libraries again; on the host: ldconfig -p",
                      verdict=Verdict.INCONCLUSIVE)
    version = report["driver_version"]
    if version and loaded and version != loaded:
        yield Finding(f"nvidia-smi speaks of driver {version}, loaded is {loaded}",
                      f"see driver.loaded: reboot {plan['host']}")
    for card in cards(observed):
        broken = [text for text in card["unanswered"] if text.split(":")[0] in IDENTITY]
        if broken:
            yield Finding(f"{label(card)} does not answer: {', '.join(broken)}",
                          "see kernel.log; power the host off and on, then replace the card")
    yield Evidence(f"{report['program']}, driver {version}, {len(cards(observed))} cards,"
                   f" NVML status {status} with {report['nvml']['count']}")


def _no_identity(plan: Document) -> str | None:
    if skip_reason := no_gpus_declared(plan):
        return skip_reason
    named = [key for key in ("model", "memory_mib", "uuids") if plan["expect"].get(key)]
    count = plan["expect"]["count"]
    return None if named else f"gpu_expect: {{count: {count}}} (no model, memory_mib or uuids)"


@check("gpu.identity", reads=("smi",), repair=HARDWARE, skip_reason=_no_identity)
def identity(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """The cards are of the declared model, with its memory, and the very ones that are declared."""
    yield from unknown_without_cards(observed, "Which cards these are")
    wanted = plan["expect"]
    model, memory, uuids = (wanted.get(key) for key in ("model", "memory_mib", "uuids"))
    change = "put the declared card in, or correct gpu_expect in the inventory"
    for card in cards(observed):
        for field, needed in (("name", model), ("memory_total_mib", memory), ("uuid", uuids)):
            if needed and card[field] is None:
                yield Finding(f"{label(card)} does not tell its {field.replace('_', ' ')}",
                              "see gpu.smi", verdict=Verdict.INCONCLUSIVE)
        if model and card["name"] and not _same_model(model, card["name"]):
            yield Finding(f"{label(card)} is a {card['name']}, declared is {model}", change)
        total = card["memory_total_mib"]
        if memory and total is not None and abs(total - memory) > MEMORY_TOLERANCE * memory:
            yield Finding(f"{label(card)} has {total} MiB of memory, declared are {memory}",
                          change)
    reported = [card["uuid"].lower() for card in cards(observed) if card["uuid"]]
    if uuids and reported:
        known = [uuid.lower() for uuid in uuids]
        if missing := [uuid for uuid in uuids if uuid.lower() not in reported]:
            yield Finding(f"Declared cards are not there: {', '.join(missing)}", change)
        if foreign := [uuid for uuid in reported if uuid not in known]:
            yield Finding(f"Cards are there that are not declared: {', '.join(foreign)}", change)
    yield Evidence("; ".join(f"{label(card)}: {card['name']}, {card['memory_total_mib']} MiB,"
                         f" {card['uuid']}" for card in cards(observed)))


KINDS = {"ti", "super", "laptop", "mobile", "max"}


def _same_model(wanted: str, name: str) -> bool:
    """Whether a name has the declared one's words; older drivers leave NVIDIA out."""
    need, have = (" ".join(word for word in re.findall(r"[a-z0-9]+", text.lower())
                           if word != "nvidia") for text in (wanted, name))
    # A 3080 is neither a 3080 Ti nor one of a laptop.
    other = KINDS & ({*have.split()} - {*need.split()})
    return f" {need} " in f" {have} " and not other


@check("gpu.visible", reads=("smi", "gpus"), repair=HARDWARE, skip_reason=no_gpus_declared)
def visible(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """The driver has each NVIDIA card that is on the PCI bus: NVML and nvidia-smi name the same."""
    yield from unknown_without_cards(observed, "Whether the driver has every card")
    bus = {card["address"]: card for card in _own(observed)}
    reported = [card["address"] for card in cards(observed)]
    counted = observed["smi"]["nvml"]["count"]
    for address in sorted(set(bus) - set(reported)) if reported else []:
        yield Finding(
            f"The card at {address} is on the PCI bus, and nvidia-smi does not name it (bound to"
            f" {bus[address]['driver'] or 'no driver'})",
            "see kernel.log for Xid 79 and for why the driver does not take it; power the host off"
            " and on, then reseat or replace the card")
    for address in sorted(set(map(str, reported)) - set(bus)):
        yield Finding(f"nvidia-smi names a card at {address} that is not on the PCI bus",
                      "power the host off and on; then take a new snapshot")
    if reported and counted is None and observed["smi"]["nvml"]["status"] == 0:
        yield Finding("How many cards NVML counts is not known", "see gpu.smi",
                      verdict=Verdict.INCONCLUSIVE)
    elif reported and counted not in {None, len(reported)}:
        yield Finding(f"NVML counts {counted} cards, nvidia-smi names {len(reported)}",
                      "see kernel.log; power the host off and on, then replace the card that fails")
    yield Evidence(f"PCI {len(bus)}, nvidia-smi {len(reported)}, NVML {counted}")
