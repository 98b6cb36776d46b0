"""SIGKILL in the later life of toolkits: removed, pruned, adopted, upgraded, the default switched.

The next run ends right, and what belongs to others was never touched. One host, which each test
finds with two toolkits: CUDA 11.8 with cuDNN, and the stand-in for 8.0 with as many files as
NVIDIA's toolkits have, so that its removal takes long enough to be interrupted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab_fleet import ROOT, TOOLKIT, Fleet

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NEWER = "cudnn-linux-x86_64-8.7.0.84_cuda11-archive.tar.xz"
ARTIFACTS = ("--cuda", "8.0", "--cuda", "11.8", "--file", NEWER)
UP = ("--hosts", "lab1")

STATE = "/var/lib/gpufleet"
LEGACY = "/usr/local/cuda-8.0"
LIB = f"{TOOLKIT}/targets/x86_64-linux/lib"
CONF = "/etc/ld.so.conf.d/gpufleet-cuda.conf"
INVENTORY = str(ROOT / "inventory" / "lab")
BOTH: dict[str, Any] = {
    "gpu_stacks": [],
    "gpu_toolkits": [{"cuda": "11.8", "cudnn": ["8.6"]}, "8.0"],
    "gpu_cuda_adopt": True,
}
ONE = {**BOTH, "gpu_toolkits": BOTH["gpu_toolkits"][:1]}
STATE_SCRIPT = (ROOT / "molecule" / "shared" / "state.sh").read_text()


def playbook(declared: dict[str, Any], name: str = "site", **more: Any) -> list[str | Path]:
    """The native command that provisions a host as declared."""
    program = ROOT / ".venv" / "bin" / "ansible-playbook"
    return [
        program,
        f"playbooks/{name}.yml",
        "-i",
        INVENTORY,
        "-e",
        json.dumps({**declared, **more}),
    ]


@pytest.fixture
def start(fleet: Fleet) -> None:
    """Both toolkits; the legacy toolkit's receipt lists thousands of files, and one is somebody's own."""
    fleet.run(*playbook(BOTH))
    if "many" in fleet.on("lab1", f"ls {LEGACY}"):
        return
    fleet.on(
        "lab1",
        f"mkdir {LEGACY}/many && cd {LEGACY}/many && seq -w 20000 | xargs touch"
        f" && rm {STATE}/receipts/toolkit-8.0.json",
    )
    fleet.run(*playbook(BOTH))
    fleet.on("lab1", f"mkdir -p /opt/theirs && echo precious | tee {LEGACY}/theirs >/opt/theirs/it")


def state(fleet: Fleet, kept: str, besides: str) -> None:
    """The first time remember what stands at some places; the second time compare."""
    script = f"cat >/root/state.sh <<'E'\n{STATE_SCRIPT}E\n"
    places = f"{kept} {LEGACY}/theirs /opt/theirs"
    fleet.on("lab1", f"{script}sh /root/state.sh /root/state '{besides}' {places}")


def finished(
    fleet: Fleet,
    command: list[str | Path],
    condition: str,
    declared: dict[str, Any],
    kept: str,
    *,
    besides: str = "",
) -> None:
    """Kill a command and run it again: it must end right, and `kept` stay, `besides` some names."""
    fleet.on("lab1", "rm -f /root/state")
    state(fleet, kept, besides)
    fleet.killed(condition, *command)
    fleet.run(*command)
    state(fleet, kept, besides)
    where = ("-i", INVENTORY, "-e", json.dumps(declared))
    verdicts = fleet.verdicts(0, *where)["lab1"]
    assert {row["verdict"] for row in verdicts.values()} == {"PASS", "NOT-DECLARED"}
    # An adoption alone has made no journal.
    assert fleet.on("lab1", f"find {STATE} -path '*/journal/*'") == ""
    assert "changed=0 " in fleet.run(*playbook(declared)).stdout


GOING = {
    "files are going": f"! test -e {LEGACY}/many/00100",
    "it is gone, the linker's file still names it": f"! test -e {STATE}/receipts/toolkit-8.0.json",
}


@pytest.mark.usefixtures("start")
@pytest.mark.parametrize("moment", GOING)
def test_remove(fleet: Fleet, moment: str) -> None:
    command = playbook({}, "remove", gpu_remove_toolkits=["8.0"])
    finished(fleet, command, GOING[moment], ONE, TOOLKIT)
    assert fleet.on("lab1", f"find {LEGACY} -not -type d") == f"{LEGACY}/theirs\n"
    fleet.on("lab1", f"rm -r {LEGACY}")


@pytest.mark.usefixtures("start")
@pytest.mark.parametrize("moment", GOING)
def test_prune(fleet: Fleet, moment: str) -> None:
    declared = {**ONE, "gpu_prune": True}
    finished(fleet, playbook(declared), GOING[moment], declared, TOOLKIT)
    assert fleet.on("lab1", f"find {LEGACY} -not -type d") == f"{LEGACY}/theirs\n"
    fleet.on("lab1", f"rm -r {LEGACY}")


@pytest.mark.usefixtures("start")
def test_a_killed_removal_of_what_is_declared_no_longer_is_finished_without_prune(
    fleet: Fleet,
) -> None:
    command = playbook({}, "remove", gpu_remove_toolkits=["8.0"])
    fleet.killed(GOING["files are going"], *command)
    assert fleet.on("lab1", f"ls {STATE}/journal") == "toolkit-8.0.json\n"
    output = fleet.run(*playbook(ONE)).stdout
    assert f"Kept in {LEGACY}, not installed by gpufleet: {LEGACY}/theirs" in output, output
    assert fleet.on("lab1", f"ls -A {STATE}/journal; find {LEGACY} -not -type d") == (
        f"{LEGACY}/theirs\n"
    )
    fleet.on("lab1", f"rm -r {LEGACY}")


INSTALLING = {
    "new libraries stand beside the old": f"test -e {LIB}/libcudnn_adv_infer.so.8.7.0",
    "the archive is being unpacked": f"test -d {TOOLKIT}/.gpufleet-cudnn-11.8-8",
    "the old ones are gone, the receipt is theirs": f"! test -e {LIB}/libcudnn.so.8.6.0",
}


def cudnn(fleet: Fleet) -> set[str]:
    """The versions in the names of cuDNN's libraries."""
    names = fleet.on("lab1", f"ls {LIB}/libcudnn*.so.*.*").split()
    return {name.partition(".so.")[2] for name in names}


