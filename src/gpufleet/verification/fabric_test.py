"""Test the fabric between hosts: collectives of all of them, and the culprit where these fail.

Runs programs on the hosts that use their GPUs, and changes nothing there. Hosts that others use
are refused, unless the caller shares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpufleet.checks.base.holders import holders
from gpufleet.checks.base.sections import Sections
from gpufleet.errors import ConfigurationError
from gpufleet.fabric.bisection import bisect, conclude
from gpufleet.fabric.conclusion import Conclusion
from gpufleet.fabric.rounds import GroupTest, Outcome, Result, Round
from gpufleet.fabric.schedule import schedule
from gpufleet.fabric.threshold import Judge, Threshold
from gpufleet.inventory import InventoryHost
from gpufleet.model.clock import utc_now
from gpufleet.model.collectives import CulpritRow, Excluded, FabricTest, GroupResult
from gpufleet.model.verdict import Verdict

from .collectives import GroupRun, Measure, Member, members_of, run_groups
from .options import ProbeOptions
from .probing import probe_hosts

SCHEMA = 1
# What each host has one of: its network as a whole.
RAILS = (0,)
# NCCL connects all ranks with each other before it computes: about a hundredth of a second each,
# and more on a busy host. Our own estimate: a deadline that is too long costs only broken groups.
SECONDS_PER_HOST = 0.1


@dataclass(frozen=True)
class FabricOptions:
    """What is tested, and what is called slow."""

    measure: Measure
    deadline_s: float = 120
    tolerance: float = 0.1
    # The declared bus bandwidth of a group in GB/s; None: the median of the pairs is the figure.
    at_least: float | None = None
    stack: str | None = None
    shared: bool = False


class InUseError(ConfigurationError):
    """Hosts that others use, or of which this is not known."""


def run(
    hosts: Sequence[InventoryHost],
    options: FabricOptions,
    probe: ProbeOptions,
    notify: Callable[[str], None] = lambda text: None,
) -> FabricTest:
    """Test these hosts; the document of what was found. Raises `ConfigurationError`."""
    members = members_of(hosts, options.stack)
    if not options.shared:
        notify("Asking whether others use the GPUs")
        refuse_used(hosts, probe)
    started = utc_now()
    excluded: list[Excluded] = []
    releases: dict[str, str] = {}
    first = None
    # A host that cannot take part at all is named, and the others are tested without it.
    while len(members) > 1 or (members and first is None):
        notify(f"Running {', '.join(options.measure.operations)} on {len(members)} hosts")
        [first] = run_groups(
            [GroupTest(tuple(members), RAILS)],
            members,
            options.measure,
            deadline(options)(len(members)),
        )
        releases.update({name: side["nccl"] or "" for name, side in first.sides.items()})
        broken = first.at_fault()
        if not broken:
            break
        for name, cause in broken.items():
            notify(f"{name} takes no part: {cause}")
            excluded.append(
                {"host": name, "cause": cause, "remedy": first.remedies.get(name) or REMEDY}
            )
            del members[name]
        first = None
    if first is None:
        return document(started, options, (excluded, releases), None, None)
    conclusion = search(members, options, first, notify) if len(members) > 1 else None
    return document(started, options, (excluded, releases), first, conclusion)


REMEDY = (
    "correct what the cause names, or leave the host out: --limit; ./gpufleet verify shows what"
    " else is wrong with it"
)


def deadline(options: FabricOptions) -> Callable[[int], float]:
    """The seconds after which a test of so many hosts is stopped."""
    return lambda count: options.deadline_s + SECONDS_PER_HOST * count


def refuse_used(hosts: Sequence[InventoryHost], probe: ProbeOptions) -> None:
    """Refuse hosts on whose GPUs others compute. Raises `InUseError`."""
    used: list[str] = []
    for name, outcome in probe_hosts(hosts, probe).items():
        if outcome.snapshot is None:
            used.append(f"{name}: {outcome.cause}")
            continue
        found = holders(Sections(outcome.snapshot, ()))
        if found is None:
            used.append(f"{name}: which processes use its GPUs is unknown")
        elif found:
            used.append(f"{name}: {', '.join(found[:4])}")
    if used:
        raise InUseError(
            "Nothing was tested: hosts are in use, or nobody knows whether they are.\n"
            + "\n".join(used),
            "",
            "Drain these hosts first, leave them out (--limit), or test beside what runs there:"
            " --shared.",
        )


def search(
    members: dict[str, Member],
    options: FabricOptions,
    first: GroupRun,
    notify: Callable[[str], None],
) -> Conclusion:
    """Judge the group, and find the culprit where it is slow, wrong or hung."""
    limits = schedule(len(members), len(RAILS), deadline(options))

    def results(planned: Round) -> list[Result]:
        if planned.number == 1:
            # The first round is the whole group, which has been run.
            return [first.result()]
        if planned.number == 2:
            notify("The group fails, or needs siblings to be judged. The search, at most:")
            for line in limits.lines():
                notify(line)
        notify(f"round {planned.number}, {planned.step}: {len(planned.tests)} tests")
        runs = run_groups(planned.tests, members, options.measure, planned.deadline_s)
        return [each.result() for each in runs]

    steps = bisect(list(members), RAILS, threshold_of(options), deadline(options))
    return conclude(steps, results)


def threshold_of(options: FabricOptions) -> Threshold:
    """What is slow."""
    share = f"{options.tolerance:.0%}"
    if options.at_least is not None:
        return Threshold(
            options.tolerance,
            f"more than {share} below the declared {options.at_least:g} GB/s",
            {len(RAILS): options.at_least},
        )
    return Threshold(options.tolerance, f"more than {share} below the median of the pairs of hosts")


def document(
    started: str,
    options: FabricOptions,
    taken_part: tuple[list[Excluded], dict[str, str]],
    first: GroupRun | None,
    conclusion: Conclusion | None,
) -> FabricTest:
    """What was found, as one document. `taken_part`: who could not, and each host's NCCL."""
    excluded, releases = taken_part
    culprits: list[CulpritRow] = []
    tests: list[GroupResult] = []
    unknown: list[str] = []
    source = threshold_of(options).source
    if conclusion:
        source, unknown = conclusion.threshold_source, list(conclusion.unknown)
        culprits = [
            {
                "kind": each.kind.value,
                "hosts": list(each.members),
                "rails": list(each.rails),
                "statement": each.statement,
            }
            for each in conclusion.culprits
        ]
        tests = [
            {
                "number": seen.number,
                "round": seen.round,
                "hosts": list(seen.test.members),
                "outcome": seen.outcome.value,
                "gb_per_s": seen.bus_bandwidth_gb_s,
                "least_gb_per_s": seen.least_gb_s,
            }
            for seen in conclusion.observations
        ]
    elif first:
        judge = Judge(threshold_of(options))
        result = first.result()
        outcome = judge.outcome(first.test, result)
        tests = [
            {
                "number": 1,
                "round": 1,
                "hosts": list(first.test.members),
                "outcome": outcome.value,
                "gb_per_s": result.bus_bandwidth_gb_s,
                "least_gb_per_s": judge.least_gb_s(first.test),
            }
        ]
        if outcome is Outcome.NOT_JUDGED:
            unknown = ["how fast one host should be: no figure is declared (--at-least)"]
    return {
        "schema": SCHEMA,
        "started": started,
        "finished": utc_now(),
        "verdict": verdict(tests, culprits, excluded, unknown).value,
        "hosts": list(first.sides) if first else [],
        "nccl": releases,
        "ranks": first.ranks if first else 0,
        "slow": source,
        "results": first.rows() if first else [],
        "tests": tests,
        "culprits": culprits,
        "excluded": excluded,
        "unknown": unknown,
    }


def verdict(
    tests: list[GroupResult],
    culprits: list[CulpritRow],
    excluded: list[Excluded],
    unknown: list[str],
) -> Verdict:
    """FAIL where anything is at fault, INCONCLUSIVE where something is not known.

    A pair that was slow once and passes again is not known to be slow; wrong sums are always wrong.
    """
    grave = {Outcome.WRONG.value, Outcome.HUNG.value}
    if culprits or excluded or any(test["outcome"] in grave for test in tests):
        return Verdict.FAIL
    if tests and tests[0]["outcome"] == Outcome.SLOW.value:
        return Verdict.FAIL
    return Verdict.INCONCLUSIVE if unknown or not tests else Verdict.PASS
