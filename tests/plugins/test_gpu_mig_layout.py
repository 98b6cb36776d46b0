"""MIG layouts, against a stand-in for nvidia-smi that keeps the GPUs' state in a file, and records
how it was called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host.host import Host
from tests.support.ansible_modules import Run, load

SMI = """#!{python}
import json, sys
from pathlib import Path
place = Path({place!r})
gpus, words = json.loads(place.read_text()), sys.argv[1:]
with Path(str(place) + ".calls").open("a") as stream:
    stream.write(" ".join(words) + "\\n")
if words == ["-L"]:
    for index, gpu in enumerate(gpus):
        print(f"GPU {{index}}: Stand-in (UUID: GPU-{{index}})")
        for at, name in enumerate(gpu["instances"]):
            print(f"  MIG {{name}}     Device  {{at}}: (UUID: MIG-{{at}})")
elif words[0].startswith("--query-gpu"):
    for index, gpu in enumerate(gpus):
        print(f"{{index}}, {{gpu['mode']}}, {{gpu.get('pending', gpu['mode'])}}")
else:
    gpu = gpus[int(words[words.index("-i") + 1])]
    if gpu.get("busy") and ("-dci" in words or "-mig" in words):
        sys.exit("In use by another client")
    if "-mig" in words:
        gpu["pending"] = "Enabled" if words[-1] == "1" else "Disabled"
        if gpu.get("held") and gpu["pending"] != gpu["mode"]:
            print("Warning: MIG mode is in pending enable state for GPU 00000000:01:00.0:", end="")
            print(gpu["held"])
        else:
            gpu["mode"] = gpu["pending"]
        print("All done.")
    elif "-lci" in words or "-lgi" in words:
        print("\\n".join(gpu["instances"]) or "No instances found: Not Found")
    elif "-dgi" in words:
        gpu["instances"] = []
    elif "-cgi" in words and gpu["mode"] != "Enabled":
        sys.exit("No MIG-enabled devices found.")
    elif "-cgi" in words:
        gpu["instances"] = words[words.index("-cgi") + 1].split(",")
    place.write_text(json.dumps(gpus))
"""


class Cards:
    """The stand-in's GPUs, and the module on them."""

    def __init__(self, root: Path, run: Run) -> None:
        self.place, self.run, self.root = root / "gpus.json", run, root / "root"
        self.module = load("gpu_mig_layout")
        self.module.HOST = Host({"root": str(self.root)})  # type: ignore[attr-defined]

    def have(self, *gpus: dict[str, Any]) -> None:
        self.place.write_text(json.dumps(gpus))

    def split(self, layout: dict[str, list[str]], check: bool = False) -> dict[str, Any]:
        self.calls_file.unlink(missing_ok=True)
        return self.run(self.module, check, layout=layout)

    def hold(self, command: str) -> None:
        """A process with a device file of the GPU open."""
        home = self.root / "proc/77"
        (home / "fd").mkdir(parents=True)
        (home / "fd/3").symlink_to("/dev/nvidia0")
        (home / "comm").write_text(f"{command}\n")
        (self.root / "dev").mkdir()
        (self.root / "dev/nvidia0").touch()

    @property
    def calls_file(self) -> Path:
        return self.place.with_name("gpus.json.calls")

    @property
    def changes(self) -> list[str]:
        """The calls that change something."""
        asked = ("-L", "--query", "mig -i 0 -l", "mig -i 1 -l")
        lines = self.calls_file.read_text().splitlines()
        return [line for line in lines if not line.startswith(asked)]

    @property
    def state(self) -> list[tuple[str, list[str]]]:
        return [(gpu["mode"], gpu["instances"]) for gpu in json.loads(self.place.read_text())]


