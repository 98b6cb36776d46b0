"""The meaning of a stage's verdicts: passed, failed or not judged; the part at fault. Pure.

A host has passed only what was run on it: a check that a declaration excuses, and that the stage
requires, is not judged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpufleet.components.base.registry import HARDWARE
from gpufleet.components.checks import CHECKS
from gpufleet.components.compute.work_done import unchecked_products
from gpufleet.components.driver.restart_checks import PENDING
from gpufleet.components.host.shared_files import SHM
from gpufleet.documents.commission import FaultyPart, Figure, Part, Reason
from gpufleet.documents.sections.compute import SustainedResult
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.validator import section_data
from gpufleet.documents.verdict import HEALTHY_VERDICTS, CheckResult, HostResult, Verdict
from gpufleet.watch.offence_records import Finding
from gpufleet.watch.offenders import named_cards

from .stages import COLLECTIVES, OF_HARDWARE, OF_PORTS, Stage

Outcome = Literal["passed", "failed", "not-judged"]
# The names of the burn-in's own findings, of the disk and of the links.
DISK, LINKS = "burn-in.disk", "burn-in.links"
# How many samples before and after the first wrong product are shown.
AROUND = 5
FAILING = {Verdict.FAIL.value, Verdict.HUNG.value}
# How the findings of a full file system and of a pending restart begin. A driver that does not run
# after its restart ("stuck") may have a broken card, and a file system that is read-only a broken
# disk.
FULL = ("No space is left in ", f"{SHM} is full")
PENDING_RESTARTS = tuple(PENDING[action] for action in ("reload", "reboot", "wait"))


@dataclass
class Decision:
    """How a stage ended on a host: why it did not pass, and what a reader has to know."""

    reasons: list[Reason] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        """`failed` where anything failed, `not-judged` where anything else is not healthy."""
        if any(refuses(reason) for reason in self.reasons):
            return "failed"
        return "not-judged" if self.reasons else "passed"


def refuses(found: Reason) -> bool:
    """Return whether a finding refuses the host.

    Full file systems and pending restarts are no fault of a part: whoever uses the host frees the
    space or restarts it, and commissions it again.
    """
    if found["verdict"] not in FAILING:
        return False
    if found["check"] == "driver.pending":
        return not found["cause"].startswith(PENDING_RESTARTS)
    if found["check"] in {"host.disk", "host.temporary"}:
        return not all(each.startswith(FULL) for each in found["cause"].split(". "))
    return True


def decided(stage: Stage, result: HostResult) -> Decision:
    """The decision of a host's checks about a stage."""
    checks = {check["id"]: check for check in result["checks"]}
    # A host that was not reached has one check, which decides every stage.
    alone = len(checks) == 1
    reasons = [
        reason_of(check)
        for check in checks.values()
        if check["verdict"] not in HEALTHY_VERDICTS
        and (alone or stage.decides(check["id"]))
        and not _is_consequence(check, checks, stage)
    ]
    found = {reason["check"] for reason in reasons}
    if not reasons or not alone:
        reasons += [
            not_run(name, checks.get(name))
            for name in stage.required
            if name not in found
            and (name not in checks or checks[name]["verdict"] == Verdict.NOT_DECLARED)
        ]
    return Decision(reasons)


def _is_consequence(check: CheckResult, checks: Mapping[str, CheckResult], stage: Stage) -> bool:
    """Return whether the finding of another check of this stage explains a check."""
    cause = checks.get(check.get("explained_by", ""))
    return cause is not None and stage.decides(cause["id"])


def reason_of(check: CheckResult) -> Reason:
    """A check's finding as a reason."""
    return {
        "check": check["id"],
        "verdict": check["verdict"],
        "cause": check["cause"],
        "remedy": check["remedy"],
        "evidence": check["evidence"],
    }


def not_run(name: str, check: CheckResult | None) -> Reason:
    """The reason where a check that a stage requires has judged nothing."""
    why = check["cause"] if check else "it was not judged"
    return {
        "check": name,
        "verdict": Verdict.INCONCLUSIVE.value,
        "cause": f"{name} has to pass, and was not run ({why})",
        "remedy": "declare what the host has, and commission it again: gpu_expect, gpu_toolkits,"
        " gpu_stacks",
        "evidence": check["evidence"] if check else "",
    }


def reason(stage: str, verdict: Verdict, cause: str, remedy: str, evidence: str = "") -> Reason:
    """A reason that no check has found."""
    return {
        "check": stage,
        "verdict": verdict.value,
        "cause": cause,
        "remedy": remedy,
        "evidence": evidence,
    }


def loads(snapshot: Snapshot | None) -> list[SustainedResult]:
    """The sustained load of each GPU, of the run that had one; empty where none had."""
    data = section_data(snapshot) if snapshot else {}
    runs = data["compute"]["runs"] if "compute" in data else []
    return next((run["sustained"] for run in reversed(runs) if run["sustained"]), None) or []


def burned(snapshot: Snapshot | None, gpus: int, seconds: float) -> list[Reason]:
    """The missing parts of a burn-in of so many GPUs and seconds; checks judge wrong products."""
    found = {entry["gpu"]: entry for entry in loads(snapshot)}
    short = [
        number
        for number in range(gpus)
        if number not in found
        or (found[number]["seconds"] or 0) < seconds
        or not found[number].get("checked")
    ]
    few = [
        number
        for number, entry in found.items()
        if number < gpus and number not in short and unchecked_products(entry)
    ]
    return [
        reason(
            "burn-in",
            Verdict.INCONCLUSIVE,
            f"{', '.join(f'GPU {number}' for number in numbers[:8])}"
            f"{' and others' if numbers[8:] else ''} {what}",
            "see gpu.sustained; then commission the host again",
        )
        for numbers, what in (
            (short, f"did not compute for {seconds:.0f} s"),
            (few, "compared fewer products than its time and speed give"),
        )
        if numbers
    ]