@pytest.mark.usefixtures("start")
@pytest.mark.parametrize("moment", INSTALLING)
def test_upgrade(fleet: Fleet, moment: str) -> None:
    declared = {**BOTH, "gpu_toolkits": [{"cuda": "11.8", "cudnn": ["8.7"]}, "8.0"]}
    kept = f"{LEGACY} {TOOLKIT}"
    finished(fleet, playbook(declared), INSTALLING[moment], declared, kept, besides="*cudnn*")
    assert cudnn(fleet) == {"8.7.0"}


@pytest.mark.usefixtures("start")
def test_an_upgrade_that_was_killed_and_is_declared_no_longer(fleet: Fleet) -> None:
    declared = {**BOTH, "gpu_toolkits": [{"cuda": "11.8", "cudnn": ["8.7"]}, "8.0"]}
    fleet.killed(INSTALLING["new libraries stand beside the old"], *playbook(declared))
    fleet.run(*playbook(BOTH))
    assert cudnn(fleet) == {"8.6.0"}
    fleet.verdicts(0, "-i", INVENTORY, "-e", json.dumps(BOTH))


ADOPTING = {
    "it was looked at, and is being recorded": f"test -e {STATE}/lock",
    "the toolkit has its receipt, cuDNN has not": f"test -e {STATE}/receipts/toolkit-11.8.json",
}


@pytest.mark.usefixtures("start")
@pytest.mark.parametrize("moment", ADOPTING)
def test_adopt(fleet: Fleet, moment: str) -> None:
    fleet.on("lab1", f"rm -r {STATE}")
    command = playbook(BOTH, gpu_artifacts_source="/nowhere")
    finished(fleet, command, ADOPTING[moment], BOTH, f"{LEGACY} {LIB}")
    receipts = fleet.on("lab1", f"grep -l adopted {STATE}/receipts/*").split()
    assert len(receipts) == 3


@pytest.mark.usefixtures("start")
def test_switch(fleet: Fleet) -> None:
    declared = {**BOTH, "gpu_cuda_default": "8.0"}
    condition = f"test /usr/local/cuda -ef {LEGACY}"
    kept = f"{LEGACY} {TOOLKIT} {STATE}/receipts/toolkit-*"
    finished(fleet, playbook(declared), condition, declared, kept)
    assert fleet.on("lab1", f"grep -m1 ^/ {CONF}") == f"{LEGACY}/lib64\n"
