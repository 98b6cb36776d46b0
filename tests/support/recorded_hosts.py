"""Hosts of an inventory that answer every probe with a recorded snapshot, as whole programs see them.

Each host is this machine: Ansible's connection is `local`, and its Python is a stand-in that prints
the recorded snapshot for the kind of probe that it gets. Everything before and after is real.
"""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.fleet.judging import plan_of
from tests.support.healthy_host import MODEL, Document, data, document, with_cards
from tests.support.host_documents import converged

# What a probe is for: to read alone, to compute, to load the GPUs for minutes, to burn in.
READ, FULL, DEEP, BURN_IN = "read", "full", "deep", "burn-in"
STAND_IN = """\
#!{python}
# A stand-in for a host's Python: it prints what was recorded for this kind of probe.
import ast, json, os, sys, time
if "-" not in sys.argv:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
head = sys.stdin.readline()
sys.stdin.read()
config = json.loads(ast.literal_eval(head.partition(" = ")[2]))
kind = "read" if not config.get("matmul") else "full"
if config.get("deep"):
    kind = "burn-in" if config.get("sustained_s") else "deep"
place = os.path.join({place!r}, config["host"])
# Whoever probes next adds to the same file.
os.umask(0)
with open(os.path.join(place, "probes"), "a") as log:
    print(kind, file=log)
with open(os.path.join(place, "probes")) as log:
    answered = len(log.readlines())
if os.path.exists(os.path.join(place, "hang-%d" % answered)):
    time.sleep(600)
own = os.path.join(place, "at-%d.json" % answered)
with open(own if os.path.exists(own) else os.path.join(place, kind + ".json")) as stream:
    found = json.load(stream)
for run in found["sections"].get("compute", {{}}).get("data", {{}}).get("runs", []):
    for entry in run.get("sustained") or []:
        entry["seconds"] = max(entry["seconds"] or 0, config.get("sustained_s") or 0)
now = time.gmtime(time.time() + found.pop("clock_is_ahead_s", 0))
if not found.pop("keeps_its_times", False):
    found["started"] = found["finished"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", now)
print(json.dumps(found))
"""


