"""The rollout runner: drain, provision, verify and resume batch after batch; write the report.

Changes hosts (through `provision`) and their scheduler's states; saves its progress at each step.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gpufleet.campaign.provision.playbook import playbook_command, run
from gpufleet.campaign.provision.provision import Converged, converge
from gpufleet.documents.clock import utc_now
from gpufleet.documents.verdict import FAILED, HEALTHY, Verdict
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.schedulers import Scheduler, SchedulerError
from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge import judge
from gpufleet.paths import PROGRAM
from gpufleet.report import directory as report
from gpufleet.report import terminal

from .batches import CANARY, Batch
from .progress import Progress, Store

OWNER = "rollout"
# How often a batch is drained where somebody returns its hosts to service meanwhile.
MOST_DRAINS = 3


def show(console: Console, progress: Progress) -> None:
    """Print the batches in their order; a check mark for each finished one."""
    width = len(str(len(progress.batches)))
    for number, batch in enumerate(progress.batches, 1):
        name = f"  ({batch.name})" if batch.name else ""
        done = "✓ " if number <= progress.done else "  "
        console.print(f"{done}{number:{width}}. {' '.join(batch.hosts)}{name}", markup=False)


@dataclass
class Rollout:
    """A running rollout."""

    progress: Progress
    store: Store
    scheduler: Scheduler
    console: Console
    reports: Path
    judged: dict[str, HostRun] = field(default_factory=dict)

    def log(self, text: str, style: str = "") -> None:
        """Print a line for the person who watches."""
        self.console.print(Text(f"  {text}", style=style))

    def step(self, name: str) -> None:
        """Save that this step of the current batch has started."""
        self.progress.step, self.progress.status, self.progress.why = name, "running", ""
        self.store.save(self.progress)

    def check(self, hosts: list[str]) -> None:
        """Raise `ConfigurationError` for what would stop it later, before anything changes."""
        left = [
            name for batch in self.progress.batches[self.progress.done :] for name in batch.hosts
        ]
        gone = [name for name in left if name not in hosts]
        if gone:
            raise ConfigurationError(
                f"No longer in the inventory since the rollout started: {', '.join(gone)}.",
                "",
                f"Put them back, or: {PROGRAM} rollout --abandon",
            )
        self.scheduler.clear_marks(self.scheduler.states(left))

    def run(self) -> int:
        """Run the batches that are left; return the exit status."""
        total = len(self.progress.batches)
        if self.progress.done:
            self.log(f"Continuing the {self.progress.summary}", "dim")
        show(self.console, self.progress)
        while self.progress.done < total:
            batch = self.progress.batches[self.progress.done]
            name = f" ({batch.name})" if batch.name else ""
            self.console.print(
                Text(
                    f"\nBatch {self.progress.done + 1} of {total}{name}: {' '.join(batch.hosts)}",
                    style="bold",
                )
            )
            try:
                status, why = self.run_batch(batch)
            except SchedulerError as error:
                status, why = FAILED, str(error)
            if status:
                return self.stop(batch, status, why)
            self.progress.done += 1
            self.step("")
            pauses = batch.name == CANARY and self.progress.settings.get("pause")
            if pauses and self.progress.done < total:
                return self.pause()
        self.progress.status = "done"
        self.store.save(self.progress)
        left = self.progress.left
        hosts = sum(len(batch.hosts) for batch in self.progress.batches) - len(left)
        self.console.print(Text(f"\n✓ {hosts} hosts are rolled out and healthy.", style="green"))
        for host, why in left.items():
            self.log(
                f"{host} is not ({why}); it was out of service before, not by this rollout",
                "yellow",
            )
        self.write()
        return HEALTHY

    def pause(self) -> int:
        """Pause after the canary until a person resumes the rollout."""
        self.progress.status, self.progress.why = "stopped", "paused after the canary (--pause)"
        self.store.save(self.progress)
        self.console.print(Text("\n✓ The canary is healthy. The rollout is paused.", style="green"))
        self.log("To continue: ./gpufleet rollout --resume    (or --abandon)")
        self.write()
        return HEALTHY

    def run_batch(self, batch: Batch) -> tuple[int, str]:
        """Drain, provision, verify and resume one batch; (0, "") or an exit status and the reason.

        `owned` hosts are drained by this rollout, `foreign` ones were out of service before.
        """
        self.step("drain")
        owned, foreign = self.take_out(batch)
        self.step("provision")
        # Unhealthy foreign hosts do not stop the rollout; but an unhealthy canary proves nothing.
        required = [*owned, *foreign] if batch.name == CANARY else owned
        if required:
            converged = self.provision(required)
            bad = unhealthy(converged.session)
            if bad or converged.status:
                self.record_reasons(bad)
                return (
                    judge.exit_status(converged.session.document) or FAILED,
                    ", ".join(bad) + " not healthy" if bad else "not every host was provisioned",
                )
            self.log(f"✓ healthy: {' '.join(required)}", "green")
        optional = [host for host in foreign if host not in required]
        for host in self.in_service(optional):
            self.leave(host, "somebody returned it to service meanwhile")
            optional.remove(host)
        if optional:
            converged = self.provision(optional)
            bad = unhealthy(converged.session)
            if converged.status and not bad:
                bad = dict.fromkeys(optional, "not every host was provisioned")
            for host, why in bad.items():
                self.leave(host, why)
        self.step("resume")
        self.resume(owned)
        return HEALTHY, ""

    def leave(self, host: str, why: str) -> None:
        """Go on without a host that others took out of service."""
        self.progress.left[host] = why
        self.log(
            f"{host} is not rolled out ({why}): left to whoever took it out of service", "yellow"
        )

    def take_out(self, batch: Batch) -> tuple[list[str], list[str]]:
        """Drain a batch and wait for its jobs; the hosts that are owned, and those that are not.

        A host that somebody returns to service meanwhile gets new jobs: it is drained again.
        """
        returned: list[str] = []
        for _ in range(MOST_DRAINS):
            if returned:
                self.log(
                    f"{' '.join(returned)}: back in service meanwhile, drained again", "yellow"
                )
            owned, foreign = self.drain(batch)
            self.scheduler.wait_until_idle(
                [*owned, *foreign], self.progress.settings["drain_wait"], self.log
            )
            returned = self.in_service([*owned, *foreign])
            if not returned:
                return owned, foreign
        raise SchedulerError(
            f"{' '.join(returned)}: returned to service each time that gpufleet drains.",
            "",
            "Find who does it, such as a health check of the scheduler's.",
        )

    def in_service(self, hosts: list[str]) -> list[str]:
        """The hosts of this list to which the scheduler gives new jobs."""
        if not self.scheduler.commands:
            return []
        states = self.scheduler.states(hosts)
        return [host for host, state in states.items() if not state.unschedulable]

    def drain(self, batch: Batch) -> tuple[list[str], list[str]]:
        """Drain a batch; the hosts that are owned, and those that are not."""
        owned, foreign = [], []
        self.progress.left = {
            host: why for host, why in self.progress.left.items() if host not in batch.hosts
        }
        for host, state in self.scheduler.states(batch.hosts).items():
            if state.unschedulable and not state.ours():
                self.log(
                    f"{host} is already out of service, not by gpufleet"
                    f" ({state.reason or state.state}): it is provisioned, but not resumed",
                    "yellow",
                )
                # A dead node's last jobs never end: do not wait for them, and skip the node.
                if not (state.unresponsive and state.busy):
                    foreign.append(host)
                elif batch.name == CANARY:
                    raise SchedulerError(
                        f"{host} is the canary, and jobs may still run there: {state.state}.",
                        "",
                        f"Repair it; or: {PROGRAM} rollout --abandon, and name another (--canary).",
                    )
                else:
                    self.progress.left[host] = f"{state.state}: jobs may still run there"
                continue
            owned.append(host)
            # Replace another owner's mark, too: a nightly or a health check would resume the host.
            if not state.ours(OWNER):
                self.scheduler.drain(host, f"{self.mark} under way since {self.progress.started}")
        if self.scheduler.commands and owned:
            self.log(f"drained: {' '.join(owned)}")
        return owned, foreign

    def resume(self, hosts: list[str]) -> None:
        """Resume the hosts that are still ours; `SchedulerError` where one stays unavailable."""
        resumed = []
        for host, state in self.scheduler.states(hosts).items():
            if state.ours():
                self.scheduler.resume(host)
                resumed.append(host)
            elif state.unschedulable:
                self.log(
                    f"{host} was taken over meanwhile ({state.reason or state.state}): not resumed",
                    "yellow",
                )
        missing = self.scheduler.not_returned(resumed)
        for host, state in missing.items():
            # Drain it before the scheduler does, so that the mark shows it was gpufleet.
            if not state.unschedulable:
                self.scheduler.drain(host, f"{self.mark} does not come back: {state.state}")
        if missing:
            listed = "; ".join(
                f"{host}: {state.state} {state.reason}".strip() for host, state in missing.items()
            )
            raise SchedulerError(
                f"Healthy, but not back in service ({listed}).",
                "",
                "Check the log of slurmd or the kubelet there.",
            )
        if resumed:
            self.log(f"resumed: {' '.join(resumed)}")

    @property
    def mark(self) -> str:
        """The beginning of each of our reasons."""
        return f"gpufleet {OWNER}:"

    def provision(self, hosts: list[str]) -> Converged:
        """Provision and verify these hosts."""
        settings = self.progress.settings
        options = ProbeOptions("full", settings["fanout"], settings["deadline"], settings["deep"])
        converged = converge(
            replace(self.progress.selector, limit=",".join(hosts)),
            options,
            force=settings["force"],
            args=settings["words"],
            notify=self.log,
        )
        self.judged.update({host.name: host for host in converged.session.hosts})
        return converged

    def record_reasons(self, bad: dict[str, str]) -> None:
        """Set the scheduler's reason of each unhealthy host that is ours; {host: reason}."""
        for host, state in self.scheduler.states(bad).items():
            if state.ours():
                self.scheduler.drain(host, f"{self.mark} {bad[host]}")

    def stop(self, batch: Batch, status: int, why: str) -> int:
        """Stop the rollout: show what is wrong, what was not touched, and how to continue."""
        wrong = [
            host
            for host in self.judged.values()
            if host.name in batch.hosts
            and host.name not in self.progress.left
            and host.result["verdict"] != Verdict.PASS
        ]
        if wrong:
            terminal.show(self.console, self.session(wrong), None)
        if wrong and self.progress.settings["rollback"]:
            why += "; " + self.roll_back([host.name for host in wrong])
        self.progress.status, self.progress.why = "stopped", why
        self.store.save(self.progress)
        untouched = [
            name
            for later in self.progress.batches[self.progress.done + 1 :]
            for name in later.hosts
        ]
        self.console.print(Text(f"\n✗ Stopped: {why}", style="bold red"))
        try:
            drained = [
                host
                for host, state in self.scheduler.states(batch.hosts).items()
                if state.unschedulable
            ]
            if drained:
                self.log(f"{' '.join(drained)}: left drained")
        except SchedulerError as error:
            self.log(f"Cannot determine which of them are drained: {error}", "yellow")
        self.log(
            f"{len(untouched)} hosts were not touched{': ' if untouched else ''}"
            f"{' '.join(untouched[:20])}{' ...' if untouched[20:] else ''}"
        )
        self.log("Fix the cause, then: ./gpufleet rollout --resume    (or --abandon)")
        self.write()
        return status

    def roll_back(self, hosts: list[str]) -> str:
        """Roll back the driver from the packages that the hosts keep; return the outcome."""
        status = run(playbook_command("rollback.yml", self.progress.selector, ",".join(hosts)))
        return (
            "the former driver is installed again; declare it"
            if not status
            else f"the former driver could not be restored (status {status}; see above)"
        )

    def session(self, hosts: list[HostRun]) -> Session:
        """A session of these hosts' results, with the options that select them."""
        args = [arg for name in self.progress.selector.inventories for arg in ("-i", name)]
        return Session(hosts, finished=utc_now(), inventory_args=shlex.join(args))

    def write(self) -> None:
        """Write the report on all hosts that this run has judged."""
        if self.judged:
            directory = report.create_directory(self.reports)
            page = report.write_report(directory, self.session(list(self.judged.values()))).value
            shown = report.update_latest(directory) / page.name
            self.console.print(f"Report: {os.path.relpath(shown)}", markup=False)


def unhealthy(session: Session) -> dict[str, str]:
    """The verdict and the checks of each host that is not healthy; only PASS is healthy."""
    found = {}
    for host in session.hosts:
        if host.result["verdict"] != Verdict.PASS:
            checks = [
                check["id"]
                for check in host.result["checks"]
                if check["verdict"] == host.result["verdict"]
            ]
            found[host.name] = f"{host.result['verdict']}: {', '.join(checks[:3])}"
    return found
