"""`gpufleet catalog add|check|locks`: keep the catalog of a checkout true.

add writes rows of what is published; check validates the rows, compares them with wheels and
records what these contain; locks makes the locks and imports each framework once.

The index is the one that uv or pip is set to (UV_DEFAULT_INDEX, PIP_INDEX_URL, `pip config list`),
else PyPI.
"""

from __future__ import annotations

import argparse
import sys
from datetime import date

from gpufleet.catalog import facts
from gpufleet.cli.parser import Parser
from gpufleet.errors import ConfigurationError
from gpufleet.frameworks import DEFAULT, FRAMEWORKS, FrameworkId
from tools.catalog import addition, compare, index, locks, measurement, record, validation
from tools.catalog.errors import ContradictionError, MeasureError, UnansweredError
from tools.catalog.tables import Data

AGREES, DIFFERS, UNREAD = 0, 1, 3
HELP = "gpufleet catalog --help lists the options."


def parser() -> Parser:
    """The options of the three actions."""
    verb = Parser(
        "catalog",
        (
            "catalog add redistrib_13.5.0.json md5sum.txt",
            f"catalog add {DEFAULT.requirement}",
            f"catalog check --{DEFAULT.id} {DEFAULT.example} --largest 60",
            f"catalog locks --{DEFAULT.id} {DEFAULT.example} --python 3.9",
        ),
        usage="add|check|locks [SOURCE ...] [options]",
        exit_status="Exit status: 0 done and right, 1 a contradiction, or an import that fails,\n"
        "3 something could not be read or tried, 4 usage or configuration.",
    )
    group = verb.add_argument_group("Action")
    group.add_argument(
        "act",
        choices=list(ACTIONS),
        metavar="ACTION",
        help="add: add what is published; check: validate the rows and compare them with wheels;"
        " locks: make the locks, install and import each once",
    )
    group.add_argument(
        "sources",
        nargs="*",
        metavar="SOURCE",
        help="add: NVIDIA's redistrib_X.json or md5sum.txt (file or address), or a release on the"
        f" package index, such as {DEFAULT.requirement} or a wheel's name",
    )
    group = verb.add_argument_group("check, locks")
    for framework in FRAMEWORKS.values():
        group.add_argument(
            f"--{framework.id}",
            nargs="?",
            const="",
            metavar="VERSION",
            help=f"Only {framework.title}, or only this release of it",
        )
    group.add_argument(
        "--all", action="store_true", help="Repeat also what has a result (default: the others)"
    )
    group = verb.add_argument_group("add")
    group.add_argument(
        "--via",
        metavar="TEXT",
        help="Where a file comes from, which its source in the catalog names",
    )
    group.add_argument("--dry-run", action="store_true", help="Print the difference; write nothing")
    group = verb.add_argument_group("check")
    group.add_argument("--rows", action="store_true", help="Validate the rows; read no wheel")
    group.add_argument(
        "--sort", action="store_true", help="Sort the rows and write them in the catalog's form"
    )
    group.add_argument(
        "--largest",
        type=int,
        metavar="MIB",
        help="Leave out libraries that are larger in the wheel than this",
    )
    group = verb.add_argument_group("locks")
    group.add_argument("--python", metavar="VERSION", help="Only locks for this Python")
    group.add_argument("--lock-only", action="store_true", help="Make the locks; install nothing")
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Run an action; its exit status."""
    if bool(options.sources) != (options.act == "add"):
        raise ConfigurationError(
            "add needs a source."
            if options.act == "add"
            else f"{options.act} takes no {options.sources[0]};"
            f" a release is --{DEFAULT.id} VERSION.",
            remedy=HELP,
        )
    refuse_others(options)
    try:
        return ACTIONS[options.act](options)
    except ContradictionError as error:
        print(f"refused: {error}", file=sys.stderr)
        return DIFFERS
    except MeasureError as error:
        print(f"could not be read: {error}", file=sys.stderr)
        return UNREAD


def refuse_others(options: argparse.Namespace) -> None:
    """Refuse the options of another action."""
    given = parser().given(options.args)
    for act, names in OWN.items():
        if act != options.act and (wrong := sorted((names - OWN[options.act]) & given.keys())):
            raise ConfigurationError(
                f"{options.act} has no option --{wrong[0].replace('_', '-')}.", remedy=HELP
            )


def add(options: argparse.Namespace) -> int:
    """Add every source, or none: print what changes, validate it, write it."""
    data, done = Data(facts.DATA), []
    for source in options.sources:
        done += addition.add(data, source, date.today().isoformat(), options.via)
    sys.stdout.write(data.difference())
    print("\n".join(done) or "The catalog has all of it: nothing is added.")
    if faults := validation.row_faults(data):
        return _refused(faults)
    if not options.dry_run:
        data.write()
    return AGREES


def check(options: argparse.Namespace) -> int:
    """Validate the rows, then compare releases with their wheels and record these."""
    data = Data(facts.DATA)
    if options.sort:
        validation.read_all(data)
        data.write()
    if faults := validation.faults(data):
        return _refused(faults)
    print("every row is valid", flush=True)
    return AGREES if options.rows or options.sort else _measure_all(options)


def _refused(faults: list[str]) -> int:
    print("\n".join(faults), file=sys.stderr)
    return DIFFERS


def _selected(options: argparse.Namespace) -> dict[FrameworkId, str | None]:
    """The frameworks that the options name, each with its release; every one without any."""
    given = {
        each.id: getattr(options, each.id) or None
        for each in FRAMEWORKS.values()
        if getattr(options, each.id) is not None
    }
    for framework, version in given.items():
        if version and version not in facts.build_versions(framework):
            raise ConfigurationError(
                f"No {FRAMEWORKS[framework].title} GPU release: {version}.", remedy=HELP
            )
    return given or dict.fromkeys((each.id for each in FRAMEWORKS.values()), None)


def _measure_all(options: argparse.Namespace) -> int:
    address, status = index.address(), AGREES
    for framework, version in _selected(options).items():
        measured = record.load(framework)
        known = facts.build_versions(framework)
        for each in [version] if version else known:
            if version or options.all or each not in measured:
                status = max(status, _measure(framework, each, address, options.largest))
    return status


def _measure(framework: FrameworkId, version: str, address: str, largest: int | None) -> int:
    name = f"{FRAMEWORKS[framework].title} {version}"
    try:
        row = measurement.measure(framework, version, address, largest and largest << 20)
    except MeasureError as error:
        print(f"{name}: could not be measured: {error}", flush=True)
        return UNREAD
    record.save(framework, version, row)
    if "absent" in row:
        print(f"{name}: {row['absent']}", flush=True)
        return AGREES
    differences = compare.differences(compare.expected(framework, version), row)
    print(f"{name}: {'; '.join(differences) or 'agrees'}", flush=True)
    return DIFFERS if differences else AGREES


def try_locks(options: argparse.Namespace) -> int:
    """Make and import every selected lock that has no result; record each result at once."""
    status, today = AGREES, date.today().isoformat()
    for framework, version in _selected(options).items():
        results = locks.load(framework, facts.DATA)
        for each in locks.tries(framework, version, options.python):
            if not options.all and locks.is_tried(results, each, lock_only=options.lock_only):
                continue
            try:
                result = locks.attempt(each, today, lock_only=options.lock_only)
            except UnansweredError as error:
                reason = f"{each.index or 'the package index'} did not answer"
                locks.save_reason(each, reason, today, facts.DATA)
                print(f"{each.name}: not tried: {error}", flush=True)
                status = max(status, UNREAD)
                continue
            except MeasureError as error:
                print(f"{each.name}: not tried: {error}", flush=True)
                status = max(status, UNREAD)
                continue
            locks.save(each, result, facts.DATA)
            outcomes = (
                result["lock"],
                result["import"] or locks.OK,
                result.get("scripts", locks.OK),
            )
            outcome = next((each for each in outcomes if each != locks.OK), locks.OK)
            if "untried" in result:
                print(f"{each.name}: not imported: {result['untried']}", flush=True)
                status = max(status, UNREAD)
                continue
            print(f"{each.name}: {outcome}", flush=True)
            status = max(status, AGREES if outcome == locks.OK else DIFFERS)
    return status


OWN = {
    "add": {"dry_run", "via"},
    "check": {*FRAMEWORKS, "all", "rows", "sort", "largest"},
    "locks": {*FRAMEWORKS, "all", "python", "lock_only"},
}
ACTIONS = {"add": add, "check": check, "locks": try_locks}
