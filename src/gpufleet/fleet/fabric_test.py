"""Test the fabric between hosts: collectives of all of them, and the culprit where these fail.

Runs programs on the hosts that use their GPUs, and changes nothing there. Hosts that others use
are refused, unless the caller shares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpufleet.catalog import bandwidth
from gpufleet.components.base.holders import holders
from gpufleet.components.base.sections import Sections
from gpufleet.documents.clock import utc_now
from gpufleet.documents.collectives import CulpritRow, Excluded, FabricTest, GroupResult, Scope
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.verdict import Verdict
from gpufleet.errors import ConfigurationError
from gpufleet.fabric.bisection import bisect, conclude
from gpufleet.fabric.conclusion import Conclusion
from gpufleet.fabric.rounds import FAILING as FAILING_OUTCOMES
from gpufleet.fabric.rounds import GRAVITY, GroupTest, Observation, Outcome, Result, Round
from gpufleet.fabric.schedule import schedule
from gpufleet.fabric.threshold import Judge, Past, Threshold
from gpufleet.fleet.inventory import InventoryHost
from gpufleet.fleet.transport.fanout import Outcome as Probed

from .collectives import GroupRun, Measure, Member, members_of, run_groups
from .machines import Machines, machines_of
from .options import ProbeOptions
from .probing import probe_hosts
from .rails import Rail, culprit_name, rails_of

SCHEMA = 1
# The rails of a test by number where they are not tested: the network of a host counts as one rail.
RAILS: tuple[int, ...] = (0,)
# The scopes of one group, in which the culprit is searched.
SEARCHED = ("all", "rails")
SLOW = Outcome.SLOW.value
FAILING = {outcome.value for outcome in FAILING_OUTCOMES}
# NCCL connects all ranks with each other before it computes: about a hundredth of a second each,
# and more on a busy host. Our own estimate: a deadline that is too long costs only broken groups.
SECONDS_PER_HOST = 0.1


@dataclass(frozen=True)
class FabricOptions:
    """The options of a fabric test: its measure, and its limit of slowness."""

    measure: Measure
    deadline_s: float = 120
    tolerance: float = 0.1
    # The bus bandwidth of a group in GB/s. None: what all hosts declare, else what is usual, else
    # the catalog's floor.
    at_least: float | None = None
    stack: str | None = None
    shared: bool = False
    scope: Scope = "all"
    # The rates of a group of hosts in earlier tests that are alike, in GB/s.
    past: Callable[[Sequence[str]], Sequence[float]] = lambda hosts: ()


class InUseError(ConfigurationError):
    """Hosts that others use, or of which this is not known: {host: why}."""

    def __init__(self, hosts: Mapping[str, str]) -> None:
        self.hosts = hosts
        super().__init__(
            "Nothing was tested: hosts are in use, or nobody knows whether they are.\n"
            + "\n".join(f"{name}: {why}" for name, why in hosts.items()),
            "",
            "Drain these hosts first, leave them out (--limit), or test beside what runs there:"
            " --shared.",
        )


def run(
    hosts: Sequence[InventoryHost],
    options: FabricOptions,
    probe: ProbeOptions,
    notify: Callable[[str], None] = lambda text: None,
) -> FabricTest:
    """Test these hosts; the document of what was found. Raises `ConfigurationError`."""
    members = members_of(hosts, options.stack)
    if options.scope == "rails" and len(hosts) < 2:
        raise ConfigurationError(
            "A rail connects hosts, and this is one.", "--scope rails", "Name two hosts or more."
        )
    if options.at_least is None and options.scope != "hosts":
        options = replace(options, at_least=declared_bandwidth(hosts))
    snapshots = asked(hosts, options, probe, notify)
    rails = RAILS
    if options.scope == "rails":
        own = rails_of(hosts, snapshots)
        members = {name: replace(each, rails=own[name]) for name, each in members.items()}
        rails = tuple(range(len(next(iter(own.values())))))
    machines = Machines(machines_of(hosts, snapshots), members, options.measure)
    threshold = threshold_of(options, machines, len(rails))
    started = utc_now()
    if options.scope not in SEARCHED:
        return run_alike(members, options, threshold, started, notify)
    excluded: list[Excluded] = []
    releases: dict[str, str] = {}
    first = None
    # A host that cannot take part at all is named, and the others are tested without it.
    while len(members) > 1 or (members and first is None):
        notify(f"Running {', '.join(options.measure.operations)} on {len(members)} hosts")
        [first] = run_groups(
            [GroupTest(tuple(members), rails)],
            members,
            options.measure,
            deadline(options)(len(members)),
        )
        releases.update({name: side["nccl"] or "" for name, side in first.sides.items()})
        broken = excluded_by(first, notify)
        if not broken:
            break
        excluded += broken
        for each in broken:
            del members[each["host"]]
        first = None
    found = Findings(threshold.source)
    if first and len(members) > 1:
        conclusion = search(members, options, threshold, first, notify)
        found = of_conclusion(conclusion, {name: each.rails for name, each in members.items()})
    elif first:
        found = judged_alike([[first]], threshold)
    return document(options, started, found, (excluded, releases), first)


def asked(
    hosts: Sequence[InventoryHost],
    options: FabricOptions,
    probe: ProbeOptions,
    notify: Callable[[str], None],
) -> dict[str, Snapshot]:
    """The snapshots of the hosts, where these are needed. Raises `InUseError`."""
    if options.shared and options.scope != "rails" and options.at_least is not None:
        return {}
    notify("Asking the hosts for their GPUs and ports, and whether others use them")
    outcomes = probe_hosts(hosts, probe)
    if not options.shared:
        refuse_used(outcomes)
    return {name: each.snapshot for name, each in outcomes.items() if each.snapshot is not None}


def declared_bandwidth(hosts: Sequence[InventoryHost]) -> float | None:
    """The least bandwidth that the hosts declare for a group; None unless all declare one."""
    found = [host.spec.expect.get("bus_bandwidth_gb_s") for host in hosts]
    known = [rate for rate in found if rate is not None]
    return min(known) if len(known) == len(hosts) else None


REMEDY = (
    "correct what the cause names, or leave the host out: --limit; ./gpufleet verify shows what"
    " else is wrong with it"
)


def excluded_by(group: GroupRun, notify: Callable[[str], None]) -> list[Excluded]:
    """The hosts that failed by themselves in a group's test, each with its reason."""
    found: list[Excluded] = []
    for name, cause in group.at_fault().items():
        notify(f"{name} takes no part: {cause}")
        found.append({"host": name, "cause": cause, "remedy": group.remedies.get(name) or REMEDY})
    return found


