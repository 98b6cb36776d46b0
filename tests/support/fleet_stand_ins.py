"""A Slurm that answers as the real one (its output was taken from 22.05), and looks to judge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from gpufleet.inventory import Connection
from gpufleet.nightly.drift import Said, Window
from gpufleet.nightly.history import Night
from gpufleet.rollout.schedulers import HookError
from gpufleet.verification.session import HostRun, Session

LINE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=1  CPUAlloc={cpus} CPUTot=2 CPULoad=0.69"
    " AvailableFeatures=(null) ActiveFeatures=(null) Gres=(null) NodeAddr={name}"
    " NodeHostName={name}"
    " Version=22.05.8 OS=Linux RealMemory=1 AllocMem=0 FreeMem=1 Sockets=2 Boards=1"
    " State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=all "
    " BootTime=2026-11-20T11:00:00 LastBusyTime=2026-11-21T01:55:00 CfgTRES=cpu=2,mem=1M,billing=2"
    " AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0"
    " ExtSensorsTemp=n/s{reason}\n"
)


@dataclass
class Slurm:
    """Nodes: {name: [flags, reason]}; `busy` ones run a job for so many looks.

    `stuck` ones do not come back when they are resumed; `silent` ones have the state that is
    said, as those whose slurmd is dead, for so many looks after it.
    """

    nodes: dict[str, list[str]]
    busy: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    stuck: set[str] = field(default_factory=set)
    silent: dict[str, tuple[str, int]] = field(default_factory=dict)
    # Those of which it takes no order.
    refused: set[str] = field(default_factory=set)

    def __call__(self, there: Connection | None, words: Sequence[str], limit_s: float) -> str:
        self.asked.append(" ".join(words))
        if tuple(words[:2]) == ("scontrol", "show"):
            return "".join(map(self.line, self.nodes))
        if words[0] == "squeue":
            return "41\n42\n"
        values = dict(re.fullmatch(r"(\w+)=(.*)", word).groups() for word in words[2:])  # type: ignore[union-attr]
        node = self.nodes[values["NodeName"]]
        if values["NodeName"] in self.refused:
            raise HookError("Access denied.", values["NodeName"])
        resumed = ["DOWN", "Not responding"] if values["NodeName"] in self.stuck else ["", ""]
        node[:] = ["DRAIN", values["Reason"]] if values["State"] == "DRAIN" else resumed
        return ""

    def line(self, name: str) -> str:
        """As `scontrol show node --oneliner` has it."""
        flag, reason = self.nodes[name]
        busy = self.busy.get(name, 0) > 0
        self.busy[name] = self.busy.get(name, 0) - 1
        base, looks = self.silent.get(name, ("", 0))
        if base and not flag:
            self.silent[name] = base if looks > 1 else "", looks - 1
        state = "+".join(filter(None, [base or ("ALLOCATED" if busy else "IDLE"), flag]))
        told = f" Reason={reason} [root@2026-11-21T01:55:05]" if reason else ""
        return LINE.format(name=name, cpus=int(busy), state=state, reason=told)


@dataclass
class Past:
    """A history: the letters that each run gave to hosts' checks, {host: {check: letters}}.

    A run a day. A host's own letter is its worst check's.
    """

    checks: dict[str, dict[str, str]]

    def nights(self, last: int | None = None, kind: str | None = None) -> list[Night]:
        """As many as the longest of the letters."""
        count = max(len(letters) for rows in self.checks.values() for letters in rows.values())
        first = datetime(2026, 11, 1, 3, tzinfo=UTC)
        times = [(first + timedelta(days=day)).strftime("%Y-%m-%dT%H:%M:%SZ")
                 for day in range(count)]
        return [Night(number, time, time, "nightly", len(self.checks))
                for number, time in enumerate(times, 1)]

    def window(self, nights: list[Night]) -> Window:
        """What they said; who has fewer letters was not there before."""
        count = len(nights)
        hosts = {host: "".join(min(night, key="FHU?P-.".index) for night in zip(
                     *(letters.rjust(count, ".") for letters in rows.values()), strict=True))
                 for host, rows in self.checks.items()}
        checks = {(host, check): [None if it == "." else Said(it)
                                  for it in letters.rjust(count, ".")]
                  for host, rows in self.checks.items() for check, letters in rows.items()}
        return Window([night.started for night in nights], hosts, checks)


def session(verdicts: dict[str, str]) -> Session:
    """What a look at these hosts found."""
    return Session([
        HostRun(name, None, {"host": name}, {"verdict": verdict, "checks": [
            {"id": "cudnn.files", "verdict": verdict, "statement": "It holds.", "cause": "none",
             "remedy": "none", "evidence": ""}]})
        for name, verdict in verdicts.items()])
