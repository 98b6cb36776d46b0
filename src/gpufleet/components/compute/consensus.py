"""Random products on which all GPUs of an architecture agree: silent corruption.

A product of small integers is known to be right; random products use each bit of the numbers, and
what is right is what the siblings have: those of the host, and of hosts that are verified with it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from gpufleet.components.base import subjects
from gpufleet.components.base.consensus import Difference, Group, differences, groups_of
from gpufleet.components.base.registry import (
    HARDWARE,
    Evidence,
    Finding,
    check,
    required,
    shortened,
)
from gpufleet.components.base.remedies import command
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import ComparedSum, Plan
from gpufleet.documents.sections.compute import ComputeRun, ConsensusResult
from gpufleet.documents.text import brief
from gpufleet.documents.verdict import Verdict

from .toolkits import DEVICE_FAULT, ToolkitRun, about_runs, gpu_results, no_gpus, runs, runs_with
from .work_done import Applicable

FORMATS = ("fp32", "fp64", "fp16", "int8", "tf32", "bf16", "fp8-e4m3", "fp8-e5m2")
WHERE = "Random products in "
# The workload computes so many sums, however slow the GPU is: after 1, 2, 4 and 8 rounds.
LEAST_SUMS = 4
MORE_HOSTS = (
    "at least one of them computes wrong: verify together with other hosts that have such GPUs, so"
    " that most can tell"
)
# An NVRTC whose release is not known to lack the instructions, and that refuses them.
NOT_COMPILED = re.compile(r"nvrtcCompileProgram returned \d+ NVRTC_ERROR_COMPILATION")


@check("gpu.consensus", reads=("compute",), repair=HARDWARE, skip_reason=no_gpus)
def consensus(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each GPU computes random products as before, and as others of its architecture, by NVRTC."""
    tested, reasons = runs_with(plan, observed, "consensus")
    for found in tested:
        entries = required(found.run.get("consensus"), "a run's sums")
        yield from _in_run(plan, observed, found, entries)
    if not tested:
        yield Finding(
            f"No random products were computed: {'; '.join(reasons)}",
            "see toolkit.device-query and toolkit.nvrtc; then ./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
            about=about_runs(runs(plan, observed)),
        )


def _in_run(
    plan: Plan, observed: Sections, tested: ToolkitRun, entries: Sequence[ConsensusResult]
) -> Iterator[Finding | Evidence]:
    by_format: dict[str, list[Finding | Evidence]] = {name: [] for name in FORMATS}
    applicable = Applicable(tested.run, entries)
    for name, found in by_format.items():
        tried = []
        for entry in entries:
            if entry["format"] == name:
                on = f"{WHERE}{name} on GPU {entry['gpu']}"
                result, about = _excused(plan, on, tested.run, entry)
                if missing := applicable.missing(on, entry):
                    about = [missing]
                tried.append(result)
                found.extend(about)
        found.extend(gpu_results(plan, observed, WHERE + name, tried, run=tested.run, unit="sum"))
    yield from _together(by_format)
    groups: dict[Group, list[ConsensusResult]] = defaultdict(list)
    for entry, group in groups_of(tested.run):
        if group:
            groups[group].append(entry)
        elif (
            entry["wrong"] == 0
            and not (entry["sums"] and entry["seed"] is not None)
            and not entry["not_applicable"]
            and not entry["error"]
        ):
            yield Finding(
                f"Random products in {entry['format']} on GPU {entry['gpu']}: what is compared with"
                " other GPUs is missing",
                command("verify"),
                brief(entry),
                verdict=Verdict.INCONCLUSIVE,
            )
    for group, members in groups.items():
        yield from _agreement(plan, group, members)
    yield from _apart(plan, groups)


def _apart(plan: Plan, groups: Mapping[Group, Sequence[ConsensusResult]]) -> Iterator[Finding]:
    """GPUs whose sums could be compared with those of their siblings, had all the same seed."""
    alike: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in groups:
        alike[group.format, group.capability].append(group)
    elsewhere = {
        Group(row["format"], row["capability"], row["seed"])
        for row in plan.get("sums") or []
        if row["gpus"] > len(groups.get(Group(row["format"], row["capability"], row["seed"]), ()))
    }
    alone: dict[tuple[int, str], list[str]] = defaultdict(list)
    for (name, capability), found in alike.items():
        for group in found if len(found) > 1 else ():
            if len(groups[group]) == 1 and group not in elsewhere:
                alone[groups[group][0]["gpu"], capability].append(name)
    for (gpu, capability), formats in alone.items():
        yield Finding(
            f"{WHERE}{', '.join(formats)} on GPU {gpu} are compared with nothing: the other GPUs of"
            f" compute capability {capability} computed other products (another seed)",
            "./gpufleet verify again: all GPUs compute the products of one day",
            verdict=Verdict.INCONCLUSIVE,
        )
    for entry in (each for members in groups.values() for each in members):
        if len(entry["sums"]) < LEAST_SUMS:
            yield Finding(
                f"{WHERE}{entry['format']} on GPU {entry['gpu']}: {len(entry['sums'])} sums were"
                f" computed, asked for are {LEAST_SUMS} at least",
                "./gpufleet verify again; if it stays so, see kernel.log for this GPU",
                verdict=Verdict.INCONCLUSIVE,
            )


