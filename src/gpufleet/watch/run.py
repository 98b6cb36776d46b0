"""The nightly run: verify every host, record the results, report and notify what changed.

Every step after the probe runs, whether or not others fail. A failed step is in the journal, the
exit status, the metrics, the heartbeat, and a notification. A run that is stopped or killed leaves
its files consistent: results are recorded in one transaction, files are written by rename, and the
next run sends the notifications that are still owed.
"""

from __future__ import annotations

import getpass
import importlib
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from gpufleet.components.base.contents import last_read
from gpufleet.components.base.counters import Growth
from gpufleet.documents.clock import utc_now
from gpufleet.documents.nightly import Changes, Past
from gpufleet.documents.sections.cuda import ContentsRead
from gpufleet.documents.verdict import HEALTHY_VERDICTS, NOT_JUDGED, USAGE
from gpufleet.errors import ConfigurationError
from gpufleet.fleet import collected
from gpufleet.fleet.inventory import HostSelector, InventoryHost, inventory_hosts
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.probing import verify
from gpufleet.fleet.session import Session
from gpufleet.fleet.transport.slurm import as_job_steps
from gpufleet.judge import judge
from gpufleet.report import directory as report
from gpufleet.report import summary, terminal
from gpufleet.stopping import STOPPING, end_started

from . import (
    channels,
    database,
    delivery,
    host_states,
    metrics,
    notifications,
    outliers,
    silences,
    state,
)
from .config import Settings
from .fabric_history import RecordedBandwidth, RecordedTest, latest_tests
from .history import ALERTS_PER_MONTH, COUNTERS, NIGHTLY, History, HistoryError
from .measures import measured
from .message_forms import as_text
from .port_errors import growths
from .retention import TOLERANCE_S, RecordedTime, future_note, read_time
from .state import DELIVERED, ERROR, HEARTBEAT, HISTORY, WARNING, log

# The exit status of a run with a failed step, whatever its verdicts.
TROUBLE = 5
# The nights of a weekly summary, and the days on which it may be sent.
WEEK = 7
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


class Stopped(BaseException):
    """Stopped by a time limit, a shutdown or a person. `except Exception` does not catch it."""


