"""GPUs: number, MIG instances, identity, and whether the driver and nvidia-smi list them.

Where nvidia-smi could not be read, `gpu.smi` reports why, and the others are INCONCLUSIVE.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpufleet.catalog import smi as fields_catalog
from gpufleet.components.base import subjects
from gpufleet.components.base.registry import (
    AS_ROOT,
    HARDWARE,
    INSPECT,
    Evidence,
    Finding,
    check,
    driver_findings,
    mig_layout,
    no_gpus,
    no_gpus_declared,
    required,
    shortened,
)
from gpufleet.components.base.sections import Sections
from gpufleet.components.driver import running as driver_running
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.gpu import PciDevice, Smi, SmiDevice
from gpufleet.documents.text import quantity
from gpufleet.documents.verdict import Verdict
from gpufleet.on_host.pci_drivers import given_away

from .card_state import unsupported_cards
from .hidden import SHOW, closed_nodes, denied, hidden
from .lost import (
    GPU_IS_LOST,
    failed_smi,
    fallen_off,
    named_in,
    no_smi,
    passed_on,
    unlisted,
    without_smi,
)
from .smi_elements import READ_AGAIN, card_faults, fields, label, silent_of_host, unjudged_errors
from .unlike import MEMORY_TOLERANCE


def _count_not_set(plan: Plan) -> str | None:
    expect = plan["expect"]
    if expect and expect.get("found") and expect["count"]:
        return f"gpu_expect: not set, {expect['count']} found on the PCI bus"
    # A count of 0 is a declaration too, and can be wrong.
    return None if no_gpus(plan) else no_gpus_declared(plan)


@check("gpu.count", reads=("gpus",), repair=HARDWARE, skip_reason=_count_not_set)
def count(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The PCI bus has as many NVIDIA GPUs as declared."""
    wanted, cards = required(plan["expect"]["count"], "gpu_expect.count"), own_cards(observed)
    named = [f"{card['address']} ({card['device']})" for card in cards]
    drivers = [card["driver"] for card in observed.data["gpus"]["pci"]]
    for driver in sorted({driver for driver in drivers if driver and given_away(driver)}):
        named.append(f"{drivers.count(driver)} of virtual machines ({driver})")
    old = not_counted(observed)
    named += old
    listed = ", ".join(named)
    if unsupported := list(off_the_bus(observed)):
        yield from unsupported
    elif plan["expect"].get("found"):
        yield Finding(
            "No NVIDIA GPU is on the PCI bus, and gpu_expect does not say whether there should be"
            " one",
            "if this machine has GPUs: look for them in lspci -nn -d 10de: and in the kernel log"
            " (dmesg), and for a virtual machine or container in what its host passes to it; if it"
            " has none: declare gpu_expect: {count: 0}",
            listed,
            Verdict.INCONCLUSIVE,
        )
    elif len(cards) > wanted:
        yield Finding(
            f"{quantity(len(cards), 'NVIDIA GPU')} {'is' if len(cards) == 1 else 'are'} in the"
            f" host, declared is gpu_expect: {{count: {wanted}}}",
            f"declare them for {plan['host']} in the inventory: gpu_expect: {{count:"
            f" {len(cards)}}}",
            listed,
        )
    elif len(cards) < wanted:
        numbers = subjects.missing_gpus(len(cards), wanted)
        passed = [card for card in observed.data["gpus"]["pci"] if given_away(card["driver"])][
            : wanted - len(cards)
        ]
        if passed:
            yield passed_on(passed, len(cards), wanted)
        if not (missing := wanted - len(cards) - len(passed)):
            yield Evidence(listed)
            return
        off = fallen_off(observed, missing)
        cause = f"{missing} of {quantity(wanted, 'declared GPU')} {'is' if missing == 1 else 'are'}"
        cause += " not on the PCI bus"
        if off:
            cause += f": {shortened(off)}, by the kernel log fallen off it (Xid 79)"
        check_log = "" if off else "check the kernel log for Xid 79 (fallen off the bus), "
        yield Finding(
            "; ".join([cause, *old]),
            f"{check_log}power the host off and on;"
            " if it stays missing: reseat or replace the card"
            f"{_declare_less(len(cards)) if old else ''}",
            listed or "no NVIDIA GPU on the PCI bus",
            about=tuple(about for each in off for about in subjects.card(each)) or numbers,
            entails=numbers if off else (),
        )
    yield Evidence(listed or "no NVIDIA GPU on the PCI bus")


