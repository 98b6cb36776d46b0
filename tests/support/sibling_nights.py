"""Nights of a fleet whose cards are compared with their siblings."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from gpufleet.fleet.session import HostRun, Session
from gpufleet.watch.history import History

SPEED = "toolkit.12.3.tflops"
# How many times as fast as usual a card is in a night.
Change = Callable[[str, int], float]


def fleet(
    history: History,
    hosts: int,
    nights: int,
    change: Change,
    *,
    per_host: int = 3,
    more: Callable[[str, int, list[str]], dict[str, float]] | None = None,
    first: int = 0,
) -> None:
    """Record nights in which cards differ by 2 % and nights by 0.8 %.

    `more`: further measures of a host, by its name, the night and its cards. `first`: the nights
    before this one are recorded already.
    """
    chance = random.Random(4)
    names = [f"gpu{number:02}" for number in range(hosts)]
    usual = {
        f"GPU-{host}-{card}": 50 * (1 + chance.gauss(0, 0.02))
        for host in names
        for card in range(per_host)
    }
    for night in range(nights):

        def measure(_: object, plan: dict[str, str], night: int = night) -> dict[str, float | str]:
            own = [uuid for uuid in usual if plan["host"] in uuid]
            found: dict[str, float | str] = {
                f"gpu.{uuid}.{SPEED}": value
                for uuid in own
                if math.isfinite(
                    value := usual[uuid] * (1 + chance.gauss(0, 0.008)) * change(uuid, night)
                )
            }
            found["gpus"] = "; ".join(
                f"0:{number} {uuid} NVIDIA H100" for number, uuid in enumerate(own)
            )
            found["skus"] = "; ".join(f"{uuid} 132 SMs, 81559 MiB" for uuid in own)
            found["driver.version"] = "550.54.15"
            return found | (more(plan["host"], night, own) if more else {})

        if night < first:
            # The values of later nights are those that they would have had.
            for name in names:
                measure(None, {"host": name})
            continue
        started = (datetime(2026, 3, 1, 3, tzinfo=UTC) + timedelta(days=night)).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
        runs = [
            HostRun(name, None, {"host": name}, {"verdict": "PASS", "checks": []}) for name in names
        ]
        history.record(Session(runs, started, started), measure=measure)


def slow(card: str, first: int) -> Change:
    """A card is 10 % slower from a night on."""
    return lambda uuid, night: 0.9 if uuid == card and night >= first else 1.0


def slow_host(first: int, last: int = 99) -> Change:
    """All cards of gpu03 are 10 % slower from a night on."""
    return lambda uuid, night: 0.9 if "gpu03" in uuid and first <= night < last else 1.0
