"""SIGKILL during each step of a repair: the next run finishes it.

Each moment is told by what is on the host by then. Killed are the command, and on the host
everything that it had started, as at a power failure.
"""

from __future__ import annotations

import json

import pytest

from tests.support.lab_fleet import ROOT, STACK, TOOLKIT, Fleet

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ARTIFACTS = ()
UP = ("--hosts", "lab1")
STATE = "/var/lib/gpufleet"
NAME, SHORT = "stack tensorflow-2.13.1", "toolkit 11.8"
OLD_STACK = "/opt/gpufleet/stacks/.gpufleet-old-tensorflow-2.13.1"
OLD_TOOLKIT = "/usr/local/.gpufleet-old-cuda-11.8"
LIBRARY = f"{TOOLKIT}/lib64/libcufft.so.10"
# Size and time stay: a comparison of contents alone finds it.
ROT = (
    f"f=$(readlink -f {LIBRARY}); t=$(stat -c %y $f); printf x | dd of=$f bs=1 seek=4096"
    ' conv=notrunc 2>/dev/null; touch -d "$t" $f'
)

# {moment: (component, step, what is on the host then)}
MOMENTS = {
    "contents of the toolkit are restored": (
        SHORT,
        "contents",
        f"test -e {STATE}/journal/toolkit-11.8.json",
    ),
    "the toolkit is reinstalled": (
        SHORT,
        "reinstall",
        f"test -e {STATE}/journal/toolkit-11.8.json",
    ),
    "the toolkit was moved aside": (SHORT, "recreate", f"test -d {OLD_TOOLKIT}"),
    "the new toolkit is being written": (
        SHORT,
        "recreate",
        f"test -d {OLD_TOOLKIT} && test -d {TOOLKIT}/targets",
    ),
    "the stack is reinstalled": (
        NAME,
        "reinstall",
        f"test -e {STATE}/journal/stack-tensorflow-2.13.1.json",
    ),
    "the stack was moved aside": (NAME, "recreate", f"test -d {OLD_STACK}"),
    "the new stack is being written": (
        NAME,
        "recreate",
        f"test -d {OLD_STACK} && test -e {STACK}/bin/python",
    ),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_repair_is_finished_by_the_next_run(fleet: Fleet, moment: str) -> None:
    component, step, seen = MOMENTS[moment]
    fleet.gpufleet("provision", "--limit", "lab1")
    if step == "contents":
        fleet.on("lab1", ROT)
    repair = json.dumps({"gpu_repair": {"lab1": {component: step}}})
    words = [ROOT / ".venv/bin/ansible-playbook", "playbooks/site.yml", "--limit", "lab1"]
    fleet.killed(seen, *words, "-e", repair)
    assert fleet.on("lab1", f"ls {STATE}/journal"), "the kill came too late to prove anything"

    fleet.gpufleet("provision", "--limit", "lab1")
    verdicts = fleet.verdicts(0, "--limit", "lab1")["lab1"]
    assert {row["verdict"] for row in verdicts.values()} == {"PASS", "NOT-DECLARED"}
    left = "ls -d /usr/local/.gpufleet-* /opt/gpufleet/stacks/.gpufleet-* 2>/dev/null || :"
    assert fleet.on("lab1", f"ls -A {STATE}/journal; {left}") == ""
    assert "changed=0 " in fleet.run(*words).stdout
