"""Make every lock that the catalog can make, install it once, import its framework and start its
console scripts.

A try is a release, where its CUDA comes from, and a Python. Its result is data:
`locks/FRAMEWORK.yml` has the requirements that were locked, the day, and `ok` or the reason. A try
whose requirements did not change is not repeated. The import sees no GPU: it proves that the
packages fit each other.
"""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpufleet.gpu.plugins.module_utils.python_environment import resolved_for
from ansible_collections.gpufleet.gpu.plugins.module_utils.python_packages import undeclared_bounds

from gpufleet import stopping
from gpufleet.catalog import facts, lock_results, versions
from gpufleet.catalog.records import Build
from gpufleet.components import resolver
from gpufleet.components.stacks import pythons
from gpufleet.documents.plan import CudaSource
from gpufleet.frameworks import FRAMEWORKS, FrameworkId
from gpufleet.on_host.addresses import public_addresses

from .errors import MeasureError, UnansweredError

Row = dict[str, Any]

UV = str(Path(sys.executable).with_name("uv"))
OK = lock_results.OK
TIMEOUT_S = 3600
SCRIPT_S = 120
MOST_TEXT = 300
# Errors of uv where an index did not answer: they say nothing about the lock.
UNREACHED = re.compile(r"Failed to fetch|Request failed|error sending request|Could not connect")
# The error that ends a traceback, and one of a library of CUDA.
ERROR_LINE = re.compile(r"(\w+\.)*\w*(Error|Exception)(: |$)")
TRACEBACK = "Traceback (most recent call last)"
# Errors of a script that could not be started, as distinct from one that an option is unknown. That
# a release declares a function as its script which takes an argument is no matter of its lock
# (TensorFlow 2.13's import_pb_to_tensorboard).
NOT_STARTED = re.compile(
    r"(\w+\.)*(ImportError|ModuleNotFoundError|AttributeError|NameError|SyntaxError"
    r"|TypeError(?!: main\(\) missing)"
    r"|DistributionNotFound|VersionConflict|ContextualVersionConflict)\b"
)
CUDA_LIBRARY = re.compile(r"(lib(?:cu|nv)\S+?): cannot open shared object file")
HEADER = """\
# {title}'s locks: each was made by uv, installed, and its framework imported without a GPU
# `scripts`: whether each console script of its packages starts; a row without it was not tried so.
# Written by 'gpufleet catalog locks'. null: not tried, for the reason `untried` where there is one.
# Where it is not ok, the reason.
---
"""


@dataclass(frozen=True)
class Try:
    """One lock: what it is for, and what it asks for."""

    framework: FrameworkId
    version: str
    cuda: str
    python: str
    requirements: tuple[str, ...]
    index: str | None

    @property
    def name(self) -> str:
        """The try in messages."""
        title = FRAMEWORKS[self.framework].title
        return f"{title} {self.version}, CUDA {self.cuda}, Python {self.python}"

    @property
    def key(self) -> tuple[str, str]:
        """The key that distinguishes this try from the release's other tries."""
        return (self.cuda, self.python)


def tries(
    framework: FrameworkId, release: str | None = None, python: str | None = None
) -> Iterator[Try]:
    """Every lock of a framework, or of one release or Python, oldest first."""
    for version in facts.build_versions(framework):
        if release not in {None, version}:
            continue
        for build in facts.variants(framework, version):
            for source in () if build.unavailable else build.cuda_sources:
                for each in pythons.usable(build):
                    if python in {None, each}:
                        yield from _try(build, source, each)


def _try(build: Build, source: CudaSource, python: str) -> Iterator[Try]:
    """The lock of a build, if the resolver accepts it."""
    answer = resolver.release(
        build.framework,
        build.version,
        cuda=_declared(build, source),
        python=python,
        index=build.index,
        locks=_Every(),  # one that could not be made is tried again
    )
    if "problems" not in answer and answer["cuda_source"] == source:
        yield Try(
            build.framework,
            build.version,
            lock_results.cuda_key(build, source),
            python,
            tuple(answer["requirements"]),
            build.index,
        )