def _together(
    by_format: Mapping[str, Sequence[Finding | Evidence]],
) -> Iterator[Finding | Evidence]:
    """Findings that differ by their format alone as one, such as of an NVRTC that compiles none."""
    # The key names what is compared: a finding whose remedy is a `Remedy` has no hash.
    alike: dict[tuple[object, ...], tuple[Finding, dict[str, str]]] = {}
    for name, found in by_format.items():
        for each in found:
            if isinstance(each, Finding):
                cause = each.cause.replace(f"{WHERE}{name}", WHERE, 1)
                key = (cause, str(each.remedy), each.verdict, each.about, each.entails, each.held)
                _, evidence = alike.setdefault(key, (replace(each, cause=cause), {}))
                evidence[name] = each.evidence
            else:
                yield each
    for finding, evidence in alike.values():
        yield replace(
            finding,
            cause=finding.cause.replace(WHERE, WHERE + ", ".join(evidence), 1),
            evidence=next(iter(evidence.values())),
        )


def _excused(
    plan: Plan, on: str, run: ComputeRun, entry: ConsensusResult
) -> tuple[ConsensusResult, list[Finding | Evidence]]:
    """The result of one GPU, to be judged as others are, and what is said of it beside that."""
    excused: ConsensusResult = {**entry, "wrong": 0, "error": None}
    # Each GPU has float32, and each toolkit has NVRTC; not each stack's wheels have it.
    if entry["not_applicable"] and (entry["format"] != "fp32" or not plan["toolkits"]):
        return excused, [Evidence(f"{on}: not applicable, {entry['not_applicable']}")]
    reason = entry["not_applicable"] or entry["error"]
    if reason and (entry["not_applicable"] or NOT_COMPILED.search(reason)):
        return excused, [
            Finding(
                f"{on} were not computed: {reason}",
                "use a toolkit that supports the GPU: see toolkit.device-query",
                verdict=Verdict.INCONCLUSIVE,
            )
        ]
    if reason and run["nvrtc"] and run["nvrtc"]["error"]:
        return excused, [
            Finding(
                f"{on} were not computed: {reason}",
                "see toolkit.nvrtc",
                verdict=Verdict.INCONCLUSIVE,
                about=(subjects.stopped(run["toolkit"]),),
            )
        ]
    return entry, []


def _agreement(
    plan: Plan, group: Group, members: Sequence[ConsensusResult]
) -> Iterator[Finding | Evidence]:
    """The GPUs of a group beside each other, and beside those of other hosts."""
    found = _of_the_fleet(plan, group) or differences(entry["sums"] for entry in members)
    rounds = 1 << (max(len(entry["sums"]) for entry in members) - 1)
    what = f"{group.format} on compute capability {group.capability}"
    if not found:
        named = shortened([f"GPU {entry['gpu']}" for entry in members])
        yield Evidence(f"{what}: {named}: one sum after up to {rounds} rounds")
    left = {entry["gpu"]: entry["sums"] for entry in members}
    for difference in found:
        at, total = difference.at, sum(difference.gpus.values())
        own = {gpu: sums[at] for gpu, sums in left.items() if len(sums) > at}
        lone = difference.right not in own.values() and _against(difference, own.values()) == 1
        if lone and len(own) > 1:
            # That host may lie, and the GPUs of this one confirm each other.
            yield Evidence(
                f"{what}: one other host has another sum of the same products after"
                f" {difference.rounds} rounds, and the {len(own)} GPUs of this host agree: which"
                " one is right is not known; verify them together with more hosts of such GPUs"
            )
            yield from _agreement({**plan, "sums": []}, group, members)
            return
        if difference.right is None and own:
            yield Finding(
                f"{what}: {total} GPUs have {len(difference.gpus)} different sums of the same"
                f" products after {difference.rounds} rounds, and no sum is that of most of them",
                MORE_HOSTS,
                verdict=Verdict.INCONCLUSIVE,
                about=(f"sums/{group.format}",),
            )
        if difference.right is None:
            return
        for gpu in [gpu for gpu, value in own.items() if value != difference.right]:
            cause = (
                f"{what}: GPU {gpu} has another sum of the same products than"
                f" {difference.gpus[difference.right]} of {total} GPUs, each time after"
                f" {difference.rounds} rounds"
            )
            evidence = f"{own[gpu]} instead of {difference.right}"
            if lone:
                yield Finding(
                    f"{cause}; all of these are in one host",
                    MORE_HOSTS,
                    evidence,
                    Verdict.INCONCLUSIVE,
                    about=(f"sums/{group.format}",),
                )
            else:
                yield Finding(cause, DEVICE_FAULT, evidence)
            # It differs in all later rounds as well.
            del left[gpu]


def _against(difference: Difference, own: Collection[str]) -> int:
    """How many other hosts have one other sum, at most, than the only sum of this host's GPUs.

    0: the GPUs of this host have several sums, or nobody else was compared.
    """
    others = [hosts for value, hosts in difference.hosts.items() if value not in own]
    return max(others, default=0) if len({*own}) == 1 else 0


def _of_the_fleet(plan: Plan, group: Group) -> list[Difference]:
    """Where the GPUs of the hosts that were verified together differ; empty where they agree."""
    by_rounds: dict[int, list[ComparedSum]] = defaultdict(list)
    for row in plan.get("sums") or []:
        if (row["format"], row["capability"], row["seed"]) == group:
            by_rounds[row["rounds"]].append(row)
    return [
        Difference(
            rounds,
            {row["sum"]: row["gpus"] for row in rows},
            {row["sum"]: row.get("hosts", row["gpus"]) for row in rows},
        )
        for rounds, rows in sorted(by_rounds.items())
        if len(rows) > 1
    ]
