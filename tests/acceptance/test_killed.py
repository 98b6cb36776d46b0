"""SIGKILL at different moments of the CUDA and cuDNN installs: the next run finishes the job.

Each moment is told by what stands on the host by then. Killed are the command, and on the host
everything that it had started, as at a power failure.
"""

from __future__ import annotations

import json

import pytest

from tests.support.lab_fleet import ROOT, TOOLKIT, Fleet
from tests.support.moments import all_but_one_slow

pytestmark = pytest.mark.lab

STATE = "/var/lib/gpufleet"
LIB = f"{TOOLKIT}/targets/x86_64-linux/lib"
LEFT = "/tmp/gpufleet-* /var/cache/gpufleet/artifacts"
DECLARED = json.dumps({"gpu_stacks": [], "gpu_toolkits": [{"cuda": "11.8", "cudnn": ["8.6"]}]})

# What is on the host at the moment of the kill, in the order of an installation.
MOMENTS = {
    "the runfile is being unpacked": f"test -e {STATE}/journal/toolkit-11.8.json",
    "cuDNN is being unpacked": f"test -e {STATE}/journal/toolkit-11.8.json"
    " && test -d /var/cache/gpufleet/artifacts/*.unpacked",
    "the tree is being written": f"test -d {TOOLKIT}/targets",
    "the tree stands, its receipt does not": f"test -e {TOOLKIT}/version.json",
    "libraries are being renamed": f"test -e {LIB}/libcudnn_adv_infer.so.8",
    "cuDNN stands, its receipt does not": f"test -e {LIB}/libcudnn_ops_train.so.8",
}


@pytest.mark.parametrize("moment", all_but_one_slow(MOMENTS, "cuDNN is being unpacked"))
def test_a_killed_run_is_finished_by_the_next(fleet: Fleet, moment: str) -> None:
    fleet.on("lab1", f"rm -rf {TOOLKIT} {STATE} /usr/local/cuda /var/cache/gpufleet")
    command = [ROOT / ".venv/bin/ansible-playbook", "playbooks/site.yml", "-e", DECLARED]
    words = [*command, "--limit", "lab1"]
    fleet.killed(MOMENTS[moment], *words)
    assert fleet.on("lab1", f"ls {STATE}/journal"), "the kill came too late to prove anything"

    where = ("--limit", "lab1", "-e", DECLARED)
    fleet.gpufleet("provision", *where)
    verdicts = fleet.verdicts(0, *where)["lab1"]
    assert {row["verdict"] for row in verdicts.values()} == {"PASS", "NOT-DECLARED"}
    assert fleet.on("lab1", f"ls -Ad {STATE}/journal/* {LEFT} 2>/dev/null || :") == ""
    assert "changed=0 " in fleet.run(*words).stdout