@pytest.fixture
def cards(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Cards:
    import sys  # noqa: PLC0415

    made = Cards(tmp_path, run)
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.format(python=sys.executable, place=str(made.place)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return made


HALVES = ["3g.40gb", "3g.40gb"]


def gpu(mode: str = "Disabled", instances: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"mode": mode, "instances": instances or [], **more}


def test_mig_is_switched_on_and_instances_made(cards: Cards) -> None:
    cards.have(gpu(), gpu())
    answer = cards.split({"all": HALVES})
    assert answer["gpus"] == [0, 1]
    assert answer["instances"] == {"0": HALVES, "1": HALVES}
    assert cards.state == [("Enabled", HALVES)] * 2
    assert cards.changes[:2] == ["-i 0 -mig 1", "mig -i 0 -cgi 3g.40gb,3g.40gb -C"]


def test_a_second_run_changes_nothing(cards: Cards) -> None:
    cards.have(gpu("Enabled", HALVES))
    answer = cards.split({"all": HALVES})
    assert (answer["changed"], answer["instances"]) == (False, {"0": HALVES})
    assert cards.changes == []


def test_other_instances_are_removed_first(cards: Cards) -> None:
    cards.have(gpu("Enabled", ["7g.80gb"]))
    cards.split({"0": HALVES})
    assert cards.changes == ["mig -i 0 -dci", "mig -i 0 -dgi", "mig -i 0 -cgi 3g.40gb,3g.40gb -C"]
    assert cards.state == [("Enabled", HALVES)]


def test_none_switches_mig_off(cards: Cards) -> None:
    cards.have(gpu("Enabled", HALVES))
    assert cards.split({"all": []})["instances"] == {}
    assert cards.state == [("Disabled", [])]


def test_a_gpu_of_which_nothing_is_printed_is_left_alone(cards: Cards) -> None:
    cards.have(gpu("Enabled", ["7g.80gb"]), gpu())
    assert cards.split({"1": HALVES})["gpus"] == [1]
    assert cards.state[0] == ("Enabled", ["7g.80gb"])


def test_check_mode_changes_nothing(cards: Cards) -> None:
    cards.have(gpu())
    answer = cards.split({"all": HALVES}, check=True)
    assert answer["changed"]
    assert answer["diff"]["after"] == "GPU 0: 3g.40gb, 3g.40gb\n"
    assert cards.changes == []


def test_a_gpu_in_use_is_reported(cards: Cards) -> None:
    cards.have(gpu("Enabled", ["7g.80gb"], busy=True))
    answer = cards.split({"all": HALVES})
    assert answer["failed"]
    assert "In use by another client" in answer["msg"]
    assert cards.state == [("Enabled", ["7g.80gb"])]


class Units:
    """A stand-in for systemctl, which reports one state after the other, and then the last one."""

    def __init__(self, root: Path, *states: str) -> None:
        self.states, self.calls = root / "states", root / "systemctl.calls"
        self.states.write_text("".join(f"{state}\n" for state in states))
        program = root / "systemctl"
        program.write_text(
            f'#!/bin/sh\necho "$*" $(cat {root}/gpus.json.calls | grep -c -e -mig) >>{self.calls}\n'
            f"head -1 {self.states}\n[ $(wc -l <{self.states}) = 1 ] || sed -i 1d {self.states}\n"
        )
        program.chmod(0o755)


@pytest.fixture
def units(cards: Cards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Units:
    monkeypatch.setattr(cards.module.time, "sleep", lambda seconds: None)
    return Units(tmp_path, "ActiveState=activating", "Job=1234", "ActiveState=inactive")


def test_a_mode_is_set_only_after_the_gpus_were_described(cards: Cards, units: Units) -> None:
    """A reload starts nvidia-ctk, and a GPU that is open keeps its mode pending."""
    cards.have(gpu())
    cards.split({"all": HALVES})
    assert cards.state == [("Enabled", HALVES)]
    calls = units.calls.read_text().splitlines()
    assert len(calls) == 3
    for call in calls:
        assert "gpufleet-containers.service nvidia-cdi-refresh.service" in call
        # Nothing was set before the last answer.
        assert call.endswith(" 0")


@pytest.mark.parametrize("check", [True, False])
def test_nobody_waits_where_no_gpu_is_to_be_changed(
    cards: Cards, units: Units, check: bool
) -> None:
    cards.have(gpu() if check else gpu("Enabled", HALVES))
    cards.split({"all": HALVES}, check=check)
    assert not units.calls.exists()


def test_a_unit_that_does_not_end_is_named_and_the_mode_is_set(
    cards: Cards, units: Units, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(cards.module, "PATIENCE_S", 0)
    monkeypatch.setattr(cards.module.AnsibleModule, "warn", lambda _self, text: warned.append(text))
    units.states.write_text("ActiveState=activating\n")
    cards.have(gpu())
    cards.split({"all": HALVES})
    assert cards.state == [("Enabled", HALVES)]
    assert "nvidia-cdi-refresh.service have not ended after 0 s" in "".join(warned)


@pytest.mark.parametrize("first", [gpu(), gpu("Enabled", HALVES)])
def test_a_failure_says_whether_gpus_were_changed_before(cards: Cards, first: Any) -> None:
    """Container engines need a new specification of those that were."""
    cards.have(first, gpu("Enabled", ["7g.80gb"], busy=True))
    answer = cards.split({"all": HALVES})
    assert answer["failed"]
    assert answer["changed"] is (first["mode"] == "Disabled")
    assert not cards.split({"all": HALVES}, check=True).get("failed")


def test_a_gpu_without_mig_is_refused(cards: Cards) -> None:
    cards.have(gpu("[N/A]"))
    assert "does not know MIG" in cards.split({"all": HALVES})["msg"]
    assert cards.changes == []


@pytest.mark.parametrize("reason", ["In use by another client", "Not Supported"])
def test_a_mode_that_waits_for_a_reset_is_reported_with_the_holder(
    cards: Cards, reason: str
) -> None:
    cards.have(gpu(held=reason), gpu())
    cards.hold("nv-hostengine")
    answer = cards.split({"all": HALVES})
    assert not answer.get("failed")
    assert (answer["pending"], answer["gpus"]) == ([0], [0, 1])
    assert answer["instances"] == {"0": HALVES, "1": HALVES}
    assert "The MIG mode of GPU 0 (on) is pending: only a reset of the GPU" in answer["because"]
    assert "nv-hostengine (pid 77 of " in answer["because"]
    assert cards.state == [("Disabled", []), ("Enabled", HALVES)]
    assert not any(call.startswith("mig -i 0 -cgi") for call in cards.changes)


def test_a_mode_that_still_waits_is_no_change_and_is_tried_once_more(cards: Cards) -> None:
    cards.have(gpu(pending="Enabled", held="In use by another client"))
    answer = cards.split({"all": HALVES})
    assert (answer["changed"], answer["pending"]) == (False, [0])
    assert "none has its device files open" in answer["because"]
    assert cards.changes == ["-i 0 -mig 1"]


def test_a_mode_that_waited_is_applied_once_nothing_holds_the_gpu(cards: Cards) -> None:
    cards.have(gpu(pending="Enabled"))
    answer = cards.split({"all": HALVES})
    assert (answer["changed"], answer["pending"], answer["because"]) == (True, [], "")
    assert cards.state == [("Enabled", HALVES)]


def test_switching_mig_off_waits_for_a_reset_too(cards: Cards) -> None:
    cards.have(gpu("Enabled", HALVES, held="In use by another client"))
    answer = cards.split({"all": []})
    assert (answer["changed"], answer["pending"]) == (True, [0])
    assert "GPU 0 (off) is pending" in answer["because"]


def test_check_mode_does_not_switch_a_mode_that_waits(cards: Cards) -> None:
    cards.have(gpu(pending="Enabled", held="In use by another client"))
    answer = cards.split({"all": HALVES}, check=True)
    assert (answer["changed"], answer["pending"]) == (True, [])
    assert cards.changes == []
