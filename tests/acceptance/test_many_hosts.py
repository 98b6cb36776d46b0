"""A hundred hosts, ten of them not as they should be: each is named rightly, the others judged.

The hundred are ports of lab1, each a login and a probe of its own. What is broken on one of them is
broken in a mount namespace of its own, which its Python enters: a broken file system and no broken
document. The next night two are repaired and one more is broken, and what changed says just that.
"""

from __future__ import annotations

import io
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from gpufleet.fleet.inventory import HostSelector, inventory_hosts
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.probing import verify
from gpufleet.fleet.session import Session
from gpufleet.fleet.transport.fanout import Outcome
from gpufleet.judge import judge
from gpufleet.report import terminal
from tests.support.lab_fleet import ROOT, Fleet, lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ARTIFACTS = ("--cuda", "8.0")
UP = ("--hosts", "lab1")

COUNT, FANOUT = 100, 8
# A healthy one needs a second; on a machine that is busy otherwise, many.
DEADLINE_S = int(os.environ.get("GPUFLEET_DEADLINE") or 20)
# What a host that was late may take beyond its deadline, and the end of a run.
MORE_S = 5

# In the place of Python: what is done before it, in a mount namespace of its own.
BREAKS = {
    "full": "mount -t tmpfs -o size=1m tmpfs /var/lib/gpufleet;"
    " head -c 2M /dev/zero >/var/lib/gpufleet/filler 2>/dev/null",
    "damaged": "mount -t tmpfs tmpfs /var/lib/gpufleet; mkdir /var/lib/gpufleet/receipts;"
    " echo '{' >/var/lib/gpufleet/receipts/toolkit-11.8.json",
    "endless": "exec sleep 600",
}
PYTHON = """mkdir -p /var/lib/gpufleet
cat >/usr/local/bin/{name} <<'END'
#!/bin/sh
exec unshare --mount sh -c "{words}; exec python3 \\"\\$@\\"" sh "$@"
END
chmod 755 /usr/local/bin/{name}"""

Host = dict[str, object]


def broken(name: str) -> Host:
    """A host on which something is broken."""
    return {"ansible_python_interpreter": f"/usr/local/bin/{name}"}


@dataclass
class Night:
    """One look at all hosts, as `verify` takes it."""

    session: Session
    seconds: float
    ended: dict[str, float] = field(default_factory=dict)

    @property
    def reported(self) -> dict[str, dict[str, str]]:
        """The causes of all unhealthy checks, by host and check."""
        found = {
            host.name: {
                check["id"]: check["cause"]
                for check in host.result["checks"]
                if check["verdict"] not in {"PASS", "NOT-DECLARED"}
            }
            for host in self.session.hosts
        }
        return {name: checks for name, checks in found.items() if checks}


def night(inventory: Path) -> Night:
    """Look and judge."""
    begin, ended = time.monotonic(), {}

    def heard(name: str, outcome: Outcome) -> None:
        ended[name] = time.monotonic() - begin

    hosts = inventory_hosts(HostSelector([str(ROOT / "inventory" / "many"), str(inventory)]))
    session = verify(hosts, ProbeOptions(fanout=FANOUT, deadline_s=DEADLINE_S), heard)
    return Night(session, time.monotonic() - begin, ended)


@pytest.fixture(scope="module")
def odd(fleet: Fleet) -> Iterator[dict[str, Host]]:
    """The inventory's variables of the ten faulty hosts, by host."""
    lab(fleet, "many", "--hosts", str(COUNT))
    for name, words in BREAKS.items():
        fleet.on("lab1", PYTHON.format(name=name, words=words))
    address = json.loads(fleet.run(ROOT / "inventory/many/hosts.py", "--list").stdout)["gpu_hosts"][
        "vars"
    ]["ansible_host"]
    nobody = f"{address.rpartition('.')[0]}.250"
    with socket.create_server(("0.0.0.0", 0)) as mute:
        yield {
            # An sshd that hangs: it accepts, and never says a word. And a probe that hangs.
            "host001": {"ansible_host": "127.0.0.1", "ansible_port": mute.getsockname()[1]},
            "host002": broken("endless"),
            **{name: {"ansible_port": 1} for name in ("host020", "host040", "host060")},
            **{name: {"ansible_host": nobody} for name in ("host080", "host100")},
            "host030": broken("full"),
            "host050": broken("damaged"),
            "host070": {"gpu_toolkits": ["11.8"], "gpu_accept_nvidia_eula": True},
        }


