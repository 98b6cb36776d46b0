"""Realistic fleets of any size, as documents: broken and unreachable hosts, a month of nights.

The verdicts come from the judge, called once for each kind of fault; the hosts of a kind differ by
their names, their GPUs' UUIDs and their history. The same seed gives the same fleet.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpufleet.documents.verdict import Verdict, consequences
from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge import judge
from gpufleet.watch.strips import strips
from gpufleet.yardstick.values import LEAST_SIBLINGS, Analysis, Finding, Spread
from tests.support.healthy_host import data, document, with_cards
from tests.support.rdma_host import DOWN

Document = dict[str, Any]
NIGHT = datetime(2026, 11, 21, 3, 0, 4, tzinfo=UTC)
LETTERS = {
    "PASS": "P",
    "FAIL": "F",
    "HUNG": "H",
    "UNREACHABLE": "U",
    "INCONCLUSIVE": "?",
    "NOT-DECLARED": "-",
}
GPUS = 8
STACK, TOOLKIT = "stack.tensorflow-2.13.1", "toolkit.11.8"


@dataclass(frozen=True)
class Fleet:
    """The documents of a page."""

    session: Session
    changes: Document
    past: Document


def _healthy() -> tuple[Document, Document]:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot, GPUS)
    framework = data(snapshot, "stacks")["stacks"][0]["framework"]
    framework["matmul"] = [
        {
            **framework["matmul"][0],
            "requested": f"/GPU:{n}",
            "n": 4096,
            "tflops": 41.5,
            "device": f"/job:localhost/replica:0/task:0/device:GPU:{n}",
        }
        for n in range(GPUS)
    ]
    framework["tower_sum"]["devices"] = [f"/GPU:{n}" for n in range(GPUS)]
    return plan, snapshot


def _old_kernel(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["loaded"] = "535.183.01"


def _lost_card(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["devices"].pop()
    data(snapshot, "smi")["nvml"]["count"] -= 1
    data(snapshot, "smi")["attached"] -= 1
    data(snapshot, "gpus")["pci"].pop()


def _lost_library(plan: Document, snapshot: Document) -> None:
    data(snapshot, "receipts")["receipts"][0]["changed"] = [
        {"path": "targets/x86_64-linux/lib/libcudnn.so.8", "what": "missing"}
    ]
    loader = data(snapshot, "stacks")["stacks"][0]["framework"]["loader"]
    loader["failed"] = [{"library": loader["opened"].pop(), "error": "no such file"}]


def _old_variable(plan: Document, snapshot: Document) -> None:
    data(snapshot, "environment")["login"]["LD_LIBRARY_PATH"] = "/usr/local/cuda-10.1/lib64"


def _slow_card(plan: Document, snapshot: Document) -> None:
    data(snapshot, "compute")["runs"][0]["cublas"][3]["tflops"] = 11.2


def _lost_link(plan: Document, snapshot: Document) -> None:
    devices = data(snapshot, "network")["devices"]
    devices[3]["ports"][0].update(DOWN)
    devices[6]["ports"][0]["counters"]["symbol_error"] = 4711


def _hung_smi(plan: Document, snapshot: Document) -> None:
    snapshot["sections"]["smi"] = {
        "state": "hung",
        "seconds": 20,
        "error": "no answer within 20 s",
        "data": None,
    }


def _denied(plan: Document, snapshot: Document) -> None:
    snapshot["sections"]["receipts"] = {
        "state": "denied",
        "seconds": 0,
        "error": "Permission denied",
        "data": None,
    }


BREAKS: dict[str, Callable[[Document, Document], None]] = {
    "driver": _old_kernel,
    "card": _lost_card,
    "library": _lost_library,
    "variable": _old_variable,
    "slow": _slow_card,
    "link": _lost_link,
    "hung": _hung_smi,
    "denied": _denied,
}


def fleet(count: int, seed: int = 1, nights: int = 30, broken: float = 0.02) -> Fleet:
    """`count` hosts, a share of them with every kind of fault, and their history."""
    chance = random.Random(seed)
    kinds = _kinds()
    session, past, older = Session(inventory_args="-i inventory/ours"), {}, set()
    for number in range(count):
        rack, slot = divmod(number, 24)
        name = f"gpu-{'abcdefgh'[rack // 12 % 8]}{rack % 12 + 1:02}-{slot + 1:02}"
        down = count > 1 and chance.random() < broken / 4
        kind = chance.choice(sorted(BREAKS)) if chance.random() < broken else "whole"
        if not down and chance.random() < 0.03:
            older.add(name)
        kernel = "6.1.0-26-amd64" if name in older else "6.1.0-27-amd64"
        run = _down(name) if down else _named(*kinds[kind], name, number, kernel)
        session.hosts.append(run)
        past[name] = _past(run, kind, nights, chance, [] if down else _uuids(number))
    started = NIGHT
    session.started = f"{started:%Y-%m-%dT%H:%M:%SZ}"
    session.seconds = 14.2 + count * 0.061
    session.finished = f"{started + timedelta(seconds=session.seconds):%Y-%m-%dT%H:%M:%SZ}"
    times = [
        f"{started - timedelta(days=nights - 1 - n):%Y-%m-%dT%H:%M:%SZ}" for n in range(nights)
    ]
    return Fleet(
        session,
        _changes(session, past, times, older),
        {"schema": 1, "nights": times, "hosts": past},
    )


def _kinds() -> dict[str, tuple[HostRun, Document]]:
    """A judged host of each kind, named gpu01, and its snapshot."""
    found = {}
    for kind, breaks in {"whole": lambda plan, snapshot: None, **BREAKS}.items():
        plan, snapshot = _healthy()
        breaks(plan, snapshot)
        found[kind] = HostRun("gpu01", snapshot, plan, judge.judge(plan, snapshot)), snapshot
    assert found["whole"][0].result["verdict"] == "PASS", found["whole"][0].result
    return found


def _uuids(number: int) -> list[str]:
    serial = f"{number * 2654435761 % 16**7:07x}"
    return [f"GPU-{serial}{n}-5e1c-4b7d-9a33-0c2d{number:08x}" for n in range(GPUS)]


def _named(
    kind: HostRun, snapshot: Document, name: str, number: int, kernel: str = "6.1.0-27-amd64"
) -> HostRun:
    """Another host of that kind, with its own GPUs."""
    sections = snapshot["sections"]
    run = data(snapshot, "compute")["runs"][0]
    devices = [
        {**device, "uuid": uuid}
        for device, uuid in zip(run["devices"], _uuids(number), strict=False)
    ]
    return HostRun(
        name,
        {
            **snapshot,
            "host": name,
            "sections": {
                **sections,
                "compute": {
                    **sections["compute"],
                    "data": {"deep": True, "runs": [{**run, "devices": devices}]},
                },
                "kernel": {
                    **sections["kernel"],
                    "data": {**sections["kernel"]["data"], "running": kernel},
                },
            },
        },
        {**kind.plan, "host": name},
        {
            **kind.result,
            "checks": [
                {
                    **check,
                    **{
                        part: check[part].replace("gpu01", name)
                        for part in ("cause", "remedy", "evidence")
                    },
                }
                for check in kind.result["checks"]
            ],
        },
    )


def _down(name: str) -> HostRun:
    return HostRun(
        name,
        None,
        {"host": name},
        judge.unreachable(
            f"ssh failed: ssh: connect to host {name} port 22: No route to host",
            "check the host, its network and its ssh service",
            "255 after 3.1 s",
        ),
    )


def _past(
    run: HostRun, kind: str, nights: int, chance: random.Random, cards: list[str]
) -> Document:
    tonight = LETTERS[run.result["verdict"]]
    letters = ["P" if chance.random() > 0.004 else chance.choice("F?U") for _ in range(nights)]
    if tonight != "P":
        strikes = min(nights, chance.choice([1, 1, 2, 5, 12]))
        letters[-strikes:] = tonight * strikes
    letters[-1] = tonight
    uuids = cards or [f"GPU-gone{n}" for n in range(GPUS)]
    measures = {}
    for what, usual in ((STACK, 41.5), (TOOLKIT, 34.4)):
        for n, uuid in enumerate(uuids):
            level, noise = usual * chance.uniform(0.985, 1.015), chance.uniform(0.002, 0.006)
            drift = 0.67 if kind == "slow" and n == 3 else 0
            begin = nights * 2 // 3
            measures[f"gpu.{uuid}.{what}.tflops"] = [
                None
                if letter in "UH"
                else round(
                    level
                    * (1 + chance.gauss(0, noise))
                    * (1 - drift * max(0, at - begin) / max(1, nights - 1 - begin)),
                    2,
                )
                for at, letter in enumerate(letters)
            ]
    return {"verdicts": "".join(letters), "measures": measures}


def _changes(session: Session, past: Document, times: list[str], older: set[str]) -> Document:
    """The changes since the previous night, from the letters."""
    if len(times) < 2:
        return {
            "schema": 1,
            "since": None,
            "night": times[-1],
            "changes": [],
            "hosts": _count(past, -1),
            "hosts_before": None,
        }
    found, standing = [], []
    for host in session.hosts:
        letters = past[host.name]["verdicts"]
        bad = [
            check
            for check in host.result["checks"]
            if check["verdict"] not in ("PASS", "NOT-DECLARED")
        ]
        row = len(letters) - len(letters.rstrip("FHU?"))
        common = {
            "host": host.name,
            "check": None,
            "before": None,
            "after": None,
            "remedy": "",
            "strikes": 0,
        }
        folded = consequences(host.result["checks"])
        for check in bad:
            why = {name: check[name] for name in ("explained_by",) if name in check}
            explains = [each["id"] for each in folded.get(check["id"], ())]
            fails = "hangs" if check["verdict"] == "HUNG" else "fails"
            standing.append(
                {
                    "host": host.name,
                    "check": check["id"],
                    "verdict": check["verdict"],
                    "cause": check["cause"],
                    "remedy": check["remedy"],
                    "strikes": row,
                    **why,
                }
            )
            if row == 1:
                found.append(
                    {
                        **common,
                        "kind": "failure",
                        "weight": "bad",
                        "strikes": 1,
                        "check": check["id"],
                        "remedy": check["remedy"],
                        "text": f"{check['id']} {fails}: {check['cause']}.",
                        **why,
                        **({"explains": explains} if explains else {}),
                    }
                )
        if not bad and letters[-2] in "FHU":
            found.append(
                {
                    **common,
                    "kind": "recovery",
                    "check": "stack.matmul",
                    "weight": "good",
                    "text": "stack.matmul passes again after one night.",
                }
            )
        if any(check["id"] == "gpu.throughput" for check in bad):
            found.append(
                {
                    **common,
                    "kind": "throughput",
                    "check": "gpu.throughput",
                    "weight": "bad",
                    "strikes": 2,
                    "text": "GPU 3 with CUDA 11.8 reaches 11.2 TFLOP/s, 67% below its"
                    " baseline of 34.4.",
                    "remedy": "see gpu.throttle, gpu.settings and gpu.pcie",
                }
            )
        if host.name in older:
            found.append(
                {
                    **common,
                    "kind": "kernel",
                    "weight": "note",
                    "before": "6.1.0-27-amd64",
                    "after": "6.1.0-26-amd64",
                    "text": "Running kernel changed from 6.1.0-27-amd64 to 6.1.0-26-amd64.",
                }
            )
    order = ["bad", "good", "note"]
    cards = [
        (host.name, uuid) for number, host in enumerate(session.hosts) for uuid in _uuids(number)
    ]
    return {
        "schema": 1,
        "since": times[-2],
        "night": times[-1],
        "changes": sorted(found, key=lambda change: order.index(change["weight"])),
        "standing": standing,
        "hosts": _count(past, -1),
        "hosts_before": _count(past, -2),
        "strips": strips(compared(cards)),
    }


def compared(cards: list[tuple[str, str]]) -> Analysis:
    """Some measures of these cards, of one group; one card is slow, one is noted."""
    chance = random.Random(3)
    group = "NVIDIA H100 80GB HBM3, 132 SMs, 81559 MiB, driver 535.261.03"
    found = Analysis()
    if len(cards) <= LEAST_SIBLINGS:
        return found
    for kind, measure, centre, spread in (
        ("throughput", f"{TOOLKIT}.tflops", 41.5, 0.02),
        ("throughput", f"{STACK}.tflops", 40.9, 0.025),
        ("start-up time", f"{STACK}.first_op_s", 0.52, 0.1),
        ("bandwidth", "to_device_gib_s", 51.2, 0.01),
        ("temperature", "load.temperature_c", 63.0, 3.0),
    ):
        offsets = {card: round(chance.gauss(0, spread), 5) for card in cards}
        found.spreads.append(Spread(kind, measure, group, centre, offsets))
    for (host, card), change, fails in ((cards[5], -0.12, True), (cards[-3], -0.05, False)):
        found.findings.append(
            Finding(
                *("shift", "throughput", f"{TOOLKIT}.tflops", group),
                *(change, -0.06, 3, len(cards) - 1, fails, host, card),
            )
        )
    return found


def _count(past: Document, night: int) -> dict[str, int]:
    letters = Counter(host["verdicts"][night] for host in past.values())
    return {verdict.value: letters[LETTERS[verdict]] for verdict in Verdict}


def all_broken(count: int) -> Session:
    """The worst night: every host has every fault."""
    plan, snapshot = _healthy()
    for kind, breaks in BREAKS.items():
        if kind not in ("hung", "denied"):
            breaks(plan, snapshot)
    kind = HostRun("gpu01", snapshot, plan, judge.judge(plan, snapshot))
    return Session(
        [_named(kind, snapshot, f"gpu{n:04}", n) for n in range(count)],
        finished="2026-11-21T03:01:15Z",
    )
