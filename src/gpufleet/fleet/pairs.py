"""Run a distributed framework between pairs of hosts.

`distributed.py` runs on both hosts at the same time over the connections of the fan-out, and
`sides.py` passes each side's messages to the other side. The records become part of both snapshots
(`pairs`), and `checks/pair.py` judges them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from gpufleet.documents.pairs import Meeting, Message, Side
from gpufleet.on_host import payload

from . import sides
from .pair_selection import Job, Pair, jobs_of, pair_address, rounds
from .sides import Exchange, framed, gate, run_together

Notify = Callable[[str], None]

# The document of a side that reported nothing.
EMPTY_DOCUMENT: Side = {
    "state": "silent",
    "stage": "starting",
    "error": None,
    "version": None,
    "device": None,
    "ports": [],
    "reach": [],
    "variables": [],
    "products": [],
    "sum": None,
    "communication": None,
    "in_sync": None,
    "replicas": [],
    "nccl": [],
    "seconds": None,
}


class _JobRun(Exchange):
    """One job: both sides of a distributed run."""

    def __init__(self, job: Job, deadline_s: float) -> None:
        self.job = job
        super().__init__(
            [
                sides.Side(
                    host.connection, f"{venv}/bin/python", deadline_s, EMPTY_DOCUMENT, Message
                )
                for host, venv in zip(job.pair.hosts, job.stack.venvs, strict=True)
            ]
        )

    def start_all(self, task: Any) -> None:
        """Schedule the commands of both sides."""
        pair = self.job.pair
        addresses = [pair_address(host) for host in pair.hosts]
        gpus = pair.gpus if self.job.kind == "parameter-server" else (pair.common_gpus,) * 2
        for index, side in enumerate(self.sides):
            config = {
                "kind": self.job.kind,
                "framework": self.job.stack.framework,
                "index": index,
                "addresses": addresses,
                "gpus": gpus[index],
                "deadline_s": side.deadline_s,
            }
            self.start(task, side, gate(side.python) + program(config))

    def record(self) -> Meeting:
        """The record for the snapshots of both hosts."""
        pair = self.job.pair
        return {
            "kind": self.job.kind,
            "framework": self.job.stack.framework,
            "release": self.job.stack.release,
            "hosts": list(pair.names),
            "stacks": list(self.job.stack.names),
            "gpus": list(pair.gpus),
            "sides": [cast(Side, side.outcome()) for side in self.sides],
        }


def program(config: Mapping[str, Any]) -> bytes:
    """The second: one side of the run."""
    return framed(config, payload.distributed())


def run_pairs(
    pairs: Sequence[Pair], deadline_s: float, fanout: int, notify: Notify = lambda text: None
) -> list[Meeting]:
    """Run all jobs of all pairs; one record for each job. `notify` is called before each job."""
    records: list[Meeting] = []
    for batch in rounds(jobs_of(pairs), fanout):
        runs = [_JobRun(job, deadline_s) for job in batch]
        for run in runs:
            notify(
                f"Running {run.job.kind} between {' and '.join(run.job.pair.names)}"
                f" with {run.job.stack.title} {run.job.stack.release}"
            )
        run_together(runs)
        records += [run.record() for run in runs]
    return records
