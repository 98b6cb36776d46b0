"""`gpufleet resolve`: what goes with a release, or the reasons why it cannot be installed.

Reads the catalog only. Imports nothing heavy: other programs call it with --json.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from gpufleet.components.release import release
from gpufleet.frameworks import FRAMEWORKS, titles

from .parser import Parser

REFUSED = 4
CHECKED = ("cuda", "cudnn", "driver", "gpu", "python", "index", "arch")


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "resolve",
        tuple(
            f"resolve --{each.id} {each.example} {each.example_options}".rstrip()
            for each in FRAMEWORKS.values()
        ),
        usage=f"{'|'.join(f'--{name}' for name in FRAMEWORKS)} VERSION [options]",
        exit_status="Exit status: 0 resolved, 4 it cannot be installed, or usage.",
    )
    group = verb.add_argument_group("Release")
    one = group.add_mutually_exclusive_group(required=True)
    for each in FRAMEWORKS.values():
        one.add_argument(
            f"--{each.id}",
            metavar="VERSION",
            help=f"{each.title} release, such as {each.example}",
        )
    group = verb.add_argument_group("Check against the release")
    group.add_argument(
        "--cuda",
        metavar="VERSION",
        help='CUDA version, or "pip" for wheels, or "local" for'
        f" {titles(lambda each: each.can_be_local)} on a toolkit",
    )
    group.add_argument("--cudnn", metavar="VERSION", help="cuDNN version")
    group.add_argument("--driver", metavar="BRANCH", help="Driver branch or version")
    group.add_argument(
        "--gpu", metavar="GPU", help="Compute capability, model or architecture: 8.9, H100, Ampere"
    )
    group.add_argument("--python", metavar="VERSION", help="Python version")
    group.add_argument("--index", metavar="URL", help="Extra package index of the release")
    group.add_argument(
        "--arch", metavar="ARCH", help="Machine architecture: x86_64 or aarch64 (default: x86_64)"
    )
    group = verb.add_argument_group("Output")
    group.add_argument(
        "--json", action="store_true", help="Print one JSON document on standard output"
    )
    return verb


def _show(answer: dict[str, Any]) -> None:
    """The answer as a small table."""
    # Only the table needs rich: --json must stay quick.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    capability = answer["compute_capability"]
    rows = {
        "Python": ", ".join(answer["python"]),
        "CUDA": answer["cuda"],
        "cuDNN": answer["cudnn"] or "as its wheels say",
        "Driver": f"{answer['driver_min']} or newer",
        "GPUs": f"compute capability {capability['min']} or newer",
        "  own code": " ".join(capability["native"]),
        "  through PTX": " ".join([*capability["ptx"], " (slow first start)"])
        if capability["ptx"]
        else "none",
        "Libraries": "\n".join(answer["sonames"])
        or (
            "inside of its wheel" if answer["cuda_source"] == "bundled" else "from nvidia-* wheels"
        ),
        "pip install": "\n".join(answer["requirements"]),
        **({"Index": answer["index"]} if "index" in answer else {}),
        "Known from": f"{answer['sources'][0]}\nand {len(answer['sources']) - 1} more (--json)",
    }
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows.items():
        table.add_row(label, text)
    console = Console(highlight=False, markup=False)
    framework = next(each for each in FRAMEWORKS.values() if each.id in answer)
    title = f"{framework.title} {answer[framework.id]}"
    console.print(f"{title} ({answer['distribution']})", style="bold")
    console.print(table)
    for note in answer["notes"]:
        console.print(f"Note: {note}")


def _refuse(problems: list[dict[str, str]]) -> None:
    for problem in problems:
        print(f"{problem['where']}: {problem['message']} [{problem['code']}]", file=sys.stderr)
        print(f"    -> {problem['remedy']}", file=sys.stderr)


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Print the answer or the problems; the exit status."""
    framework = next(
        each.id for each in FRAMEWORKS.values() if getattr(options, each.id) is not None
    )
    answer = release(
        framework, getattr(options, framework), **{name: getattr(options, name) for name in CHECKED}
    )
    if options.json:
        print(json.dumps(answer, indent=2))
    elif "problems" in answer:
        _refuse(answer["problems"])
    else:
        _show(answer)
    return REFUSED if "problems" in answer else 0
