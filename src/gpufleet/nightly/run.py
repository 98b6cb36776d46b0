"""One night: verify every host, keep what was found, say what changed.

Each step after the look is tried, whatever became of the others; what fails is a trouble: in the
journal, the exit status, the metrics, the heartbeat, and told where somebody can be. A run that is
stopped or killed judges nothing, and the next one finds everything whole: a night is recorded in
one transaction, files appear by rename, and what was not told yet is told then.
"""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from gpufleet.checks import judge
from gpufleet.errors import ConfigurationError
from gpufleet.inventory import HostSelector, InventoryHost, inventory_hosts
from gpufleet.model.verdict import NOT_JUDGED, USAGE
from gpufleet.report import directory as report
from gpufleet.report import junit, summary, terminal
from gpufleet.transport.slurm import as_job_steps
from gpufleet.verification import collected
from gpufleet.verification.session import ProbeOptions, Session, utc_now, verify

from . import metrics, notifications, state
from .baselines import slow_nights
from .config import Settings
from .history import History
from .measures import measures
from .state import ERROR, HEARTBEAT, HISTORY, OWED, TOLD, say

# The exit status of a run that did not do all of its work, whatever it found.
TROUBLE = 5
# Nights that are still told when nobody could be told before.
MOST_OWED = 7


class Stopped(BaseException):
    """Told to stop: the time limit, a shutdown, a person. No `except Exception` swallows it."""


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
        self.past: dict[str, Any] | None = None
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
        return self.exit_status

    @property
    def exit_status(self) -> int:
        """That of `verify`, or that something went wrong here."""
        return TROUBLE if self.troubles and self.status != USAGE else self.status

    def _work(self) -> None:
        settings = self.settings
        directory = report.create_directory(settings.reports_dir)
        session = look(settings, hosts_of(settings))
        session.inventory_args = shlex.join(
            word for given in settings.inventory for word in ("-i", given))
        self.session, self.status = session, judge.exit_status(session.document)
        say(summary.headline(session))
        with self._step("history"), History(settings.state_dir / HISTORY) as history:
            self.night = history.record(session, kind="nightly")
            self.changes = history.changes(self.night)
            self.past = history.past()
            if settings.drain and settings.drain["hook"] != "none":
                with self._step("drain"):
                    drain = importlib.import_module("gpufleet.nightly.drain")
                    self.done, failed = drain.after_night(
                        history, {**settings.drain, "selector": selector(settings)})
                    for sentence in self.done:
                        say(sentence)
                    if failed:
                        raise ConfigurationError(" ".join(failed))
            history.prune(settings.keep_days)
            self.nights = len(history.nights())
        with self._step("report"):
            report.write_report(directory, session, self.changes, self.past)
            junit.write(directory / "junit.xml", session, "ansible")
            report.update_latest(directory)
            self.link = _link(settings, directory.name)
            _prune_reports(settings.reports_dir, settings.keep_reports_days)

    def _end(self) -> None:
        """Say how it went. Whatever happens here, the rest is still tried."""
        settings = self.settings
        before = float(state.read(settings.state_dir / HEARTBEAT).get("last_success", 0))
        # Channels that do not answer may take longer than systemd waits.
        self._note(before)
        if self.changes is not None and self.night is not None:
            with self._step("tell"):
                self._tell(self.night, self.changes)
        if self.troubles:
            headline = summary.headline(self.session) if self.session else None
            with self._step("tell"):
                failed = tell_all(settings, notifications.of_failure(
                    [f"{step}: {text}" for step, text in self.troubles.items()], utc_now(),
                    headline))
                if failed:
                    self.troubles.setdefault("tell", " ".join(failed))
        elif settings.heartbeat_url:
            with self._step("heartbeat"):
                notifications.patiently(
                    lambda: notifications.call(str(settings.heartbeat_url)), settings.tell_within_s)
        self._note(before)

    def _note(self, before: float) -> None:
        """Metrics and heartbeat; `before`: when a run last did all of its work."""
        settings, now = self.settings, time.time()
        success = before if self.troubles else now
        if settings.textfile_dir:
            with self._step("metrics"):
                metrics.write(settings.textfile_dir, self._figures(now, success))
        with self._step("heartbeat"):
            state.write(settings.state_dir / HEARTBEAT, {
                "schema": 1, "started": self.started, "finished": utc_now(), "last_run": now,
                "last_success": success, "status": self.exit_status, "troubles": self.troubles,
                "hosts": self.changes["hosts"] if self.changes else None, "report": self.link})

    def _figures(self, now: float, success: float) -> metrics.Run:
        seconds = time.monotonic() - self.begin
        if self.session is None:
            return metrics.Run(now, success, seconds, self.troubles, self.nights)
        return metrics.Run(
            now, success, seconds, self.troubles, self.nights, self.session.document["hosts"],
            {host.name: measures(host.snapshot, host.plan)
             for host in self.session.hosts if host.snapshot},
            self._slow())

    def _slow(self) -> dict[tuple[str, str], int]:
        """How many nights in a row a card is slow, by host and card."""
        hosts = {host.name for host in self.session.hosts} if self.session else set()
        return slow_nights({
            (host, name): line for host, known in (self.past or {"hosts": {}})["hosts"].items()
            if host in hosts for name, line in known["measures"].items()})

    def _tell(self, night: int, changes: dict[str, Any]) -> None:
        """Tell each channel this night, and then those that it missed, the oldest first.

        What a channel refuses a second time is given up: it must not keep back what comes later.
        """
        settings, place = self.settings, self.settings.state_dir / TOLD
        told, missed = state.read(place), []
        owed: dict[str, list[int]] = told.setdefault(OWED, {})
        with History(settings.state_dir / HISTORY) as history:
            earlier = [each.id for each in history.nights()
                       if each.kind == "nightly" and each.id < night][-MOST_OWED:]
            for channel in notifications.channels(settings):
                heard, still = told.get(channel.key, night - 1), owed.get(channel.key, [])
                late = [each for each in earlier if each > heard or each in still]
                told[channel.key], owed[channel.key] = night, [*late, night]
                for each in (night, *late):
                    try:
                        what = changes if each == night else history.changes(each)
                        self._tell_one(channel, what, late=each != night)
                    except notifications.NotToldError as error:
                        missed.append(str(error))
                        if not error.reached and (each == night or error.later):
                            break
                    owed[channel.key].remove(each)
                    state.write(place, told)
                state.write(place, told)
        if missed:
            raise notifications.NotToldError("; ".join(missed))

    def _tell_one(
        self, channel: notifications.Channel, what: dict[str, Any], *, late: bool
    ) -> None:
        done = [] if late else self.done
        link = _link(self.settings, report.LATEST) if late else self.link
        if notifications.worth_telling(what, done):
            message = notifications.of_night(what, link, done)
            notifications.tell(channel, message, self.settings.tell_within_s)
            say(f"Told: {channel.name}, the night of {what['night']}.")

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """A step whose failure is no reason to leave out the next one."""
        try:
            yield
        except Exception as error:
            self._trouble(name, error)

    def _trouble(self, step: str, error: Exception) -> None:
        expected = (OSError, sqlite3.Error, ConfigurationError, notifications.NotToldError)
        if not isinstance(error, expected):
            traceback.print_exc()
        text = str(error) or type(error).__name__
        self.troubles[step] = text
        say(f"{step}: {text}", ERROR)