def wrong_moments(entries: Iterable[SustainedResult]) -> list[str]:
    """For each GPU with a wrong product, between which samples the first one was computed."""
    found = []
    for entry in entries:
        before = 0.0
        for sample in entry["samples"]:
            if sample.get("wrong"):
                found.append(
                    f"GPU {entry['gpu']}: the first wrong product was computed between"
                    f" {before:g} s and {sample['at_s']:g} s of the load"
                    f" ({sample['temperature_c']} degrees, {sample['clock_sm_mhz']} MHz)"
                )
                break
            before = sample["at_s"]
    return found


def wrong_samples(entries: Iterable[SustainedResult]) -> list[str]:
    """For each GPU with a wrong product, the samples around the first one, a line each."""
    lines = []
    for entry in entries:
        samples = entry["samples"]
        first = next((at for at, each in enumerate(samples) if each.get("wrong")), None)
        if first is None:
            continue
        lines.append(
            f"GPU {entry['gpu']}: {entry['wrong']} of {entry.get('checked', 0)} products are wrong,"
            f" of matrices with {entry['n']} rows"
        )
        lines += [
            f"  at {each['at_s']:g} s: {each['tflops']} TFLOP/s, {each['temperature_c']} degrees,"
            f" {each['clock_sm_mhz']} MHz, {each['power_w']} W, {each.get('wrong', 0)} wrong so far"
            for each in samples[max(0, first - AROUND) : first + AROUND]
        ]
    return lines


# -- the part at fault -----------------------------------------------------------------------------

MANIFEST = "host.manifest"
# The names of a manifest that are hardware and its firmware; of these the system sets a few.
HARDWARE_NAMES = (*OF_HARDWARE, *OF_PORTS, "gpu.")
SOFTWARE_NAMES = ("cpu.governor", "cpu.microcode")
# A line of the manifest's evidence: the name that differs.
_COMPARED = re.compile(r"^([a-z_.]+), here: ", re.MULTILINE)
# Settings and programs that these judge are no parts, whichever part their findings name.
NO_PARTS = {
    "gpu.mig",
    "gpu.settings",
    "kernel.application-errors",
    "network.gpudirect",
    "network.lossless",
    "network.settings",
    "network.setup",
}


def faulty_parts(parts: Sequence[Part], reasons: Sequence[Reason]) -> list[FaultyPart]:
    """The parts to send back, each with what was found of it; what failed decides, nothing else.

    A finding that names a GPU, an adapter, a drive or the only memory module of a slot blames it.
    One of the hardware that names none blames the host as a whole. So does a manifest whose
    hardware differs: its lines name all parts of a kind, and not the one that differs. Software is
    no part.
    """
    failing = [each for each in reasons if refuses(each)]
    blamed: dict[int, list[Reason]] = {}
    for each in failing:
        named = [] if each["check"] in {*NO_PARTS, MANIFEST} else _named(parts, each)
        if not named and _of_hardware(each):
            named = [at for at, part in enumerate(parts) if part["kind"] == "host"]
        for at in named:
            blamed.setdefault(at, []).append(each)
    return [{"part": parts[at], "reasons": found} for at, found in sorted(blamed.items())]


def _of_hardware(found: Reason) -> bool:
    check = found["check"]
    if check == MANIFEST:
        return any(
            name.startswith(HARDWARE_NAMES) and not name.startswith(SOFTWARE_NAMES)
            for name in _COMPARED.findall(found["evidence"])
        )
    return check in {DISK, LINKS, COLLECTIVES.name} or (
        check in CHECKS and CHECKS[check].repair == HARDWARE
    )


def _named(parts: Sequence[Part], found: Reason) -> list[int]:
    """The numbers of the parts that a reason names."""
    cards = {part["id"]: at for at, part in enumerate(parts) if part["kind"] == "gpu"}
    listed = "; ".join(
        f"{(part['slot'] or '-').partition(',')[0]} {part['id'] or '-'} {part['model'] or '-'}"
        for part in parts
        if part["kind"] == "gpu"
    )
    named = {cards.get(uuid) for uuid in named_cards([_finding(found)], listed)} - {None}
    named |= {
        at
        for at, part in enumerate(parts)
        if part["kind"] in {"adapter", "drive"}
        and re.search(rf"(?<![\w.-]){re.escape(part['name'])}(?![\w-])", found["cause"])
    }
    named |= set(_modules(parts, found))
    return sorted(at for at in named if at is not None)


def _modules(parts: Sequence[Part], found: Reason) -> Iterator[int]:
    """The memory modules whose slots a message of the kernel names: the finding quotes it."""
    if not found["check"].startswith("kernel."):
        return
    modules = {at: part["name"] for at, part in enumerate(parts) if part["kind"] == "module"}
    times = Counter(modules.values())
    for at, name in modules.items():
        # A number alone is no name, and of two slots of one name neither is known.
        named = re.search(rf"(?<![\w.#-]){re.escape(name)}(?![\w#-])", found["evidence"])
        if named and times[name] == 1 and not name.isdigit():
            yield at


def _finding(found: Reason) -> Finding:
    return Finding(found["check"], found["cause"])