def deadline(options: FabricOptions) -> Callable[[int], float]:
    """The seconds after which a test of so many hosts is stopped."""
    return lambda count: options.deadline_s + SECONDS_PER_HOST * count


def refuse_used(outcomes: Mapping[str, Probed]) -> None:
    """Refuse hosts on whose GPUs others compute. Raises `InUseError`."""
    used: dict[str, str] = {}
    for name, outcome in outcomes.items():
        if outcome.snapshot is None:
            used[name] = str(outcome.cause)
            continue
        found = holders(Sections(outcome.snapshot, ()))
        if found is None:
            used[name] = "which processes use its GPUs is unknown"
        elif found:
            used[name] = ", ".join(found[:4])
    if used:
        raise InUseError(used)


def search(
    members: dict[str, Member],
    options: FabricOptions,
    threshold: Threshold,
    first: GroupRun,
    notify: Callable[[str], None],
) -> Conclusion:
    """Judge the group, and find the culprit where it is slow, wrong or hung."""
    rails, each_rail = first.test.rails, options.scope == "rails"
    limits = schedule(len(members), len(rails), deadline(options), each_rail=each_rail)

    def results(planned: Round) -> list[Result]:
        if planned.number == 1:
            # The first round is the whole group, which has been run.
            return [first.result()]
        if planned.number == 2:
            notify(
                "Each rail alone, and the search where one of them fails, at most:"
                if each_rail
                else "The group fails, or needs siblings to be judged. The search, at most:"
            )
            for line in limits.lines():
                notify(line)
        notify(f"round {planned.number}, {planned.step}: {len(planned.tests)} tests")
        runs = run_groups(planned.tests, members, options.measure, planned.deadline_s)
        return [each.result() for each in runs]

    steps = bisect(list(members), rails, threshold, deadline(options), each_rail=each_rail)
    return conclude(steps, results)


