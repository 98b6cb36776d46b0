"""Two hosts that met: their records, every way in which these can be wrong, and their verdicts."""

from __future__ import annotations

import copy
from collections.abc import Callable

from gpufleet.components.checks import PAIR_CHECKS
from gpufleet.judge import judge
from tests.support.healthy_host import Document

HOSTS = ("gpu01", "gpu02")
GRAPH, REDUCE = "pair.parameter-server", "pair.all-reduce"

Checks = dict[str, dict[str, dict[str, str]]]
Change = Callable[[list[Document]], None]


def meeting(plan: Document, snapshot: Document, records: list[Document]) -> Checks:
    """The checks of both hosts after they met, by host and check."""
    found: Checks = {}
    for host, peer in (HOSTS, HOSTS[::-1]):
        mine, seen = copy.deepcopy(plan), copy.deepcopy(snapshot)
        mine["host"] = seen["host"] = host
        gpus = dict(zip(HOSTS, records[0]["gpus"], strict=True))
        mine["expect"]["count"] = gpus[host]
        releases = dict.fromkeys(
            (record.get("framework", "tensorflow"), record["release"]) for record in records
        )
        mine["pairs"] = [
            {
                "with": peer,
                "gpus": gpus[peer],
                "stacks": [
                    {"name": f"{framework}-{release}", "release": release, "framework": framework}
                    for framework, release in releases
                ],
            }
        ]
        seen["pairs"] = copy.deepcopy(records)
        found[host] = {
            check["id"]: check
            for check in judge.judge(mine, seen)["checks"]
            if check["id"] in PAIR_CHECKS
        }
    return found


def with_gpus(records: list[Document], count: int = 2) -> list[Document]:
    """The same in 2.13.1, had the two hosts GPUs."""
    graph, reduce = records[1:]
    for record in (graph, reduce):
        record["gpus"] = [count, count]
    for side in graph["sides"]:
        side["device"] = "GPU:0"
        for row in side["products"]:
            row["device"] = row["device"].replace("CPU", "GPU")
    for side in reduce["sides"]:
        side.update(
            in_sync=2 * count,
            replicas=[
                {"device": f"/job:worker/replica:0/task:0/device:GPU:{n}", "wrong": 0}
                for n in range(count)
            ],
        )
    nccl = copy.deepcopy(reduce)
    nccl["kind"] = "nccl"
    for side in nccl["sides"]:
        side.update(communication="NCCL", nccl=["gpu01:1:2 [0] NCCL INFO comm 0x1 Init COMPLETE"])
    return [graph, reduce, nccl]


def on_nccl(record: Document) -> Document:
    """A stand-in for the same on two GPUs of each host."""
    record = copy.deepcopy(record) | {"kind": "nccl", "gpus": [2, 2]}
    for side in record["sides"]:
        side.update(
            communication="NCCL",
            in_sync=4,
            nccl=["NCCL INFO comm 0x1 Init COMPLETE"],
            replicas=[{"device": f"GPU:{n}", "wrong": 0} for n in range(2)],
        )
    return record


def set_in(number: int, side: int, **values: object) -> Change:
    return lambda records: records[number]["sides"][side].update(values)


def row_in(number: int, side: int, part: str, row: int, **values: object) -> Change:
    def change(records: list[Document]) -> None:
        records[number]["sides"][side][part][row].update(values)

    return change


def together(*changes: Change) -> Change:
    def change(records: list[Document]) -> None:
        for each in changes:
            each(records)

    return change


def blocked(number: int, side: int, row: int, error: str) -> Change:
    return together(
        row_in(number, side, "reach", row, error=error),
        set_in(number, side, state="unconnected", error=error),
        set_in(
            number, 1 - side, state="unconnected", error="the other host cannot connect to this one"
        ),
    )


