"""`gpufleet nightly`: one whole nightly run, one at a time; or only a check of it.

Reads hosts; writes state, history, reports and metrics; notifies people; drains hosts.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

from gpufleet.documents.clock import utc_now
from gpufleet.documents.verdict import FAILED, HEALTHY, USAGE
from gpufleet.errors import ConfigurationError
from gpufleet.report.summary import count_checks
from gpufleet.watch import channels, config, notifications, state
from gpufleet.watch.config import Settings
from gpufleet.watch.delivery import notify_all
from gpufleet.watch.retention import TOLERANCE_S
from gpufleet.watch.run import NightlyRun, configured_hosts
from gpufleet.watch.state import ERROR, HEARTBEAT, log

from .parser import EXIT_STATUS, Parser
from .system_packages import SSH, require


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "nightly",
        ("nightly --config nightly.yml --check", "nightly --status"),
        exit_status=EXIT_STATUS.rstrip(".") + ", 5 the nightly run did not do all of its work.",
    )
    group = verb.add_argument_group("Configuration")
    group.add_argument(
        "--config",
        type=Path,
        default=config.DEFAULT_PATH,
        metavar="FILE",
        help="Read the configuration from this file",
    )
    group = verb.add_argument_group("Instead of a nightly run").add_mutually_exclusive_group()
    group.add_argument(
        "--check", action="store_true", help="Check configuration, secrets and inventory"
    )
    group.add_argument(
        "--test-message",
        action="store_true",
        help="Send a test message to every configured channel",
    )
    group.add_argument(
        "--status",
        action="store_true",
        help="Show the last run; exit status 1 where it is too old or incomplete",
    )
    return verb


def refused(error: ConfigurationError) -> int:
    """Log an error as everything of a nightly run; the exit status."""
    log(str(error), ERROR)
    return USAGE


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Do what the options select; the exit status."""
    require(SSH)
    try:
        settings = config.read(options.config)
        if options.check:
            print(f"{options.config}: {_checked(settings)}")
            return HEALTHY
    except ConfigurationError as error:
        status = refused(error)
        known = config.read_valid_settings(options.config)
        if known and not (options.check or options.status or options.test_message):
            notify_all(known, notifications.failure_message([str(error)], utc_now(), None))
        return status
    if options.status:
        return _status(settings)
    if options.test_message:
        if not channels.configured_channels(settings):
            raise ConfigurationError(
                "No channel is configured, so no message is sent.",
                str(options.config),
                "Add one: mail or webhooks.",
            )
        return FAILED if notify_all(settings, notifications.test_message_of(utc_now())) else HEALTHY
    try:
        with state.exclusive(settings.state_dir):
            return NightlyRun(settings).run()
    except ConfigurationError as error:
        # A second run beside one that began tonight is no news; a run that hangs since then is.
        if not (isinstance(error, state.LockedError) and _is_recent(settings)):
            notify_all(settings, notifications.failure_message([str(error)], utc_now(), None))
        return refused(error)


def _is_recent(settings: Settings) -> bool:
    last = float(state.read(settings.state_dir / HEARTBEAT)[0].get("last_run", 0.0))
    return 0 <= time.time() - last < settings.expected_every_h * 3600


def _checked(settings: Settings) -> str:
    """A summary of a nightly run by these settings; a `ConfigurationError` if it could not run."""
    _check_directories(settings)
    hosts, count = len(configured_hosts(settings)), len(channels.configured_channels(settings))
    worst_h = math.ceil(hosts / settings.fanout) * settings.deadline_s / 3600
    source = (
        f"The hosts' own results are read from {settings.pulled}."
        if settings.pulled
        else f"If every host hangs, a run takes {worst_h:.1f} h."
    )
    return f"{hosts} hosts, {count} channels. {source}"


def _check_directories(settings: Settings) -> None:
    """Refuse existing directories that are not writable, and a `pulled` that cannot be read."""
    if settings.pulled and not os.access(settings.pulled, os.R_OK | os.X_OK):
        raise ConfigurationError(
            "It does not exist, or cannot be read.",
            f"pulled: {settings.pulled}",
            "Collect the hosts' results there, readable by the user of the nightly run.",
        )
    for name in ("state_dir", "reports_dir", "published_dir", "textfile_dir"):
        directory = getattr(settings, name)
        if directory and directory.exists() and not os.access(directory, os.W_OK | os.X_OK):
            raise ConfigurationError(
                "It cannot be written to.",
                f"{name}: {directory}",
                "Make the user of the nightly run its owner.",
            )


def _status(settings: Settings) -> int:
    """Print how the last run went, and whether it is recent enough."""
    last, damage = state.read(settings.state_dir / HEARTBEAT)
    if damage:
        log(
            f"{settings.state_dir / HEARTBEAT}: the record of the last run is damaged ({damage})."
            " The next run sets it aside, and begins a new one.",
            ERROR,
        )
        return FAILED
    if not last:
        log(f"No nightly run is recorded: there is no {settings.state_dir / HEARTBEAT}.", ERROR)
        return FAILED
    age_h = (time.time() - last["last_run"]) / 3600
    if age_h * 3600 < -TOLERANCE_S:
        log(
            f"The last run is dated {last['finished']}, which is in the future: this machine's"
            " clock was wrong then, or is wrong now (timedatectl). The next run with a right clock"
            " ends this message.",
            ERROR,
        )
        return FAILED
    print(f"Last run: {last['finished']}, {age_h:.1f} h ago, exit status {last['status']}.")
    if silenced := last.get("silenced"):
        print(f"  silenced: {count_checks(silenced)} (gpufleet silence --list)")
    for step, text in last["troubles"].items():
        print(f"  {step}: {text}")
    late = age_h > settings.expected_every_h
    if late:
        print(
            f"That is too long ago: one is expected every {settings.expected_every_h:g} h. See"
            " systemctl list-timers gpufleet-nightly.timer; journalctl -u gpufleet-nightly"
        )
    return FAILED if late or last["troubles"] else HEALTHY
