"""The nightly: verify every host, keep what was found, say what changed. One run at a time.

Each step after the look is tried, whatever became of the others; what fails is a trouble: in the
journal, the exit status, the metrics, the heartbeat, and told where somebody can be. A run that is
stopped or killed judges nothing, and the next one finds everything whole: a night is recorded in
one transaction, files appear by rename, and what was not told yet is told then.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from verify import judge, junit, report, summary, terminal
from verify.errors import ConfigurationError
from verify.session import Manner, Session, utc_now, verify
from verify.verdict import FAILED, HEALTHY, NOT_JUDGED, USAGE
from verify.wishes import Declared, Question, declared

from . import config, metrics, telling
from .config import Settings
from .history import History
from .measures import measures

HISTORY, HEARTBEAT, TOLD = "history.sqlite", "heartbeat.json", "told.json"
# Nights that are still told when nobody could be told before.
MOST_OWED = 7
# The journal's priorities.
ERROR, NOTICE = 3, 5


class Stopped(BaseException):
    """Told to stop: the time limit, a shutdown, a person. No `except Exception` swallows it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message}.", remedy="./gpufleet nightly --help has the options.")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = _Parser(
        prog="gpufleet nightly", allow_abbrev=False, description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit status: 0 all healthy, 1 something failed, 3 something could not be judged,"
        " 4 usage or configuration.")
    top.add_argument("--config", type=Path, default=config.USUAL, metavar="FILE",
                     help=f"the configuration (usually {config.USUAL})")
    other = top.add_mutually_exclusive_group()
    other.add_argument("--check", action="store_true",
                       help="read configuration, secrets and inventory; run nothing")
    other.add_argument("--test-message", action="store_true",
                       help="tell everyone that this is a test")
    other.add_argument("--status", action="store_true",
                       help="how the last run went; 1 where it is too old or did not do its work")
    return top


def main(words: list[str]) -> int:
    """The verb; its exit status."""
    try:
        options = parser().parse_args(words)
    except ConfigurationError as error:
        return _refused(error)
    try:
        settings = config.read(options.config)
        if options.check:
            print(f"{options.config}: {len(_hosts(settings))} hosts, "
                  f"{len(telling.channels(settings))} channels.")
            return HEALTHY
    except ConfigurationError as error:
        status = _refused(error)
        known = config.salvaged(options.config)
        if known and not (options.check or options.status or options.test_message):
            _tell_all(known, telling.of_failure([str(error)], utc_now(), None))
        return status
    if options.status:
        return _status(settings)
    if options.test_message:
        return FAILED if _tell_all(settings, telling.of_test(utc_now())) else HEALTHY
    try:
        with _alone(settings.state_dir):
            return Night(settings).run()
    except ConfigurationError as error:
        return _refused(error)