# Machines whose GPUs are on no PCI bus, as people call them.
PLATFORMS = {"wsl": "WSL 2", "jetson": "NVIDIA Jetson"}


def off_the_bus(observed: Sections) -> Iterator[Finding]:
    """INCONCLUSIVE for a machine of a kind whose GPUs are on no PCI bus."""
    name = PLATFORMS.get(observed.data["gpus"].get("platform") or "")
    if name and not observed.data["gpus"]["pci"]:
        yield Finding(
            f"{name} is not supported: its GPU is on no PCI bus, and gpufleet identifies GPUs by"
            " their address there",
            "take this host out of the inventory, or declare gpu_expect: {count: 0}",
            verdict=Verdict.INCONCLUSIVE,
        )


def own_cards(observed: Sections) -> list[PciDevice]:
    """The GPUs on the bus that the host's driver has to run."""
    without = unsupported_cards(observed)
    return [
        card
        for card in observed.data["gpus"]["pci"]
        if not given_away(card["driver"]) and card["address"] not in without
    ]


def not_counted(observed: Sections) -> list[str]:
    """The GPUs on the bus that are too old for the driver, for display."""
    return [
        f"{address} is not counted: {why}" for address, why in unsupported_cards(observed).items()
    ]


def _declare_less(count: int) -> str:
    return f"; without the cards that are not counted, declare gpu_expect: {{count: {count}}}"


def _no_layout(plan: Plan) -> str | None:
    if not mig_layout(plan):
        return "gpu_mig: not set"
    return no_gpus(plan)


