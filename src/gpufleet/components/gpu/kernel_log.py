"""The kernel log since boot: errors of GPUs, NVSwitches, driver and machine.

What an Xid or SXid means, and what has to be done, is in `catalog/data/xids`; whether it is still
due, in `card_state`. Errors that programs caused are reported and fail no check: a host is not
drained for its users' mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gpufleet.catalog import kernel_messages, xids
from gpufleet.catalog.xids import RECOVERY, Meaning
from gpufleet.components.base import subjects
from gpufleet.components.base.registry import (
    AS_ROOT,
    HARDWARE,
    Evidence,
    Finding,
    check,
    no_gpus_declared,
    shortened,
)
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.host import Event
from gpufleet.documents.text import plain
from gpufleet.documents.verdict import Verdict
from gpufleet.on_host.pci_drivers import given_away

from . import modules_refused, platform_log
from .card_state import CardState, Standing, card_states, driver_branch, standing, unsupported_cards
from .repeats import repeats

NOTED = {
    "lockup": "a processor was stuck",
    "stall": "a processor did not answer",
    "corrected-error": "the hardware corrected an error",
    "api-mismatch": "see driver.loaded",
    "hung-task": "a program waited too long",
    "out-of-memory": "the kernel killed a program",
    "io-error": "a disk or file system error",
}
# Xids of the memory of a card, whose counters gpu.memory-errors reads.
MEMORY_ERRORS = {48, 63, 64, 92, 94, 95}
# How many messages that call for nothing are shown.
MOST_NOTES = 8
# Messages that say why the driver did not start a card.
REASONS = (
    "needs-open-module",
    "needs-proprietary-module",
    "no-memory-region",
    "unsupported-card",
    "open-module-unready",
)
NAMED = re.compile(r"^NVRM: The NVIDIA (.{1,99}?)(?: GPU)? installed in this system")
PROBES_FAILED = re.compile(r"^NVRM: The NVIDIA probe routine failed for (\d+) device")
RESEAT = (
    "on your own machine reseat the card and check its riser, and replace it if it returns; of a"
    " cloud instance: move it to other hardware (stop and start it)"
)
FATAL_ON_THE_BUS = re.compile(r"[( ]Fatal\)|DPC: |can't recover|recovery failed|type: fatal")
NO_RESET_SEEN = (
    "whether the card was reset since is unclear: the log does not show it, and nothing of the"
    " card's own speaks against it"
)


@check("kernel.log", reads=("kernel_log", "gpus"), repair=HARDWARE, skip_reason=no_gpus_declared)
def log(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The kernel log has no failure of a GPU, the driver or the machine since boot."""
    kernel_log, states = observed.data["kernel_log"], card_states(observed)
    cards = {card["address"]: card["driver"] for card in observed.data["gpus"]["pci"]}
    yield from judged(observed, kernel_log["events"])
    if kernel_log["source"] is None:
        yield Finding(
            "The kernel log since boot could not be read:"
            f" {kernel_log['error'] or 'no journal, dmesg or log file'}",
            f"{AS_ROOT}; in a container: read the machine's own log (journalctl -k -b)",
            verdict=Verdict.INCONCLUSIVE,
            about=("kernel-log",),
        )
    elif not (kernel_log["complete"] and kernel_log["since_boot"]):
        lost = (
            f"The kernel log ({kernel_log['source']}) does not reach back to the boot: its"
            " first messages are lost"
        )
        own = [state for address, state in states.items() if not given_away(cards[address])]
        # That a card computes says nothing of what was lost: its driver has to.
        if own and all(s.healthy and (s.clean or s.needs_nothing) for s in own):
            yield Evidence(f"{lost}; the driver reports no error of any card")
        else:
            yield Finding(
                lost,
                "keep more of it: set Storage=persistent and a larger SystemMaxUse in"
                " /etc/systemd/journald.conf; it is complete again after the next boot",
                verdict=Verdict.INCONCLUSIVE,
            )
    noted = [
        f"{event['kind']} ({NOTED[event['kind']]}): {event['text']}"
        for event in kernel_log["events"]
        if event["kind"] in NOTED
    ]
    yield Evidence(f"{kernel_log['source']}, since boot; {shortened(noted) or 'nothing of note'}")


