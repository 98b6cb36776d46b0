"""`gpufleet artifacts fetch|verify|serve DIR`: all that a fleet installs, in one directory."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import gethostname
from typing import NoReturn

from rich.console import Console

from gpufleet.errors import ConfigurationError
from gpufleet.inventory import HostSelector, inventory_hosts
from gpufleet.mirror import fetch, locks, needs, show
from gpufleet.mirror.contents import Contents
from gpufleet.mirror.needs import File, MirrorError, Needs
from gpufleet.paths import ROOT

WHOLE, INCOMPLETE, USAGE, INTERRUPTED = 0, 1, 4, 130
PORT = 8090


class Parser(argparse.ArgumentParser):
    """A parser by which a mistake in the call is one like any other: exit status 4."""

    def error(self, message: str) -> NoReturn:
        """argparse's hook."""
        raise ConfigurationError(f"{message}.", remedy=f"{self.prog} --help names the options.")


class RefusedError(ConfigurationError):
    """Plans that cannot be carried out."""

    def __init__(self, problems: list[dict[str, str]]) -> None:
        self.problems = problems
        lines = [f"{row['where']}: {row['message']} Remedy: {row['remedy']}" for row in problems]
        super().__init__("\n".join(("the declaration cannot be carried out.", *lines)))


def needed(options: argparse.Namespace) -> Needs:
    """What the whole inventory needs, or a refusal."""
    found = needs.of(inventory_hosts(HostSelector(
        options.inventory, options.limit, options.extra_vars, options.vault_password_file)))
    if found.problems:
        raise RefusedError(found.problems)
    if options.with_gpufleet:
        lock = needs.Lock(ROOT / "requirements.txt", "{}.{}".format(*sys.version_info))
        found.locks[lock.path] = lock
    return found


def mirror_of(options: argparse.Namespace, found: Needs) -> fetch.Mirror:
    """The mirror, with the places that the call and the inventory name."""
    places = [Path(name).expanduser().absolute() for name in options.places]
    for place in places:
        if not place.is_dir():
            raise ConfigurationError(
                "There is no such directory.", f"--from {place}", "Name one that has the files.")
    sites = [source for source in found.sources if source.startswith(("http://", "https://"))]
    places += [Path(source).expanduser() for source in found.sources if source not in sites]
    indexes = {lock.index_url for lock in found.locks.values() if lock.index_url}
    return fetch.Mirror(options.directory, tuple(places), tuple(sites), tuple(sorted(indexes)))


def fetch_files(options: argparse.Namespace, console: Console) -> int:
    """Bring everything that the inventory's hosts need into DIR."""
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
                contents.learn(lock, partial(bring_or_fail, mirror))
                add(files, contents.known(lock))
            except MirrorError as error:
                failures.append(error)
        sized = fetch.sizes(mirror, files.values())
        show.needed(console, mirror, sized, found.hosts)
        fetch.check_space(mirror, sized)
        with show.progress(console, mirror, sized) as heard:
            rows = fetch.bring_all(mirror, sized, heard)
    return finish(options, console, fetch.Result(mirror.directory, rows, failures))


def verify(options: argparse.Namespace, console: Console) -> int:
    """Read every file that the hosts need again; name what is missing, wrong or not needed."""
    found = needed(options)
    if not options.directory.is_dir():
        raise ConfigurationError("There is no such directory.", str(options.directory),
                                 "'artifacts fetch' makes it.")
    mirror = mirror_of(options, found)
    contents = Contents(mirror.directory)
    files = {file.path: file for file in found.artifacts.values()}
    failures: list[MirrorError] = []
    for lock in found.locks.values():
        try:
            add(files, contents.known(lock))
        except MirrorError as error:
            failures.append(error)
    rows = [mirror.look(file, thorough=True) for file in files.values()]
    extra = fetch.not_needed(mirror, rows, contents.path)
    return finish(options, console, fetch.Result(mirror.directory, rows, failures, extra))


def finish(options: argparse.Namespace, console: Console, result: fetch.Result) -> int:
    """Tell what came of it; its exit status."""
    if options.json:
        tell(show.document(result))
    show.end(console, result)
    return WHOLE if result.whole else INCOMPLETE


