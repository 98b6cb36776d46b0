"""`gpufleet VERB ...`: find the verb's module, parse its options, run it, report errors.

A module is imported when its verb is called, so that `--help` and `resolve` start fast.
"""

from __future__ import annotations

import difflib
import gc
import importlib
import importlib.metadata
import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gpufleet.errors import ConfigurationError
from gpufleet.paths import HAS_TOOLS, IN_CHECKOUT, ROOT
from gpufleet.stopping import GRACE_S, reason_of, status_of

from .parser import Parser
from .verbs import GROUPS, OF_CHECKOUTS, TOOLS, VERBS, Verb

USAGE = 4
# New objects after which Python looks for cycles among them: the documents of a fleet are many and
# have none, and with Python's own 700 a tenth of the time of a short run is spent on it.
COLLECT_AFTER = 10_000
DESCRIPTION = "Provision servers with NVIDIA GPUs; prove that each GPU computes in every stack."


def main(args: Sequence[str] | None = None) -> int:
    """Run a verb; its exit status."""
    # No file of ours is one that every account may write, whatever the caller's mask permits.
    os.umask(os.umask(0o022) | 0o022)
    args = list(sys.argv[1:] if args is None else args)
    if args and args[0] in {"-h", "--help", "help"}:
        print(overview())
        return 0
    if args and args[0] in {"-V", "--version"}:
        print(f"gpufleet {importlib.metadata.version('gpufleet')}")
        return 0
    try:
        if not args or args[0] not in VERBS:
            raise unknown_verb(args)
        return run(args[0], args[1:])
    except ConfigurationError as error:
        sys.stderr.write(f"gpufleet: {error}\n")
        return USAGE
    except KeyboardInterrupt as stopped:
        # A closed terminal takes no message.
        with suppress(OSError):
            sys.stderr.write(f"gpufleet: {reason_of(stopped)}. {what_now(args[0])}\n")
        return status_of(stopped)


def run(verb: str, args: list[str]) -> int:
    """Run a verb; its exit status. Its errors are printed, and also as JSON where it was given."""
    gc.set_threshold(COLLECT_AFTER)
    module = load(verb)
    if VERBS[verb].program:
        return int(module.run(args))
    try:
        parser: Parser = module.parser()
        options, rest = parser.parse(args)
        options.args = args
        return int(module.run(options, rest))
    except ConfigurationError as error:
        if refused := getattr(module, "refused", None):
            return int(refused(error))
        if "--json" in args:
            print_problems(error, getattr(module, "SCHEMA", None))
        print_error(error)
        return USAGE
    except SystemExit as ended:  # --help
        return int(ended.code or 0)


def what_now(verb: str) -> str:
    """A sentence on what a person does after a verb was stopped."""
    return str(getattr(load(verb), "IF_STOPPED", "The same command continues what was started."))


def grace_s(args: Sequence[str]) -> float:
    """How long the processes of a command may clean up once it is stopped, in seconds."""
    return VERBS[args[0]].grace_s if args and args[0] in VERBS else GRACE_S


def load(verb: str) -> Any:
    """The module of a verb; raises `ConfigurationError` where this gpufleet does not have it."""
    if VERBS[verb].package == TOOLS:
        from .developer import require_checkout  # noqa: PLC0415 (slow, and few verbs need it)

        require_checkout(verb)
        if str(ROOT) not in sys.path:
            sys.path.insert(0, str(ROOT))
    return importlib.import_module(VERBS[verb].module)


def groups() -> dict[str, tuple[Verb, ...]]:
    """The public verbs that this gpufleet has."""
    return {
        title: verbs for title, verbs in GROUPS.items() if HAS_TOOLS or title not in OF_CHECKOUTS
    }


def parsers() -> dict[str, Parser]:
    """The parser of every public verb whose command line is not that of a program."""
    return {
        verb.name: load(verb.name).parser()
        for verbs in groups().values()
        for verb in verbs
        if not verb.program
    }


def overview() -> str:
    """The help of `gpufleet` itself."""
    width = max(map(len, VERBS)) + 2
    lines = [f"{DESCRIPTION}", "", "Usage: gpufleet VERB [options]"]
    for title, verbs in groups().items():
        lines += ["", f"{title}:", *(f"    {verb.name:{width}}{verb.summary}" for verb in verbs)]
    lines += [
        "",
        "Options:",
        f"    {'-h, --help':{width}}Show this help",
        f"    {'--version':{width}}Show the version",
        "",
        *(
            ["In a checkout the verbs work on the lab's hosts unless -i names an inventory."]
            if IN_CHECKOUT
            else []
        ),
        "gpufleet VERB --help lists the options of a verb.",
    ]
    return "\n".join(lines)


def unknown_verb(args: Sequence[str]) -> ConfigurationError:
    """The error for a call without a verb, or with one that does not exist."""
    if not args:
        return ConfigurationError("A verb is missing.", remedy="gpufleet --help lists the verbs.")
    near = difflib.get_close_matches(args[0], VERBS, 1)
    return ConfigurationError(
        f"There is no verb {shlex.quote(args[0])}.",
        remedy=f"Did you mean {near[0]}?" if near else "gpufleet --help lists the verbs.",
    )


def print_problems(error: ConfigurationError, schema: int | None) -> None:
    """The error as a document on standard output."""
    problems = getattr(
        error,
        "problems",
        [
            {
                "code": "configuration",
                "message": error.message,
                "where": error.where,
                "remedy": error.remedy,
            }
        ],
    )
    document = (
        {"problems": problems} if schema is None else {"schema": schema, "problems": problems}
    )
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


def print_error(error: ConfigurationError) -> None:
    """The error for a person, on standard error."""
    from rich.console import Console  # noqa: PLC0415 (only errors need it here)

    Console(stderr=True).print(str(error), style="bold red", markup=False, soft_wrap=True)