def judged(
    observed: Sections, events: Sequence[Event], *, during_probe: bool = False
) -> Iterator[Finding | Evidence]:
    """The results for messages of the kernel; `during_probe`: the probe's own load came first."""
    states = card_states(observed)
    cards = {card["address"]: card["driver"] for card in observed.data["gpus"]["pci"]}
    branch = driver_branch(observed.read_elsewhere())
    results = [*_xids(events, states, branch, during_probe), *_sxids(events, states, during_probe)]
    results += repeats(events, results)
    results += platform_log.findings(events)
    devices = {**platform_log.adapters(observed), **cards}
    without = unsupported_cards(observed)
    guest = bool(observed.data["gpus"].get("hypervisor"))
    for event in _unexplained(events, cards):
        if _of_unsupported(event, without):
            results.append(
                Evidence(f"{event['text']}; nothing to do: {'; '.join(without.values())}")
            )
            continue
        results += _event_findings(event, cards)
        results += modules_refused.findings(event)
        results += _messages(event, devices, states, during_probe, guest=guest)
    yield from (item for item in results if isinstance(item, Finding))
    if notes := [item.evidence for item in results if isinstance(item, Evidence)]:
        yield Evidence(shortened(notes, MOST_NOTES))


def _unexplained(events: Sequence[Event], cards: Mapping[str, str | None]) -> Iterator[Event]:
    """The events, without a failed start of a card for which another one names the reason."""
    explained = {
        event["address"]
        for event in events
        if event["kind"] in REASONS
        and event["kind"] != "open-module-unready"
        and not given_away(cards.get(event["address"] or "", "vfio-pci"))
    }
    branch_ended = any(event["kind"] == "needs-older-branch" for event in events)
    # It names no card, and comes before each failed start.
    unready = any(event["kind"] == "open-module-unready" for event in events)
    for event in events:
        if event["kind"] == "init-failed" and not event["address"] and branch_ended:
            continue
        known = unready or (explained and event["address"] in {None, *explained})
        if event["kind"] != "init-failed" or not known:
            yield event


def _of_unsupported(event: Event, without: Mapping[str, str]) -> bool:
    """Return whether the driver only refused the display cards that are too old for it."""
    if event["kind"] == "needs-older-branch":
        return bool(without)
    if event["address"]:
        return event["address"] in without and event["kind"] in {"init-failed", *REASONS}
    refused = PROBES_FAILED.search(event["text"])
    return bool(refused and event["count"] == 1 and int(refused[1]) <= len(without))


# -- Xids ------------------------------------------------------------------------------------------


def _xids(
    logged: Sequence[Event],
    states: Mapping[str, CardState],
    branch: int | None,
    during_probe: bool,
) -> Iterator[Finding | Evidence]:
    events = _since_recovery(logged)
    numbers = {(event["address"], event["code"]) for event in events}
    asked = {event["address"]: event for event in events if event["code"] == RECOVERY}
    for event in events:
        # An Xid that a later one names as its cause may be logged nowhere else.
        before = xids.previous(event["code"] or 0, event["text"])
        if before is not None and (event["address"], before) in numbers:
            continue
        found = xids.meaning(event["code"] or 0, event["text"], branch)
        if found.effect in {"program", "note"}:
            if found.effect == "note" and event["code"] != RECOVERY:
                yield Evidence(f"{_named('Xid', event, found)}: nothing to do")
            continue
        address = event["address"] or ""
        state = states.get(address, CardState())
        stands = standing(event["code"] or 0, found, state, during_probe=during_probe)
        # The driver knows best what the card needs.
        action = asked.get(event["address"], event) if found.effect == "fail" else event
        remedy = xids.meaning(action["code"] or 0, action["text"], branch).remedy or found.remedy
        yield _result(
            _named("Xid", event, found) + _after(event, events, branch),
            event,
            found,
            stands,
            xids.remedy(remedy, _gpu(event), record=state.needs_nothing is None),
        )


