"""`gpufleet fabric test`: collectives between hosts, exact and timed, and who makes them slow.

Runs programs on the GPUs of the hosts; changes nothing there, and leaves no process behind.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpufleet.documents.collectives import FabricTest, GroupResult, Operation, Scope
from gpufleet.documents.verdict import SYMBOLS, Verdict, exit_status
from gpufleet.errors import ConfigurationError
from gpufleet.files import write_file
from gpufleet.fleet import fabric_test
from gpufleet.fleet.collectives import OPERATIONS, Measure
from gpufleet.fleet.fabric_test import FabricOptions, InUseError
from gpufleet.fleet.inventory import inventory_hosts
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.rails import RailsError
from gpufleet.fleet.transport.slurm import as_job_steps
from gpufleet.paths import REPORTS
from gpufleet.report import fabric_page
from gpufleet.watch.fabric_history import past_bandwidth, record_fabric_test
from gpufleet.watch.history import History, HistoryError

from .lab import start_lab
from .options import (
    add_database,
    add_hosts,
    add_output,
    database_path,
    default_inventory,
    print_json,
    selector,
)
from .parser import EXIT_STATUS, Parser
from .system_packages import require_ssh

IF_STOPPED = "Nothing was judged; the programs on the hosts have ended."
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# NCCL's own tests stop at 16 GiB: https://github.com/NVIDIA/nccl-tests
MOST_BYTES = 16 << 30
# The groups in which the history keeps earlier tests.
ALL: Scope = "all"
SCOPES_OF_SIZE: dict[int, Scope] = {1: "hosts", 2: "pairs"}


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "fabric",
        (
            "fabric test -i inventory/fleet --limit rack7",
            "fabric test -i inventory/fleet --hosts gpu01,gpu02 --sizes 8M,1G --at-least 380",
            "fabric test -i inventory/fleet --scope rails",
        ),
        usage="test [options]",
        exit_status=EXIT_STATUS,
    )
    group = verb.add_argument_group("Action")
    group.add_argument(
        "act", choices=["test"], metavar="test", help="Test the fabric between hosts"
    )
    add_hosts(verb)
    group = verb.add_argument_group("Test")
    group.add_argument(
        "--hosts",
        metavar="A,B,..",
        help="Test these hosts only; in this order each one is the next one's neighbour",
    )
    group.add_argument(
        "--scope",
        choices=["all", "hosts", "pairs", "rails"],
        default="all",
        help="Test all hosts together and search the culprit, or each host alone, or each pair, or"
        " all hosts on each of their compute ports",
    )
    group.add_argument(
        "--operations",
        default=",".join(OPERATIONS),
        metavar="NAME,..",
        help="Run these collectives; the largest size of the first one is compared",
    )
    group.add_argument(
        "--sizes",
        default="1M,64M,512M",
        metavar="SIZE,..",
        help="Bytes of each rank's result, with K, M or G",
    )
    group.add_argument(
        "--repeats", type=int, default=10, metavar="N", help="Run each so often; the median counts"
    )
    group.add_argument(
        "--at-least",
        type=float,
        metavar="GB/S",
        help="The bus bandwidth that hosts must reach (default: gpu_expect.bus_bandwidth_gb_s,"
        " else what tests that are alike reach, in this run and before, else the catalog's floor)",
    )
    group.add_argument(
        "--tolerance",
        type=float,
        default=10,
        metavar="PERCENT",
        help="Call slow what is further below it, or below the median of tests that are alike",
    )
    group.add_argument(
        "--stack",
        metavar="NAME",
        help="Use the NCCL of this stack (default: the first that has it)",
    )
    group.add_argument(
        "--algorithm",
        metavar="NAME",
        help="Have NCCL use this algorithm, such as Tree (default: Ring between hosts, in which the"
        " network counts alone)",
    )
    group = verb.add_argument_group("Run")
    group.add_argument(
        "--deadline",
        type=float,
        default=FabricOptions.deadline_s,
        metavar="S",
        help="End a group's test after this many seconds, and a tenth more for each host",
    )
    group.add_argument(
        "--fanout",
        type=int,
        default=ProbeOptions.fanout,
        metavar="N",
        help="Ask this many hosts at the same time whether others use them",
    )
    group.add_argument(
        "--shared",
        action="store_true",
        help="Test also hosts on whose GPUs others compute, which disturbs them",
    )
    group.add_argument(
        "--launcher",
        choices=["ssh", "slurm"],
        default="ssh",
        help="Start the programs by ssh, or as Slurm job steps (srun)",
    )
    group = add_output(verb, report=False)
    group.add_argument(
        "--report",
        type=Path,
        default=REPORTS / "fabric",
        metavar="DIR",
        help="Write a page and the JSON document into this directory (default: fabric among the"
        " reports)",
    )
    add_database(group, "Record the result in this history")
    return verb


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Test and print; the exit status."""
    operations, sizes = operations_of(options.operations), sizes_of(options.sizes)
    if options.repeats < 1 or options.deadline <= 0 or not 0 < options.tolerance < 100:
        raise ConfigurationError(
            "--repeats and --deadline are more than 0, --tolerance is between 0 and 100."
        )
    if options.scope == "rails" and operations[0] == "sendrecv":
        raise ConfigurationError(
            "With sendrecv, only one GPU of a host sends to another host, by one rail.",
            "--operations",
            "Name all_reduce or all_gather first.",
        )
    selected = selector(options)
    if default_inventory(options):
        start_lab()
    hosts = inventory_hosts(selected)
    require_ssh(hosts)
    if options.hosts:
        known = {host.name: host for host in hosts}
        names = [name.strip() for name in options.hosts.split(",") if name.strip()]
        wrong = [name for name in names if name not in known]
        if wrong or not names or len(set(names)) != len(names):
            raise ConfigurationError(
                f"{', '.join(wrong) or options.hosts}: no host of this inventory, or named twice.",
                "--hosts",
                f"The hosts are {', '.join(known)}.",
            )
        hosts = [known[name] for name in names]
    measure = Measure(
        operations,
        sizes,
        options.repeats,
        environment(options, 1 if options.scope == "hosts" else len(hosts)),
    )
    how = FabricOptions(
        measure=measure,
        deadline_s=options.deadline,
        tolerance=options.tolerance / 100,
        at_least=options.at_least,
        stack=options.stack,
        shared=options.shared,
        scope=options.scope,
        past=past_of(database_path(options), measure),
    )
    probe = ProbeOptions("facts", options.fanout)
    if options.launcher == "slurm":
        hosts = as_job_steps(hosts, selected, lambda host: options.deadline)
    stderr = Console(stderr=True, highlight=False)
    try:
        found = fabric_test.run(
            hosts, how, probe, lambda text: stderr.print(escape(text), soft_wrap=True)
        )
    except (InUseError, RailsError) as error:
        stderr.print(escape(f"{error.message}\nRemedy: {error.remedy}"), soft_wrap=True)
        return exit_status([Verdict.INCONCLUSIVE])
    page = written(found, options.report)
    stderr.print(escape(recorded(found, database_path(options))), soft_wrap=True)
    if options.json:
        print_json(found)
    else:
        show(found, Console(highlight=False))
        sys.stdout.write(f"Report: {page}\n")
    return exit_status([Verdict(found["verdict"])])


