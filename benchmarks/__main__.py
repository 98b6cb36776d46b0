# Apache-2.0, see LICENSE
"""Run benchmarks, side by side in one run, on hosts of a separate lab instance.

./gpufleet bench                                    all of them, one round each
./gpufleet bench --only side_by_side --rounds 3     the medians of three rounds
"""

from __future__ import annotations

import argparse

from rich.console import Console

from . import (
    bisection,
    by_hand,
    control,
    fleet,
    history,
    junk,
    many_fresh,
    network,
    probe,
    provision_fleet,
    scrub,
    side_by_side,
    yardstick,
)
from .common import lab

MEASUREMENTS = {
    "bisection": bisection.measure,
    "by_hand": by_hand.measure,
    "control": control.measure,
    "fleet": fleet.measure,
    "history": history.measure,
    "junk": junk.measure,
    "many_fresh": many_fresh.measure,
    "network": network.measure,
    "probe": probe.measure,
    "provision_fleet": provision_fleet.measure,
    "scrub": scrub.measure,
    "side_by_side": side_by_side.measure,
    "yardstick": yardstick.measure,
}


def parser() -> argparse.ArgumentParser:
    """The options."""
    verb = argparse.ArgumentParser(
        prog="gpufleet bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument("--only", action="append", choices=MEASUREMENTS)
    verb.add_argument("--rounds", type=int, default=1)
    return verb


def main() -> None:
    """Measure and show."""
    options = parser().parse_args()
    console = Console()
    try:
        for name in options.only or MEASUREMENTS:
            console.print(MEASUREMENTS[name](options.rounds, console))
    finally:
        lab("down")


if __name__ == "__main__":
    main()
