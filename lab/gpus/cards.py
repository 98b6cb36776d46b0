"""Give lab hosts stand-in GPUs, break one, and take them away.

`gpus.json` of the lab says which hosts have how many, with which fault; the inventory script reads
it. The files of a host are written again as a whole each time, so the same command mends a host
that was changed, and a killed one is completed by the next.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from lab import files, hosts
from lab.command import feed, podman
from lab.errors import LabError
from lab.gpus.planting import MODEL, PLACE, UNIT, Cards, faults, packed
from lab.progress import Progress
from lab.settings import Lab, host_number

SCHEMA = 1
MOST = 8
# The toolkit of a host with stand-in GPUs, which the lab builds by itself.
TOOLKIT = "11.8"
# Removes everything, whatever state it is in.
REMOVE = f"""
systemctl disable --now --quiet {UNIT} nvidia-persistenced.service 2>/dev/null
set -e
[ ! -e {PLACE}/show.sh ] || {PLACE}/show.sh stop
[ ! -e {PLACE}/files ] || (cd / && xargs -r rm -f <{PLACE}/files)
rm -rf {PLACE}
systemctl daemon-reload
ldconfig
"""
# Which nodes are drained, while hosts are broken and mended.
FORGET = "rm -f /var/lib/stand-in-slurm.json"
SHOW = f"""
set -e
cd / && tar -x
chmod 755 {PLACE}/python {PLACE}/show.sh
systemctl daemon-reload
ldconfig
systemctl enable --now --quiet {UNIT} nvidia-persistenced.service
"""


def path_of(lab: Lab) -> Path:
    """The file that says which hosts have stand-in GPUs."""
    return lab.directory / "gpus.json"


def load(lab: Lab) -> dict[str, Cards]:
    """The stand-in GPUs of the lab's hosts; none where nothing readable says so."""
    try:
        found = json.loads(path_of(lab).read_text(encoding="utf-8"))["hosts"]
        return {name: Cards(row["count"], row["fault"]) for name, row in found.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def save(lab: Lab, cards: Mapping[str, Cards]) -> None:
    """Write which hosts have stand-in GPUs, with what the inventory declares of them."""
    rows = {
        name: {
            **asdict(each),
            "variables": {
                "ansible_python_interpreter": f"{PLACE}/python",
                "gpu_expect": {"count": each.count, "model": MODEL, "nvlinks": 0},
                "gpu_stacks": [],
                "gpu_toolkits": [TOOLKIT],
            },
        }
        for name, each in cards.items()
    }
    # The first host has the stand-in for a scheduler, which all hosts are told.
    first = min(cards, key=host_number, default=None)
    common = {"gpu_scheduler_host": first} if first else {}
    document = {"schema": SCHEMA, "variables": common, "hosts": rows}
    files.write(path_of(lab), json.dumps(document, indent=2) + "\n", mode=0o600)


def up(
    lab: Lab, names: list[str], count: int, fault: str | None, progress: Progress
) -> dict[str, Cards]:
    """Have these hosts running with so many stand-in GPUs; the cards of all hosts of the lab."""
    if not 0 <= count <= MOST:
        raise LabError(f"a host cannot have {count} stand-in GPUs", f"Use 0 to {MOST}.")
    if fault and fault not in faults():
        known = "; ".join(f"{name}: {each['about']}" for name, each in faults().items())
        raise LabError(f"no card can have the fault {fault!r}", f"Choose one: {known}.")
    if fault and not count:
        raise LabError("a host without a card has none that could fail", "Use --count 1 or more.")
    present = {host.name: host for host in hosts.listed(lab)}
    for name in names:
        host_number(name)
        if name not in present or present[name].state != "running":
            raise LabError(
                f"{name} does not run in the lab {lab.instance!r}",
                f"./gpufleet lab up --hosts {','.join(names)}",
            )
    with files.lock(lab.locks, f"lab-{lab.instance}", progress.say):
        cards = load(lab) | {name: Cards(count, fault) for name in names}
        left = {name: each for name, each in cards.items() if each.count and name in present}
        with progress.step(f"Stand-in GPUs: {', '.join(names)}"):
            for name in names:
                container = present[name].container
                podman("exec", container, "sh", "-c", REMOVE)
                if name in left:
                    archive = packed(name, left[name])
                    feed(archive, "podman", "exec", "--interactive", container, "sh", "-c", SHOW)
                else:
                    podman("exec", container, "sh", "-c", FORGET)
            if nodes := sorted(left, key=host_number):
                # The scheduler knows the hosts with cards.
                scheduler = present[nodes[0]].container
                podman(
                    "exec", scheduler, "sh", "-c", f"echo {' '.join(nodes)} >{PLACE}/slurm-nodes"
                )
        save(lab, left)
    return left


def described(name: str, cards: Cards) -> str:
    """The cards of a host in one line."""
    fault = f"; the last one: {faults()[cards.fault]['about']}" if cards.fault else ""
    return f"{name} has stand-in GPUs: {cards.count} x {MODEL}{fault}"