def _after(event: Event, events: Sequence[Event], branch: int | None) -> str:
    """The errors of a card for which its driver asks for a recovery action."""
    if event["code"] != RECOVERY:
        return ""
    before = {
        each["code"] or 0: found.name
        for each in events
        if each["address"] == event["address"] and each["code"] != RECOVERY
        if (found := xids.meaning(each["code"] or 0, each["text"], branch)).effect != "program"
    }
    named = [f"Xid {code} ({name})" for code, name in before.items()]
    return f", after {shortened(named, 4)}" if named else ""


def _since_recovery(events: Sequence[Event]) -> list[Event]:
    """The Xids that came after their card's last recovery, with only the last 154 of each card."""
    found = [event for event in events if event["kind"] == "xid"]
    last: dict[str | None, Event] = {}
    for event in found:
        if event["code"] == RECOVERY and (event["uptime_s"] or 0) >= (
            last.get(event["address"], event)["uptime_s"] or 0
        ):
            last[event["address"]] = event
    recovered = {
        address: event["uptime_s"] or 0
        for address, event in last.items()
        if (xids.recovery_action(event["text"]) or (None,))[0] == 0
    }
    return [
        event
        for event in found
        if (event["code"] != RECOVERY or event is last[event["address"]])
        and (event["uptime_s"] or 0) >= recovered.get(event["address"], 0)
    ]


def _named(kind: str, event: Event, found: Meaning, of: str = "") -> str:
    times = f" ({event['count']} times)" if event["count"] > 1 else ""
    return (
        f"{kind} {event['code']} of {of}{event['address'] or 'an unnamed card'}{times}:"
        f" {found.name}"
    )


def _result(
    cause: str, event: Event, found: Meaning, stands: Standing, remedy: str
) -> Finding | Evidence:
    """The finding of an Xid or SXid that fails or leaves the host unjudged, if it still stands."""
    if found.effect == "fail" and stands == "cleared":
        return Evidence(
            f"{cause}; cleared: the driver asks for no recovery action now, and the"
            " card computes right"
        )
    verdict = Verdict.FAIL
    if found.effect != "fail":
        verdict = Verdict.INCONCLUSIVE
    elif stands == "unclear":
        verdict, cause = Verdict.INCONCLUSIVE, f"{cause}; {NO_RESET_SEEN}"
    about = subjects.memory if event["code"] in MEMORY_ERRORS else subjects.card
    return Finding(cause, remedy, event["text"], verdict, about(event["address"]))


# -- NVSwitches, the bus, the machine --------------------------------------------------------------


def _sxids(
    events: Sequence[Event], states: Mapping[str, CardState], during_probe: bool
) -> Iterator[Finding | Evidence]:
    """A reset of the fabric resets all cards: it may have been done if none asks for one."""
    done = not during_probe and _all_are_sound(states)
    for event in events:
        if event["kind"] != "sxid":
            continue
        found = xids.switch_meaning(event["code"] or 0, event["text"])
        cause = _named("SXid", event, found, "the NVSwitch ")
        if found.effect == "note":
            yield Evidence(f"{cause}: nothing to do")
        else:
            yield _result(
                cause,
                event,
                found,
                "unclear" if done else "stands",
                xids.remedy(found.remedy, _gpu(event), record=True),
            )


def _event_findings(event: Event, cards: Mapping[str, str | None]) -> Iterator[Finding | Evidence]:
    kind, address = event["kind"], event["address"] or "an unnamed card"
    times = f" ({event['count']} times)" if event["count"] > 1 else ""
    if kind == "key-rejected" and "nvidia" not in cards.values():
        yield Finding(
            "The kernel refused a module: the key of its signature is not enrolled (Secure Boot)",
            "mokutil --import the key that signs the driver's modules (DKMS:"
            " /var/lib/dkms/mok.pub), reboot, and enrol it at the console; or disable Secure"
            " Boot in the firmware",
            event["text"],
            about=("key",),
        )
    elif kind == "init-failed":
        yield Finding(
            f"The driver could not initialise {address}{times}",
            "reboot; if it persists: try another driver (gpu_driver), then check the GPU's seat and"
            " power",
            event["text"],
            about=subjects.card(event["address"]),
        )
    elif kind == "needs-older-branch":
        named = NAMED.match(event["text"])
        last = event["code"]
        yield Finding(
            f"The driver does not support {named[1] if named else 'a card'}: branch {last} is the"
            " last that does",
            f"install driver branch {last} in its place, or let gpufleet install it: gpu_driver:"
            f' {{branch: "{last}"}}; a reboot or another slot changes nothing',
            event["text"],
            about=(subjects.BRANCH,),
        )
    elif kind == "pcie-error":
        yield from _bus_findings(event, cards, times)
    elif kind == "link-down" and (below := [at for at in event.get("below") or [] if at in cards]):
        yield Finding(
            f"The link of the PCI port {address} went down{times}; {shortened(below)} is reached"
            " through it",
            RESEAT,
            event["text"],
            Verdict.INCONCLUSIVE,
        )
    elif kind == "machine-check":
        yield Finding(
            f"The machine had an uncorrectable memory or processor error{times}",
            "drain the host; find the module to replace in the management controller's log",
            event["text"],
        )


