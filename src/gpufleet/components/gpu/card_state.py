"""The present state of a card, by its driver and the probe's work, against messages of the past.

NVIDIA's driver logs no reset: a message of the kernel log stays true until the card was reset, and
nobody writes that down. Where the driver prints the recovery action that a card needs, `None` is
its word that none is due. Where it does not, a card whose counters are clean and that has computed
right may have been reset, or not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from gpufleet.catalog.xids import RECOVERY, Meaning
from gpufleet.components.base.cards import unsupported
from gpufleet.components.base.sections import Sections, by_name
from gpufleet.documents.sections.compute import ComputeRun
from gpufleet.documents.sections.gpu import SmiDevice
from gpufleet.documents.snapshot import SectionData

Standing = Literal["stands", "unclear", "cleared"]
NOT_REPORTED = ("", "n/a", "requested functionality has been deprecated")
# Elements of nvidia-smi that name what a card needs, and the answers that name nothing.
ACTION, OLDER_ACTIONS = (
    "gpu_recovery_action",
    ("gpu_reset_status/reset_required", "gpu_reset_status/drain_and_reset_recommended"),
)


@dataclass(frozen=True)
class CardState:
    """The present state of a card; None: unknown."""

    # True if the driver asks for no action; None where it does not print the action.
    needs_nothing: bool | None = None
    # True if its counters of memory errors and repairs are clean; False where it failed to answer.
    clean: bool | None = None
    # True if this probe computed on it without an error.
    computes: bool | None = None
    # False where nvidia-smi hung: one card that does not answer is enough for that.
    answers: bool | None = None

    @property
    def healthy(self) -> bool:
        """True if nothing speaks against the card, and something for it."""
        known = (self.needs_nothing, self.clean, self.computes)
        return not self.faulty and True in known

    @property
    def faulty(self) -> bool:
        """True if something speaks against the card."""
        return False in (self.needs_nothing, self.clean, self.computes, self.answers)


def card_states(observed: Sections) -> dict[str, CardState]:
    """The state of each card that the driver can run, by PCI address, from the last sections."""
    data = observed.read_elsewhere()
    smi, compute = data.get("smi_after") or data.get("smi"), data.get("compute")
    reported = {card["address"]: card for card in (smi["devices"] if smi else ())}
    computed = _computed(compute["runs"] if compute else ())
    without = unsupported_cards(observed)
    able = [card for card in observed.data["gpus"]["pci"] if card["address"] not in without]
    states = {
        card["address"]: _state(reported.get(card["address"]), computed.get(card["address"]))
        for card in able
    }
    for card in able:
        # The driver lists other cards, and has lost this one.
        if reported and card["address"] not in reported and card["driver"] == "nvidia":
            states[card["address"]] = CardState(computes=False)
        elif _hung(observed) and card["driver"] == "nvidia":
            state = states[card["address"]]
            # A card that computed right, and of which the driver asks nothing, was cleared.
            cleared = state.needs_nothing and state.computes
            states[card["address"]] = state if cleared else replace(state, answers=False)
    return states


def _hung(observed: Sections) -> bool:
    """Return whether nvidia-smi gave no answer, before the work or after it."""
    sections = by_name(observed.snapshot)
    return any(
        name in sections and sections[name]["state"] == "hung" for name in ("smi", "smi_after")
    )


def unsupported_cards(observed: Sections) -> dict[str, str]:
    """The reasons why display cards are too old for the driver, by PCI address.

    Without its version each card on the bus counts.
    """
    driver = observed.read_elsewhere().get("driver")
    version = (driver["loaded"] or driver["library"]) if driver else None
    return unsupported(observed.data["gpus"]["pci"], version)


def driver_branch(data: SectionData) -> int | None:
    """The branch of the driver that runs."""
    driver, smi = data.get("driver"), data.get("smi")
    version = (driver["loaded"] if driver else None) or (smi["driver_version"] if smi else None)
    found = re.match(r"(\d+)\.", version or "")
    return int(found[1]) if found else None


def standing(
    code: int, found: Meaning, state: CardState, *, during_probe: bool = False
) -> Standing:
    """Decide whether the action that an Xid asks for is still due.

    A card is cleared only by its driver's own word, on a driver that would ask for more after this
    Xid, and by a probe that computed on it. What happened while the probe ran is always due, and
    what the driver itself asked for until it takes that back.
    """
    if during_probe or state.faulty:
        return "stands"
    if code == RECOVERY and state.needs_nothing is None:
        return "stands"
    if state.needs_nothing:
        reported = found.reported_by_154 or code == RECOVERY
        return "cleared" if reported and state.computes else "unclear"
    return "unclear" if state.computes else "stands"


def _state(card: SmiDevice | None, computes: bool | None) -> CardState:
    if card is None:
        return CardState(computes=computes)
    return CardState(_needs_nothing(card), _clean(card), computes)


def _needs_nothing(card: SmiDevice) -> bool | None:
    """By the texts that nvidia-smi printed; snapshots of earlier releases do not have them."""
    texts = cast(Mapping[str, Any], card).get("elements") or {}
    action = str(texts.get(ACTION, "")).strip()
    if any(str(texts.get(name, "")).strip().lower() == "yes" for name in OLDER_ACTIONS):
        return False
    return None if action.lower() in NOT_REPORTED else action.lower() == "none"


def _clean(card: SmiDevice) -> bool | None:
    remap = card["remap"]
    counters = (
        card["ecc_uncorrected_volatile"],
        card["retired_pending"],
        *((remap.get("pending"), remap.get("failure")) if remap else ()),
    )
    unanswered = any(text.startswith(("ecc", "retired", "remap")) for text in card["unanswered"])
    if any(counters) or unanswered:
        return False
    # Cards without ECC report no counter, and none of them can be wrong.
    return True if any(value is not None for value in counters) else None


def _computed(runs: Sequence[ComputeRun]) -> dict[str, bool]:
    """The result of all products on each card that was tried, by address: True if all are right."""
    found: dict[str, bool] = {}
    for run in runs:
        addresses = {device["index"]: device["address"] for device in run["devices"]}
        for row in run["cublas"]:
            address, tried = addresses.get(row["gpu"]), row["wrong"] is not None or row["error"]
            if address and tried and not row["busy"]:
                right = row["wrong"] == 0 and row["error"] is None
                found[address.lower()] = found.get(address.lower(), True) and right
    return found