def selector(settings: Settings) -> HostSelector:
    """The selector of the configured hosts."""
    files = [settings.vault_password_file] if settings.vault_password_file else []
    return HostSelector(settings.inventory, settings.limit, (), files)


def hosts_of(settings: Settings) -> list[InventoryHost]:
    """The hosts and how to connect to them, or a `ConfigurationError`."""
    selected = selector(settings)
    hosts = inventory_hosts(selected)
    if settings.launcher != "slurm":
        return hosts
    return as_job_steps(hosts, selected, manner(settings).host_s)


def manner(settings: Settings) -> ProbeOptions:
    """How the hosts are looked at."""
    return ProbeOptions(
        "full", settings.fanout, settings.deadline_s, settings.deep, settings.topology
    )


def look(settings: Settings, hosts: list[InventoryHost]) -> Session:
    """What each of them is like now; with `pulled`, what it said of itself."""
    if settings.pulled:
        max_age = timedelta(hours=settings.pulled_age_h)
        return collected.judge_results(settings.pulled, hosts, max_age)
    with terminal.progress(Console(stderr=True), "Looking", len(hosts)) as heard:
        return verify(hosts, manner(settings), heard)


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


def tell_all(settings: Settings, message: notifications.Message) -> list[str]:
    """Tell a message that no night owes; why it could not be told, where it could not."""
    failed = []
    for channel in notifications.channels(settings):
        try:
            notifications.tell(channel, message, settings.tell_within_s)
            say(f"Told: {channel.name}.")
        except notifications.NotToldError as error:
            say(str(error), ERROR)
            failed.append(str(error))
    return failed


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
