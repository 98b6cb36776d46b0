# Apache-2.0, see LICENSE
"""The control machine's cost of fifty fresh hosts: one artifact to each, in four ways, in one run.

On the stand-in for a fleet (see ``fleet``), each round one way after the other, each time to empty
directories: the control machine copies (the default of the role ``artifacts``), the hosts fetch
from a plain HTTP mirror, on the control machine or on another one (lab2), or they pass the pieces
on to each other (aria2, BitTorrent; the control machine has the first copy and the tracker). Each
host's file is compared with its SHA-256. The least of the rounds is reported.

*Sent* is what the control machine's interface to the hosts has sent, ssh included. *Control CPU*
is that of Ansible, of its ssh processes, of the connections that they share, and of the servers on
the control machine. All hosts are
one container with this machine's processors: wall-clock time contains the work of fifty hosts, and
their network is its memory. Real artifacts are a hundred times as large: the row of a tiny artifact
shows what does not grow with the size.

Needs the packages aria2, opentracker and mktorrent on this machine; installs aria2 on lab1.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .common import BIN, ENVIRONMENT, ROOT, command, lab
from .fleet import INVENTORY

HOSTS, MIB, TINY = 50, 32, "1 KiB, copied"
PROGRAMS = ("aria2c", "opentracker", "mktorrent")
MIRROR_PORT, TRACKER_PORT, SEED_PORT = 8090, 6969, 6881
HOST_DIR = "/var/cache/gpufleet-many"
FILE = "artifact.run"
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Cost:
    """The cost of one way for the control machine."""

    sent: int
    cpu_s: float
    wall_s: float

    def least(self, other: Cost) -> Cost:
        """The less of each."""
        return Cost(
            min(self.sent, other.sent), min(self.cpu_s, other.cpu_s), min(self.wall_s, other.wall_s)
        )


@dataclass(frozen=True)
class Site:
    """The control machine's directory with the artifact, and its place in the hosts' network."""

    directory: Path
    gateway: str
    interface: str
    mirror: str

    def variables(self, file: Path) -> dict[str, object]:
        """The role's variables for a file."""
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return {
            "artifacts_host_dir": HOST_DIR + "/{{ inventory_hostname }}",
            "gpu_artifacts_cache": str(self.directory / "cache"),
            "gpu_artifacts_source": str(file.parent),
            "__artifacts_mirror": "{{ gpu_artifacts_source is match('https?://') }}",
            "__artifacts_items": [
                {
                    "file": file.name,
                    "checksum": f"sha256:{digest}",
                    "url": "",
                    "size_bytes": file.stat().st_size,
                    "login_required": False,
                }
            ],
        }

    def sent(self) -> int:
        """Bytes that this machine has sent to the hosts."""
        path = Path("/sys/class/net") / self.interface / "statistics" / "tx_bytes"
        return int(path.read_text(encoding="ascii"))


