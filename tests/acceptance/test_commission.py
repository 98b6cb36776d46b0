"""Three fresh hosts are commissioned: one certificate, two refusals that name the part.

The hosts are real but for their GPUs: their Python is a stand-in that runs the real probe, and
puts recorded sections of GPUs into its snapshot. The tests are one story, in their order: killed
in each stage, resumed, certified.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.fault_proof import copy_to_host
from tests.support.lab_fleet import ROOT, TOOLKIT, Fleet
from tests.support.recorded_hosts import (
    BURN_IN,
    DEEP,
    FULL,
    MODEL,
    RecordedHosts,
    slow_card,
    wrong_sample,
)

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ARTIFACTS = ("--cuda", "11.8")
NAMES = ["lab1", "lab2", "lab3"]
UP = ("--hosts", ",".join(NAMES))
PLACE = "/srv/stand-in"
PYTHON = f"{PLACE}/python"
# What the stand-in puts into the snapshot.
PLANTED = ("gpus", "smi", "smi_after", "kernel_log", "kernel_log_after", "driver", "compute")
STAND_IN = f"""\
#!/usr/bin/python3
# A stand-in for the host's Python: the real probe, with GPUs that were recorded.
import ast, json, os, subprocess, sys, time
REAL = ["/usr/bin/python3", *sys.argv[1:]]
if "-" not in sys.argv:
    os.execv(REAL[0], REAL)
text = sys.stdin.read()
head, _, rest = text.partition("\\n")
if not head.startswith("CONFIG = "):
    sys.exit(subprocess.run(REAL, input=text, text=True).returncode)
config = json.loads(ast.literal_eval(head.partition(" = ")[2]))
kind = "full" if config.get("matmul") else "read"
if config.get("deep"):
    kind = "burn-in" if config.get("sustained_s") else "deep"
with open("{PLACE}/probes", "a+") as log:
    print(kind, file=log, flush=True)
    log.seek(0)
    number = len(log.readlines())
while os.path.exists("{PLACE}/hang-%d" % number):
    time.sleep(0.2)
own = dict(config, deep=False, matmul=None)
real = subprocess.run(
    REAL, input="CONFIG = %r\\n%s" % (json.dumps(own), rest), text=True, stdout=subprocess.PIPE
)
found = json.loads(real.stdout.strip().splitlines()[-1])
with open("{PLACE}/%s.json" % kind) as stream:
    found["sections"].update(json.load(stream))
for entry in found["sections"]["compute"]["data"]["runs"][0]["sustained"]:
    entry["seconds"] = max(entry["seconds"], config.get("sustained_s") or 0)
