"""`gpufleet artifacts fetch|verify|serve DIR`: everything that a fleet installs, in one directory.

Reads the inventory, writes that directory and the stacks' locks; serve opens a port.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import gethostname

from rich.console import Console

from gpufleet.documents.plan import ProblemEntry
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import inventory_hosts
from gpufleet.mirror import fetch, locks, needs, show
from gpufleet.mirror.contents import Contents
from gpufleet.mirror.needs import File, MirrorError, Needs
from gpufleet.paths import ROOT
from gpufleet.stopping import reason_of, status_of

from .lab import build
from .options import add_hosts, default_inventory, print_json, selector
from .parser import Parser

SCHEMA = show.SCHEMA
WHOLE, INCOMPLETE = 0, 1
PORT = 8090


class RefusedError(ConfigurationError):
    """Plans that cannot be carried out."""

    def __init__(self, problems: list[ProblemEntry]) -> None:
        self.problems = problems
        lines = [f"{row['where']}: {row['message']} Remedy: {row['remedy']}" for row in problems]
        super().__init__("\n".join(("the declaration cannot be carried out.", *lines)))


def needed(options: argparse.Namespace) -> Needs:
    """The needs of the whole inventory; refused declarations raise a `RefusedError`."""
    found = needs.needs_of(inventory_hosts(selector(options)))
    if found.problems:
        raise RefusedError(found.problems)
    if options.with_gpufleet:
        lock = needs.Lock(ROOT / "requirements.txt", "{}.{}".format(*sys.version_info))
        found.locks[lock.path] = lock
    return found


def mirror_of(options: argparse.Namespace, found: Needs) -> fetch.Mirror:
    """The mirror, with the sources that the options and the inventory name."""
    directories = [Path(name).expanduser().absolute() for name in options.directories]
    for directory in directories:
        if not directory.is_dir():
            raise ConfigurationError(
                "There is no such directory.", f"--from {directory}", "Name one that has the files."
            )
    sites = [source for source in found.sources if source.startswith(("http://", "https://"))]
    directories += [Path(source).expanduser() for source in found.sources if source not in sites]
    indexes = {url for lock in found.locks.values() for url in (lock.index_url, lock.index) if url}
    return fetch.Mirror(
        options.directory,
        tuple(directories),
        tuple(sites),
        tuple(sorted(indexes)),
        tuple(sorted(found.addresses)),
    )


def fetch_files(options: argparse.Namespace, console: Console) -> int:
    """Fetch everything that the inventory's hosts need into DIR."""
    found = needed(options)
    mirror = mirror_of(options, found)
    (mirror.directory / needs.WHEELS).mkdir(parents=True, exist_ok=True)
    # One at a time; a second one waits.
    with fetch.locked(mirror):
        files = {file.path: file for file in found.artifacts.values()}
        failures: list[MirrorError] = []
        try:
            locks.resolve(found.locks.values())
        except MirrorError as error:
            failures.append(error)
        contents = Contents(mirror.directory)
        for lock in found.locks.values() if not failures else ():
            try:
                console.print(f"Looking up the packages of {lock.path.name}", markup=False)
                contents.learn(lock, partial(fetch_or_fail, mirror))
                add(files, contents.known(lock))
            except MirrorError as error:
                failures.append(error)
        sized = fetch.sizes(mirror, files.values())
        show.needed(console, mirror, sized, found.hosts)
        fetch.check_space(mirror, sized)
        with show.progress(console, mirror, sized) as report:
            rows = fetch.fetch_all(mirror, sized, report)
    return finish(options, console, fetch.Result(mirror.directory, rows, failures))


def verify(options: argparse.Namespace, console: Console) -> int:
    """Check every file that the hosts need; list what is missing, wrong or not needed."""
    found = needed(options)
    if not options.directory.is_dir():
        raise ConfigurationError(
            "There is no such directory.", str(options.directory), "'artifacts fetch' creates it."
        )
    mirror = mirror_of(options, found)
    contents = Contents(mirror.directory)
    files = {file.path: file for file in found.artifacts.values()}
    failures: list[MirrorError] = []
    for lock in found.locks.values():
        try:
            add(files, contents.known(lock))
        except MirrorError as error:
            failures.append(error)
    rows = [mirror.check(file, thorough=True) for file in files.values()]
    extra = fetch.not_needed(mirror, rows, contents.path)
    return finish(options, console, fetch.Result(mirror.directory, rows, failures, extra))


def finish(options: argparse.Namespace, console: Console, result: fetch.Result) -> int:
    """Print the result; returns the exit status."""
    if options.json:
        print_json(show.document(result))
    show.end(console, result)
    return WHOLE if result.whole else INCOMPLETE


def add(files: dict[str, File], more: list[File]) -> None:
    """Join the needs of several locks."""
    for file in more:
        known = files.get(file.path, file)
        reasons = dict.fromkeys((*known.reasons, *file.reasons))
        files[file.path] = replace(file, reasons=tuple(reasons))