class RecordedHosts:
    """Some hosts with GPUs, whole; a test breaks what one of their snapshots says."""

    def __init__(
        self,
        place: Path,
        names: list[str],
        gpus: int = 2,
        *,
        interpreter: str = sys.executable,
        **variables: Any,
    ) -> None:
        self.place, self.names, self.gpus = place, names, gpus
        self.variables: Document = {
            "gpu_toolkits": ["11.8.0"],
            "gpu_accept_nvidia_eula": True,
            "gpu_driver": {"branch": "535", "source": "distro"},
            "gpu_expect": {"count": gpus, "model": MODEL},
            **variables,
        }
        self.python = place / "python"
        place.mkdir(parents=True, exist_ok=True)
        self.python.write_text(STAND_IN.format(python=interpreter, place=str(place)))
        self.python.chmod(0o755)
        for number, name in enumerate(names):
            (place / name).mkdir()
            snapshot = self.healthy(name, number)
            for kind in (READ, FULL, DEEP, BURN_IN):
                self.record(name, kind, snapshot)
        self.inventory = place / "hosts.yml"
        self.write_inventory()

    def write_inventory(self, **more: Document) -> None:
        """The inventory; `more` are variables of single hosts."""
        own = {
            name: {
                "ansible_connection": "local",
                "ansible_become": False,
                "ansible_python_interpreter": str(self.python),
                **self.variables,
                **more.get(name, {}),
            }
            for name in self.names
        }
        self.inventory.write_text(json.dumps({"gpu_hosts": {"hosts": own}}))

    def healthy(self, name: str, number: int) -> Document:
        """A host that matches its plan, with cards of its own."""
        plan, snapshot = document("plan.json"), document("snapshot.json")
        with_cards(plan, snapshot, self.gpus)
        planned: Any = plan_of(InventoryHost(name, self.variables, Connection(name)), snapshot)
        whole = converged(planned)
        files = {row["kind"]: row for row in data(whole, "receipts")["receipts"]}
        for row in data(snapshot, "receipts")["receipts"]:
            if row["kind"] in ("toolkit", "environment"):
                known = files[row["kind"]]
                row.update({key: known[key] for key in ("source", "texts") if key in known})
        snapshot["host"] = name
        for section in ("smi", "smi_after"):
            for device in data(snapshot, section)["devices"]:
                self.set_card(device, number)
        data(snapshot, "os")["hardware"] = {
            "vendor": "Supermicro",
            "product": "SYS-821GE-TNHR",
            "serial": f"A2612345{number:04}",
            "serial_board": None,
            "firmware": "2.1",
            "drives": [],
        }
        run = data(snapshot, "compute")["runs"][0]
        for device in run["devices"]:
            device["uuid"] = uuid(number, device["index"])
        run["disk"] = {
            "directory": "/var/tmp",
            "mib": 1024,
            "rounds": 40,
            "wrong": 0,
            "write_mib_s": 1800,
            "read_mib_s": 3100,
            "error": None,
        }
        run["fabric"] = loaded_links(self.gpus)
        return snapshot

    def set_card(self, device: Document, number: int) -> None:
        """Give a card of the host with this number its own UUID and serial number."""
        device["uuid"] = uuid(number, device["index"])
        device["elements"] = {
            **(device.get("elements") or {}),
            "serial": f"16500230{number:02}{device['index']:02}",
        }

    def record(self, name: str, kind: str, snapshot: Document) -> None:
        """Have a host answer this kind of probe so."""
        (self.place / name / f"{kind}.json").write_text(json.dumps(snapshot))

    def change_at(self, name: str, number: int, kind: str, change: Any) -> None:
        """Change what a host answers to the probe with this number, counted from 1."""
        snapshot = self.recorded(name, kind)
        change(snapshot)
        self.record(name, f"at-{number}", snapshot)

    def recorded(self, name: str, kind: str) -> Document:
        """The answer of a host to this kind of probe, to be changed."""
        found: Document = json.loads((self.place / name / f"{kind}.json").read_text())
        return found

    def change(self, name: str, change: Any, *kinds: str) -> None:
        """Change what a host answers to these kinds of probes, by default to all."""
        for kind in kinds or (READ, FULL, DEEP, BURN_IN):
            snapshot = self.recorded(name, kind)
            change(snapshot)
            self.record(name, kind, snapshot)

    def replace_card(self, name: str, index: int, serial: str) -> None:
        """Another card in the place of one, as after a repair."""

        def replaced(snapshot: Document) -> None:
            for section in ("smi", "smi_after"):
                device = data(snapshot, section)["devices"][index]
                device["uuid"] = f"GPU-{serial}"
                device["elements"]["serial"] = serial
            data(snapshot, "compute")["runs"][0]["devices"][index]["uuid"] = f"GPU-{serial}"

        self.change(name, replaced)

    def probes(self, name: str) -> list[str]:
        """The kinds of probes that a host has answered, in their order."""
        log = self.place / name / "probes"
        return log.read_text().split() if log.exists() else []

    def forget(self) -> None:
        """Forget the probes that were answered."""
        for name in self.names:
            (self.place / name / "probes").unlink(missing_ok=True)


def loaded_links(gpus: int) -> list[Document]:
    """All links of a host with so many GPUs after a burn-in."""
    ends = [*range(gpus), None]
    return [
        {
            **{"from": a, "to": b, "access": None if None in {a, b} else True},
            **{"gib": 1200.0, "gib_s": 10.0, "checked": 60, "wrong": 0, "error": None},
        }
        for a in ends
        for b in ends
        if a != b
    ]


def uuid(number: int, index: int) -> str:
    """The UUID of a card."""
    return f"GPU-5e1c{number:04}-4b7d-9a33-0c2d-{index:012}"


def slow_card(index: int, tflops: float = 11.2) -> Any:
    """A change: this card multiplies slowly."""

    def change(snapshot: Document) -> None:
        data(snapshot, "compute")["runs"][0]["cublas"][index]["tflops"] = tflops

    return change


def wrong_sample(index: int) -> Any:
    """A change: under load one product of this card is wrong."""

    def change(snapshot: Document) -> None:
        entry = data(snapshot, "compute")["runs"][0]["sustained"][index]
        entry["wrong"] = 1
        samples = deepcopy(entry["samples"])
        for at, sample in enumerate(samples):
            sample["wrong"] = int(at >= len(samples) // 2)
        entry["samples"] = samples

    return change
