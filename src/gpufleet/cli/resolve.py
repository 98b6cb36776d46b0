"""The knowledge at the command line: `python -m gpufleet resolve --tensorflow 1.4.0`.

Exit status 0 with what goes with the release, 4 with the reasons why it cannot be (or when called
wrongly). With --json one document is written to standard output, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from gpufleet.resolver.release import release

REFUSED = 4


class _Parser(argparse.ArgumentParser):
    """A parser that ends with this project's status for wrong usage."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(REFUSED, f"{self.prog}: {message}\n")


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    verb = _Parser(
        prog="gpufleet resolve",
        description="What goes with a TensorFlow release, or why it cannot be.",
    )
    verb.add_argument("--tensorflow", required=True, metavar="VERSION", help="such as 1.4.0")
    verb.add_argument("--cuda", metavar="VERSION", help='check this CUDA, or "pip" for wheels')
    verb.add_argument("--cudnn", metavar="VERSION", help="check this cuDNN")
    verb.add_argument("--driver", metavar="BRANCH", help="check this driver branch or version")
    verb.add_argument("--gpu", metavar="GPU", help="check this GPU: 8.9, H100, Ampere, ...")
    verb.add_argument("--python", metavar="VERSION", help="check this Python")
    verb.add_argument("--json", action="store_true", help="one JSON document, and nothing else")
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
        "  through PTX": " ".join(capability["ptx"]) + "  (slow first start)",
        "Libraries": "\n".join(answer["sonames"]),
        "pip install": "\n".join(answer["requirements"]),
        "Known from": f"{answer['sources'][0]}\nand {len(answer['sources']) - 1} more (--json)",
    }
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows.items():
        table.add_row(label, text)
    console = Console(highlight=False, markup=False)
    console.print(f"TensorFlow {answer['tensorflow']} ({answer['distribution']})", style="bold")
    console.print(table)


def _refuse(problems: list[dict[str, str]]) -> None:
    for problem in problems:
        print(f"{problem['where']}: {problem['message']} [{problem['code']}]", file=sys.stderr)
        print(f"    -> {problem['remedy']}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    asked = vars(parser().parse_args(arguments))
    as_json = asked.pop("json")
    answer = release(**asked)
    if as_json:
        print(json.dumps(answer, indent=2))
    elif "problems" in answer:
        _refuse(answer["problems"])
    else:
        _show(answer)
    return REFUSED if "problems" in answer else 0


if __name__ == "__main__":
    raise SystemExit(main())
