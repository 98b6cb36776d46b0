"""Every kind of night with its message: what people read in the morning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpufleet.documents.nightly import Changes, Silence
from gpufleet.watch import drift
from gpufleet.watch.drift import CheckResult, Window
from gpufleet.watch.message_forms import Message
from gpufleet.watch.notifications import Surroundings, failure_message, has_content, nightly_message

LINK = "https://gpu.example.org/reports/2026-11-21T03-00-00Z/report.html"
HOSTS = [f"gpu{number:02}" for number in range(1, 41)]
REACHABLE = "host.reachable"
NO_ROUTE = "ssh failed: ssh: connect to host {host} port 22: No route to host"


@dataclass(frozen=True)
class Bad:
    """A fault on some hosts: a letter for each night, the last one tonight."""

    check: str
    letters: str
    cause: str
    remedy: str
    explained_by: str = ""


LOST_LIBRARY = Bad(
    "cudnn.files",
    "PPF",
    "1 of its 39 files changed: /usr/local/cuda-11.8/lib64/libcudnn.so.8.6.0 (content)",
    "./gpufleet provision --limit {host}",
)
LOST_CARD = Bad(
    "gpu.count",
    "PPF",
    "1 of 8 declared GPUs is gone: 0000:5d:00.0",
    "on the host: see kernel.log; power the host off and on",
)
CONSEQUENCE = Bad("stack.gpu", "PPF", "no result of GPU 4", "see gpu.count", "gpu.count")
GONE = Bad(REACHABLE, "PPU", NO_ROUTE, "try by hand: ssh {host} true")
UNREAD = Bad(
    "gpu.smi", "PP?", "not read in 20 s", "./gpufleet verify --limit {host} --deadline 900"
)


def since(bad: Bad, letters: str) -> Bad:
    """The same finding with the letters of other nights."""
    return replace(bad, letters=letters)


@dataclass(frozen=True)
class Night:
    """One kind of night: what is bad on which hosts, and what its run did."""

    bad: Mapping[str, tuple[Bad, ...]] = field(default_factory=dict)
    around: Surroundings = field(default_factory=Surroundings)
    nights: int = 3
    silences: Mapping[tuple[str, str], Silence] = field(default_factory=dict)

    @property
    def changes(self) -> Changes:
        """The document of its changes."""
        days = [
            (datetime(2026, 11, 21, 3, tzinfo=UTC) - timedelta(days=back)).strftime(
                "%Y-%m-%dT%H:%M:%SZ"
            )
            for back in reversed(range(self.nights))
        ]
        hosts = {}
        for host in HOSTS:
            rows = [row.letters[-self.nights :] for row in self.bad.get(host, ())]
            each = zip("P" * self.nights, *rows, strict=True)
            hosts[host] = "".join(min(night, key="FHU?P-".index) for night in each)
        checks = {
            (host, row.check): [
                CheckResult(
                    letter,
                    "" if letter == "P" else row.cause.format(host=host),
                    "" if letter == "P" else row.remedy.format(host=host),
                    "" if letter == "P" else row.explained_by,
                )
                for letter in row.letters[-self.nights :]
            ]
            for host, rows in self.bad.items()
            for row in rows
        }
        return drift.document(Window(days, hosts, dict(checks), silences=dict(self.silences)))

    @property
    def message(self) -> Message | None:
        """The message that is sent; None: nothing."""
        changes = self.changes
        if not has_content(changes, self.around):
            return None
        return nightly_message(changes, LINK, self.around)


DRAINED = Surroundings(
    done=[
        "gpu02 is drained: gpu.count (+1 consequence) failed, 2 nights in a row. Once repaired, a"
        " healthy night resumes it; by hand: scontrol update NodeName=gpu02 State=RESUME"
    ],
    drained=["gpu02"],
)
KNOWN = Surroundings(
    drained=["gpu02"],
    aside=[
        "gpu02 is drained by gpufleet nightly: gpu.count failed, 2 nights in a row; a healthy night"
        " resumes it.",
        "gpu30 is out of service, not by gpufleet: fan noise, ask Ana. Who drained it resumes it.",
    ],
)
REFUSED = Surroundings(
    done=[
        "gpu02 is not drained (gpu.count failed, 2 nights in a row): 4 of 40 hosts are out of"
        " service already, and most_percent is 10."
    ]
)
SILENCE: Silence = {
    "host": "gpu07",
    "check": "gpu.count",
    "causes": [{"verdict": "FAIL", "cause": LOST_CARD.cause}],
    "until": "2026-12-01",
    "who": "ana",
    "why": "a new card is ordered",
    "since": "2026-11-20T10:00:00Z",
}
SICK = {"gpu02": (LOST_CARD, CONSEQUENCE)}
OLD = {"gpu02": (since(LOST_CARD, "FFF"), since(CONSEQUENCE, "FFF"))}

NIGHTS: dict[str, Night] = {
    "first, all healthy": Night(nights=1),
    "first": Night({**SICK, "gpu03": (GONE,), "gpu05": (UNREAD,)}, nights=1),
    "all healthy": Night(),
    "unchanged": Night({**OLD, "gpu03": (since(GONE, "UUU"),)}),
    "one bad": Night(SICK),
    "one bad beside old ones": Night(
        {**OLD, "gpu03": (since(GONE, "UUU"),), "gpu05": (LOST_LIBRARY,), "gpu06": (UNREAD,)}
    ),
    "a rack": Night(
        dict.fromkeys(HOSTS[8:16], (GONE,)) | dict.fromkeys(HOSTS[:3], (LOST_LIBRARY,))
    ),
    "every host gone": Night(dict.fromkeys(HOSTS, (GONE,))),
    "a host gone": Night({"gpu03": (GONE,)}),
    "healed": Night({"gpu02": (since(LOST_CARD, "FFP"),), "gpu03": (since(GONE, "PUU"),)}),
    "a drain": Night(
        {"gpu02": (since(LOST_CARD, "PFF"),), "gpu03": (since(GONE, "UUU"),)}, DRAINED
    ),
    "drained before": Night({**OLD, "gpu05": (LOST_LIBRARY,)}, KNOWN),
    "a drain refused": Night(OLD, REFUSED),
    "silenced": Night(
        {"gpu07": (since(LOST_CARD, "PFF"),), "gpu05": (LOST_LIBRARY,)},
        silences={("gpu07", "gpu.count"): SILENCE},
    ),
    "weekly, all healthy": Night(around=Surroundings(week=[40, 40, 39, 40, 40, 40, 40])),
    "weekly": Night(OLD, Surroundings(week=[40, 40, 39, 39, 39, 39, 39])),
}

FAILED = {
    "an early end": failure_message(
        ["stopped: The run was stopped before its end (SIGTERM)."],
        "2026-11-21T05:00:00Z",
        None,
    ),
    "a damaged history": failure_message(
        [
            "state: history.sqlite is damaged (file is not a database): renamed to"
            " history.sqlite.damaged-2026-11-21T03-00-00Z"
        ],
        "2026-11-21T03:00:00Z",
        "38 of 40 hosts healthy; 2 failed.",
    ),
}


def messages() -> Iterator[tuple[str, Message | None]]:
    """The message of each kind of night."""
    for name, night in NIGHTS.items():
        yield name, night.message
    yield from FAILED.items()
