"""`gpufleet plan`: each host's plan and pending changes. Reads hosts, changes nothing."""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpufleet.campaign.provision.privilege import cannot_become_root
from gpufleet.components.base.registry import shortened
from gpufleet.components.declarations import differences
from gpufleet.documents.verdict import FAILED, HEALTHY, NOT_JUDGED, USAGE
from gpufleet.errors import Defect, bounded
from gpufleet.fleet.inventory import InventoryHost, inventory_hosts
from gpufleet.fleet.judging import plan_of, undeclared
from gpufleet.fleet.probing import probe_hosts
from gpufleet.fleet.transport.compression import compressed
from gpufleet.fleet.transport.fanout import Outcome
from gpufleet.judge import judge
from gpufleet.judge.due import agreed
from gpufleet.mirror.delivery import delivery, sentences
from gpufleet.report import summary, terminal

from .options import add_hosts, add_output, add_probe, probe_options, selector
from .parser import Parser
from .system_packages import SSH, require

SCHEMA = judge.SCHEMA


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "plan",
        ("plan -i inventory/fleet --limit 'gpu0*'", "plan -i inventory/fleet --offline --json"),
        exit_status="Exit status: 0 all planned, 1 a host was not reached, 3 a part of one was not"
        " read, 4 a plan is refused, usage or configuration.",
    )
    add_hosts(verb)
    group = add_probe(verb)
    group.add_argument(
        "--topology",
        type=Path,
        metavar="FILE",
        help="Probe through the gateways of this topology.conf of ClusterShell",
    )
    group.add_argument(
        "--deep",
        action="store_true",
        help="Compare the contents of installed files, not only size and date",
    )
    group.add_argument(
        "--offline",
        action="store_true",
        help="Probe no host: show what the inventory alone determines",
    )
    group.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="INV",
        help="Show what this declaration would change in the plans of another inventory, such as"
        " the one that is in use; probes no host; may be repeated",
    )
    add_output(verb, report=False).add_argument(
        "--by-host", action="store_true", help="Show each host by itself, not alike ones together"
    )
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Print the plans: 4 if one is refused, 1 if a host was not reached, else 0."""
    if options.against:
        return against(options)
    how = probe_options(options, "facts", deep=options.deep, topology=options.topology)
    if not options.offline:
        require(SSH)
    hosts = inventory_hosts(selector(options))
    outcomes: dict[str, Outcome] = {}
    if not options.offline:
        with terminal.progress(Console(stderr=True), "Probing", len(hosts)) as report:
            outcomes = probe_hosts(hosts, how, report)
    defects: list[Defect] = []
    plans = {
        host.name: bounded(
            "planned this host",
            partial(planned, host, outcomes.get(host.name)),
            partial(not_planned, host, defects),
        )
        for host in hosts
    }
    artifacts = delivery(
        plans, {host.name: str(host.variables.get("gpu_artifacts_source") or "") for host in hosts}
    )
    if options.json:
        document = {"schema": SCHEMA, "hosts": plans, "artifacts": artifacts}
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        for names, plan in grouped(plans, by_host=options.by_host):
            _host(terminal.output(), terminal.named(names), plan)
        for number, line in enumerate(sentences(artifacts)):
            terminal.output().print(
                f"{'' if number else chr(10)}{line}", markup=False, soft_wrap=True
            )
    if any(plan["problems"] for plan in plans.values()):
        return USAGE
    missing = defects or any(
        compressed(outcome, "snapshot") is None for outcome in outcomes.values()
    )
    if missing:
        return FAILED
    unread = any(
        row["action"] == "unread" for plan in plans.values() for row in plan["changes"] or ()
    )
    return NOT_JUDGED if unread else HEALTHY


def against(options: argparse.Namespace) -> int:
    """Print what the declaration changes in the plans of another inventory; 4 if it is refused."""
    mine = selector(options)
    other = replace(mine, inventories=options.against)
    new, old = (
        {host.name: plan_of(host, None) for host in inventory_hosts(each)} for each in (mine, other)
    )
    found = {
        name: [
            str(each)
            for each in differences(*(plans.get(name) or undeclared(name) for plans in (old, new)))
        ]
        for name in dict.fromkeys((*old, *new))
    }
    if options.json:
        sys.stdout.write(json.dumps({"schema": SCHEMA, "differences": found}, indent=1) + "\n")
    else:
        alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for name, rows in found.items():
            alike[tuple(summary.mask_name(row, name) for row in rows)].append(name)
        for masked, names in alike.items():
            lines = [summary.insert_names(row, names, "HOST") for row in masked]
            text = [terminal.named(names), *(f"  {line}" for line in lines or ["no difference"])]
            terminal.output().print("\n".join(text), markup=False, soft_wrap=True, highlight=False)
    return USAGE if any(plan["problems"] for plan in new.values()) else HEALTHY


# The keys of a plan that are shown.
SHOWN = ("stacks", "toolkits", "cudnn", "linker", "driver", "notes", "problems", "changes")


def grouped(
    plans: Mapping[str, dict[str, Any]], *, by_host: bool = False
) -> list[tuple[list[str], dict[str, Any]]]:
    """Each plan once with all hosts that have it; those that differ only in their names are alike.

    `by_host`: each host by itself.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for name, plan in plans.items():
        shown = json.dumps({part: plan[part] for part in SHOWN}, default=str)
        found[name if by_host else summary.mask_name(shown, name)].append(name)
    return [(names, _of_all(plans[names[0]], names)) for names in found.values()]