def _messages(
    event: Event,
    devices: Mapping[str, str | None],
    states: Mapping[str, CardState],
    during_probe: bool,
    *,
    guest: bool,
) -> Iterator[Finding | Evidence]:
    """Messages that the catalog judges by their kind."""
    row, address = kernel_messages.meaning(event["kind"], event["text"]), event["address"]
    if row is None or (address and given_away(devices.get(address, "vfio-pci"))):
        return
    times = f" ({event['count']} times)" if event["count"] > 1 else ""
    cause = row["says"].format(times=times, card=address or "a card")
    if row.get("excused") and not during_probe and _all_are_sound(states):
        yield Evidence(f"{cause}; now no card needs anything, and each computes right")
    else:
        yield Finding(
            cause,
            (guest and row.get("in_a_guest")) or row["remedy"],
            event["text"],
            Verdict.FAIL if row["effect"] == "fail" else Verdict.INCONCLUSIVE,
            subjects.card(address),
        )


def _all_are_sound(states: Mapping[str, CardState]) -> bool:
    return bool(states) and all(state.needs_nothing and state.computes for state in states.values())


def _gpu(event: Event) -> str:
    """The address for commands; in words where it is none."""
    address = event["address"] or ""
    return address if plain(address) else "ADDRESS"


def _bus_findings(
    event: Event, cards: Mapping[str, str | None], times: str
) -> Iterator[Finding | Evidence]:
    """Errors of a card's link, which the card or a port between it and the processor reports."""
    address = event["address"] or ""
    if not address:
        yield Finding(
            "A device that the firmware does not name had uncorrectable errors on the PCI bus"
            f"{times}",
            "find the device in the management controller's log",
            event["text"],
            Verdict.INCONCLUSIVE,
        )
    below = [card for card in event.get("below") or [] if card in cards]
    if address in cards:
        yield Finding(
            f"{address} has uncorrectable errors on the PCI bus{times}",
            RESEAT,
            event["text"],
            about=subjects.card(address),
        )
    elif below and FATAL_ON_THE_BUS.search(event["text"]):
        yield Finding(
            f"The PCI port {address} had a fatal error{times}; {shortened(below)} is reached"
            " through it",
            RESEAT,
            event["text"],
        )
    elif below:
        yield Evidence(
            f"The PCI port {address} of {shortened(below)} had uncorrectable errors that"
            f" were not fatal{times}"
        )


@check(
    "kernel.application-errors",
    reads=("kernel_log",),
    severity="minor",
    skip_reason=no_gpus_declared,
)
def application_errors(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Errors that programs caused are reported, and do not make a host unhealthy."""
    kernel_log = observed.data["kernel_log"]
    if kernel_log["source"] is None:
        yield Finding(
            "Errors of programs are unknown: the kernel log could not be read",
            "see kernel.log",
            verdict=Verdict.INCONCLUSIVE,
            about=("kernel-log",),
        )
        return
    branch = driver_branch(observed.read_elsewhere())
    for event in kernel_log["events"]:
        if event["kind"] != "xid":
            continue
        found = xids.meaning(event["code"] or 0, event["text"], branch)
        if found.effect == "program":
            by = f" by {event['process'] or 'process'} {event['pid']}" if event["pid"] else ""
            yield Evidence(
                f"Xid {event['code']} of {event['address']}, {event['count']} times, last"
                f"{by}: {found.name}"
            )