def add(files: dict[str, File], more: list[File]) -> None:
    """Join the needs of several locks."""
    for file in more:
        known = files.get(file.path, file)
        reasons = dict.fromkeys((*known.reasons, *file.reasons))
        files[file.path] = replace(file, reasons=tuple(reasons))


def bring_or_fail(mirror: fetch.Mirror, files: list[File]) -> None:
    """Have these few files there, or say why not."""
    for row in fetch.bring_all(mirror, files, lambda _: None):
        if not row.right:
            raise MirrorError(f"{row.file.path}: {row.because}", row.remedy)


def serve(options: argparse.Namespace, console: Console) -> int:
    """Serve DIR over plain HTTP: for a lab or a small site."""
    if not (options.directory / needs.WHEELS).is_dir():
        raise ConfigurationError("It is no mirror.", str(options.directory),
                                 "'artifacts fetch' makes one.")
    handler = partial(SimpleHTTPRequestHandler, directory=str(options.directory))
    try:
        server = ThreadingHTTPServer((options.bind, options.port), handler)
    except OSError as error:
        raise ConfigurationError(
            f"It cannot be served there: {error}", f"--bind {options.bind} --port {options.port}",
            "Name an address of this machine, and a port that nobody uses.") from error
    every = options.bind in ("0.0.0.0", "")
    address = f"http://{gethostname() if every else options.bind}:{server.server_port}"
    console.print(f"Serving {options.directory} until interrupted. For the inventory:\n",
                  markup=False, soft_wrap=True)
    sys.stdout.write(show.inventory_lines(address))
    sys.stdout.flush()
    # It is ended by interrupting it.
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
    return WHOLE


def tell(document: object) -> None:
    """The document, on standard output."""
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    sys.stdout.flush()


def parser() -> argparse.ArgumentParser:
    """The options of every verb."""
    top = Parser(prog="mirror", description=__doc__, epilog="Exit status: 0 all there and"
                 " checked, 1 something is missing or wrong, 4 usage or configuration.")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)

    def verb(act: Callable[..., int]) -> argparse.ArgumentParser:
        name = act.__name__.partition("_")[0]
        made = verbs.add_parser(name, help=act.__doc__, description=act.__doc__)
        made.set_defaults(act=act)
        made.add_argument("directory", metavar="DIR", type=lambda name: Path(name).absolute())
        return made

    for act in (fetch_files, verify):
        made = verb(act)
        made.add_argument("-i", "--inventory", action="append", default=[], metavar="INV")
        made.add_argument("-l", "--limit", metavar="HOSTS")
        made.add_argument("-e", "--extra-vars", action="append", default=[], metavar="VARS")
        made.add_argument("--vault-password-file", action="append", default=[], metavar="FILE")
        made.add_argument("--json", action="store_true", help="one document on standard output")
        made.add_argument("--with-gpufleet", action="store_true",
                          help="also what gpufleet itself needs on a control machine like this")
        made.set_defaults(places=[])
        if act is fetch_files:
            made.add_argument("--from", dest="places", action="append", metavar="DIRECTORY",
                              help="take files from here if they are right; may be repeated")
    made = verb(serve)
    made.add_argument("--bind", default="0.0.0.0", metavar="ADDRESS", help="if not given: all")
    made.add_argument("--port", type=int, default=PORT, metavar="N", help=f"if not given: {PORT}")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run a verb; its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    console = Console(stderr=True, highlight=False)
    problems: list[dict[str, str]] = []
    try:
        options = parser().parse_args(words)
        act: Callable[[argparse.Namespace, Console], int] = options.act
        return act(options, console)
    except RefusedError as error:
        status, told, problems = USAGE, str(error), error.problems
    except ConfigurationError as error:
        status, told = USAGE, str(error)
        problems = [{"code": "configuration", "message": error.message, "where": error.where,
                     "remedy": error.remedy}]
    except MirrorError as error:
        status, told = INCOMPLETE, f"{error.message}. {error.remedy}"
        problems = [{"code": "not-possible", "message": error.message, "where": "",
                     "remedy": error.remedy}]
    except KeyboardInterrupt:
        console.print("Interrupted. The same command goes on from here.")
        # Downloads under way are threads of this process, and nobody waits for them.
        os._exit(INTERRUPTED)
    if "--json" in words:
        tell({"schema": show.SCHEMA, "problems": problems})
    console.print(told, style="bold red", markup=False, soft_wrap=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
