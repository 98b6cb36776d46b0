# Apache-2.0, see LICENSE
"""The cost of reading a share of the contents each night, for the control machine and a host.

The control machine: the whole `nightly` of 100 hosts that answer with a recorded snapshot, with
`scrub_days: 14` and with `scrub_days: 0`, each with a history of its own, one round after the
other. The first night is not measured. Needs no lab.

A host: a tree of one file of 1.2 GB, libraries of 20 MB and small files, as a stack and a toolkit
are; each of 14 nights, their states handed on, reads its share from the disk. Then a bound that is
too short for it. The page cache is what mincore says of the largest file.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table

from gpufleet.on_host import contents
from gpufleet.on_host.manifest import sha256_of
from gpufleet.on_host.processes import in_child

from .common import BIN, ROOT
from .fleet import Cost, cost

HOSTS, DAYS = 100, 14
FIXTURE = ROOT / "tests" / "fixtures" / "snapshot.json"
LARGE, LIBRARY, SMALL = 1200 << 20, 20 << 20, 9_000
LIBRARIES, SMALLS = 40, 5_000
TOO_SHORT_S = 0.5


def components(at: int) -> list[dict[str, Any]]:
    """The states of eight components on a host."""
    return [
        {
            "component": f"toolkit-{number}",
            "installed": "2026-11-20T12:00:00Z",
            "files": 400,
            "bytes": 4 << 30,
            "first": at,
            "begun": at,
            "read": at,
            "cursor": "targets/x86_64-linux/lib/libcufft.so.11.0.8.91",
            "complete": True,
            "slow": [],
            "bad": [],
        }
        for number in range(8)
    ]


def nightly(directory: Path, days: int) -> Cost:
    """One night."""
    snapshot = json.loads(FIXTURE.read_text(encoding="utf-8"))
    if days:
        now = int(time.time())
        snapshot["sections"]["receipts"]["data"]["scrub"] = {
            "days": days,
            "seconds": 60,
            "at": now,
            "error": None,
            "components": components(now),
        }
    answer = directory / "answer.json"
    answer.write_text(json.dumps(snapshot) + "\n", encoding="utf-8")
    python = directory / "python"
    python.write_text(f"#!/bin/sh\ncat >/dev/null\necho\ncat {answer}\n", encoding="utf-8")
    python.chmod(0o755)
    (directory / "hosts.yml").write_text(
        json.dumps(
            {
                "gpu_hosts": {
                    "hosts": {
                        f"gpu{number:03}": {
                            "ansible_connection": "local",
                            "ansible_become": False,
                            "ansible_python_interpreter": str(python),
                            "gpu_expect": {"count": 0},
                        }
                        for number in range(HOSTS)
                    }
                }
            }
        )
    )
    (directory / "nightly.yml").write_text(
        json.dumps(
            {
                "inventory": [str(directory / "hosts.yml")],
                "state_dir": str(directory / "state"),
                "reports_dir": str(directory / "reports"),
                "scrub_days": days,
            }
        )
    )
    # The hosts' snapshot is of another plan: that it fails is none of this benchmark's.
    return cost(
        "/bin/sh",
        "-c",
        '"$@"; test $? -le 3',
        "sh",
        BIN / "python",
        "-m",
        "gpufleet",
        "nightly",
        "--config",
        directory / "nightly.yml",
    )


def control(rounds: int, console: Console) -> Table:
    """The least of each, both ways."""
    least: dict[int, Cost] = {}
    with tempfile.TemporaryDirectory() as place:
        for number in range(rounds + 1):
            for days in (0, DAYS):
                directory = Path(place, str(days))
                directory.mkdir(exist_ok=True)
                with console.status(f"round {number}: scrub_days {days}"):
                    found = nightly(directory, days)
                if number:
                    least[days] = found.least(least.get(days, found))
    table = Table(title=f"nightly of {HOSTS} hosts, recorded answers", min_width=60)
    for heading in ("scrub_days", "wall, s", "control CPU, s", "memory, MB"):
        table.add_column(heading, justify="right")
    for days, each in least.items():
        table.add_row(str(days), f"{each.wall_s:.2f}", f"{each.cpu_s:.2f}", f"{each.rss_mb:.0f}")
    return table


def planted(root: Path) -> dict[str, Any]:
    """A component on the disk."""
    sizes = {
        "large.so": LARGE,
        **{f"lib{n:02}.so": LIBRARY for n in range(LIBRARIES)},
        **{f"small/{n:04}.py": SMALL for n in range(SMALLS)},
    }
    (root / "small").mkdir()
    block = os.urandom(LIBRARY)
    files = {}
    for name, size in sizes.items():
        with (root / name).open("wb") as stream:
            for at in range(0, size, len(block)):
                stream.write(block[: size - at])
        files[name] = (sha256_of(str(root / name)), size)
    os.sync()
    for name in files:
        with (root / name).open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return {"component": "stack-tf", "installed": "now", "root": str(root), "files": files}


def cached_mib(path: Path) -> float:
    """How much of a file the page cache holds."""
    size = path.stat().st_size
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), size) as pages:
        resident = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
        start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), resident)
        return sum(page & 1 for page in resident) * mmap.PAGESIZE / (1 << 20)


def night(
    component: dict[str, Any], states: list[Any], days_on: int, seconds: float
) -> tuple[list[Any], float, float]:
    """The states, and the wall-clock and processor seconds, of one night."""
    begin, before = time.monotonic(), _used_s()
    state, answer, error = in_child(_night, (component, states, days_on, seconds), 600)
    if state != "ok":
        raise SystemExit(error)
    return answer[0], time.monotonic() - begin, _used_s() - before


def _night(component: dict[str, Any], states: list[Any], days_on: int, seconds: float) -> Any:
    now = time.time() + days_on * contents.DAY_S
    contents.time.time = lambda: now
    return contents.scrub([component], {"days": DAYS, "seconds": seconds, "components": states})


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def host(console: Console) -> Table:
    """Fourteen nights of a host, and one with too short a bound."""
    table = Table(
        title=f"a host: {(LARGE + LIBRARIES * LIBRARY + SMALLS * SMALL) >> 20} MiB,"
        f" {1 + LIBRARIES + SMALLS} files, {DAYS} days",
        min_width=60,
    )
    for heading in ("night", "wall, s", "CPU, s", "of the large file cached, MiB"):
        table.add_column(heading, justify="left" if heading == "night" else "right")
    with tempfile.TemporaryDirectory(dir=ROOT) as place, console.status("nights of a host"):
        component = planted(Path(place))
        before = cached_mib(Path(place, "large.so"))
        states: list[Any] = []
        walls, processors = [], []
        for number in range(DAYS):
            states, wall_s, cpu_s = night(component, states, number, 60)
            walls.append(wall_s)
            processors.append(cpu_s)
        table.add_row(
            "median of 14",
            f"{statistics.median(walls):.2f}",
            f"{statistics.median(processors):.2f}",
            "",
        )
        table.add_row(
            "longest (the large file)",
            f"{max(walls):.2f}",
            f"{max(processors):.2f}",
            f"{before:.0f} before, {cached_mib(Path(place, 'large.so')):.0f} after",
        )
        _, wall_s, cpu_s = night(component, [], 0, TOO_SHORT_S)
        table.add_row(f"declared: {TOO_SHORT_S} s", f"{wall_s:.2f}", f"{cpu_s:.2f}", "")
        table.caption = ("read whole" if states[0]["read"] else "NOT read whole") + " after them"
    return table


def measure(rounds: int, console: Console) -> Group:
    """Both tables."""
    return Group(control(rounds, console), host(console))