class Night:
    """One run."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started, self.begin = utc_now(), time.monotonic()
        # What went wrong, by the step in which it did.
        self.troubles: dict[str, str] = {}
        self.status = NOT_JUDGED
        self.session: Session | None = None
        self.night: int | None = None
        self.nights: int | None = None
        self.changes: dict[str, Any] | None = None
        self.done: list[str] = []
        self.link = ""

    def run(self) -> int:
        """All of it; the exit status."""
        with _stoppable() as ending:
            try:
                self._work()
            except ConfigurationError as error:
                self.status = USAGE
                self._trouble("configuration", error)
            except Exception as error:
                self._trouble("look", error)
            except Stopped as stopped:
                self.troubles["stopped"] = f"It was stopped before it was done ({stopped})."
                say(self.troubles["stopped"], ERROR)
            ending()
            self._end()
        return self.status or (FAILED if self.troubles else HEALTHY)

    def _work(self) -> None:
        settings = self.settings
        directory = report.new_directory(settings.reports_dir)
        hosts = _hosts(settings)
        manner = Manner("full", settings.fanout, settings.deadline_s, settings.deep)
        with terminal.progress(Console(stderr=True), "Looking", len(hosts)) as heard:
            session = verify(hosts, manner, heard)
        session.where = shlex.join(
            word for given in settings.inventory for word in ("-i", given))
        self.session, self.status = session, judge.exit_status(session.document)
        say(summary.headline(session))
        past = None
        with self._step("history"), History(settings.state_dir / HISTORY) as history:
            self.night = history.record(session, kind="nightly")
            self.changes = history.changes(self.night)
            past = history.past()
            if settings.drain and settings.drain["hook"] != "none":
                with self._step("drain"):
                    drain = importlib.import_module("fleet.drain")
                    self.done = drain.after_night(
                        self.changes, history, {**settings.drain, "question": _question(settings)})
            history.prune(settings.keep_days)
            self.nights = len(history.nights())
        with self._step("report"):
            report.write(directory, session, self.changes, past)
            junit.write(directory / "junit.xml", session, "ansible")
            report.point_latest(directory)
            self.link = _link(settings, directory.name)
            _prune_reports(settings.reports_dir, settings.keep_reports_days)

    def _end(self) -> None:
        """Say how it went. Whatever happens here, the rest is still tried."""
        settings = self.settings
        if self.changes is not None and self.night is not None:
            with self._step("tell"):
                self._tell(self.night, self.changes)
        if self.troubles:
            headline = summary.headline(self.session) if self.session else None
            failed = _tell_all(settings, telling.of_failure(
                [f"{step}: {text}" for step, text in self.troubles.items()], utc_now(), headline))
            if failed:
                self.troubles.setdefault("tell", " ".join(failed))
        elif settings.heartbeat_url:
            with self._step("heartbeat"):
                telling.patiently(
                    lambda: telling.call(str(settings.heartbeat_url)), settings.tell_within_s)
        before = _read(settings.state_dir / HEARTBEAT)
        now = time.time()
        success = float(before.get("last_success", 0)) if self.troubles else now
        if settings.textfile_dir:
            with self._step("metrics"):
                metrics.write(settings.textfile_dir, self._figures(now, success))
        with self._step("heartbeat"):
            _write(settings.state_dir / HEARTBEAT, {
                "schema": 1, "started": self.started, "finished": utc_now(), "last_run": now,
                "last_success": success, "status": self.status, "troubles": self.troubles,
                "hosts": self.changes["hosts"] if self.changes else None, "report": self.link})

    def _figures(self, now: float, success: float) -> metrics.Run:
        seconds = time.monotonic() - self.begin
        if self.session is None:
            return metrics.Run(now, success, seconds, self.troubles, self.nights)
        return metrics.Run(
            now, success, seconds, self.troubles, self.nights, self.session.document["hosts"],
            {host.name: measures(host.snapshot, host.plan)
             for host in self.session.hosts if host.snapshot})

    def _tell(self, night: int, changes: dict[str, Any]) -> None:
        """Tell each channel what it has not heard yet: this night, and those it missed."""
        settings, place = self.settings, self.settings.state_dir / TOLD
        told, missed = _read(place), []
        with History(settings.state_dir / HISTORY) as history:
            earlier = [each.id for each in history.nights()
                       if each.kind == "nightly" and each.id < night][-MOST_OWED:]
            for channel in telling.channels(settings):
                heard = told.get(channel.key, night - 1)
                try:
                    for each in (*(owed for owed in earlier if owed > heard), night):
                        late = each != night
                        what = history.changes(each) if late else changes
                        done = [] if late else self.done
                        link = _link(settings, report.LATEST) if late else self.link
                        if telling.worth_telling(what, done):
                            telling.tell(channel, telling.of_night(what, link, done),
                                         settings.tell_within_s)
                            say(f"Told: {channel.name}, the night of {what['night']}.")
                        told[channel.key] = each
                        _write(place, told)
                except telling.NotToldError as error:
                    # Where it stopped, so that the next night begins there.
                    told.setdefault(channel.key, night - 1)
                    _write(place, told)
                    missed.append(str(error))
        if missed:
            raise telling.NotToldError("; ".join(missed))

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """A step whose failure is no reason to leave out the next one."""
        try:
            yield
        except Exception as error:
            self._trouble(name, error)

    def _trouble(self, step: str, error: Exception) -> None:
        expected = (OSError, sqlite3.Error, ConfigurationError, telling.NotToldError)
        if not isinstance(error, expected):
            traceback.print_exc()
        text = str(error) or type(error).__name__
        self.troubles[step] = text
        say(f"{step}: {text}", ERROR)


def say(text: str, priority: int = NOTICE) -> None:
    """Into the journal with its priority, or to the person."""
    mark = f"<{priority}>" if "JOURNAL_STREAM" in os.environ else ""
    print("\n".join(f"{mark}{line}" for line in text.splitlines()), file=sys.stderr, flush=True)


def _refused(error: ConfigurationError) -> int:
    say(str(error), ERROR)
    return USAGE


def _question(settings: Settings) -> Question:
    files = [settings.vault_password_file] if settings.vault_password_file else []
    return Question(settings.inventory, settings.limit, (), files)


def _hosts(settings: Settings) -> list[Declared]:
    return declared(_question(settings))


@contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """Hold the lock of this state; whoever holds it already is left alone."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        lock = (state_dir / "lock").open("a")
    except OSError as error:
        raise ConfigurationError(
            f"Nothing can be kept there: {error.strerror}.", f"state_dir: {state_dir}",
            "Have the directory made for the user of the nightly.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(
                "Another nightly is running.", lock.name, "Wait until it has ended.") from error
        yield


