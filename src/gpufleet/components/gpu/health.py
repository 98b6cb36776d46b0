"""GPU health and settings: memory, throttling and settings, as nvidia-smi reports them.

A healthy GPU may be idle, lack ECC, or have repaired its memory long ago: only
what is wrong now, or is not as declared, is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpufleet.catalog import model_names
from gpufleet.catalog.smi import no_value, remedy
from gpufleet.components.base import subjects
from gpufleet.components.base.registry import (
    HARDWARE,
    Evidence,
    Finding,
    check,
    no_gpus_declared,
    shortened,
)
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.gpu import Remap, SmiDevice
from gpufleet.documents.verdict import Verdict

from .identity import cards, missing_value, unknown_without_cards
from .smi_elements import fields, in_fabric, label, portable, virtual
from .unlike import unlike
from .unowned import unowned

# States of a GPU whose registration with the NVLink fabric has not ended.
UNREGISTERED = {"Not Started", "In Progress"}


@check("gpu.recovery", reads=("smi",), repair=HARDWARE, skip_reason=no_gpus_declared)
def recovery(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The driver asks for no reset, reboot or drain of any GPU."""
    yield from unknown_without_cards(observed, "What the driver asks for")
    yield from fields("gpu.recovery", observed)
    for card in cards(observed):
        action = card.get("elements", {}).get("gpu_recovery_action", "not printed by this driver")
        yield Evidence(f"{label(card)}: recovery action {action}")