LAST = "waiting for the other host to finish"
CPU = "/job:worker/replica:0/task:1/device:CPU:0"
# What is done to the records: which check, its verdicts on both hosts, who says what cause.
BROKEN: dict[str, tuple[Change, str, tuple[str, str], str, str]] = {
    "the sum of one master is wrong": (
        set_in(0, 0, sum={"wrong": 3}),
        GRAPH,
        ("FAIL", "PASS"),
        "gpu01",
        "the sum of both hosts' products has 3 wrong rows",
    ),
    "the sum is missing": (
        set_in(0, 0, sum=None),
        GRAPH,
        ("INCONCLUSIVE", "PASS"),
        "gpu01",
        "lacks data that this check",
    ),
    "a worker's product is wrong": (
        row_in(1, 0, "products", 1, wrong=256),
        GRAPH,
        ("PASS", "FAIL"),
        "gpu02",
        f"the product on {CPU} has 256 wrong rows",
    ),
    "a product was not compared": (
        row_in(1, 1, "products", 1, wrong=None),
        GRAPH,
        ("PASS", "FAIL"),
        "gpu02",
        "has rows that were not checked",
    ),
    "a product on the other host's worker": (
        row_in(1, 0, "products", 0, device=CPU),
        GRAPH,
        ("FAIL", "PASS"),
        "gpu01",
        f"what was placed on /job:worker/task:0/device:CPU:0 ran on {CPU} instead",
    ),
    "a product on nobody knows which device": (
        row_in(0, 1, "products", 1, device=None),
        GRAPH,
        ("PASS", "FAIL"),
        "gpu02",
        "ran on an unknown device instead",
    ),
    "a variable on a worker": (
        row_in(1, 0, "variables", 1, device=CPU),
        GRAPH,
        ("PASS", "FAIL"),
        "gpu02",
        "what was placed on /job:ps/task:1/device:CPU:0 ran on",
    ),
    "a part of the graph is not told of": (
        set_in(1, 0, products=[]),
        GRAPH,
        ("INCONCLUSIVE", "PASS"),
        "gpu01",
        "lacks data",
    ),
    "another release ran": (
        set_in(1, 1, version="2.12.0"),
        GRAPH,
        ("PASS", "FAIL"),
        "gpu02",
        "what ran is TensorFlow 2.12.0, planned is 2.13.1",
    ),
    "a firewall drops": (
        blocked(1, 1, 0, "timed out"),
        GRAPH,
        ("FAIL", "FAIL"),
        "gpu01",
        "gpu02 cannot reach gpu01 (192.0.2.1) port 30505: timed out",
    ),
    "a connection is refused": (
        blocked(2, 0, 1, "[Errno 111] Connection refused"),
        REDUCE,
        ("FAIL", "FAIL"),
        "gpu02",
        "gpu01 cannot reach gpu02 (192.0.2.2) port 24340: [Errno 111] Connection refused",
    ),
    "one side cannot import TensorFlow": (
        together(
            set_in(1, 1, state="failed", stage="importing TensorFlow", error="ImportError: x"),
            set_in(1, 0, state="stopped", error="the other side ended"),
        ),
        GRAPH,
        ("INCONCLUSIVE", "FAIL"),
        "gpu02",
        "while importing TensorFlow: ImportError: x",
    ),
    "one side breaks off, the other loses it": (
        together(
            set_in(1, 1, state="failed", error="it ended with status -9: it wrote nothing"),
            set_in(1, 0, state="lost", error="UnavailableError: Socket closed"),
        ),
        GRAPH,
        ("INCONCLUSIVE", "FAIL"),
        "gpu01",
        "the side of gpu02 did not finish (it ended with status -9",
    ),
    "the connection breaks": (
        together(
            *(set_in(2, side, state="lost", error="UnavailableError: gone") for side in (0, 1))
        ),
        REDUCE,
        ("FAIL", "FAIL"),
        "gpu02",
        "the connection to gpu01 broke: UnavailableError: gone",
    ),
    "one side hangs while the other waits for it": (
        together(
            set_in(1, 0, state="hung", error="no answer within 90 s", stage=LAST),
            set_in(1, 1, state="hung", error="no answer within 90 s", stage="computing"),
        ),
        GRAPH,
        ("INCONCLUSIVE", "HUNG"),
        "gpu02",
        "while computing: no answer within 90 s",
    ),
    "both hang": (
        together(
            *(
                set_in(2, side, state="hung", stage="computing", error="no answer")
                for side in (0, 1)
            )
        ),
        REDUCE,
        ("HUNG", "HUNG"),
        "gpu01",
        "while computing: no answer",
    ),
    "one side is silent": (
        together(
            set_in(1, 0, state="silent", error="ssh failed: x", remedy="try by hand"),
            set_in(1, 1, state="stopped", error="the other side ended"),
        ),
        GRAPH,
        ("INCONCLUSIVE", "INCONCLUSIVE"),
        "gpu01",
        "ssh failed",
    ),
    "a stack is not there": (
        together(
            set_in(1, 0, state="absent", error="there is no /opt/x/bin/python"),
            set_in(1, 1, state="stopped", error="the other side ended"),
        ),
        GRAPH,
        ("INCONCLUSIVE", "INCONCLUSIVE"),
        "gpu02",
        "there is no /opt/x/bin/python",
    ),
    "nothing ran": (
        lambda records: records[1].update(kind="other"),
        GRAPH,
        ("INCONCLUSIVE", "INCONCLUSIVE"),
        "gpu01",
        "tensorflow-2.13.1 with gpu02: nothing ran between the two",
    ),
    "the all-reduce is wrong for one": (
        row_in(2, 1, "replicas", 0, wrong=1),
        REDUCE,
        ("PASS", "FAIL"),
        "gpu02",
        "the sum of all 2 replicas has 1 wrong row",
    ),
    "each host reduced by itself": (
        set_in(2, 0, in_sync=1),
        REDUCE,
        ("FAIL", "PASS"),
        "gpu01",
        "1 replica took part, not 2",
    ),
    "it communicated in another way": (
        set_in(2, 0, communication="AUTO"),
        REDUCE,
        ("INCONCLUSIVE", "PASS"),
        "gpu01",
        "lacks",
    ),
    "no replica": (set_in(2, 0, replicas=[]), REDUCE, ("INCONCLUSIVE", "FAIL"), "gpu01", "lacks"),
}