@contextmanager
def _stoppable() -> Iterator[Callable[[], None]]:
    """Have SIGTERM and Ctrl-C raise `Stopped`, until the function is called: then it is ending."""
    both = (signal.SIGTERM, signal.SIGINT)

    def ending() -> None:
        for each in both:
            signal.signal(each, signal.SIG_IGN)

    def stop(number: int, frame: object) -> None:
        ending()
        raise Stopped(signal.Signals(number).name)

    before = {each: signal.signal(each, stop) for each in both}
    try:
        yield ending
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _tell_all(settings: Settings, message: telling.Message) -> list[str]:
    """Tell a message that no night owes; why it could not be told, where it could not."""
    failed = []
    for channel in telling.channels(settings):
        try:
            telling.tell(channel, message, settings.tell_within_s)
            say(f"Told: {channel.name}.")
        except telling.NotToldError as error:
            say(str(error), ERROR)
            failed.append(str(error))
    return failed


def _status(settings: Settings) -> int:
    """Say how the last run went, and whether it is recent enough."""
    last = _read(settings.state_dir / HEARTBEAT)
    if not last:
        say(f"The nightly has never run: there is no {settings.state_dir / HEARTBEAT}.", ERROR)
        return FAILED
    age_h = (time.time() - last["last_run"]) / 3600
    print(f"Last run: {last['finished']}, {age_h:.1f} h ago, exit status {last['status']}.")
    for step, text in last["troubles"].items():
        print(f"  {step}: {text}")
    late = age_h > settings.expected_every_h
    if late:
        print(f"That is too long ago: one is expected every {settings.expected_every_h:g} h. See"
              " systemctl list-timers gpufleet-nightly.timer; journalctl -u gpufleet-nightly")
    return FAILED if late or last["troubles"] else HEALTHY


def _link(settings: Settings, name: str) -> str:
    if settings.reports_url:
        return f"{settings.reports_url.rstrip('/')}/{name}/report.html"
    return f"{socket.gethostname()}:{settings.reports_dir / name}/report.html"


def _prune_reports(directory: Path, days: int) -> None:
    """Remove old reports: those whose names we gave."""
    oldest = (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%dT%H-%M-%SZ")
    for path in directory.iterdir():
        ours = re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ(-\d+)?", path.name)
        if ours and path.name < oldest:
            shutil.rmtree(path)


def _read(path: Path) -> dict[str, Any]:
    """A state file; nothing where there is none. A damaged one is said, and begun anew."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except FileNotFoundError:
        return {}
    except ValueError:
        say(f"{path} is damaged, and is begun anew.", ERROR)
        return {}


def _write(path: Path, document: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