def threshold_of(options: FabricOptions, machines: Machines, rails: int) -> Threshold:
    """The limit of slowness. A part of the rails has to reach its share of the declared rate."""
    share = f"{options.tolerance:.0%}"
    if options.at_least is not None:
        part = f", of which each of {rails} rails has its share" if rails > 1 else ""
        return Threshold(
            options.tolerance,
            f"more than {share} below the declared {options.at_least:g} GB/s{part}",
            {count: options.at_least * count / rails for count in range(1, rails + 1)},
        )
    past = Past(
        lambda test: options.past(test.members), bandwidth.past_tests(), bandwidth.past_share()
    )
    return Threshold(
        options.tolerance,
        f"more than {share} below the median of the tests that are alike",
        # The history does not keep what single rails reach.
        past=None if options.scope == "rails" else past,
        floor=machines.floor,
    )


def run_alike(
    members: dict[str, Member],
    options: FabricOptions,
    threshold: Threshold,
    started: str,
    notify: Callable[[str], None],
) -> FabricTest:
    """Test each host alone, or each pair of hosts, and compare the tests with each other."""
    alone: list[list[tuple[str, ...]]] = [[(name,) for name in members]]
    rounds = alone if options.scope == "hosts" else pair_rounds(list(members))
    done: list[list[GroupRun]] = []
    excluded: dict[str, Excluded] = {}
    releases: dict[str, str] = {}
    for number, groups in enumerate(rounds, 1):
        tests = [GroupTest(names, RAILS) for names in groups if not excluded.keys() & set(names)]
        notify(f"round {number} of {len(rounds)}: {len(tests)} tests")
        done.append(run_groups(tests, members, options.measure, deadline(options)(2)))
        for group in done[-1]:
            releases |= {name: side["nccl"] or "" for name, side in group.sides.items()}
            excluded |= {each["host"]: each for each in excluded_by(group, notify)}
    found = judged_alike(done, threshold)
    return document(options, started, found, (list(excluded.values()), releases), None)


def pair_rounds(names: list[str]) -> list[list[tuple[str, ...]]]:
    """Each pair once, in rounds of pairs that share no host: the circle method of tournaments."""
    circle: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    found: list[list[tuple[str, ...]]] = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        opposite = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(one, other) for one, other in opposite if one and other])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


@dataclass
class Findings:
    """The results of tests, as parts of the document."""

    slow: str
    tests: list[GroupResult] = field(default_factory=list)
    culprits: list[CulpritRow] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    ports: dict[str, list[str]] = field(default_factory=dict)


def of_conclusion(conclusion: Conclusion, rails: Mapping[str, Sequence[Rail]]) -> Findings:
    """The findings of the search. `rails`: the ports of each host, if rails were tested."""
    rails = {name: own for name, own in rails.items() if own}
    return Findings(
        conclusion.threshold_source,
        [
            {**_tested(seen), "rails": list(seen.test.rails)} if rails else _tested(seen)
            for seen in conclusion.observations
        ],
        [
            {
                "kind": each.kind.value,
                "hosts": list(each.members),
                "rails": list(each.rails),
                "statement": f"{culprit_name(each, rails)} {each.proof}",
            }
            for each in conclusion.culprits
        ],
        list(conclusion.unknown),
        {name: [rail.port for rail in own] for name, own in rails.items()},
    )