def fetch_or_fail(mirror: fetch.Mirror, files: list[File]) -> None:
    """Fetch these files; raise `MirrorError` for one that cannot be fetched."""
    for row in fetch.fetch_all(mirror, files, lambda _: None):
        if not row.right:
            raise MirrorError(f"{row.file.path}: {row.because}", row.remedy)


def serve(options: argparse.Namespace, console: Console) -> int:
    """Serve DIR over plain HTTP, for a lab or a small site."""
    if not (options.directory / needs.WHEELS).is_dir():
        raise ConfigurationError(
            "The directory is not a mirror.",
            str(options.directory),
            "'artifacts fetch' creates one.",
        )
    handler = partial(SimpleHTTPRequestHandler, directory=str(options.directory))
    try:
        server = ThreadingHTTPServer((options.bind, options.port), handler)
    except OSError as error:
        raise ConfigurationError(
            f"It cannot be served there: {error}",
            f"--bind {options.bind} --port {options.port}",
            "Name an address of this machine, and a port that nobody uses.",
        ) from error
    every = options.bind in ("0.0.0.0", "")
    address = f"http://{gethostname() if every else options.bind}:{server.server_port}"
    console.print(
        f"Serving {options.directory} until interrupted. For the inventory:\n",
        markup=False,
        soft_wrap=True,
    )
    sys.stdout.write(show.inventory_lines(address))
    sys.stdout.flush()
    # It is ended by interrupting it.
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
    return WHOLE


def parser() -> Parser:
    """The options of the three actions."""
    verb = Parser(
        "artifacts",
        (
            "artifacts fetch /srv/mirror -i inventory/fleet",
            "artifacts serve /srv/mirror --port 8090",
        ),
        usage="fetch|verify|serve DIR [options]",
        exit_status="Exit status: 0 complete and verified, 1 a file is missing or wrong, 4 usage or"
        " configuration.",
    )
    group = verb.add_argument_group("Action")
    group.add_argument(
        "act",
        choices=list(ACTIONS),
        metavar="ACTION",
        help="fetch: download what is missing; verify: read every file again;"
        " serve: serve the directory over plain HTTP",
    )
    group.add_argument(
        "directory",
        metavar="DIR",
        type=lambda name: Path(name).absolute(),
        help="Directory of the mirror",
    )
    add_hosts(verb)
    group = verb.add_argument_group("fetch, verify")
    group.add_argument(
        "--with-gpufleet",
        action="store_true",
        help="Include what gpufleet itself needs on a control machine like this",
    )
    group.add_argument(
        "--json", action="store_true", help="Print one JSON document on standard output"
    )
    group = verb.add_argument_group("fetch")
    group.add_argument(
        "--from",
        dest="directories",
        action="append",
        default=[],
        metavar="DIRECTORY",
        help="Take correct files from this directory; may be repeated",
    )
    group = verb.add_argument_group("serve")
    group.add_argument(
        "--bind", default="0.0.0.0", metavar="ADDRESS", help="Serve on this address (default: all)"
    )
    group.add_argument("--port", type=int, default=PORT, metavar="N", help="Serve on this port")
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Run an action; its exit status."""
    refuse_others(options)
    console = Console(stderr=True, highlight=False)
    if options.act != "serve" and default_inventory(options):
        build("artifacts")
    try:
        return ACTIONS[options.act](options, console)
    except MirrorError as error:
        if options.json:
            print_json(
                {
                    "schema": SCHEMA,
                    "problems": [
                        {
                            "code": "not-possible",
                            "message": error.message,
                            "where": "",
                            "remedy": error.remedy,
                        }
                    ],
                }
            )
        console.print(
            f"{error.message}. {error.remedy}", style="bold red", markup=False, soft_wrap=True
        )
        return INCOMPLETE
    except KeyboardInterrupt as stopped:
        with suppress(OSError):
            console.print(f"gpufleet: {reason_of(stopped)}. The same command continues.")
        # Downloads under way are threads of this process that nobody waits for.
        os._exit(status_of(stopped))


def refuse_others(options: argparse.Namespace) -> None:
    """Refuse options of another action."""
    hosts = {"inventory", "limit", "extra_vars", "vault_password_file", "with_gpufleet", "json"}
    others = {
        "fetch": {"bind", "port"},
        "verify": {"bind", "port", "directories"},
        "serve": {*hosts, "directories"},
    }[options.act]
    own = parser()
    for action in own._actions:
        if action.dest in others and action.dest in own.given(options.args):
            raise ConfigurationError(
                f"artifacts {options.act} has no option {action.option_strings[-1]}.",
                remedy=own.remedy,
            )


ACTIONS: dict[str, Callable[[argparse.Namespace, Console], int]] = {
    "fetch": fetch_files,
    "verify": verify,
    "serve": serve,
}