class _Every(frozenset[str]):
    """The names of all locks: every lock is there."""

    def __contains__(self, name: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True


def _declared(build: Build, source: CudaSource) -> str | None:
    """The CUDA that a stack declares to get this build and this source; None: nothing."""
    if build.variant:
        major = build.about.cuda_plugin and source == "pip"
        return str(versions.major(build.cuda)) if major else build.cuda
    if source == build.cuda_sources[0]:
        return None
    return "pip" if source == "pip" else "local"


# -- what is recorded ------------------------------------------------------------------------------


def load(framework: FrameworkId, directory: Path) -> dict[str, list[Row]]:
    """The results of every release; empty without the file."""
    path = directory / "locks" / f"{framework}.yml"
    if not path.exists():
        return {}
    found: dict[str, list[Row]] = yaml.load(path.read_text(encoding="utf-8"), Loader=facts.LOADER)
    return found


def is_tried(results: dict[str, list[Row]], each: Try, *, lock_only: bool) -> bool:
    """Return whether a lock of the same requirements has a result, of its import as well."""
    for row in results.get(each.version, ()):
        if (row["cuda"], row["python"]) == each.key:
            imported = row["import"] is not None and (row["import"] != OK or "scripts" in row)
            complete = imported or row["lock"] != OK
            made = row["lock"] is not None and row["requirements"] == [*each.requirements]
            return made and (lock_only or complete)
    return False


def save(each: Try, result: Row, directory: Path) -> None:
    """Add or replace one result, by a rename."""
    results = load(each.framework, directory)
    rows = [r for r in results.get(each.version, ()) if (r["cuda"], r["python"]) != each.key]
    own = {"cuda": each.cuda, "python": each.python}
    rows.append({**own, **result, "requirements": [*each.requirements]})
    rows.sort(key=lambda row: (row["cuda"], versions.key(row["python"])))
    results[each.version] = rows
    ordered = {v: results[v] for v in sorted(results, key=versions.key)}
    text = yaml.safe_dump(ordered, sort_keys=False, default_flow_style=None, width=98)
    path = directory / "locks" / f"{each.framework}.yml"
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    title = FRAMEWORKS[each.framework].title
    partial.write_text(HEADER.format(title=title) + text, encoding="utf-8")
    partial.replace(path)


def save_reason(each: Try, reason: str, today: str, directory: Path) -> None:
    """Record why a lock was not tried, beside what is known of the same requirements."""
    rows = load(each.framework, directory).get(each.version, [])
    known = next((row for row in rows if (row["cuda"], row["python"]) == each.key), None)
    if known is None or known["requirements"] != [*each.requirements]:
        known = {"date": today, "lock": None, "import": None}
    result: Row = {key: known[key] for key in ("date", "lock", "import", "scripts") if key in known}
    save(each, {**result, "untried": reason}, directory)


# -- how it is tried -------------------------------------------------------------------------------


def attempt(each: Try, today: str, *, lock_only: bool = False) -> Row:
    """Make the lock and import its framework, if an interpreter of that Python is here."""
    interpreter = None if lock_only else find_interpreter(each.python)
    result: Row = {"date": today, "lock": None, "import": None}
    with stopping.temporary_directory() as name:
        folder = Path(name)
        result["lock"] = make(each, folder / "lock")
        if result["lock"] == OK and interpreter:
            result["import"] = _import(each, folder, interpreter)
        if result["import"] == OK:
            result["scripts"] = start_scripts(folder / "venv")
    if result["lock"] == OK and not lock_only and not interpreter:
        result["untried"] = f"no Python {each.python} was there"
    if missing := CUDA_LIBRARY.search(result["import"] or ""):
        # Releases that are linked with CUDA cannot be imported without it.
        result |= {"import": None, "untried": f"{missing[1]} of its CUDA was not there"}
    return result


def make(each: Try, path: Path) -> str:
    """Resolve a lock as the module gpu_stack_lock does; `ok`, or why not."""
    command = [UV, "pip", "compile", "--quiet", "--generate-hashes", "--no-header"]
    command += ["--python-version", resolved_for(each.python), "--python-platform", "linux"]
    command += ["--output-file", str(path)]
    text = "\n".join(each.requirements)
    result = _run([*command, "-"], each, text)
    if result == OK and path.exists() and (bounds := undeclared_bounds(path.read_text())):
        path.unlink()  # uv would keep what it has
        result = _run([*command, "-"], each, "\n".join([text, *bounds]))
    return result


def find_interpreter(python: str) -> str | None:
    """An interpreter of a Python: where gpufleet finds it on hosts, pyenv's, or uv's."""
    places = [Path(f"/opt/python/{python}/bin/python{python}")]
    places += sorted((Path.home() / ".pyenv" / "versions").glob(f"{python}.*/bin/python"))
    if found := next((str(place) for place in places if place.exists()), None):
        return found
    command = [UV, "python", "find", "--no-project", python]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


def _import(each: Try, folder: Path, interpreter: str) -> str:
    venv = folder / "venv"
    python = str(venv / "bin" / "python")
    install = [UV, "pip", "install", "--quiet", "--require-hashes", "--python", python]
    steps = (
        [UV, "venv", "--quiet", "--python", interpreter, str(venv)],
        [*install, "--requirement", str(folder / "lock")],
        [python, "-c", f"import {FRAMEWORKS[each.framework].module}"],
    )
    for command in steps:
        if (result := _run(command, each)) != OK:
            return result
    return OK


def start_scripts(venv: Path) -> str:
    """Start each console script of the installed packages once; `ok`, or which ones cannot start.

    A script that ends with a status or an error of its own, as for an option that it does not
    know, has started.
    """
    failed = []
    for name in console_scripts(venv):
        try:
            done = subprocess.run(
                [venv / "bin" / name, "--help"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=SCRIPT_S,
                cwd=venv,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            )
        except subprocess.TimeoutExpired:
            failed.append(f"{name}: no end after {SCRIPT_S} s")
            continue
        except OSError as error:
            failed.append(f"{name}: {error.strerror}")
            continue
        errors = [line for line in done.stderr.splitlines() if NOT_STARTED.match(line)]
        if done.returncode < 0:
            failed.append(f"{name}: killed by signal {-done.returncode}")
        elif done.returncode and errors and TRACEBACK in done.stderr:
            failed.append(f"{name}: {errors[-1]}")
    return "; ".join(failed)[:MOST_TEXT] or OK


def console_scripts(venv: Path) -> list[str]:
    """The console scripts of a virtual environment, without those of extras (`name = ... [extra]`),
    whose packages a lock need not have."""
    found = set()
    for path in venv.glob("lib/python*/site-packages/*.dist-info/entry_points.txt"):
        listed = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
        listed.optionxform = str  # type: ignore[assignment,method-assign]
        listed.read_string(path.read_text(encoding="utf-8"))
        if listed.has_section("console_scripts"):
            rows = listed.items("console_scripts")
            found |= {name for name, target in rows if "[" not in target}
    return sorted(found)


def _run(command: Sequence[str], each: Try, text: str | None = None) -> str:
    """Run a command; `ok`, or why not: uv's reasons, or the last line of a traceback.

    Raises `MeasureError` where it did not come to a result.
    """
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    if each.index:
        environment["UV_INDEX"] = each.index
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise MeasureError(f"{Path(command[0]).name}: not finished after {TIMEOUT_S} s") from error
    if done.returncode == 0:
        return OK
    lines = [line for text in done.stderr.splitlines() if (line := text.strip(" ×╰├│─▶"))]
    reasons = [line for line in lines if not line.startswith("hint:")]
    # A line after the error that ended a program tells no reason.
    errors = [line for line in reasons if ERROR_LINE.match(line)] or reasons
    shown = " ".join(reasons if command[0] == UV else errors[-1:])
    reason = public_addresses(shown or f"exit status {done.returncode}")[:MOST_TEXT]
    if command[0] == UV and UNREACHED.search(done.stderr):
        raise UnansweredError(reason)
    return reason
