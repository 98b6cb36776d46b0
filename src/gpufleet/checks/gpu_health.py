"""Cards as they fare: their memory, link, clocks and settings, as nvidia-smi tells them.

A healthy card may be idle, slow its link down, lack ECC, or have mended its memory long ago: only
what is wrong now, or is not as declared, is a finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpufleet.model.verdict import Verdict

from .gpu import cards, label, missing_value, unknown_without_cards
from .registry import HARDWARE, Document, Evidence, Finding, Sections, check, no_gpus_declared

# A card's load from which its link has to be as fast as it can be, in percent.
LOADED = 50
RESET = "drain the host, stop all programs on the card, nvidia-smi --gpu-reset -i {gpu}, or reboot"


@check("gpu.memory-errors", reads=("smi",), repair=HARDWARE, skip_reason=no_gpus_declared)
def memory_errors(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """No card has uncorrected memory errors, nor a repair of its memory that waits or failed."""
    yield from unknown_without_cards(observed, "Whether the cards' memory is sound")
    for card in cards(observed):
        reset, remap = RESET.format(gpu=card["index"]), card["remap"] or {}
        if remap.get("failure"):
            yield Finding(f"{label(card)} could not replace a damaged row of its memory",
                          "drain the host and have the card replaced")
        if remap.get("pending"):
            yield Finding(f"{label(card)} will replace a damaged row of its memory at the next"
                          " reset", reset)
        if card["retired_pending"]:
            yield Finding(f"{label(card)} will retire a damaged page of its memory at the next"
                          " reset", reset)
        if card["ecc_uncorrected_volatile"]:
            yield Finding(
                f"{label(card)} had {card['ecc_uncorrected_volatile']} memory errors that could"
                " not be corrected since the driver was loaded",
                f"{reset}; if they come back, have the card replaced")
        yield from missing_value(card, "ecc", card["ecc"])
        if card["ecc"]:
            yield from missing_value(
                card, "ecc_uncorrected_volatile", card["ecc_uncorrected_volatile"])
        yield from missing_value(card, "retired_pending", card["retired_pending"])
        yield from missing_value(card, "remap", card["remap"])
        for key in ("pending", "failure") if card["remap"] else ():
            yield from missing_value(card, f"remap.{key}", remap.get(key))
        yield Evidence(f"{label(card)}: ECC {_on_off(card['ecc'])}, uncorrected in its life"
                   f" {card['ecc_uncorrected_aggregate']}, rows replaced {_rows(remap)}")


def _rows(remap: Document) -> str:
    counts = [remap.get(key) for key in ("correctable", "uncorrectable")]
    return "not told" if None in counts else f"{counts[0]} + {counts[1]}"


def _on_off(value: bool | None) -> str:
    return {True: "on", False: "off", None: "not known to it"}[value]


@check("gpu.pcie", reads=("smi",), repair=HARDWARE, skip_reason=no_gpus_declared)
def pcie(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each card's link has its full width, and under load its full generation."""
    yield from unknown_without_cards(observed, "How the cards are connected")
    declared = plan["expect"].get("pcie") or {}
    for card in cards(observed):
        link = card["pcie"]
        width = declared.get("width") or link["width_max"]
        if link["width"] is not None and width is not None and link["width"] < width:
            yield Finding(
                f"{label(card)} is connected by {link['width']} PCIe lanes of {width}",
                "reseat the card and look at its riser; where its slot has no more, declare"
                f" gpu_expect: {{pcie: {{width: {link['width']}}}}}")
        # An idle link slows down by design: its present generation says nothing.
        able, wanted = link["generation_max"], declared.get("generation")
        speed = "has a link of PCIe generation"
        if wanted and able is not None and able < wanted:
            yield Finding(f"{label(card)} {speed} {able} at most, declared is {wanted}",
                          "look at slot and firmware settings, or correct gpu_expect.pcie")
        elif _under_load(card) and None not in (able, link["generation"]) and (
                link["generation"] < (wanted or able)):
            yield Finding(
                f"{label(card)} {speed} {link['generation']} under load, it can be"
                f" {wanted or able}",
                "reseat the card, look at its riser and at the firmware's link speed; where the"
                f" slot has no more, declare gpu_expect: {{pcie: {{generation:"
                f" {link['generation']}}}}}")
        for field, needed in (("width", "width"), ("width_max", ""), ("generation", ""),
                              ("generation_max", "generation")):
            if declared.get(needed) and link[field] is None:
                yield Finding(f"{label(card)} does not tell its PCIe {field.replace('_', ' ')}",
                              "take gpu_expect.pcie out, where it is a virtual GPU",
                              verdict=Verdict.INCONCLUSIVE)
            else:
                yield from missing_value(card, f"pcie.{field}", link[field])
        yield Evidence(f"{label(card)}: x{link['width']} of x{link['width_max']}, generation"
                   f" {link['generation']} of {able}{'' if _under_load(card) else ', idle'}")


def _under_load(card: Document) -> bool:
    idle = "idle" in (card["throttle"] or [])
    return not idle and (card["utilization_percent"] or 0) >= LOADED


@check("gpu.throttle", reads=("smi",), repair=HARDWARE, severity="major",
       skip_reason=no_gpus_declared)