class NightlyRun:
    """One nightly run."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started, self.start_s = utc_now(), time.monotonic()
        # Error messages by step: keys of heartbeat.json and labels of gpufleet_run_trouble.
        self.troubles: dict[str, str] = {}
        self.status = NOT_JUDGED
        self.session: Session | None = None
        # By host, what was measured.
        self.measured: Mapping[str, Mapping[str, float | str]] = {}
        self.night: int | None = None
        self.nights: int | None = None
        self.recorded: RecordedTime | None = None
        self.changes: Changes | None = None
        self.past: Past | None = None
        # By host, the oldest whole reading of a component's contents.
        self.contents_read: dict[str, int] = {}
        # By host and port GUID, the growth of its error counters since the run before.
        self.port_growth: dict[tuple[str, str], list[Growth]] = {}
        # The states of hosts, recorded or not.
        self.host_states: dict[str, str] = {}
        # The newest fabric test of each scope.
        self.fabric_tests: dict[RecordedTest, list[RecordedBandwidth]] = {}
        self.done: list[str] = []
        # The hosts that the nightly keeps out of service.
        self.drained: list[str] = []
        # A sentence for each host that is out of service, or not in production.
        self.aside: list[str] = []
        self.link = ""

    def run(self) -> int:
        """Run all steps; return the exit status."""
        with _stoppable() as ending:
            try:
                self._set_damaged_files_aside()
                self._work()
            except ConfigurationError as error:
                self.status = USAGE
                self._trouble("configuration", error)
            except Exception as error:
                self._trouble("look", error)
            except Stopped as stopped:
                self.troubles["stopped"] = f"The run was stopped before its end ({stopped})."
                log(self.troubles["stopped"], ERROR)
            ending()
            self._end()
        return self.exit_status

    @property
    def exit_status(self) -> int:
        """The exit status of `verify`, or `TROUBLE` if a step failed."""
        return TROUBLE if self.troubles and self.status != USAGE else self.status

    def _set_damaged_files_aside(self) -> None:
        """Begin new state files where they are damaged: this night is not lost, and says it."""
        done = []
        for name in (HEARTBEAT, DELIVERED, HISTORY):
            path = self.settings.state_dir / name
            if why := database.damage(path) if name == HISTORY else state.read(path)[1]:
                done.append(state.set_aside(path, why))
                log(done[-1], ERROR)
        if done:
            self.troubles["state"] = " ".join(done)

    def _work(self) -> None:
        settings = self.settings
        directory = report.create_directory(settings.reports_dir)
        session = probe(settings, configured_hosts(settings))
        session.program = settings.remedy_program or session.program
        session.reached_from = socket.gethostname(), getpass.getuser()
        session.inventory_args = shlex.join(
            arg
            for inventory in settings.remedy_inventory or settings.inventory
            for arg in ("-i", inventory)
        )
        self.session, self.status = session, judge.exit_status(session.document)
        # A defect that is met while a host is measured becomes a part of its result.
        measures = measured(session)
        session, self.measured = measures.session, measures.values
        self.session = session
        self.status = judge.exit_status(session.document)
        log(summary.headline(session))
        with self._step("history"), History(settings.state_dir / HISTORY) as history:
            self.night = history.record(session, kind="nightly", values=measures.values)
            history.flag(outliers.FLEET, ALERTS_PER_MONTH, repr(settings.alerts_per_month))
            self.changes = history.changes(self.night)
            self.session = session = silences.applied(session, silences.read(history))
            self.status = silences.exit_status(session.document)
            if silenced := silences.silenced_checks(session.document):
                log(f"Silenced: {summary.count_checks(len(silenced))}.")
            self.past = history.past()
            self.port_growth = port_growth(history)
            self.fabric_tests = latest_tests(history)
            known = host_states.recorded(history)
            everyone = host_states.fleet(history, [host.name for host in session.hosts])
            self.host_states = {row["host"]: row["state"] for row in everyone}
            self.aside = host_states.sentences(known, [host.name for host in session.hosts])
            hosts = {host.name for host in session.hosts}
            self.contents_read = {
                host: min(map(last_read, states))
                for host, states in history.contents_read().items()
                if states and host in hosts
            }
            if (newest := history.latest()) and newest.id != self.night:
                with self._step("clock"):
                    raise ConfigurationError(
                        f"This run is dated {session.started}, before the run at"
                        f" {newest.started}: its changes are unknown, and no host is drained or"
                        " resumed.",
                        "",
                        "Correct the clock of this machine (timedatectl).",
                    )
            elif settings.drain and settings.drain["hook"] != "none":
                with self._step("drain"):
                    drain = importlib.import_module("gpufleet.watch.drain")
                    wanted = {**settings.drain, "selector": selector(settings)}
                    found = drain.after_night(history, wanted, self._act)
                    self.drained = found.drained
                    self.aside += found.known
                    if found.failed:
                        raise ConfigurationError(" ".join(found.failed))
            self.recorded = history.recorded_time()
            if note := self.recorded.jump():
                log(note, WARNING)
            if future := history.future_nights():
                log(future_note([run.started for run in future]), WARNING)
            history.prune(settings.keep_days)
            self.nights = len(history.nights())
        with self._step("message"):
            self._log_message()
        session.states = [*self.done, *self.aside]
        with self._step("report"):
            written = report.write_report(directory, session, self.changes, self.past)
            page, self.session = written.value, written.session
            self.session = report.write_junit(directory / "junit.xml", self.session)
            report.update_latest(directory)
            self.link = _link(settings, directory.name)
            if settings.published_dir:
                report.publish(page, settings.published_dir)
            # Without a history it is not known how much time has passed.
            for place in filter(None, (settings.reports_dir, settings.published_dir)):
                if self.recorded:
                    _prune_reports(place, settings.keep_reports_days, self.recorded)

    def _end(self) -> None:
        """Write metrics and heartbeat, and notify people; every step is tried."""
        settings = self.settings
        before = float(state.read(settings.state_dir / HEARTBEAT)[0].get("last_success", 0))
        if before > time.time() + TOLERANCE_S:
            # A run with a wrong clock would keep the alert of missing runs silent for years.
            before = 0.0
        # Before the notifications: channels may take longer to time out than systemd waits.
        self._note(before)
        if self.changes is not None and self.night is not None:
            with self._step("tell"):
                self._notify(self.night, self.changes)
        if self.troubles:
            headline = self._outcome() if self.session else None
            with self._step("tell"):
                failed = delivery.notify_all(
                    settings,
                    notifications.failure_message(
                        [f"{step}: {text}" for step, text in self.troubles.items()],
                        utc_now(),
                        headline,
                    ),
                )
                if failed:
                    self.troubles.setdefault("tell", " ".join(failed))
        elif settings.heartbeat_url:
            with self._step("heartbeat"):
                channels.retrying(
                    lambda: channels.call(str(settings.heartbeat_url)), settings.tell_within_s
                )
        self._note(before)

    def _outcome(self) -> str:
        """How many hosts are healthy, and which are not where no message of changes names them."""
        assert self.session
        hosts = self.session.hosts
        bad = [host.name for host in hosts if host.result["verdict"] not in HEALTHY_VERDICTS]
        named = f" Not healthy: {terminal.named(bad)}." if bad and self.changes is None else ""
        return f"{summary.headline(self.session)}{named}"

    def _note(self, before: float) -> None:
        """Write metrics and heartbeat; `before`: time of the last run without a failed step."""
        settings, now = self.settings, time.time()
        success = before if self.troubles else now
        if settings.textfile_dir:
            with self._step("metrics"):
                metrics.write(settings.textfile_dir, self._figures(now, success))
        with self._step("heartbeat"):
            state.write(
                settings.state_dir / HEARTBEAT,
                {
                    "schema": 1,
                    "started": self.started,
                    "finished": utc_now(),
                    "last_run": now,
                    "last_success": success,
                    "status": self.exit_status,
                    "troubles": self.troubles,
                    "hosts": self.changes["hosts"] if self.changes else None,
                    "report": self.link,
                    "silenced": len(silences.silenced_checks(self.session.document))
                    if self.session
                    else 0,
                },
            )

    def _figures(self, now: float, success: float) -> metrics.Run:
        seconds = time.monotonic() - self.start_s
        if self.session is None:
            return metrics.Run(now, success, seconds, self.troubles, self.nights)
        return metrics.Run(
            now,
            success,
            seconds,
            self.troubles,
            self.nights,
            self.session.document["hosts"],
            self.measured,
            self._slow(),
            self.contents_read,
            self.port_growth,
            self.fabric_tests,
            self._silenced(),
            self.host_states,
        )

    def _slow(self) -> dict[tuple[str, str, str], int]:
        """By host, card and the check that says so, how many nights in a row the card is slow."""
        standing = self.changes["standing"] if self.changes else []
        return {
            (row["host"], row["slow_card"]["gpu"], row["check"]): row["slow_card"]["nights"]
            for row in standing
            if "slow_card" in row
        }

    def _silenced(self) -> dict[tuple[str, str], int]:
        """By host and check, when the silence of all that is found of it ends."""
        standing = self.changes["standing"] if self.changes else []
        found = silences.silenced_checks(self.session.document) if self.session else {}
        found |= {
            (row["host"], row["check"]): row["silenced"] for row in standing if "silenced" in row
        }
        sounding = {(row["host"], row["check"]) for row in standing if "silenced" not in row}
        return {
            key: silences.end_of(silenced) for key, silenced in found.items() if key not in sounding
        }

    def _notify(self, night: int, changes: Changes) -> None:
        """Notify each channel of this run, then of the runs that it missed."""
        runs = delivery.Runs(night, changes, self.done)
        delivery.notify(self.settings, runs, self._notify_one)

    def _act(self, sentence: str) -> None:
        """Keep what was done until it is delivered: a mail server may be down, or a run killed."""
        self.done.append(sentence)
        log(sentence)
        delivery.keep(self.settings, str(self.night), self.done)

    def _notify_one(
        self, channel: channels.Channel, document: Changes, done: list[str], late: bool
    ) -> None:
        link = _link(self.settings, report.LATEST) if late else self.link
        around = replace(self._late(), done=done) if late else self._around()
        if notifications.has_content(document, around):
            message = notifications.nightly_message(document, link, around)
            channels.deliver(channel, message, self.settings.tell_within_s)
            log(f"Notified: {channel.name}, of the run at {document['night']}.")

    def _log_message(self) -> None:
        """The journal has what people are told."""
        if self.changes:
            message = notifications.nightly_message(self.changes, "", self._around())
            for line in as_text(message).splitlines():
                log(line)

    def _late(self) -> notifications.Surroundings:
        """The surroundings of a notification about an earlier run."""
        return notifications.Surroundings(as_called=self.session.as_called if self.session else str)

    def _around(self) -> notifications.Surroundings:
        """The surroundings of this run's notification."""
        return replace(
            self._late(),
            done=self.done,
            drained=self.drained,
            aside=self.aside,
            week=self._week(),
        )

    def _week(self) -> list[int]:
        """How many hosts were healthy in each of the last nights, on the day of the summary."""
        nights = self.past["nights"][-WEEK:] if self.past else []
        days = [read_time(night).astimezone().date() for night in nights]
        if not self.past or not days or days[-1] in days[:-1]:
            return []
        if DAYS[days[-1].weekday()] != self.settings.weekly:
            return []
        letters = [host["verdicts"][-len(days) :] for host in self.past["hosts"].values()]
        return [sum(line[night] == "P" for line in letters) for night in range(len(days))]

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Run a step; a failure is recorded and does not stop the next step."""
        try:
            yield
        except Exception as error:
            self._trouble(name, error)

    def _trouble(self, step: str, error: Exception) -> None:
        expected = (OSError, sqlite3.Error, ConfigurationError, channels.DeliveryError)
        if not isinstance(error, expected):
            traceback.print_exc()
        text = str(error) or type(error).__name__
        self.troubles[step] = text
        log(f"{step}: {text}", ERROR)


def port_growth(history: History) -> dict[tuple[str, str], list[Growth]]:
    """By host and port GUID, the growth of its error counters between the last two runs."""
    nights = history.nights(2, NIGHTLY)
    seconds = [read_time(night.started).timestamp() for night in nights]
    found = growths(history.numbers(nights, COUNTERS), seconds, last=1)
    return {port: grown for port, [grown] in found.items() if grown}


def selector(settings: Settings) -> HostSelector:
    """The selector of the configured hosts."""
    files = [settings.vault_password_file] if settings.vault_password_file else []
    return HostSelector(settings.inventory, settings.limit, (), files)


def configured_hosts(settings: Settings) -> list[InventoryHost]:
    """The hosts and how to connect to them, or a `ConfigurationError`."""
    selected = selector(settings)
    hosts = inventory_hosts(selected)
    if settings.launcher != "slurm":
        return hosts
    return as_job_steps(hosts, selected, probe_options(settings).deadline_of)


def probe_options(settings: Settings) -> ProbeOptions:
    """The options with which the hosts are probed."""
    return ProbeOptions(
        "full", settings.fanout, settings.deadline_s, settings.deep, settings.topology
    )


def scrub(settings: Settings, hosts: list[InventoryHost]) -> dict[str, dict[str, Any]]:
    """By host, what its probe is to read of the contents: a share, from where it was left."""
    if not settings.scrub_days:
        return {}
    states: dict[str, list[ContentsRead]] = {}
    try:
        with History(settings.state_dir / HISTORY) as history:
            states = history.contents_read()
    except HistoryError as error:
        # Recording this run meets the same error, and is a failed step.
        log(f"Contents are read from their beginning: {error}", ERROR)
    return {
        host.name: {
            "days": settings.scrub_days,
            "seconds": settings.scrub_seconds,
            "components": states.get(host.name, []),
        }
        for host in hosts
    }


def probe(settings: Settings, hosts: list[InventoryHost]) -> Session:
    """Probe the hosts and judge them; with `pulled`, judge the snapshots that they delivered."""
    if settings.pulled:
        max_age = timedelta(hours=settings.pulled_age_h)
        return collected.judge_results(settings.pulled, hosts, max_age)
    with terminal.progress(Console(stderr=True), "Probing", len(hosts)) as advance:
        return verify(
            hosts, replace(probe_options(settings), scrub=scrub(settings, hosts)), advance
        )


@contextmanager
def _stoppable() -> Iterator[Callable[[], None]]:
    """Raise `Stopped` on SIGTERM, SIGHUP and Ctrl-C until the yielded function is called."""
    signals = [each for each in STOPPING if signal.getsignal(each) != signal.SIG_IGN]

    def ending() -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)

    def stop(number: int, frame: object) -> None:
        ending()
        end_started()
        raise Stopped(signal.Signals(number).name)

    before = {each: signal.signal(each, stop) for each in signals}
    try:
        yield ending
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _link(settings: Settings, name: str) -> str:
    if settings.reports_url:
        return f"{settings.reports_url.rstrip('/')}/{name}/report.html"
    return f"{socket.gethostname()}:{settings.reports_dir / name}/report.html"


def _prune_reports(directory: Path, days: int, recorded: RecordedTime) -> None:
    """Remove old reports: only directories with the names that we give."""
    for path in directory.iterdir():
        ours = re.fullmatch(r"(\d{4}-\d\d-\d\dT)(\d\d)-(\d\d)-(\d\dZ)(-\d+)?", path.name)
        if ours and recorded.age(read_time("{}{}:{}:{}".format(*ours.groups()))) > timedelta(days):
            shutil.rmtree(path)
