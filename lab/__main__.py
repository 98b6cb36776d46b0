"""`python -m lab VERB`: the lab's command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from rich.filesize import decimal

from lab import artifacts, hosts, many, nights, pythons, runs, toolkit_repository
from lab.command import environment, missing
from lab.errors import LabError
from lab.gpus import cards as gpus
from lab.gpus.planting import faults
from lab.progress import Progress
from lab.settings import USER, Lab, host_number
from lab.state import Host

EXIT_FAILED, EXIT_USAGE = 1, 4


class Parser(argparse.ArgumentParser):
    """One status for every mistake in how a command was called, as in all of gpufleet."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"error: {message}\n")


COLUMNS = ("NAME", "ADDRESS", "SUITE", "STATE", "CONTAINER")


def cells(host: Host) -> tuple[str, ...]:
    return (host.name, host.address, host.suite, host.state, host.container)


def table(rows: list[Host]) -> str:
    return aligned([COLUMNS, *map(cells, rows)])


def aligned(lines: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def up(lab: Lab, arguments: argparse.Namespace) -> int:
    names = [name for name in arguments.hosts.split(",") if name]
    need_root()
    if not names:
        raise LabError("no host was named", "--hosts takes names with commas: lab1,lab2")
    progress = Progress()
    # Find them before anything is started.
    prefixes = {version: pythons.find(version, os.environ) for version in arguments.python}
    found = hosts.up(lab, list(dict.fromkeys(names)), arguments.suite, progress)
    pythons.give(lab, [host for host in found if host.name in names], prefixes, progress)
    print(table(found))
    print_gpus(lab)
    return 0


def fleet(lab: Lab, arguments: argparse.Namespace) -> int:
    need_root()
    many.up(lab, arguments.hosts, Progress())
    print(f"{many.HOST} stands in for {arguments.hosts} hosts: use -i inventory/many.")
    return 0


def show_gpus(lab: Lab, arguments: argparse.Namespace) -> int:
    need_root()
    names = [name for name in arguments.hosts.split(",") if name]
    if not names:
        raise LabError("no host was named", "--hosts takes names with commas: lab1,lab2")
    gpus.up(lab, list(dict.fromkeys(names)), arguments.count, arguments.fault, Progress())
    print_gpus(lab)
    return 0


def print_gpus(lab: Lab) -> None:
    """Print which hosts have stand-in GPUs, so that nobody takes them for real ones."""
    for name, cards in sorted(gpus.load(lab).items(), key=lambda each: host_number(each[0])):
        print(gpus.described(name, cards))


def night(lab: Lab, arguments: argparse.Namespace) -> int:
    need_root()
    if not hosts.listed(lab):
        raise LabError(f"the lab {lab.instance!r} has no hosts", "./gpufleet lab up")
    print_gpus(lab)
    sys.stdout.flush()
    status = nights.run(lab)
    print(f"The history of the lab's nights: --database {nights.history(lab)}")
    return status


def down(lab: Lab, arguments: argparse.Namespace) -> int:
    need_root()
    hosts.down(lab, Progress())
    return 0


def show(lab: Lab, arguments: argparse.Namespace) -> int:
    need_root()
    if arguments.all:
        return show_all(arguments)
    found = hosts.listed(lab)
    if arguments.json:
        login = {"user": USER, "key": str(lab.key)}
        print(json.dumps([{**asdict(host), **login} for host in found], indent=2))
    elif found:
        print(table(found))
        print_gpus(lab)
    else:
        print(f"The lab {lab.instance!r} has no hosts. `python -m lab up` starts two.")
    return 0


def show_all(arguments: argparse.Namespace) -> int:
    found = [(lab, host, runs.has_ended(lab.run)) for lab, host in hosts.all_hosts()]
    if arguments.json:
        rows = [
            {"lab": lab.instance, **asdict(host), "run": lab.run, "run_has_ended": ended}
            for lab, host, ended in found
        ]
        print(json.dumps(rows, indent=2))
        return 0
    lines: list[tuple[str, ...]] = [("LAB", *COLUMNS, "MADE BY")]
    for lab, host, ended in found:
        process = lab.run.partition(":")[0]
        tests = "left by a run that has ended" if ended else f"tests of process {process}"
        lines.append((lab.instance, *cells(host), tests if lab.run else "a person"))
    print(aligned(lines))
    return 0


def execute(lab: Lab, arguments: argparse.Namespace) -> int:
    need_root()
    host_number(arguments.name)
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise LabError("no command was given", "python -m lab exec lab1 -- COMMAND ...")
    if not any(
        host.name == arguments.name and host.state == "running" for host in hosts.listed(lab)
    ):
        raise LabError(
            f"{arguments.name} does not run in the lab {lab.instance!r}",
            "`python -m lab list` shows the hosts that run; `python -m lab up` starts it.",
        )
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    native = hosts.command(lab, arguments.name, words, interactive)
    sys.stdout.flush()
    try:
        # Replaces this process: standard input, signals and exit status are the command's own.
        os.execvpe(native[0], native, environment())
    except FileNotFoundError:
        raise missing(native[0]) from None


def make(lab: Lab, arguments: argparse.Namespace) -> int:
    releases = arguments.cuda or ([] if arguments.file else artifacts.DEFAULT_RELEASES)
    wanted = artifacts.chosen(None if arguments.all else releases)
    wanted += [each for each in artifacts.named(arguments.file) if each not in wanted]
    built = artifacts.ensure(lab, wanted, Progress())
    if arguments.json:
        print(json.dumps([{**asdict(item), "path": str(item.path)} for item in built], indent=2))
    else:
        print(f"Stand-ins (for machines without a GPU only) in {lab.artifacts}:")
        for item in built:
            print(f"  {item.file}\n    {decimal(item.size_bytes)}, sha256 {item.sha256}")
    return 0


def toolkit(lab: Lab, arguments: argparse.Namespace) -> int:
    print(toolkit_repository.build(lab, arguments.directory.resolve()))
    return 0


def need_root() -> None:
    if os.geteuid() != 0:
        raise LabError(
            "lab hosts are system containers, which only root can start",
            "Run the same command with sudo, or in a root shell.",
        )


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="python -m lab", description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)

    def verb(name: str, act: Callable[..., int], text: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text)
        made.set_defaults(act=act)
        return made

    made = verb("up", up, "start hosts, and wait until they answer over ssh")
    made.add_argument("--hosts", default="lab1,lab2", metavar="lab1,lab2", help="their names")
    made.add_argument(
        "--suite",
        default="bookworm",
        help="what they run: Debian's suite, or a stand-in such as ubuntu-22.04",
    )
    made.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="3.6",
        help=f"copy this version of this machine's Python to {pythons.PLACE} on the hosts; may be"
        " repeated",
    )
    made = verb("many", fleet, "start one host that answers on many ports: a stand-in for a fleet")
    made.add_argument(
        "--hosts", type=int, default=100, metavar="N", help="how many hosts it stands in for"
    )
    made = verb("gpus", show_gpus, "give hosts stand-in GPUs, break one, or take them away")
    made.add_argument("--hosts", default="lab1,lab2", metavar="lab1,lab2", help="their names")
    made.add_argument(
        "--count",
        type=int,
        default=1,
        metavar="N",
        help="how many a host has (default: 1; 0: none)",
    )
    made.add_argument(
        "--fault",
        metavar="NAME",
        help="break the last card of each of these hosts: "
        + ", ".join(f"{name} ({each['about']})" for name, each in faults().items())
        + " (default: all are healthy)",
    )
    verb(
        "night",
        night,
        "verify the hosts as in a night, one day after the last: drains hosts with stand-in GPUs in"
        " a stand-in for Slurm",
    )
    verb("down", down, "remove this lab's hosts, network, keys and images")
    made = verb("list", show, "show this lab's hosts")
    made.add_argument(
        "--all",
        action="store_true",
        help="show the hosts of all labs on this machine, and whether tests made them; `up` removes"
        " those that are left by a test run that has ended",
    )
    made.add_argument("--json", action="store_true", help="one JSON list on standard output")
    made = verb("exec", execute, "run a command on a host as root")
    made.add_argument("name", metavar="NAME")
    made.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    made = verb("artifacts", make, "build the stand-ins for NVIDIA's downloads")
    made.add_argument(
        "--cuda",
        action="append",
        metavar="11.8",
        help="build those of this CUDA release, with its cuDNN; may be repeated"
        f" (default: {', '.join(artifacts.DEFAULT_RELEASES)})",
    )
    made.add_argument(
        "--file",
        action="append",
        default=[],
        metavar="NAME",
        help="build the one with this file name; may be repeated",
    )
    made.add_argument(
        "--all", action="store_true", help="build those of every release that the lab has"
    )
    made.add_argument("--json", action="store_true", help="one JSON list on standard output")
    made = verb(
        "toolkit-repository",
        toolkit,
        "write an apt repository with stand-ins for NVIDIA's"
        " container toolkit; prints its key's fingerprint",
    )
    made.add_argument(
        "directory",
        type=Path,
        metavar="DIR",
        help="the directory to write; its content is replaced",
    )
    return top


def main() -> int:
    arguments = parser().parse_args()
    try:
        lab = Lab.from_environment(os.environ)
        act: Callable[[Lab, argparse.Namespace], int] = arguments.act
        return act(lab, arguments)
    except LabError as error:
        print(f"error: {error.message}\nremedy: {error.remedy}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("\nstopped; run the same command to continue", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