def throttle(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """No card is slowed down by heat or by its power supply."""
    yield from unknown_without_cards(observed, "Whether the cards are slowed down")
    for card in cards(observed):
        # What draws on a battery, or shares a fan, is slowed down by design.
        portable = re.search(r"laptop|max-q|mobile", card["name"] or "", re.IGNORECASE)
        reasons = [] if portable else card["throttle"] or []
        degrees, most = card["temperature_c"], card["temperature_slowdown_c"]
        at = f" at {degrees} °C" if degrees is not None else ""
        if "hw-thermal" in reasons or (None not in (degrees, most) and degrees >= most):
            yield Finding(f"{label(card)} is slowed down by heat{at}",
                          "look at fans, filters and the room's air; let it cool, and verify again")
        elif "hw-power-brake" in reasons:
            yield Finding(f"{label(card)} is slowed down by the power brake",
                          "look at the power supplies, their cables and the rack's power limit")
        elif "hw-slowdown" in reasons and "idle" not in reasons:
            # Alone it may also be a change of clocks that was going on.
            yield Finding(f"{label(card)} is slowed down by its hardware, or was just changing its"
                          f" clocks{at}", "./gpufleet verify again; if it stays: look at fans and"
                          " air, then at the power supplies and their cables",
                          verdict=Verdict.INCONCLUSIVE)
        yield from missing_value(card, "throttle", card["throttle"])
        yield from missing_value(card, "temperature_c", degrees)
        yield Evidence(f"{label(card)}: {', '.join(card['throttle'] or []) or 'no reason'}{at}")


@check("gpu.settings", reads=("smi", "driver"), severity="major", skip_reason=no_gpus_declared)
def settings(plan: Document, observed: Sections) -> Iterator[Finding | Evidence]:
    """Power limit, ECC, compute mode and persistence are as declared; every program may compute."""
    yield from unknown_without_cards(observed, "How the cards are set")
    wanted = plan["expect"]
    for card in cards(observed):
        yield from _power(card, wanted.get("power_limit_w"))
        yield from _ecc(card, wanted.get("ecc"))
        mode, declared = card["compute_mode"], wanted.get("compute_mode")
        normal = declared or "default"
        if mode is None and (declared or "compute_mode" not in card["raw_unknown"]):
            yield Finding(f"{label(card)} does not tell its compute mode", "see gpu.smi",
                          verdict=Verdict.INCONCLUSIVE)
        elif mode is not None and (mode == "prohibited" or (declared and mode != declared)):
            yield Finding(f"{label(card)} has the compute mode {mode}, "
                          f"{'declared' if declared else 'usual'} is {normal}",
                          f"on the host: nvidia-smi -i {card['index']} -c {normal.upper()}")
        # Where its daemon does not run, that is driver.persistence's to say.
        daemon = (observed["driver"].get("persistence") or {}).get("active")
        driver = plan["driver"] or {}
        if driver.get("managed") and driver.get("persistence") and daemon is not False:
            if card["persistence"] is False:
                yield Finding(f"{label(card)} has persistence off, declared is gpu_driver:"
                              " {persistence: true}",
                              f"on the host: nvidia-smi -i {card['index']} -pm 1, or start the"
                              " daemon again (systemctl restart nvidia-persistenced)")
            yield from missing_value(card, "persistence", card["persistence"])
        yield Evidence(f"{label(card)}: {card['power_limit_w']} W of {card['power_default_w']} W,"
                   f" ECC {_on_off(card['ecc'])}, {mode},"
                   f" persistence {_on_off(card['persistence'])}")


def _power(card: Document, declared: int | None) -> Iterator[Finding]:
    limit = card["power_limit_w"]
    if declared and limit is None:
        yield Finding(f"{label(card)} does not tell its power limit",
                      "take gpu_expect.power_limit_w out, if this card has none to set",
                      verdict=Verdict.INCONCLUSIVE)
    elif declared and abs(limit - declared) >= 1:
        yield Finding(f"{label(card)} has a power limit of {limit:g} W, declared are {declared}",
                      f"on the host: nvidia-smi -i {card['index']} -pl {declared}, also at boot")


def _ecc(card: Document, declared: str | None) -> Iterator[Finding]:
    if declared is None or (declared == "off" and not card["ecc"] and "ecc" in card["raw_unknown"]):
        return
    failed = [text for text in card["unanswered"] if text.startswith("ecc:")]
    if card["ecc"] is None and (failed or "ecc" not in card["raw_unknown"]):
        yield Finding(f"{label(card)} does not tell its ECC mode", "see gpu.smi",
                      verdict=Verdict.INCONCLUSIVE)
    elif card["ecc"] is None:
        yield Finding(f"{label(card)} knows no ECC, declared is gpu_expect: {{ecc: on}}",
                      "take gpu_expect.ecc out for this host, or put the declared card in")
    elif card["ecc"] != (declared == "on"):
        waits = card["ecc_pending"] == (declared == "on")
        yield Finding(
            f"{label(card)} has ECC {_on_off(card['ecc'])}, declared is {declared}"
            f"{', which waits for a reset' if waits else ''}",
            RESET.format(gpu=card["index"]) if waits else
            f"on the host: nvidia-smi -i {card['index']} -e {int(declared == 'on')}, then reboot")
