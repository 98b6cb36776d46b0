"""A stand-in for Slurm (its output was taken from 22.05), and runs with given verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from gpufleet.fleet.inventory import Connection
from gpufleet.fleet.schedulers import SchedulerError
from gpufleet.fleet.session import HostRun, Session
from gpufleet.watch.drift import CheckResult, Window
from gpufleet.watch.history import RecordedRun

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
    """Nodes: {name: [flags, reason]}; `busy` ones run a job for so many queries.

    `stuck` ones do not return when they are resumed. `silent` ones have the given state of a node
    whose slurmd does not respond, for so many queries.
    """

    nodes: dict[str, list[str]]
    busy: dict[str, int] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    stuck: set[str] = field(default_factory=set)
    silent: dict[str, tuple[str, int]] = field(default_factory=dict)
    # Nodes whose updates it denies.
    refused: set[str] = field(default_factory=set)

    def __call__(self, connection: Connection | None, args: Sequence[str], limit_s: float) -> str:
        self.commands.append(" ".join(args))
        if tuple(args[:2]) == ("scontrol", "show"):
            return "".join(map(self.line, self.nodes))
        if args[0] == "squeue":
            return "41\n42\n"
        values = dict(arg.split("=", 1) for arg in args[2:])
        node = self.nodes[values["NodeName"]]
        if values["NodeName"] in self.refused:
            raise SchedulerError("Access denied.", values["NodeName"])
        resumed = ["DOWN", "Not responding"] if values["NodeName"] in self.stuck else ["", ""]
        node[:] = ["DRAIN", values["Reason"]] if values["State"] == "DRAIN" else resumed
        return ""

    def line(self, name: str) -> str:
        """The node's line of `scontrol show node --oneliner`."""
        flag, reason = self.nodes[name]
        busy = self.busy.get(name, 0) > 0
        self.busy[name] = self.busy.get(name, 0) - 1
        base, queries = self.silent.get(name, ("", 0))
        if base and not flag:
            self.silent[name] = base if queries > 1 else "", queries - 1
        state = "+".join(filter(None, [base or ("ALLOCATED" if busy else "IDLE"), flag]))
        shown = f" Reason={reason} [root@2026-11-21T01:55:05]" if reason else ""
        return LINE.format(name=name, cpus=int(busy), state=state, reason=shown)


@dataclass
class RunHistory:
    """A history of daily runs: the letters of each host's checks, {host: {check: letters}}.

    A host's own letter is the worst of its checks' letters.
    """

    checks: dict[str, dict[str, str]]
    # {check: the one that explains it}
    explained: dict[str, str] = field(default_factory=dict)
    # By host and name, the values that are stored beside the runs.
    flags: dict[tuple[str, str], str] = field(default_factory=dict)

    def flag(self, host: str, name: str, value: str | None) -> None:
        """Store a value, or delete it."""
        self.flags.pop((host, name), None)
        if value is not None:
            self.flags[host, name] = value

    def flags_named(self, pattern: str) -> list[tuple[str, str, str]]:
        """The values with this name."""
        return [(host, name, it) for (host, name), it in self.flags.items() if name == pattern]

    def nights(self, last: int | None = None, kind: str | None = None) -> list[RecordedRun]:
        """As many runs as the longest line of letters has."""
        count = max(len(letters) for rows in self.checks.values() for letters in rows.values())
        first = datetime(2026, 11, 1, 3, tzinfo=UTC)
        times = [
            (first + timedelta(days=day)).strftime("%Y-%m-%dT%H:%M:%SZ") for day in range(count)
        ]
        return [
            RecordedRun(number, time, time, "nightly", len(self.checks))
            for number, time in enumerate(times, 1)
        ]

    def window(self, nights: list[RecordedRun]) -> Window:
        """Their results; a host with fewer letters appeared later."""
        count = len(nights)
        hosts = {
            host: "".join(
                min(night, key="FHU?P-.".index)
                for night in zip(
                    *(letters.rjust(count, ".") for letters in rows.values()), strict=True
                )
            )
            for host, rows in self.checks.items()
        }
        checks = {
            (host, check): [
                None if it == "." else CheckResult(it, explained_by=self.explained.get(check, ""))
                for it in letters.rjust(count, ".")
            ]
            for host, rows in self.checks.items()
            for check, letters in rows.items()
        }
        return Window([night.started for night in nights], hosts, checks)


def session(verdicts: dict[str, str]) -> Session:
    """A session with these verdicts, {host: verdict}."""
    return Session(
        [
            HostRun(
                name,
                None,
                {"host": name},
                {
                    "verdict": verdict,
                    "checks": [
                        {
                            "id": "cudnn.files",
                            "verdict": verdict,
                            "statement": "It holds.",
                            "cause": "none",
                            "remedy": "none",
                            "evidence": "",
                        }
                    ],
                },
            )
            for name, verdict in verdicts.items()
        ]
    )
