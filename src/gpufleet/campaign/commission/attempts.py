"""Run a stage on hosts, all at the same time, and decide it for each. Changes hosts, as stages do.

Nothing here computes or judges: each stage calls what the verbs `provision`, `verify` and `fabric`
call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from gpufleet.campaign.provision.provision import ProvisionOptions, converge_hosts
from gpufleet.campaign.provision.reasons import differing
from gpufleet.components.probe_settings import visible_gpus
from gpufleet.documents.collectives import FabricTest
from gpufleet.documents.commission import Figure, Reason
from gpufleet.documents.verdict import Verdict
from gpufleet.errors import ConfigurationError, Defect, bounded
from gpufleet.fleet import fabric_test
from gpufleet.fleet.collectives import OPERATIONS, Measure
from gpufleet.fleet.fabric_test import FabricOptions, InUseError
from gpufleet.fleet.inventory import HostSelector, InventoryHost
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.probing import verify
from gpufleet.fleet.session import HostRun, Session
from gpufleet.fleet.siblings import compared
from gpufleet.report import terminal
from gpufleet.watch.history import History

from .beside import beside
from .decision import Decision, burned, decided, loads, reason, wrong_moments, wrong_samples
from .figures import figures_of, of_fabric
from .requirements import without_nccl
from .stages import BURN, COLLECTIVES, COOL_DOWN, DEEP, LOAD_SHARE, PROVISION, VERIFY, Stage

# The kind of a commissioning's run in the history.
KIND = "commission"
# The directory whose disk a burn-in loads: every distribution has it, and it is not in memory.
DISK = "/var/tmp"
SIZES = (1 << 20, 64 << 20, 512 << 20)
REPEATS = 10
# The check that compares the hosts of a rack.
RACK = "gpu.rack"
# The culprits that are one host, or a part of it.
OWN_FAULTS = {"member", "port"}
REPORT_IT = "report it with the evidence of this stage; other hosts are not affected"


@dataclass
class Attempt:
    """How a stage ended on a host. `seen`: what was read of it, if it was probed."""

    decision: Decision
    seen: HostRun | None = None
    documents: dict[str, str] = field(default_factory=dict)


Attempts = dict[str, Attempt]


@dataclass(frozen=True)
class Settings:
    """How stages are run. `siblings` are hosts that take part in the collectives alone.

    `rack_mates` are the other hosts of the racks that the hosts declare: they are only read.
    """

    selector: HostSelector
    probe: ProbeOptions
    burn_in_s: float
    siblings: Sequence[InventoryHost]
    history: Path
    console: Console
    ansible_args: Sequence[str] = ()
    rack_mates: Sequence[InventoryHost] = ()


def run_stage(stage: Stage, hosts: list[InventoryHost], settings: Settings) -> Attempts:
    """Run a stage after the preflight; what cannot be run at all is not judged."""
    runners: Mapping[str, Callable[[Stage, list[InventoryHost], Settings], Attempts]] = {
        PROVISION.name: provision,
        VERIFY.name: verified,
        DEEP.name: deep,
        BURN.name: burn_in,
        COLLECTIVES.name: collectives,
        COOL_DOWN.name: cool_down,
    }
    try:
        return runners[stage.name](stage, hosts, settings)
    except ConfigurationError as error:
        why = reason(stage.name, Verdict.INCONCLUSIVE, error.message, error.remedy, error.where)
        return {host.name: Attempt(Decision([why])) for host in hosts}


def session_of(
    what: str, hosts: list[InventoryHost], how: ProbeOptions, console: Console
) -> Session:
    """A verification of hosts; `what` heads its progress."""
    with terminal.progress(console, what, len(hosts)) as report:
        return verify(hosts, how, report)


def attempt_of(stage: Stage, run: HostRun) -> Attempt:
    """The decision of a verification about a stage, with its documents."""
    return Attempt(decided(stage, run.result), run, documents_of(run))


def documents_of(run: HostRun) -> dict[str, str]:
    """The documents of a host that was verified, by name."""
    found = {"plan": json.dumps(run.plan) + "\n", "verdicts": json.dumps(run.result) + "\n"}
    if snapshot := run.snapshot_text:
        found["snapshot"] = snapshot
    return found


def measured_figures(run: HostRun) -> list[Figure]:
    """The figures of a host; none where its measurements cannot be read: its checks say so."""
    return bounded(
        "read the figures of this host",
        lambda: figures_of(run.plan, run.snapshot),
        lambda defect: [],
    )


def provision(stage: Stage, hosts: list[InventoryHost], settings: Settings) -> Attempts:
    """Provision hosts. What the verification of it finds is for the next stage."""
    selector = replace(settings.selector, limit=",".join(host.name for host in hosts))
    how = replace(settings.probe, mode="full")
    done = converge_hosts(
        hosts,
        ProvisionOptions(selector, how, args=settings.ansible_args, output=settings.console.file),
        lambda text: settings.console.print(text, markup=False, highlight=False, soft_wrap=True),
    )
    return {
        run.name: Attempt(
            Decision(unprovisioned(run, run.name in done.failed)), run, documents_of(run)
        )
        for run in done.session.hosts
    }


def unprovisioned(run: HostRun, failed: bool) -> list[Reason]:
    """Why a host is not provisioned."""
    again = "see what Ansible and the report of ./gpufleet provision say; then commission it again"
    # A host that is not reached is not judged: its network may have ended what Ansible did.
    if run.snapshot is None:
        return decided(PROVISION, run.result).reasons
    # No part of the host: a mirror that does not answer ends Ansible as a broken disk does.
    if failed:
        return [reason("provision", Verdict.INCONCLUSIVE, "Ansible failed on this host", again)]
    return [
        reason("provision", Verdict.FAIL, f"{name} differs from its plan: {why}", again)
        for name, why in differing(run.plan, run.snapshot).items()
    ] + [
        reason("provision", Verdict.FAIL, f"{each['where']}: {each['message']}", each["remedy"])
        for each in run.plan["problems"]
    ]


def verified(stage: Stage, hosts: list[InventoryHost], settings: Settings) -> Attempts:
    """Verify hosts, beside the other hosts of their racks."""
    session = session_of("Verifying", hosts, settings.probe, settings.console)
    runs = session.hosts
    if mates := mates_of(hosts, settings.rack_mates):
        how = replace(settings.probe, mode="full", computes=False)
        others = session_of("Reading the hosts of the rack", mates, how, settings.console)
        runs = compared([*runs, *others.hosts])[: len(runs)]
    found = {run.name: attempt_of(stage, run) for run in runs}
    for run in runs:
        add_rack(run, found[run.name].decision)
    return found


def rack_of(host: InventoryHost) -> str | None:
    """The rack that a host declares."""
    declared = host.spec.expect.get("fabric")
    return declared["rack"] if declared else None


def mates_of(
    hosts: Sequence[InventoryHost], others: Sequence[InventoryHost]
) -> list[InventoryHost]:
    """The other hosts that declare the same rack as one of the hosts."""
    racks = {rack_of(host) for host in hosts} - {None}
    names = {host.name for host in hosts}
    return [host for host in others if rack_of(host) in racks and host.name not in names]


def add_rack(run: HostRun, decision: Decision) -> None:
    """Add to a decision that a declared rack was compared with nobody.

    A tray whose cables end in another rack is whole by itself.
    """
    declared = run.plan["expect"].get("fabric")
    if not declared or not declared["rack"] or run.snapshot is None or run.plan.get("rack"):
        return
    if any(why["check"] == RACK for why in decision.reasons):
        return
    cause = (
        f"no other host of rack {declared['rack']} was read, so nobody knows whether the GPUs"
        " are in the NVLink domain of the rack"
    )
    remedy = (
        "declare gpu_expect.fabric.rack of the other hosts of the rack, see that they are reached,"
        " and commission this one again"
    )
    decision.reasons.append(reason(RACK, Verdict.INCONCLUSIVE, cause, remedy))


def deep(stage: Stage, hosts: list[InventoryHost], settings: Settings) -> Attempts:
    """Verify hosts deeply."""
    how = replace(settings.probe, deep=True)
    session = session_of("Verifying deeply", hosts, how, settings.console)
    found = {run.name: attempt_of(stage, run) for run in session.hosts}
    for run in session.hosts:
        found[run.name].decision.figures += measured_figures(run)
    return found


def burn_in(stage: Stage, hosts: list[InventoryHost], settings: Settings) -> Attempts:
    """Load all GPUs of all hosts at once, until the time is over."""
    load_s = round(settings.burn_in_s * LOAD_SHARE)
    how = replace(settings.probe, deep=True, load_s=load_s, disk_load=DISK, fabric_load=True)
    session = session_of("Burning in", hosts, how, settings.console)
    # Each declared GPU has to compute, however many of them CUDA shows a program.
    gpus = {host.name: host.spec.expect.get("count") or 0 for host in hosts}
    found = {run.name: attempt_of(stage, run) for run in session.hosts}
    for run in session.hosts:
        decision = found[run.name].decision
        bounded(
            "judged the burn-in of this host",
            partial(add_burn_in, run, decision, gpus[run.name], load_s),
            partial(add_defect, stage, decision),
        )
        decision.figures += measured_figures(run)
    return found


def add_defect(stage: Stage, decision: Decision, defect: Defect) -> None:
    """Add that gpufleet itself failed on this host: nothing is proven then."""
    cause = f"gpufleet failed while it {defect.step}: {defect.error}"
    decision.reasons.append(
        reason(stage.name, Verdict.INCONCLUSIVE, cause, REPORT_IT, defect.evidence)
    )


def add_burn_in(run: HostRun, decision: Decision, gpus: int, load_s: float) -> None:
    """Add to a decision what its checks do not judge: all GPUs, all of the time, disk and links."""
    if not decision.reasons:
        decision.reasons += burned(run.snapshot, gpus, load_s)
    notes, wrong = beside(run.snapshot, gpus)
    decision.notes += notes
    # A failure is reported alone: the load of a GPU that failed may have ended the others.
    decided_before = bool(decision.reasons)
    decision.reasons += [
        why for why in wrong if not decided_before or why["verdict"] == Verdict.FAIL
    ]
    moments = wrong_moments(loads(run.snapshot))
    if samples := wrong_samples(loads(run.snapshot)):
        for why in decision.reasons:
            if why["check"] == "gpu.sustained":
                # All samples are in the stage's evidence; a vendor reads these.
                why["evidence"] = "\n".join([*moments, *samples])
    decision.notes += [
        f"All GPUs at once ({gpus}): {load_s:g} s of products in float32, each one"
        " compared, beside those in the other number formats.",
        *moments,
    ]


def cool_down(stage: Stage, hosts: list[InventoryHost], settings: Settings) -> Attempts:
    """Verify hosts once more after all load; record the baseline of those that pass."""
    session = session_of("Verifying after the load", hosts, settings.probe, settings.console)
    found = {run.name: attempt_of(stage, run) for run in session.hosts}
    passed = [run for run in session.hosts if found[run.name].decision.outcome == "passed"]
    if passed:
        with History(settings.history) as history:
            history.record(replace(session, hosts=passed), kind=KIND)
    return found


# -- collectives -----------------------------------------------------------------------------------


def collectives(stage: Stage, hosts: list[InventoryHost], settings: Settings) -> Attempts:
    """Run the collectives of hosts and siblings; culprits are left out, and the rest run again."""
    group = [*hosts, *settings.siblings]
    found: Attempts = {}
    tests: list[FabricTest] = []
    if not settings.siblings:
        note = "The host has one GPU and declares no NCCL: it takes part in no collective."
        found = {
            host.name: Attempt(Decision(notes=[note]))
            for host in hosts
            if visible_gpus(host.spec) == 1 and without_nccl(host)
        }
    while any(host.name not in found for host in hosts):
        members = [host for host in group if host.name not in found]
        if len(members) == 1 and visible_gpus(members[0].spec) == 1:
            note = "The host has one GPU, and no sibling takes part: there is no collective."
            found[members[0].name] = Attempt(Decision(notes=[note]))
            continue
        try:
            test = fabric_test.run(
                members, fabric_options(len(members)), _asks(settings), _log(settings)
            )
        except ConfigurationError as error:
            apart = left_out(error, [host.name for host in members])
            if not apart:
                raise
            found |= {name: Attempt(Decision([why])) for name, why in apart.items()}
            continue
        tests.append(test)
        blamed = blamed_hosts(test)
        for name, why in blamed.items():
            found[name] = Attempt(Decision([why]))
        if not blamed:
            for host in members:
                found[host.name] = Attempt(_of_group(test, [each.name for each in members]))
    text = json.dumps(tests) + "\n"
    for attempt in found.values():
        attempt.documents["fabric"] = text
    requested = [sibling.name for sibling in settings.siblings]
    ended = {name: found[name].decision.reasons for name in requested if name in found}
    out = {name: reasons[0]["cause"] for name, reasons in ended.items() if reasons}
    for host in hosts:
        add_siblings(found[host.name].decision, requested, out)
    return {host.name: found[host.name] for host in hosts}


def add_siblings(decision: Decision, requested: Sequence[str], out: Mapping[str, str]) -> None:
    """Add to a decision which of the requested siblings were left out, by {sibling: why}."""
    if decision.reasons or not out:
        return
    listed = "; ".join(f"{name} ({why})" for name, why in out.items())
    if len(out) < len(requested):
        decision.notes.append(f"Siblings that were left out: {listed}.")
        return
    # Without any of them nothing was proven of the network, for which they were requested.
    cause = f"no sibling took part: {listed}"
    remedy = "correct what the causes name, or name other siblings: --siblings"
    decision.reasons.append(reason("collectives", Verdict.INCONCLUSIVE, cause, remedy))


def left_out(error: ConfigurationError, members: Collection[str]) -> dict[str, Reason]:
    """The reasons of hosts that an error keeps from the collectives; the others go on."""
    if isinstance(error, InUseError):
        remedy = "once it is reached and no process uses its GPUs, commission the host again"
        causes = {name: (why, remedy) for name, why in error.hosts.items()}
    else:
        causes = {error.where.partition(":")[0]: (error.message, error.remedy)}
    return {
        name: reason("collectives", Verdict.INCONCLUSIVE, cause, remedy)
        for name, (cause, remedy) in causes.items()
        if name in members
    }


def fabric_options(count: int) -> FabricOptions:
    """The fabric test of so many hosts: all of them together."""
    environment = {"NCCL_ALGO": "Ring"} if count > 1 else {}
    return FabricOptions(Measure(OPERATIONS, SIZES, REPEATS, environment))


def blamed_hosts(test: FabricTest) -> dict[str, Reason]:
    """The reasons why hosts have not passed a fabric test: culprits, and hosts that took no part.

    Only a culprit of its own is at fault. Who takes no part may have lost its connection, and of a
    link between two hosts nobody knows which end is bad.
    """
    measured = measured_tests(test)
    blamed = {
        name: reason(
            "collectives",
            Verdict.FAIL,
            culprit["statement"],
            "check the ports, cables and switches that the statement names",
            measured,
        )
        for culprit in test["culprits"]
        if culprit["kind"] in OWN_FAULTS
        for name in culprit["hosts"]
    }
    for culprit in test["culprits"]:
        # A host that is at fault itself explains its links, too.
        if culprit["kind"] not in OWN_FAULTS and blamed.keys().isdisjoint(culprit["hosts"]):
            cause = f"which host is at fault is not known: {culprit['statement']}"
            remedy = "check the cables and switch ports between them; then commission it again"
            why = reason("collectives", Verdict.INCONCLUSIVE, cause, remedy, measured)
            blamed |= dict.fromkeys(culprit["hosts"], why)
    for entry in test["excluded"]:
        cause = f"it took no part: {entry['cause']}"
        why = reason("collectives", Verdict.INCONCLUSIVE, cause, entry["remedy"])
        blamed.setdefault(entry["host"], why)
    return blamed


def measured_tests(test: FabricTest) -> str:
    """The tests of a group with what they reached, a line each."""
    lines = [
        f"test {each['number']}, round {each['round']}, {', '.join(each['hosts'])}:"
        f" {each['outcome']}"
        + ("" if each["gb_per_s"] is None else f", {each['gb_per_s']:g} GB/s")
        + ("" if each["least_gb_per_s"] is None else f" (at least {each['least_gb_per_s']:g})")
        for each in test["tests"]
    ]
    return "\n".join([*lines, f"slow means {test['slow']}"])


def _of_group(test: FabricTest, names: Sequence[str]) -> Decision:
    if test["verdict"] != Verdict.PASS:
        # Nobody knows whose fault it is.
        known = [each["statement"] for each in test["culprits"]]
        cause = (
            "; ".join([*known, *test["unknown"]])
            or "the group failed, and no member of it is at fault"
        )
        remedy = "see ./gpufleet fabric test, and declare gpu_expect.bus_bandwidth_gb_s"
        return Decision([reason("collectives", Verdict.INCONCLUSIVE, cause, remedy)])
    note = (
        f"With {', '.join(names)}."
        if len(names) > 1
        else "Within the host alone: no sibling took part (--siblings)."
    )
    return Decision(notes=[note], figures=of_fabric(test))


def _asks(settings: Settings) -> ProbeOptions:
    return ProbeOptions("facts", settings.probe.fanout)


def _log(settings: Settings) -> Callable[[str], None]:
    return lambda text: settings.console.print(
        f"  {text}", markup=False, highlight=False, soft_wrap=True
    )