def judged_alike(rounds: Sequence[Sequence[GroupRun]], threshold: Threshold) -> Findings:
    """Tests of groups of one size, each compared with its figure or with all others."""
    judge, found = Judge(threshold), Findings(threshold.source)
    runs = [(at, run) for at, group in enumerate(rounds, 1) for run in group]
    results = [run.result() for _, run in runs]
    judge.calibrate([run.test for _, run in runs], results, [runs[0][1].test.rails] if runs else [])
    for number, ((at, run), result) in enumerate(zip(runs, results, strict=True), 1):
        outcome, least = judge.outcome(run.test, result), judge.least_gb_s(run.test)
        rate = result.bus_bandwidth_gb_s
        found.tests.append(_tested(Observation(number, at, run.test, outcome, rate, least)))
    found.slow = judge.source
    failing = [test for test in found.tests if test["outcome"] in FAILING]
    passing = {
        name
        for test in found.tests
        if test["outcome"] == Outcome.PASSED.value
        for name in test["hosts"]
    }
    # A host that passes with nobody is at fault, where a partner of it passes another test.
    alone = {
        name
        for test in failing
        for name in test["hosts"]
        if name not in passing and (len(test["hosts"]) == 1 or passing & set(test["hosts"]))
    }
    for name in sorted(alone):
        own = [test for test in failing if name in test["hosts"]]
        found.culprits.append(_culprit("member", [name], own))
    found.culprits += [
        _culprit("pair", test["hosts"], [test])
        for test in failing
        if not alone & set(test["hosts"])
    ]
    unjudged = [test for test in found.tests if test["outcome"] not in {*FAILING, "passed"}]
    if any(test["outcome"] == Outcome.NOT_JUDGED.value for test in unjudged):
        found.unknown.append(
            "how fast these should be: no figure is declared (--at-least), fewer than four tests"
            " are alike, and neither their past nor the catalog has a figure"
        )
    lost = [", ".join(t["hosts"]) for t in unjudged if t["outcome"] == Outcome.NOT_RUN.value]
    if lost:
        found.unknown.append(f"the speed of {'; '.join(lost[:8])}: tests of these gave no result")
    return found


def _tested(seen: Observation) -> GroupResult:
    return {
        "number": seen.number,
        "round": seen.round,
        "hosts": list(seen.test.members),
        "outcome": seen.outcome.value,
        "gb_per_s": seen.bus_bandwidth_gb_s,
        "least_gb_per_s": seen.least_gb_s,
    }


def _culprit(kind: str, hosts: list[str], tests: list[GroupResult]) -> CulpritRow:
    numbers = ", ".join(str(test["number"]) for test in tests[:8])
    how = max((Outcome(test["outcome"]) for test in tests), key=GRAVITY.__getitem__).value
    who = " and ".join(hosts)
    what = f"the link between {who}" if kind == "pair" else who
    return {
        "kind": kind,
        "hosts": hosts,
        "rails": list(RAILS),
        "statement": f"{what} is {how}: test{'s' * (len(tests) > 1)} {numbers}",
    }


def document(
    options: FabricOptions,
    started: str,
    found: Findings,
    taken_part: tuple[list[Excluded], dict[str, str]],
    first: GroupRun | None,
) -> FabricTest:
    """The document of a fabric test.

    `taken_part`: who could not, and each host's NCCL. `first`: the test of all hosts together.
    """
    excluded, releases = taken_part
    out = {each["host"] for each in excluded}
    written: FabricTest = {
        "schema": SCHEMA,
        "started": started,
        "finished": utc_now(),
        "verdict": verdict(found, excluded).value,
        "hosts": [name for name in releases if name not in out],
        "nccl": releases,
        "ranks": first.ranks if first else 0,
        "compared": {
            "scope": options.scope,
            "operation": options.measure.operations[0],
            "bytes": max(options.measure.sizes),
            "algorithm": options.measure.environment.get("NCCL_ALGO", ""),
        },
        "slow": found.slow,
        "results": first.rows() if first else [],
        "tests": found.tests,
        "culprits": found.culprits,
        "excluded": excluded,
        "unknown": found.unknown,
    }
    if found.ports:
        written["ports"] = found.ports
    return written


def verdict(found: Findings, excluded: list[Excluded]) -> Verdict:
    """FAIL where anything is at fault, INCONCLUSIVE where something is not known.

    A pair that was slow once and passes again is not known to be slow; wrong sums are always wrong.
    """
    outcomes = [test["outcome"] for test in found.tests]
    if found.culprits or excluded or {Outcome.WRONG.value, Outcome.HUNG.value} & set(outcomes):
        return Verdict.FAIL
    if SLOW in outcomes[:1] or (found.ports and SLOW in _of_all(found.tests)):
        return Verdict.FAIL
    return Verdict.INCONCLUSIVE if found.unknown or not outcomes else Verdict.PASS


def _of_all(tests: Sequence[GroupResult]) -> list[str]:
    """How the last test of all hosts ended on each set of rails."""
    last = {
        tuple(test.get("rails", RAILS)): test["outcome"]
        for test in tests
        if len(test["hosts"]) == len(tests[0]["hosts"])
    }
    return list(last.values())