def _of_all(plan: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The plan of the first of these hosts, with the names of all where it has its own."""
    if len(names) == 1:
        return plan
    text = summary.mask_name(json.dumps(plan, default=str), names[0])
    every: dict[str, Any] = json.loads(summary.insert_names(text, names))
    return every


def planned(host: InventoryHost, outcome: Outcome | None) -> dict[str, Any]:
    """The plan with its changes; `changes` is null where the host was not probed."""
    snapshot = outcome.snapshot if outcome else None
    plan = plan_of(host, snapshot)
    if outcome and not snapshot:
        plan["notes"] = [
            *plan["notes"],
            ("The snapshot is not read: " if outcome.refused else "The host was not reached: ")
            + outcome.cause,
        ]
    pending = None
    if snapshot is not None and not plan["problems"]:
        pending = agreed(plan, snapshot, judge.judge(plan, snapshot)["checks"])
    if pending and (why := cannot_become_root(host, snapshot)):
        plan["notes"] = [*plan["notes"], f"{why[0].upper()}{why[1:]}."]
    return {**plan, "changes": pending}


def not_planned(host: InventoryHost, defects: list[Defect], defect: Defect) -> dict[str, Any]:
    """The plan of a host on which gpufleet failed: nothing, and a note of why."""
    defects.append(defect)
    known = judge.defective(defect, host.name)["checks"][0]
    return {
        **undeclared(host.name),
        "notes": [f"{known['cause']}. {known['remedy']}"],
        "changes": None,
    }


def _driver(row: dict[str, Any]) -> str:
    """The planned driver, or the minimum, as a sentence."""
    least = f"{row['minimum']} or newer, for {row['because']}" if row["minimum"] else "any"
    if not row["managed"]:
        return f"{least}; {row['source'] or 'not managed'}"
    module = f", {row['module']} modules ({row['module_because']})" if row["module"] else ""
    chosen = row["version"] or row["branch"] or "chosen later"
    return f"{chosen} from {row['source']}{module}; {least}"


def _host(console: Console, name: str, plan: dict[str, Any]) -> None:
    console.print()
    console.print(Text(name, style="bold"))
    table = Table.grid(padding=(0, 2))
    for stack in plan["stacks"]:
        bound = stack["cuda_source"] == "toolkit"
        cuda = (
            f"CUDA {stack['cuda']} from {stack['toolkit_path']}, cuDNN {stack['cudnn']}"
            if bound
            else "CUDA and cuDNN from pip's wheels"
        )
        python = stack["interpreter"] or stack["python"]
        table.add_row("  stack", Text(f"{stack['name']}: Python {python}, {cuda}"))
    for toolkit in plan["toolkits"]:
        default = ", the default" if toolkit["default"] else ""
        patches = "".join(f", patch {patch['version']}" for patch in toolkit["patches"])
        table.add_row(
            "  toolkit", Text(f"CUDA {toolkit['version']}{patches} in {toolkit['path']}{default}")
        )
    for cudnn in plan["cudnn"]:
        table.add_row("  cuDNN", Text(f"{cudnn['version']} in CUDA {cudnn['toolkit']}"))
    for clash in plan["linker"]["clashes"]:
        table.add_row(
            "  linker",
            Text(
                f"The linker cache uses CUDA {clash['winner']} for {shortened(clash['sonames'])},"
                f" not {clash['loser']}. Each stack still uses its own toolkit"
            ),
        )
    if plan["driver"]:
        table.add_row("  driver", Text(_driver(plan["driver"])))
    for note in plan["notes"]:
        table.add_row("  note", Text(note, style="dim"))
    for problem in plan["problems"]:
        table.add_row(
            Text("  refused", style="bold red"), Text(f"{problem['where']}: {problem['message']}")
        )
        if "file" in problem:
            table.add_row("  declared", Text(f"in {problem['file']}"))
        table.add_row("  remedy", Text(problem["remedy"], style="cyan"))
    if plan["changes"] is not None:
        for change in plan["changes"]:
            table.add_row(
                Text("  change", style="yellow"),
                Text(f"{change['action']} {change['what']} {change['id']}: {change['because']}"),
            )
        if not plan["changes"] and not plan["problems"]:
            table.add_row(Text("  change", style="green"), "none: the host matches its plan")
    console.print(table)