@contextmanager
def server(port: int, *words: str | Path) -> Iterator[None]:
    """A program of the control machine, until the end; its CPU time counts like Ansible's.

    It has this port when it is ready; another program that has it is not taken for it.
    """
    if _answers(port):
        sys.exit(f"Another program has port {port}: end it first.")
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT, stdout=log, stderr=log)
        try:
            while not _answers(port):
                if process.poll() is not None:
                    log.seek(0)
                    sys.exit(f"{words} ended: {log.read().decode(errors='replace')}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait()


def _answers(port: int) -> bool:
    """Return whether a program of this machine listens on a port, at any of its addresses."""
    rows = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    return any(row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "0A" for row in rows)


def copied(site: Site, name: str = FILE) -> dict[str, object]:
    """The control machine copies over ssh."""
    return site.variables(site.directory / name)


def mirrored_here(site: Site, stack: ExitStack) -> dict[str, object]:
    """The control machine serves, as `artifacts serve` does."""
    stack.enter_context(
        server(
            MIRROR_PORT,
            BIN / "python",
            "-m",
            "gpufleet",
            "artifacts",
            "serve",
            site.directory,
            "--bind",
            site.gateway,
            "--port",
            str(MIRROR_PORT),
        )
    )
    return {**copied(site), "gpu_artifacts_source": f"http://{site.gateway}:{MIRROR_PORT}"}


def mirrored_elsewhere(site: Site) -> dict[str, object]:
    """Another machine serves."""
    return {**copied(site), "gpu_artifacts_source": f"http://{site.mirror}:{MIRROR_PORT}"}


def shared(site: Site, stack: ExitStack) -> dict[str, object]:
    """The hosts pass the pieces on; the control machine has the first copy and knows who is there.

    It answers at most four at a time: others get the pieces from those.
    """
    torrent = site.directory / "artifact.torrent"
    torrent.unlink(missing_ok=True)
    command(
        "mktorrent",
        "-l",
        "18",
        "-a",
        f"http://{site.gateway}:{TRACKER_PORT}/announce",
        "-o",
        torrent,
        site.directory / FILE,
    )
    # Debian's tracker knows only the torrents that it is told of.
    listed = site.directory / "torrents"
    listed.write_text(
        re.findall(r"Info Hash: (\w+)", command("aria2c", "-S", torrent))[0] + "\n",
        encoding="ascii",
    )
    listed.chmod(0o644)
    stack.enter_context(
        server(
            TRACKER_PORT,
            "opentracker",
            "-i",
            site.gateway,
            "-p",
            str(TRACKER_PORT),
            "-P",
            str(TRACKER_PORT),
            "-w",
            listed,
        )
    )
    stack.enter_context(
        server(
            SEED_PORT,
            "aria2c",
            f"--dir={site.directory}",
            "--enable-dht=false",
            "--enable-dht6=false",
            f"--listen-port={SEED_PORT}",
            "--seed-ratio=0",
            "--check-integrity=true",
            "--bt-max-peers=4",
            f"--bt-external-ip={site.gateway}",
            "--summary-interval=0",
            torrent,
        )
    )
    return {**copied(site), "torrent": str(torrent)}


WAYS = {
    "copied by the control machine": lambda site, _: copied(site),
    "HTTP mirror on the control machine": mirrored_here,
    "HTTP mirror on another machine": lambda site, _: mirrored_elsewhere(site),
    "passed on by the hosts (aria2)": shared,
    TINY: lambda site, _: copied(site, "tiny.run"),
}


def adopt_orphans() -> None:
    """Have what children leave behind become this process's children, and so be counted."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")


def end_connections() -> None:
    """End ssh's shared connections, which Ansible leaves open and which did the encryption."""
    while True:
        own = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
        if not own:
            return
        for number in own:
            os.kill(int(number), signal.SIGTERM)
            os.waitpid(int(number), 0)


def cpu_s() -> float:
    """The CPU seconds of every program that was started here and has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def once(site: Site, name: str) -> Cost:
    """One way, to empty directories."""
    lab("exec", "lab1", "--", "rm", "-rf", HOST_DIR)
    sent, cpu, begin = site.sent(), cpu_s(), time.perf_counter()
    with ExitStack() as stack:
        variables = site.directory / "variables.json"
        variables.write_text(json.dumps(WAYS[name](site, stack)), encoding="utf-8")
        command(
            BIN / "ansible-playbook",
            "benchmarks/many_fresh.yml",
            "-i",
            INVENTORY,
            "-e",
            f"@{variables}",
            "-e",
            "ansible_timeout=120",
        )
        wall_s = time.perf_counter() - begin
    end_connections()
    return Cost(site.sent() - sent, cpu_s() - cpu, wall_s)


@contextmanager
def prepared() -> Iterator[Site]:
    """The stand-in fleet, the mirror on lab2, and a file that no compression makes smaller."""
    if absent := [name for name in PROGRAMS if not shutil.which(name)]:
        sys.exit(f"{', '.join(absent)}: not installed. apt install aria2 opentracker mktorrent")
    lab("up", "--hosts", "lab1,lab2")
    lab("many", "--hosts", str(HOSTS))
    lab("exec", "lab1", "--", "sh", "-c", "apt-get -qq update && apt-get -qq install -y aria2")
    # The way to the hosts is read from the same lab.
    os.environ.update(ENVIRONMENT)
    addresses = {row["name"]: row["address"] for row in json.loads(lab("list", "--json"))}
    network = json.loads(
        command("podman", "network", "inspect", f"gpufleet-{ENVIRONMENT['GPUFLEET_LAB']}")
    )[0]
    with tempfile.TemporaryDirectory() as name:
        site = Site(
            Path(name),
            network["subnets"][0]["gateway"],
            network["network_interface"],
            addresses["lab2"],
        )
        site.directory.chmod(0o755)
        (site.directory / "wheels").mkdir()
        (site.directory / FILE).write_bytes(os.urandom(MIB << 20))
        (site.directory / "tiny.run").write_bytes(os.urandom(1 << 10))
        command(
            "sh",
            "-c",
            f'"$0" -m lab exec lab2 -- sh -c "mkdir -p /srv/mirror && cat'
            f' >/srv/mirror/{FILE}" <"$1"',
            BIN / "python",
            site.directory / FILE,
        )
        lab(
            "exec",
            "lab2",
            "--",
            "systemd-run",
            "--quiet",
            "--working-directory=/srv/mirror",
            "python3",
            "-m",
            "http.server",
            str(MIRROR_PORT),
        )
        end_connections()
        yield site


def measure(rounds: int, console: Console) -> Table:
    """Each way; the least of the rounds, and how many times less than by copying."""
    adopt_orphans()
    least: dict[str, Cost] = {}
    with prepared() as site:
        for number in range(rounds):
            for name in WAYS:
                with console.status(f"round {number + 1}: {name}"):
                    found = once(site, name)
                least[name] = found.least(least.get(name, found))
    copy = next(iter(least.values()))
    table = Table(title=f"{MIB} MiB to each of {HOSTS} fresh hosts", min_width=60)
    for heading in (
        "way",
        "sent, MB",
        "copies",
        "control CPU, s",
        "wall, s",
        "sent, ratio",
        "CPU, ratio",
        "wall, ratio",
    ):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for name, each in least.items():
        table.add_row(
            name,
            f"{each.sent / 1e6:.1f}",
            f"{each.sent / (MIB << 20):.1f}",
            f"{each.cpu_s:.1f}",
            f"{each.wall_s:.0f}",
            f"{each.sent / copy.sent:.3f}",
            f"{each.cpu_s / copy.cpu_s:.2f}",
            f"{each.wall_s / copy.wall_s:.2f}",
        )
    table.caption = "ratio: its over that of the copying control machine. copies: sent / the size."
    return table