print(json.dumps(found))
"""
DECLARED = {
    "gpu_stacks": [],
    "gpu_toolkits": ["11.8"],
    "gpu_accept_nvidia_eula": True,
    "gpu_expect": {"count": 1, "model": MODEL},
    "ansible_python_interpreter": PYTHON,
}


@dataclass
class Site:
    """The hosts, their recorded GPUs, and a key of the site."""

    fleet: Fleet
    place: Path

    @property
    def state(self) -> Path:
        """The directory of the commissionings."""
        return self.place / "state"

    def words(self, *more: str) -> list[str]:
        return [
            "commission",
            *("--state", str(self.state), "--database", str(self.place / "history.sqlite")),
            *("--key", str(self.place / "key"), "--burn-in", "60s"),
            *("-e", json.dumps(DECLARED), *more),
        ]

    def stages(self, name: str) -> dict[str, str]:
        record = self.state / f"{name}.json"
        if not record.exists():
            return {}
        stages = json.loads(record.read_text())["stages"]
        return {stage: row["outcome"] for stage, row in stages.items()}

    def issued(self, kind: str, name: str) -> Any:
        return json.loads((self.state / kind / f"{name}.json").read_text())

    def probes(self) -> list[str]:
        return self.fleet.on("lab1", f"cat {PLACE}/probes 2>/dev/null || true").split()

    def killed(self, stage: str, probe: int) -> None:
        """Run it, and kill it in this stage, at this probe from now on."""
        hang = f"{PLACE}/hang-{len(self.probes()) + probe}"
        self.fleet.on("lab1", f"touch {hang}")
        with subprocess.Popen(
            [ROOT / "gpufleet", *self.words("--limit", "lab1")],
            cwd=ROOT,
            env=self.fleet.environment,
            stdout=subprocess.DEVNULL,
            stderr=(self.place / "killed").open("w"),
            start_new_session=True,
        ) as running:
            wait_until(
                lambda: (
                    self.stages("lab1").get(stage) == "running"
                    and self.fleet.on("lab1", f"wc -l <{PLACE}/probes").strip()
                    == hang.rpartition("-")[2]
                ),
                running,
            )
            running.send_signal(signal.SIGKILL)
        self.fleet.on("lab1", f"rm {hang}")

    def verifies(self, path: Path, namespace: str) -> bool:
        done = subprocess.run(
            [
                *("ssh-keygen", "-Y", "verify", "-f", self.place / "signers", "-I", "site"),
                *("-n", namespace, "-s", f"{path}.sig"),
            ],
            input=path.read_bytes(),
            capture_output=True,
            check=False,
        )
        return done.returncode == 0


def wait_until(holds: Callable[[], bool], running: Any, seconds: float = 900) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert running.poll() is None, f"it ended with {running.returncode}"
        assert time.monotonic() < end, "never seen"
        time.sleep(0.3)


@pytest.fixture(scope="module")
def site(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Site:
    place = tmp_path_factory.mktemp("site")
    recorded = RecordedHosts(place / "recorded", NAMES, 1)
    recorded.change("lab2", slow_card(0))
    recorded.change("lab3", wrong_sample(0), BURN_IN)
    for name in NAMES:
        folder = place / "planted" / name
        folder.mkdir(parents=True)
        (folder / "python").write_text(STAND_IN)
        for kind in ("read", FULL, DEEP, BURN_IN):
            sections = recorded.recorded(name, kind)["sections"]
            planted = {section: sections[section] for section in PLANTED}
            (folder / f"{kind}.json").write_text(json.dumps(planted))
        copy_to_host(fleet, folder, PLACE, name)
        fleet.on(name, f"chmod 755 {PLACE} {PYTHON}")
    key = place / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (place / "signers").write_text(f"site {key.with_suffix('.pub').read_text()}")
    return Site(fleet, place)


def test_killed_while_it_provisions(site: Site) -> None:
    site.fleet.killed(f"[ -d {TOOLKIT} ]", ROOT / "gpufleet", *site.words("--limit", "lab1"))
    assert site.stages("lab1") == {"preflight": "passed", "provision": "running"}


@pytest.mark.parametrize(
    ("stage", "probe"),
    # After the reading: two probes of the provisioning that is repeated, then the stage's own. Each
    # later run begins with the stage that was killed before.
    [("verify", 4), ("deep", 3), ("burn-in", 3), ("cool-down", 3)],
)
def test_killed_in_each_stage_it_resumes_with_that_stage(
    site: Site, stage: str, probe: int
) -> None:
    site.killed(stage, probe)
    stages = site.stages("lab1")
    assert {name for name, outcome in stages.items() if outcome != "passed"} == {stage}
    assert not list(site.state.glob("certificates/*"))


def test_one_is_certified_and_two_are_refused_with_the_part(site: Site) -> None:
    before = len(site.probes())
    done = site.fleet.gpufleet(*site.words(), status=1)
    # The last stage alone was left.
    assert site.probes()[before:] == ["read", "full"]
    assert "lab1 resumes with cool-down, which was interrupted" in done.stdout
    certificate = site.issued("certificates", "lab1")
    assert certificate["outcome"] == "certified"
    assert {figure["what"] for figure in certificate["figures"]} >= {"float32 products"}
    for name, stage, check in (
        ("lab2", "verify", "gpu.throughput"),
        ("lab3", "burn-in", "gpu.sustained"),
    ):
        assert site.stages(name)[stage] == "failed"
        [entry] = site.issued("refusals", name)["faulty"]
        number = NAMES.index(name)
        assert (entry["part"]["name"], entry["part"]["serial"]) == (
            "GPU 0",
            f"16500230{number:02}00",
        )
        assert [why["check"] for why in entry["reasons"]] == [check]
        assert site.verifies(site.state / f"refusals/{name}.html", "gpufleet-refusal")


def test_the_certificate_is_verified_and_one_changed_byte_is_not(site: Site) -> None:
    path = site.state / "certificates/lab1.json"
    assert site.verifies(path, "gpufleet-certificate")
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"certified")] ^= 1
    path.write_bytes(raw)
    assert not site.verifies(path, "gpufleet-certificate")


def test_the_fleet_shows_their_states(site: Site) -> None:
    done = site.fleet.gpufleet(
        *("fleet", "--database", str(site.place / "history.sqlite"), "--json"),
        *("-e", json.dumps(DECLARED)),
    )
    rows = json.loads(done.stdout)["hosts"]
    assert {row["host"]: row["state"] for row in rows} == {
        "lab1": "production",
        "lab2": "quarantined",
        "lab3": "quarantined",
    }