@check("gpu.fabric", reads=("smi", "gpus"), repair=HARDWARE, skip_reason=no_gpus_declared)
def fabric(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each GPU with an NVLink fabric has registered with it, with its siblings, and is healthy."""
    yield from unknown_without_cards(observed, "The NVLink fabric of the GPUs")
    yield from fields("gpu.fabric", observed)
    yield from _unregistered(observed)
    yield from _apart(cards(observed))
    for card in cards(observed):
        elements = card.get("elements", {})
        yield Evidence(
            f"{label(card)}: fabric {elements.get('fabric/state') or 'not reported'},"
            f" health {elements.get('fabric/health/summary') or 'not reported'}"
        )


def _unregistered(observed: Sections) -> Iterator[Finding]:
    """GPUs behind NVSwitches register with them, from Hopper on."""
    links = observed.data["smi"].get("nvlink") or []
    switched = {
        row["address"]
        for row in links
        if any(link["remote"] == "switch" for link in row["links"] or [])
    }
    for card in () if _alone_in_guest(observed) else cards(observed):
        elements = card.get("elements") or {}
        # The status is N/A until the registration ended.
        paths = ("fabric/state", "fabric/status")
        lacking = [
            f"{path}: {elements[path]}"
            for path in (paths[:1] if elements.get(paths[0]) in UNREGISTERED else paths)
            if path in elements and no_value(elements[path])
        ]
        switches = bool(observed.data["gpus"]["nvswitches"]) or card["address"] in switched
        if lacking and (
            elements.get("fabric/state") == "Completed" or in_fabric(card, switches=switches)
        ):
            yield Finding(
                f"{label(card)} does not report its NVLink fabric ({', '.join(lacking)}), though it"
                " is behind NVSwitches",
                "see driver.fabric and gpu.nvlink; on the host: nvidia-smi -q, under Fabric",
                verdict=Verdict.INCONCLUSIVE,
                about=subjects.card(card["address"], "fabric"),
            )


def _alone_in_guest(observed: Sections) -> bool:
    """Return whether a virtual machine has one GPU of a board, with NVLinks disabled below.

    Such a GPU has no fabric to register with. One that reports a state has.
    """
    gpus, links = observed.data["gpus"], observed.data["smi"].get("nvlink")
    listed = cards(observed)
    return (
        bool(gpus.get("hypervisor"))
        and not gpus["nvswitches"]
        and len(gpus["pci"]) == len(listed) == 1
        and bool(links)
        and all(row["links"] is not None for row in links or [])
        and not any(
            link["active"] is not False for row in links or [] for link in row["links"] or []
        )
        and no_value((listed[0].get("elements") or {}).get("fabric/state", ""))
    )


def _apart(listed: Sequence[SmiDevice]) -> Iterator[Finding]:
    """GPUs of one host are in one NVLink domain and one clique of it."""
    places: dict[tuple[str, ...], list[str]] = {}
    for card in listed:
        elements = card.get("elements") or {}
        place = tuple(elements.get(f"fabric/{name}", "") for name in ("clusterUuid", "cliqueId"))
        if elements.get("fabric/state") == "Completed" and all(place):
            places.setdefault(place, []).append(label(card))
    if len(places) > 1:
        yield Finding(
            "The GPUs are in different NVLink domains or cliques: "
            + "; ".join(
                f"{shortened(names, 4)} in {domain}, clique {clique}"
                for (domain, clique), names in places.items()
            ),
            "have the partitions of the NVLink fabric checked (the NVLink management software of"
            " the switch trays, or nvidia-fabricmanager); see gpu.nvlink and kernel.log",
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.DOMAINS,),
        )


@check("gpu.memory-errors", reads=("smi",), repair=HARDWARE, skip_reason=no_gpus_declared)
def memory_errors(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """No GPU has uncorrected memory errors, or a pending or failed memory repair."""
    yield from unknown_without_cards(observed, "Memory errors of the GPUs")
    yield from fields("gpu.memory-errors", observed)
    for card in cards(observed):
        reset, remap = remedy("reset").format(gpu=card["index"]), card["remap"]
        about = subjects.memory(card["address"])
        if remap and remap.get("failure"):
            yield Finding(
                f"{label(card)} could not remap a faulty memory row",
                "drain the host and replace the GPU",
                about=about,
            )
        if remap and remap.get("pending"):
            yield Finding(
                f"{label(card)} will remap a faulty memory row at the next reset{_so_far(remap)}",
                f"{reset}; if rows fail again soon after resets, replace the GPU",
                about=about,
            )
        if card["retired_pending"]:
            yield Finding(
                f"{label(card)} will retire a faulty memory page at the next reset",
                reset,
                about=about,
            )
        if card["ecc_uncorrected_volatile"]:
            yield Finding(
                f"{label(card)} had {card['ecc_uncorrected_volatile']} uncorrected memory"
                " errors since the driver was loaded",
                f"{reset}; if they return, replace the GPU",
                about=about,
            )
        yield from missing_value(card, "ecc", card["ecc"])
        if card["ecc"]:
            yield from missing_value(
                card, "ecc_uncorrected_volatile", card["ecc_uncorrected_volatile"]
            )
        yield from missing_value(card, "retired_pending", card["retired_pending"])
        yield from missing_value(card, "remap", card["remap"])
        if remap:
            yield from missing_value(card, "remap.pending", remap.get("pending"))
            yield from missing_value(card, "remap.failure", remap.get("failure"))
        yield Evidence(
            f"{label(card)}: ECC {_on_off(card['ecc'])}, uncorrected in its lifetime"
            f" {card['ecc_uncorrected_aggregate']}, rows remapped {_rows(remap)}"
        )


def _so_far(remap: Remap) -> str:
    """The rows that failed in the GPU's lifetime, where there were several."""
    count = remap.get("uncorrectable") or 0
    return f"; {count} of its rows had uncorrected errors so far" if count > 1 else ""


def _rows(remap: Remap | None) -> str:
    counts = [remap.get("correctable"), remap.get("uncorrectable")] if remap else [None]
    return "not reported" if None in counts else f"{counts[0]} + {counts[1]}"


def _on_off(value: bool | None) -> str:
    return {True: "on", False: "off", None: "not supported"}[value]


@check(
    "gpu.throttle", reads=("smi",), repair=HARDWARE, severity="major", skip_reason=no_gpus_declared
)
def throttle(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """No GPU is throttled by heat or its power supply."""
    yield from unknown_without_cards(observed, "Throttling of the GPUs")
    yield from fields("gpu.throttle", observed)
    for card in cards(observed):
        reasons = [] if portable(card) else card["throttle"] or []
        if model_names.is_desktop(card["name"] or ""):
            # It holds its target temperature with that.
            reasons = [reason for reason in reasons if reason != "sw-thermal"]
        degrees, most = card["temperature_c"], card["temperature_slowdown_c"]
        at = f" at {degrees} °C" if degrees is not None else ""
        if {"hw-thermal", "sw-thermal"} & {*reasons} or (
            degrees is not None and most is not None and degrees >= most
        ):
            yield Finding(
                f"{label(card)} is throttled by heat{at}",
                remedy("cool"),
                entails=subjects.slow(card["address"]),
            )
        elif "hw-power-brake" in reasons:
            yield Finding(
                f"{label(card)} is throttled by the power brake",
                remedy("brake"),
                entails=subjects.slow(card["address"]),
            )
        elif "hw-slowdown" in reasons and "idle" not in reasons:
            # Alone it may also be a change of clocks.
            yield Finding(
                f"{label(card)} is throttled by its hardware, or was just changing its clocks{at}",
                "./gpufleet verify again; if it persists: check fans"
                " and air, then the power supplies and their cables",
                verdict=Verdict.INCONCLUSIVE,
            )
        yield from missing_value(card, "throttle", card["throttle"])
        yield from missing_value(card, "temperature_c", degrees)
        yield Evidence(f"{label(card)}: {', '.join(card['throttle'] or []) or 'not throttled'}{at}")


@check("gpu.settings", reads=("smi", "driver"), severity="major", skip_reason=no_gpus_declared)
def settings(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Settings are as declared, GPUs of one model alike; programs may compute."""
    yield from unknown_without_cards(observed, "The settings of the GPUs")
    yield from fields("gpu.settings", observed)
    yield from unlike(plan, cards(observed))
    yield from unowned(observed)
    wanted = plan["expect"]
    for card in cards(observed):
        yield from _power(card, wanted.get("power_limit_w"))
        yield from _ecc(card, wanted.get("ecc"))
        yield from _mig(card)
        mode, declared = card["compute_mode"], wanted.get("compute_mode")
        normal = declared or "default"
        if mode is None and (declared or "compute_mode" not in card["raw_unknown"]):
            yield Finding(
                f"{label(card)} does not report its compute mode",
                "see gpu.smi",
                verdict=Verdict.INCONCLUSIVE,
                about=subjects.card(card["address"], "compute_mode"),
            )
        elif mode is not None and (mode == "prohibited" or (declared and mode != declared)):
            yield Finding(
                f"{label(card)} has the compute mode {mode}, "
                f"{'declared' if declared else 'normal'} is {normal}",
                f"on the host: nvidia-smi -i {card['index']} -c {normal.upper()}",
                entails=subjects.card(card["address"], f"compute/{subjects.REFUSED}")
                if mode == "prohibited"
                else (),
            )
        # Where its daemon does not run, driver.persistence reports it.
        unit, driver = observed.data["driver"].get("persistence"), plan["driver"]
        daemon = unit.get("active") if unit else None
        if driver and driver.get("managed") and driver.get("persistence") and daemon is not False:
            if card["persistence"] is False:
                yield Finding(
                    f"{label(card)} has persistence off, declared is gpu_driver:"
                    " {persistence: true}",
                    f"on the host: nvidia-smi -i {card['index']} -pm 1, or start the"
                    " daemon again (systemctl restart nvidia-persistenced)",
                )
            yield from missing_value(card, "persistence", card["persistence"])
        yield Evidence(
            f"{label(card)}: {card['power_limit_w']} W of {card['power_default_w']} W,"
            f" ECC {_on_off(card['ecc'])}, {mode},"
            f" persistence {_on_off(card['persistence'])}"
        )


def _power(card: SmiDevice, declared: int | None) -> Iterator[Finding]:
    limit = card["power_limit_w"]
    if declared and limit is None:
        yield Finding(
            f"{label(card)} does not report its power limit",
            "remove gpu_expect.power_limit_w, if this GPU has none to set",
            verdict=Verdict.INCONCLUSIVE,
        )
    elif declared and limit is not None and abs(limit - declared) >= 1:
        yield Finding(
            f"{label(card)} has a power limit of {limit:g} W, declared are {declared}",
            f"on the host: nvidia-smi -i {card['index']} -pl {declared}, also at boot",
        )


def _mig(card: SmiDevice) -> Iterator[Finding]:
    """A GPU in MIG mode computes in its instances only."""
    elements = card.get("elements") or {}
    listed = any(path.startswith("mig_devices/mig_device") for path in elements)
    if (
        elements.get("mig_mode/current_mig") == "Enabled"
        and not listed
        and not virtual(card)
        and not card.get("broken")
        and (elements.get("mig_devices") or "None") in {"None", "N/A"}
    ):
        yield Finding(
            f"{label(card)} has MIG enabled and no instances: no program can compute on it",
            "declare gpu_mig and provision, or on the host: nvidia-smi -i"
            f" {card['index']} -mig 0, and a reset of the GPU",
        )


def _ecc(card: SmiDevice, declared: str | None) -> Iterator[Finding]:
    if declared is None or (declared == "off" and not card["ecc"] and "ecc" in card["raw_unknown"]):
        return
    failed = [text for text in card["unanswered"] if text.startswith("ecc:")]
    if card["ecc"] is None and (failed or "ecc" not in card["raw_unknown"]):
        yield Finding(
            f"{label(card)} does not report its ECC mode",
            "see gpu.smi",
            verdict=Verdict.INCONCLUSIVE,
            about=subjects.card(card["address"], "ecc"),
        )
    elif card["ecc"] is None:
        yield Finding(
            f"{label(card)} has no ECC, declared is gpu_expect: {{ecc: on}}",
            "remove gpu_expect.ecc for this host, or install the declared GPU",
        )
    elif card["ecc"] != (declared == "on"):
        waits = card["ecc_pending"] == (declared == "on")
        yield Finding(
            f"{label(card)} has ECC {_on_off(card['ecc'])}, declared is {declared}"
            f"{', which needs a reset' if waits else ''}",
            remedy("reset").format(gpu=card["index"])
            if waits
            else (
                f"on the host: nvidia-smi -i {card['index']} -e {int(declared == 'on')}, then"
                " reboot"
            ),
        )