def written(found: FabricTest, directory: Path) -> Path:
    """Write the page and the document, named by the test's start; the page's path."""
    name = re.sub(r"[^0-9TZ-]", "", found["started"])
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_file(directory / f"{name}.json", json.dumps(found, indent=1) + "\n", 0o644)
        page = directory / f"{name}.html"
        write_file(page, fabric_page.render(found), 0o644)
    except OSError as error:
        raise ConfigurationError(
            f"The report cannot be written: {error.strerror or error}.",
            str(directory),
            "Use --report.",
        ) from error
    return page


def past_of(path: Path, measure: Measure) -> Callable[[Sequence[str]], Sequence[float]]:
    """The bandwidths of a group of hosts in earlier tests of this measure, by the history."""

    @cache
    def reached(names: tuple[str, ...]) -> list[float]:
        scope = SCOPES_OF_SIZE.get(len(names), ALL)
        try:
            with History(path) as history:
                found = past_bandwidth(
                    history,
                    names[0],
                    measure.operations[0],
                    scope,
                    size=max(measure.sizes),
                    algorithm=measure.environment.get("NCCL_ALGO", ""),
                    partners=names[1:],
                )
        except HistoryError:  # `recorded` says so
            return []
        return [rate for _, rate in found]

    return lambda names: reached(tuple(names))