@check("gpu.mig", reads=("gpus", "driver"), skip_reason=_no_layout)
def mig(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each GPU has exactly the MIG instances that are declared for it, also after a reboot."""
    if observed.data["gpus"]["mig"] is None:
        loaded = observed.data["driver"]["loaded"]
        why, check_id = (
            ("nvidia-smi did not answer", "gpu.smi")
            if loaded
            else ("no driver is loaded", "driver.loaded")
        )
        yield Finding(
            f"The MIG instances are unknown: {why}",
            f"see {check_id}; then ./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.SMI if loaded else subjects.DRIVER,),
        )
        return
    known, cards = [row["gpu"] for row in observed.data["gpus"]["mig"]], len(own_cards(observed))
    if sorted(known) != list(range(cards)):
        yield Finding(
            f"The PCI bus has {cards} GPUs; the MIG mode is known of"
            f" {', '.join(map(str, known)) or 'none'}",
            "see gpu.count",
            verdict=Verdict.INCONCLUSIVE,
            about=subjects.missing_gpus(min(cards, len(known)), max(cards, len(known))),
        )
    yield from driver_findings(driver_running.mig, plan, observed)
    yield from driver_findings(driver_running.mig_boot, plan, observed)
    yield Evidence(
        "; ".join(
            f"GPU {row['gpu']}: MIG {row['mode'] or 'not supported'}"
            f" {' '.join(row['instances'])}".rstrip()
            for row in observed.data["gpus"]["mig"]
        )
    )


# -- as nvidia-smi reports it ---------------------------------------------------------------------

# Values that every working GPU reports.
IDENTITY = ("name", "uuid", "memory_total_mib", "memory_used_mib", "temperature_c")


def cards(observed: Sections) -> list[SmiDevice]:
    """The reports of nvidia-smi on all GPUs."""
    return observed.data["smi"]["devices"]


def unknown_without_cards(observed: Sections, what: str) -> Iterator[Finding]:
    """INCONCLUSIVE where nvidia-smi lists no GPU; gpu.smi reports why."""
    if not cards(observed):
        yield Finding(
            f"{what}: unknown, nvidia-smi lists no GPU",
            "see gpu.smi and driver.loaded; then ./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.SMI,),
        )


def broken_off(report: Smi) -> bool:
    """Return whether nvidia-smi's document has no end, or an error in the place of GPUs."""
    return not report.get("complete", True) or bool(report.get("error_string"))


def missing_value(card: SmiDevice, field: str, value: object) -> Iterator[Finding]:
    """INCONCLUSIVE where a GPU neither reports a value nor that it has no such value."""
    failed = [text for text in card["unanswered"] if text.startswith(field + ":")]
    if value is None and (failed or field not in card["raw_unknown"]):
        yield Finding(
            f"{label(card)} does not report its {field.replace('_', ' ')}"
            f"{' (' + failed[0] + ')' if failed else ''}",
            SHOW if failed and denied(failed[0]) else READ_AGAIN,
            verdict=Verdict.INCONCLUSIVE,
            about=subjects.card(card["address"], field),
        )


@check("gpu.smi", reads=("smi", "driver"), repair=INSPECT, skip_reason=no_gpus_declared)
def smi(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """nvidia-smi and NVML answer, list each GPU, and match the loaded driver."""
    report, loaded = observed.data["smi"], observed.data["driver"]["loaded"]
    if not report["asked"] or report["program"] is None:
        yield Finding(
            no_smi(observed),
            without_smi(observed),
            verdict=Verdict.INCONCLUSIVE,
            entails=(subjects.SMI,),
        )
        return
    status = report["nvml"]["status"]
    # An error with cards in the report, or that names one, is of a card, not of the driver.
    lost = named_in(report["error"] or "", observed, lost=status == GPU_IS_LOST)
    of_card = bool(cards(observed) or lost or status == GPU_IS_LOST)
    about = lost if of_card else (subjects.DRIVER,)
    entails = () if cards(observed) else (subjects.SMI,)
    if status == 18:
        yield Finding(
            "NVML: driver and library have different versions (status 18): the libraries were"
            " upgraded while the driver was loaded",
            f"see driver.loaded: reboot {plan['host']}",
            about=(subjects.DRIVER,),
            entails=(subjects.SMI,),
        )
    elif denied(report["error"] or "") and not of_card and observed.snapshot.get("euid"):
        yield Finding(
            f"nvidia-smi may not ask the driver as this account (status {report['status']}):"
            f" {report['error']}",
            AS_ROOT,
            f"NVML status {status}",
            Verdict.INCONCLUSIVE,
            entails=entails,
        )
    elif report["error"]:
        yield Finding(
            f"nvidia-smi fails (status {report['status']}): {report['error']}",
            failed_smi(plan, observed)
            if not of_card
            else "see kernel.log for the GPU that it names; reboot, then replace that GPU",
            f"NVML status {status}",
            about=about,
            entails=entails,
        )
    elif broken_off(report):
        last = label(cards(observed)[-1]) if cards(observed) else "its head"
        yield Finding(
            f"The document of nvidia-smi breaks off at {last}:"
            f" {report.get('error_string') or 'its end is missing'}",
            "see kernel.log for that GPU; reboot, then replace that GPU",
            entails=entails
            or (f"{subjects.SMI}/rest", *subjects.card(cards(observed)[-1]["address"])),
        )
    elif report["status"] != 0 or report["driver_version"] is None:
        yield Finding(
            "nvidia-smi reports no driver version",
            "on the host: nvidia-smi -q -x",
            verdict=Verdict.INCONCLUSIVE,
            entails=entails,
        )
    elif status:
        yield Finding(
            f"NVML does not start (status {status})",
            f"see driver.loaded and driver.nodes; then reboot {plan['host']}",
            about=about,
            entails=entails,
        )
    elif not cards(observed):
        yield Finding(
            "nvidia-smi lists no GPU",
            "see driver.loaded and gpu.count",
            about=(subjects.GPUS,),
            entails=entails,
        )
    elif status is None:
        yield Finding(
            "NVML could not be queried: libnvidia-ml.so.1 cannot be loaded",
            "reinstall the driver's libraries; on the host: ldconfig -p",
            verdict=Verdict.INCONCLUSIVE,
        )
    attached, listed = report.get("attached"), len(cards(observed))
    # gpu.visible names a GPU that is hidden from the account.
    cut_short = broken_off(report) or (report["error"] and not listed) or closed_nodes(observed)
    if not cut_short and attached is not None and attached != listed:
        yield Finding(
            f"nvidia-smi reports {attached} attached GPUs, and lists {listed}",
            "see gpu.visible for the GPU that is not listed, and kernel.log",
            about=unlisted(observed, attached),
        )
    version = report["driver_version"]
    if version and loaded and version != loaded:
        yield Finding(
            f"nvidia-smi reports driver {version}, loaded is {loaded}",
            f"see driver.loaded: reboot {plan['host']}",
            about=(subjects.DRIVER,),
        )
    silent = silent_of_host(cards(observed))
    for card in cards(observed):
        if (fault := card.get("broken")) and not broken_off(report):
            yield Finding(
                f"What nvidia-smi printed of {label(card)} cannot be read: {fault}",
                "on the host: nvidia-smi -q -x; then ./gpufleet verify",
                verdict=Verdict.INCONCLUSIVE,
            )
        broken = [text for text in card["unanswered"] if text.split(":")[0] in IDENTITY]
        if broken and all(map(denied, broken)):
            yield Finding(
                f"{label(card)} shows this account no {', '.join(broken)}",
                SHOW,
                verdict=Verdict.INCONCLUSIVE,
                about=subjects.card(card["address"]),
            )
        elif broken:
            yield Finding(
                f"{label(card)} does not answer: {', '.join(broken)}",
                fields_catalog.remedy("lost"),
                about=subjects.card(card["address"]),
            )
        yield from card_faults(card)
        yield from unjudged_errors(card, silent)
    yield from _remarks(report)
    yield from _twins(cards(observed))
    yield from fields("gpu.smi", observed)
    yield Evidence(
        f"{report['program']}, driver {version}, {len(cards(observed))} cards,"
        f" NVML status {status} with {report['nvml']['count']}"
    )


def _remarks(report: Smi) -> Iterator[Finding]:
    """Findings about nvidia-smi's remarks outside its document, such as on a corrupted InfoROM."""
    text = report.get("remarks")
    if not text or broken_off(report):
        return
    named = [
        card for card in report["devices"] if str(card["address"]).partition(":")[2] in text.lower()
    ]
    fault = fields_catalog.fault(text)
    yield Finding(
        f"nvidia-smi warns: {text}",
        fields_catalog.remedy(fault["remedy"]).format(gpu=named[0]["index"] if named else "N")
        if fault
        else READ_AGAIN,
        verdict=Verdict.FAIL if fault else Verdict.INCONCLUSIVE,
        about=tuple(about for card in named for about in subjects.card(card["address"])),
    )


def _twins(listed: list[SmiDevice]) -> Iterator[Finding]:
    """GPUs that nvidia-smi cannot tell apart."""
    for key, what in (("uuid", "UUID"), ("address", "PCI address")):
        values = [str(card.get(key)).lower() for card in listed if card.get(key)]
        for value in sorted({value for value in values if values.count(value) > 1}):
            same = [label(card) for card in listed if str(card.get(key)).lower() == value]
            yield Finding(
                f"{shortened(same, 8)} have the same {what}, {value}",
                f"{READ_AGAIN}; see kernel.log; power the host off and on, then replace"
                " the GPU that reports what is another's",
            )


def _no_identity(plan: Plan) -> str | None:
    if skip_reason := no_gpus_declared(plan):
        return skip_reason
    named = [key for key in ("model", "memory_mib", "uuids") if plan["expect"].get(key)]
    count = plan["expect"]["count"]
    return None if named else f"gpu_expect: {{count: {count}}} (no model, memory_mib or uuids)"


@check("gpu.identity", reads=("smi",), repair=HARDWARE, skip_reason=_no_identity)
def identity(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The GPUs have the declared model, memory and UUIDs."""
    yield from unknown_without_cards(observed, "The identity of the GPUs")
    wanted = plan["expect"]
    model, memory, uuids = wanted.get("model"), wanted.get("memory_mib"), wanted.get("uuids")
    change = "install the declared GPU, or correct gpu_expect in the inventory"
    for card in cards(observed):
        for field, needed, reported in (
            ("name", model, card["name"]),
            ("memory_total_mib", memory, card["memory_total_mib"]),
            ("uuid", uuids, card["uuid"]),
        ):
            if needed and reported is None:
                yield Finding(
                    f"{label(card)} does not report its {field.replace('_', ' ')}",
                    "see gpu.smi",
                    verdict=Verdict.INCONCLUSIVE,
                    about=subjects.card(card["address"], field),
                )
        if model and card["name"] and not _same_model(model, card["name"]):
            yield Finding(
                f"{label(card)} has the model {card['name']}, declared is {model}", change
            )
        total = card["memory_total_mib"]
        if memory and total is not None and abs(total - memory) > MEMORY_TOLERANCE * memory:
            yield Finding(f"{label(card)} has {total} MiB of memory, declared are {memory}", change)
    present = [card["uuid"].lower() for card in cards(observed) if card["uuid"]]
    if uuids and present:
        known = [uuid.lower() for uuid in uuids]
        missing = [uuid for uuid in uuids if uuid.lower() not in present]
        rest, found = broken_off(observed.data["smi"]), len(uuids) - len(missing)
        closed = hidden(observed, missing)
        if missing and (rest or closed):
            why = "nvidia-smi broke off" if rest else f"{shortened(closed)} may not be opened"
            yield Finding(
                f"It is unknown whether declared GPUs are there, since {why}: {', '.join(missing)}",
                "see gpu.smi" if rest else "see gpu.visible",
                verdict=Verdict.INCONCLUSIVE,
                about=(f"{subjects.SMI}/rest",)
                if rest
                else subjects.missing_gpus(found, wanted["count"]),
            )
        elif missing:
            yield Finding(
                f"Declared GPUs are missing: {', '.join(missing)}",
                change,
                about=()
                if set(present) - set(known)
                else subjects.missing_gpus(found, wanted["count"]),
            )
        if foreign := [uuid for uuid in present if uuid not in known]:
            yield Finding(f"GPUs are installed that are not declared: {', '.join(foreign)}", change)
    yield Evidence(
        "; ".join(
            f"{label(card)}: {card['name']}, {card['memory_total_mib']} MiB, {card['uuid']}"
            for card in cards(observed)
        )
    )


KINDS = {"ti", "super", "d", "laptop", "mobile", "max"}


def _same_model(wanted: str, name: str) -> bool:
    """Return whether a name contains the declared one; older drivers omit NVIDIA."""
    need, have = (
        " ".join(word for word in re.findall(r"[a-z0-9]+", text.lower()) if word != "nvidia")
        for text in (wanted, name)
    )
    # A 3080 is neither a 3080 Ti nor one of a laptop, a 4090 no 4090 D.
    other = KINDS & ({*have.split()} - {*need.split()})
    return f" {need} " in f" {have} " and not other
