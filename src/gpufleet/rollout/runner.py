"""The course of a rollout: batch after batch from drain to resume, and what is said of it."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gpufleet.checks import judge
from gpufleet.cli.provision import Converged, converge, run
from gpufleet.errors import ConfigurationError
from gpufleet.model.verdict import FAILED, HEALTHY, Verdict
from gpufleet.report import directory as report
from gpufleet.report import terminal
from gpufleet.verification.session import HostRun, ProbeOptions, Session, utc_now

from .batches import CANARY, Batch
from .progress import Progress, Store
from .schedulers import Hook, HookError

ROOM = "rollout"


def show(console: Console, progress: Progress) -> None:
    """The batches, in their order."""
    width = len(str(len(progress.batches)))
    for number, batch in enumerate(progress.batches, 1):
        name = f"  ({batch.name})" if batch.name else ""
        done = "✓ " if number <= progress.done else "  "
        console.print(f"{done}{number:{width}}. {' '.join(batch.hosts)}{name}", markup=False)


@dataclass
class Rollout:
    """One rollout at work."""

    progress: Progress
    store: Store
    hook: Hook
    console: Console
    reports: Path
    judged: dict[str, HostRun] = field(default_factory=dict)

    def say(self, text: str, style: str = "") -> None:
        """Tell the person."""
        self.console.print(Text(f"  {text}", style=style))

    def step(self, name: str) -> None:
        """Note how far it has come."""
        self.progress.step, self.progress.status, self.progress.why = name, "running", ""
        self.store.save(self.progress)

    def check(self, hosts: list[str]) -> None:
        """What would stop it later, found before anything is changed: `ConfigurationError`."""
        left = [name for batch in self.progress.batches[self.progress.done :]
                for name in batch.hosts]
        gone = [name for name in left if name not in hosts]
        if gone:
            raise ConfigurationError(
                f"{', '.join(gone)} left the inventory since the rollout was begun.", "",
                "Put them back, or: ./gpufleet rollout --abandon")
        self.hook.forget(self.hook.look(left))

    def run(self) -> int:
        """Batch after batch; the exit status."""
        total = len(self.progress.batches)
        if self.progress.done:
            self.say(f"Continuing the {self.progress.told}", "dim")
        show(self.console, self.progress)
        while self.progress.done < total:
            batch = self.progress.batches[self.progress.done]
            name = f" ({batch.name})" if batch.name else ""
            self.console.print(Text(
                f"\nBatch {self.progress.done + 1} of {total}{name}: {' '.join(batch.hosts)}",
                style="bold"))
            try:
                status, why = self.take(batch)
            except HookError as error:
                status, why = FAILED, str(error)
            if status:
                return self.stop(batch, status, why)
            self.progress.done += 1
            self.step("")
            waits = batch.name == CANARY and self.progress.settings.get("pause")
            if waits and self.progress.done < total:
                return self.pause()
        self.progress.status = "done"
        self.store.save(self.progress)
        left = self.progress.left
        hosts = sum(len(batch.hosts) for batch in self.progress.batches) - len(left)
        self.console.print(Text(f"\n✓ {hosts} hosts are rolled out and healthy.", style="green"))
        for host, why in left.items():
            self.say(f"{host} is not ({why}); somebody else had taken it out of service", "yellow")
        self.write()
        return HEALTHY

    def pause(self) -> int:
        """Leave the canary to its work, until a person goes on."""
        self.progress.status, self.progress.why = "stopped", "paused after the canary, as asked"
        self.store.save(self.progress)
        self.console.print(Text("\n✓ The canary is healthy, and the rollout waits.", style="green"))
        self.say("To go on: ./gpufleet rollout --resume    (or --abandon)")
        self.write()
        return HEALTHY

    def take(self, batch: Batch) -> tuple[int, str]:
        """One batch from drain to resume; (0, "") or a status and the reason."""
        self.step("drain")
        mine, theirs = [], []
        self.progress.left = {host: why for host, why in self.progress.left.items()
                              if host not in batch.hosts}
        for host, place in self.hook.look(batch.hosts).items():
            if place.taken and not place.ours():
                self.say(f"{host} was taken out of service by somebody else"
                         f" ({place.reason or place.state}): provisioned, but not given back",
                         "yellow")
                # A dead node's last jobs never end: it is not waited for, nor touched.
                if place.away and place.busy:
                    self.progress.left[host] = f"{place.state}: jobs may still run there"
                else:
                    theirs.append(host)
                continue
            mine.append(host)
            # Another room's mark too: its nightly or health check would give the host back.
            if not place.ours(ROOM):
                self.hook.drain(host, f"{self.mark} under way since {self.progress.started}")
        if self.hook.scheduler and mine:
            self.say(f"drained: {' '.join(mine)}")
        self.hook.empty([*mine, *theirs], self.progress.settings["drain_wait"], self.say)
        self.step("provision")
        # What others took is theirs to mend. But a canary that is not healthy has proved nothing.
        counting = [*mine, *theirs] if batch.name == CANARY else mine
        if counting:
            made = self.provision(counting)
            bad = unhealthy(made.session)
            if bad or made.status:
                self.blame(bad)
                return (judge.exit_status(made.session.document) or FAILED, ", ".join(bad)
                        + " not healthy" if bad else "not every host was provisioned")
            self.say(f"✓ healthy: {' '.join(counting)}", "green")
        if spare := [host for host in theirs if host not in counting]:
            made = self.provision(spare)
            bad = unhealthy(made.session)
            if made.status and not bad:
                bad = dict.fromkeys(spare, "not every host was provisioned")
            self.progress.left.update(bad)
            for host, why in bad.items():
                self.say(f"{host} is not healthy ({why}): left to whoever took it", "yellow")
        self.step("resume")
        given = []
        for host, place in self.hook.look(mine).items():
            if place.ours():
                self.hook.resume(host)
                given.append(host)
            elif place.taken:
                self.say(f"{host} was taken over meanwhile ({place.reason or place.state}): not"
                         " given back", "yellow")
        missing = self.hook.missing(given)
        for host, place in missing.items():
            # Before the scheduler itself takes it, and nobody knows any more that it was we.
            if not place.taken:
                self.hook.drain(host, f"{self.mark} does not come back: {place.state}")
        if missing:
            told = "; ".join(f"{host}: {place.state} {place.reason}".strip()
                             for host, place in missing.items())
            raise HookError(
                f"Healthy, and not back in service ({told}).", "",
                "See there what slurmd or the kubelet says.")
        if given:
            self.say(f"take jobs again: {' '.join(given)}")
        return HEALTHY, ""

    @property
    def mark(self) -> str:
        """With which a reason of ours begins."""
        return f"gpufleet {ROOM}:"

    def provision(self, hosts: list[str]) -> Converged:
        """Have these hosts what they are declared to be, and judge them."""
        settings = self.progress.settings
        manner = ProbeOptions("full", settings["fanout"], settings["deadline"], settings["deep"])
        made = converge(
            replace(self.progress.asked, limit=",".join(hosts)), manner,
            force=settings["force"], words=settings["words"], told=self.say)
        self.judged.update({host.name: host for host in made.session.hosts})
        return made

    def blame(self, bad: dict[str, str]) -> None:
        """Have the scheduler say why a host of ours stays drained."""
        for host, place in self.hook.look(bad).items():
            if place.ours():
                self.hook.drain(host, f"{self.mark} {bad[host]}")

    def stop(self, batch: Batch, status: int, why: str) -> int:
        """Say what is wrong, what is untouched, and how it goes on."""
        wrong = [host for host in self.judged.values()
                 if host.name in batch.hosts and host.name not in self.progress.left
                 and host.result["verdict"] != Verdict.PASS]
        if wrong:
            terminal.show(self.console, self.session(wrong).for_display(), None)
        if wrong and self.progress.settings["rollback"]:
            why += "; " + self.roll_back([host.name for host in wrong])
        self.progress.status, self.progress.why = "stopped", why
        self.store.save(self.progress)
        untouched = [name for later in self.progress.batches[self.progress.done + 1 :]
                     for name in later.hosts]
        self.console.print(Text(f"\n✗ Stopped: {why}", style="bold red"))
        try:
            drained = [host for host, place in self.hook.look(batch.hosts).items() if place.taken]
            if drained:
                self.say(f"{' '.join(drained)}: left drained")
        except HookError as error:
            self.say(f"Who of them is drained cannot be told: {error}", "yellow")
        self.say(f"{len(untouched)} hosts were not touched{': ' if untouched else ''}"
                 f"{' '.join(untouched[:20])}{' ...' if untouched[20:] else ''}")
        self.say("Mend the cause, then: ./gpufleet rollout --resume    (or --abandon)")
        self.write()
        return status

    def roll_back(self, hosts: list[str]) -> str:
        """Bring the former driver back, from the packages that are kept on the hosts."""
        asked, words = self.progress.asked, ["playbooks/rollback.yml"]
        for option, values in (("-i", asked.inventories), ("-e", asked.extra_vars),
                               ("--vault-password-file", asked.vault_password_files)):
            words += [word for value in values for word in (option, value)]
        status = run([str(Path(sys.executable).with_name("ansible-playbook")), *words,
                      "--limit", ",".join(hosts)])
        return ("the former driver is back there; declare it" if not status
                else f"the former driver could not be brought back (status {status}; see above)")

    def session(self, hosts: list[HostRun]) -> Session:
        """What was judged of some hosts, with the words by which they are found."""
        asked = [word for name in self.progress.asked.inventories for word in ("-i", name)]
        return Session(hosts, finished=utc_now(), inventory_args=shlex.join(asked))

    def write(self) -> None:
        """The report on all hosts that this run has judged."""
        if self.judged:
            directory = report.create_directory(self.reports)
            page = report.write_report(directory, self.session(list(self.judged.values())))
            shown = report.update_latest(directory) / page.name
            self.console.print(f"Report: {os.path.relpath(shown)}", markup=False)


def unhealthy(session: Session) -> dict[str, str]:
    """{host: why} of those in which not everything holds; only PASS is healthy."""
    found = {}
    for host in session.hosts:
        if host.result["verdict"] != Verdict.PASS:
            checks = [check["id"] for check in host.result["checks"]
                      if check["verdict"] == host.result["verdict"]]
            found[host.name] = f"{host.result['verdict']}: {', '.join(checks[:3])}"
    return found