def recorded(found: FabricTest, path: Path) -> str:
    """Record the test in the history; a sentence on it. What was found stands without it."""
    try:
        with History(path) as history:
            record_fabric_test(history, found)
    except HistoryError as error:
        return f"Not recorded: {error}"
    return f"Recorded in {path}: ./gpufleet history --fabric shows it."


def environment(options: argparse.Namespace, hosts: int) -> dict[str, str]:
    """NCCL's variables: with its own choice, NVLink carries a part of what two hosts exchange."""
    if options.algorithm:
        return {"NCCL_ALGO": options.algorithm}
    return {"NCCL_ALGO": "Ring"} if hosts > 1 else {}


def operations_of(text: str) -> tuple[Operation, ...]:
    """The collectives that are named. Raises `ConfigurationError`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    found = tuple(name for name in OPERATIONS if name in names)
    if not names or len(found) != len(names):
        raise ConfigurationError(
            f"'{text}' names a collective that is not known.",
            "--operations",
            f"Known are {', '.join(OPERATIONS)}.",
        )
    return tuple(sorted(found, key=names.index))


def sizes_of(text: str) -> tuple[int, ...]:
    """The sizes in bytes, the smallest first. Raises `ConfigurationError`."""
    found = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,12})([KMG]?)(?:i?B)?\s*", part, re.IGNORECASE)
        size = int(match[1]) * UNITS[match[2].upper()] if match else 0
        if not 4 <= size <= MOST_BYTES:
            raise ConfigurationError(
                f"'{part.strip()}' is no size.",
                "--sizes",
                "Write numbers of bytes up to 16G, such as 8M,1G.",
            )
        found.add(size // 4 * 4)
    return tuple(sorted(found))


def show(found: FabricTest, console: Console) -> None:
    """Print what was found: bandwidths by size, culprits, and what is unknown."""
    names = found["hosts"]
    releases = sorted(set(found["nccl"].values()))
    gpus = f", {found['ranks']} GPUs" if found["ranks"] else ""
    what = f"{len(names)} hosts{gpus}, NCCL {', '.join(releases)}"
    console.print(f"[bold]{escape(what)}[/bold]")
    if found["results"]:
        table = Table(box=None, header_style="bold")
        for title in ("collective", "bytes", "time", "bus bandwidth", "wrong numbers"):
            table.add_column(title, justify="left" if title == "collective" else "right")
        for row in found["results"]:
            table.add_row(
                row["operation"],
                size_text(row["bytes"]),
                f"{row['seconds'] * 1000:.3f} ms",
                f"{row['gb_per_s']:.4g} GB/s",
                f"[red]{row['wrong']}[/red]" if row["wrong"] else "0",
            )
        console.print(table)
    for entry in found["excluded"]:
        console.print(
            f"[red]{SYMBOLS[Verdict.FAIL]}[/red] {escape(entry['host'])} took no part:"
            f" {escape(entry['cause'])}\n  Remedy: {escape(entry['remedy'])}",
            soft_wrap=True,
        )
    for culprit in found["culprits"]:
        console.print(
            f"[red]{SYMBOLS[Verdict.FAIL]}[/red] {escape(culprit['statement'])}", soft_wrap=True
        )
    for text in found["unknown"]:
        console.print(
            f"[yellow]{SYMBOLS[Verdict.INCONCLUSIVE]}[/yellow] unknown: {escape(text)}",
            soft_wrap=True,
        )
    for test in found["tests"]:
        if found["culprits"] or found["unknown"] or not found["results"]:
            console.print(f"  [dim]{escape(test_text(test))}[/dim]", soft_wrap=True)
    console.print(f"{found['verdict']}: slow means {escape(found['slow'])}", soft_wrap=True)


def test_text(test: GroupResult) -> str:
    """One test in a line."""
    hosts = test["hosts"]
    who = ", ".join(hosts) if len(hosts) < 5 else f"{len(hosts)} hosts"
    if rails := test.get("rails"):
        who += f", rail{'s' * (len(rails) > 1)} {', '.join(map(str, rails))}"
    rate = "" if test["gb_per_s"] is None else f", {test['gb_per_s']:.4g} GB/s"
    least = f" (at least {test['least_gb_per_s']:.4g})" if rate and test["least_gb_per_s"] else ""
    return f"test {test['number']}, round {test['round']}: {who}: {test['outcome']}{rate}{least}"


def size_text(size: int) -> str:
    """A size as people write it."""
    for unit in ("G", "M", "K"):
        if size >= UNITS[unit] and size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]} {unit}iB"
    return f"{size} B"