@pytest.fixture(scope="module")
def first(
    fleet: Fleet, odd: dict[str, Host], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Night]:
    """The first night."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUFLEET_LAB", fleet.instance)
        yield night(inventory(tmp_path_factory.mktemp("first"), odd))


def inventory(directory: Path, hosts: dict[str, Host]) -> Path:
    """The inventory of some hosts that is used beside inventory/many."""
    path = directory / "odd.json"
    path.write_text(json.dumps({"gpu_hosts": {"hosts": hosts}}))
    return path


def test_all_ten_are_named_and_the_others_judged(first: Night) -> None:
    reported = first.reported
    assert sorted(reported) == [
        "host001",
        "host002",
        "host020",
        "host030",
        "host040",
        "host050",
        "host060",
        "host070",
        "host080",
        "host100",
    ]
    reached = {name: checks.get("host.reachable", "") for name, checks in reported.items()}
    assert "timed out during banner exchange" in reached["host001"]
    assert f"gave no answer within {DEADLINE_S} s" in reached["host002"]
    for name in ("host020", "host040", "host060"):
        assert "Connection refused" in reached[name]
    for name in ("host080", "host100"):
        assert "No route to host" in reached[name] or "timed out" in reached[name]
    assert "No space is left in /var/lib/gpufleet" in reported["host030"].pop("host.disk")
    assert "toolkit-11.8.json cannot be read" in reported["host050"].pop("install.complete")
    assert "toolkit.present" in reported["host070"]
    assert not reported["host030"] and not reported["host050"]
    assert judge.exit_status(first.session.document) == 1
    judged = {host.name: len(host.result["checks"]) for host in first.session.hosts}
    assert len(judged) == COUNT
    assert all(judged[name] > 60 for name in judged if not reached.get(name))


def test_who_hangs_holds_the_run_up_by_one_deadline_at_most(first: Night) -> None:
    # ClusterShell starts hosts in any order: at worst, the hung ones when a last place is free.
    hung = ("host001", "host002")
    others = max(seconds for name, seconds in first.ended.items() if name not in hung)
    assert first.ended["host002"] >= DEADLINE_S
    assert max(first.ended[name] for name in hung) < others + DEADLINE_S + MORE_S
    assert first.seconds < max(first.ended.values()) + MORE_S


def test_a_person_reads_who_it_is(first: Night) -> None:
    console = Console(file=io.StringIO(), width=160)
    terminal.show(console, first.session, None)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "✓ host[003-019,021-029,031-039,041-049,051-059,061-069,071-079,081-099]" in text
    assert "90 of 100 hosts healthy; 3 failed, 7 unreachable." in text
    assert len(text.splitlines()) < 250


def test_the_next_night_says_what_changed_and_nothing_else(
    first: Night, odd: dict[str, Host], tmp_path: Path
) -> None:
    history = pytest.importorskip("gpufleet.watch.history")
    later = {name: output for name, output in odd.items() if name not in {"host001", "host030"}}
    later["host010"] = broken("full")
    with history.History(tmp_path / "history.sqlite") as nights:
        nights.record(first.session)
        assert nights.changes()["changes"] == []
        nights.record(night(inventory(tmp_path, later)).session)
        found = nights.changes()
    assert {(row["kind"], row["host"], row["check"]) for row in found["changes"]} == {
        ("failure", "host010", "host.disk"),
        ("recovery", "host001", "host.reachable"),
        ("recovery", "host030", "host.disk"),
    }
    assert found["hosts_before"] == {
        **found["hosts_before"],
        "PASS": 90,
        "FAIL": 3,
        "UNREACHABLE": 7,
    }
    assert found["hosts"] == {**found["hosts"], "PASS": 91, "FAIL": 3, "UNREACHABLE": 6}
