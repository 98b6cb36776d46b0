"""Reloading the kernel modules: in order, with the daemons stopped, and holders named."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from gpufleet.components.driver import restart_change as restart
from gpufleet.on_host.host import Host
from tests.support.ansible_modules import Run, load, tree

OLD, NEW = "535.261.03", "550.163.01"
VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Jan 1 00:00:00 UTC 2026\n"
# As the kernel has them: name, size, count, which others use it.
LOADED = {"nvidia_drm": "-", "nvidia_uvm": "-", "nvidia_modeset": "nvidia_drm,",
          "nvidia": "nvidia_uvm,nvidia_modeset,", "ext4": "-"}  # fmt: skip


class KilledError(BaseException):
    """The module's process is killed: it runs no other command, not even in a finally."""


class Machine:
    """A host's /proc, and the programs that change it."""

    def __init__(self, root: Path, module: ModuleType, run: Run) -> None:
        self.root, self.module, self.answer = root, module, run
        self.proc, self.state = root / "proc", root / "state"
        (self.proc / "driver/nvidia").mkdir(parents=True)
        (root / "dev").mkdir()
        (root / "dev/nvidia0").touch()
        self.used: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.units = {"nvidia-persistenced": "is-active", "nvidia-fabricmanager": "is-enabled"}
        self.dead: set[str] = set()
        self.on_disk, self.output = NEW, ""
        self.udevadm: str | None = "/usr/bin/udevadm"
        self.refused: dict[str, str] = {}
        self.ran: list[str] = []
        self.waits = 0
        self.killed_at: str | None = None

    def load(self, version: str | None, used: dict[str, str]) -> None:
        """Set the loaded modules."""
        self.used = used
        rows = [f"{name} 1 {self.counts.get(name, 0)} {by} Live 0x0\n" for name, by in used.items()]
        (self.proc / "modules").write_text("".join(rows))
        file = self.proc / "driver/nvidia/version"
        file.write_text(VERSION.format(version)) if version else file.unlink(missing_ok=True)

    def hold(self, pid: int, command: str, unit: str = "session-1.scope") -> None:
        """A process with a node of the GPU open."""
        home = self.proc / str(pid)
        (home / "fd").mkdir(parents=True)
        (home / "fd/3").symlink_to("/dev/nvidia0")
        (home / "comm").write_text(f"{command}\n")
        (home / "cgroup").write_text(f"0::/system.slice/{unit}\n")

    def end(self, pid: int) -> None:
        """The end of a process."""
        shutil.rmtree(self.proc / str(pid), ignore_errors=True)

    def command(self, words: list[str]) -> tuple[int, str, str]:
        """Act in the place of the programs."""
        if self.killed_at in {" ".join(words), "dead"}:
            self.killed_at = "dead"
            raise KilledError
        if words[0] == "systemctl":
            if words[1] == "--quiet":
                return int(self.units.get(words[3]) != words[2]), "", ""
            if words[1] == "stop":
                self.end(5)
                self.units[words[2]] = "stopped"
            if words[1] == "start" and words[2] in self.dead:
                return 1, "", "control process exited"
            if words[1] == "start":
                self.units[words[2]] = "is-active"
        elif " ".join(words) in self.refused:
            return 1, "", self.refused[" ".join(words)]
        elif self.output:
            return 1, "", self.output
        elif words[0] == "rmmod":
            assert self.used[words[1]] == "-", f"{words[1]} is in use"
            rest = {name: by for name, by in self.used.items() if name != words[1]}
            without = {n: by.replace(f"{words[1]},", "") or "-" for n, by in rest.items()}
            self.load(OLD if "nvidia" in rest else None, without)
        elif words[0] == "modprobe" and words[1] not in self.used:
            self.load(self.on_disk, {**self.used, words[1]: "-"})
        self.ran.append(" ".join(words))
        return 0, "", ""

    def reload(self, check: bool = False) -> dict[str, Any]:
        """Run the module."""
        return self.answer(self.module, check, version=NEW, state_dir=self.state)

    def killed(self, command: str) -> None:
        """Run the module until it is killed in place of a command; leaves what ran before it."""
        self.killed_at = command
        with pytest.raises(KilledError):
            self.reload()
        self.killed_at, self.ran = None, []

    @property
    def marker(self) -> Any:
        """The marker of a pending restart."""
        file = self.state / "reboot-pending.json"
        return json.loads(file.read_text()) if file.exists() else None


@pytest.fixture
def machine(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Machine:
    module = load("gpu_driver_reload")
    made = Machine(tmp_path, module, run)
    monkeypatch.setattr(module, "HOST", Host({"root": str(tmp_path)}))
    monkeypatch.setattr(
        module.AnsibleModule, "run_command", lambda _self, words: made.command(words)
    )
    monkeypatch.setattr(module.AnsibleModule, "get_bin_path", lambda _self, _name: made.udevadm)
    monkeypatch.setattr(module, "PATIENCE_S", 0)
    made.load(OLD, LOADED)
    return made


@pytest.fixture
def patient(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine on which the module waits, and on which a wait ends process 77."""

    def wait(_seconds: float) -> None:
        machine.waits += 1
        machine.end(77)
        machine.refused.pop("rmmod nvidia", None)

    monkeypatch.setattr(machine.module, "PATIENCE_S", 60)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=wait)
    monkeypatch.setattr(machine.module, "time", clock)
    return machine


def test_modules_go_before_those_that_they_use_and_come_back(machine: Machine) -> None:
    answer = machine.reload()
    assert answer["changed"]
    assert answer["loaded"] == OLD
    assert [words for words in machine.ran if words.startswith("rmmod")] == [
        "rmmod nvidia_drm", "rmmod nvidia_uvm", "rmmod nvidia_modeset", "rmmod nvidia",
    ]  # fmt: skip
    assert set(machine.used) == set(LOADED)
    assert machine.module.loaded() == NEW


def test_what_is_loaded_already_is_left_alone(machine: Machine) -> None:
    machine.load(NEW, LOADED)
    assert not machine.reload()["changed"]
    assert machine.ran == []


def test_a_host_without_modules_gets_them(machine: Machine) -> None:
    machine.load(None, {})
    assert machine.reload()["changed"]
    assert [words for words in machine.ran if "mod" in words] == [
        "modprobe nvidia", "modprobe nvidia_uvm",
    ]  # fmt: skip


def test_the_driver_s_own_daemons_are_stopped_and_started(machine: Machine) -> None:
    machine.hold(5, "nvidia-persiste", "nvidia-persistenced.service")
    assert machine.reload()["changed"]
    assert machine.ran[0] == "systemctl stop nvidia-persistenced"
    assert machine.ran[-1] == "systemctl start nvidia-persistenced"


@pytest.mark.parametrize("check", [False, True])
def test_a_holder_is_named_and_nothing_is_touched(machine: Machine, check: bool) -> None:
    machine.hold(5, "nvidia-persiste", "nvidia-persistenced.service")
    machine.hold(77, "python")
    answer = machine.reload(check)
    assert answer["failed"]
    assert "held by python (pid 77 of " in answer["msg"]
    assert "persiste" not in answer["msg"]
    assert [name.partition(" of ")[0] for name in answer["held"]] == ["python (pid 77"]
    assert machine.ran == []
    assert machine.marker is None


@pytest.mark.parametrize("check", [False, True])
def test_a_program_that_ends_shortly_is_awaited(patient: Machine, check: bool) -> None:
    patient.hold(77, "nvidia-smi")
    answer = patient.reload(check)
    assert answer["changed"]
    assert not answer.get("failed")
    assert patient.waits == 1


def test_a_program_that_uses_a_module_for_a_moment_is_awaited(patient: Machine) -> None:
    patient.refused = {"rmmod nvidia": "Module nvidia is in use"}
    assert patient.reload()["changed"]
    assert patient.waits == 1
    assert patient.module.loaded() == NEW


def test_a_job_that_begins_while_the_modules_go_is_a_holder_and_no_fault_of_theirs(
    machine: Machine,
) -> None:
    machine.refused = {"rmmod nvidia": "Module nvidia is in use"}
    command = machine.command

    def begin(words: list[str]) -> tuple[int, str, str]:
        if words == ["rmmod", "nvidia"]:
            machine.hold(77, "python")
        return command(words)

    machine.command = begin
    answer = machine.reload()
    assert [name.partition(" of ")[0] for name in answer["held"]] == ["python (pid 77"]
    assert machine.marker["failed"] is None


def test_a_daemon_that_outlives_the_stop_of_its_unit_is_a_fault(machine: Machine) -> None:
    machine.hold(6, "nv-hostengine", "nvidia-dcgm.service")
    answer = machine.reload()
    assert answer["held"] == []
    assert "their units are stopped, and they run on: nv-hostengine (pid 6 of " in answer["msg"]
    assert not any(words.startswith("rmmod") for words in machine.ran)
    assert "run on" in machine.marker["failed"]["said"]


@pytest.mark.parametrize(
    "unit",
    ["docker-1.scope", "docker-1.scope/system.slice/nvidia-dcgm.service", "user@0.service/x"],
)
def test_a_daemon_of_the_driver_in_a_container_is_a_holder(machine: Machine, unit: str) -> None:
    machine.hold(9, "nv-hostengine", unit)
    assert "held by nv-hostengine (pid 9 of " in machine.reload()["msg"]
    assert machine.ran == []


def test_the_units_that_a_reload_stops_are_those_that_a_plan_excuses(machine: Machine) -> None:
    options = yaml.safe_load(machine.module.DOCUMENTATION)["options"]
    assert tuple(options["services"]["default"]) == restart.SERVICES


def test_another_module_that_uses_them_is_named(machine: Machine) -> None:
    machine.load(OLD, {"nvidia": "gdrdrv,", "gdrdrv": "-"})
    assert "other kernel modules use them: gdrdrv" in machine.reload()["msg"]
    assert machine.ran == []
    assert machine.marker["failed"]["said"] == "other kernel modules use them: gdrdrv"


def test_what_loading_said_is_kept_and_the_daemons_run_again(machine: Machine) -> None:
    machine.output = "could not insert 'nvidia': No such device"
    machine.hold(5, "nvidia-persiste", "nvidia-persistenced.service")
    answer = machine.reload()
    assert "No such device" in answer["msg"]
    assert machine.ran == [
        "systemctl stop nvidia-persistenced",
        "systemctl start nvidia-fabricmanager",
        "systemctl start nvidia-persistenced",
    ]
    assert machine.marker["failed"]["boot_id"]
    assert not machine.marker["tried"]


@pytest.mark.parametrize(
    ("unit", "failed"), [("nvidia-persistenced", True), ("nvidia-fabricmanager", False)]
)
def test_a_daemon_that_ran_before_must_run_again(machine: Machine, unit: str, failed: bool) -> None:
    machine.dead = {unit}
    answer = machine.reload()
    assert bool(answer.get("failed")) == failed
    assert (f"{unit} ran before and cannot be started" in answer.get("msg", "")) == failed
    assert machine.module.loaded() == NEW


def test_modules_of_another_version_than_wanted_are_no_success(machine: Machine) -> None:
    machine.on_disk = OLD
    assert f"modprobe loaded {OLD}, wanted is {NEW}" in machine.reload()["msg"]


def test_check_mode_changes_nothing_and_shows_both_versions(machine: Machine) -> None:
    before = tree(machine.root)
    answer = machine.reload(check=True)
    assert answer["changed"]
    assert (OLD in answer["diff"]["before"], NEW in answer["diff"]["after"]) == (True, True)
    assert tree(machine.root) == before


def test_a_module_in_use_is_named_before_another_one_is_unloaded(machine: Machine) -> None:
    machine.counts["nvidia_drm"] = 1
    machine.load(OLD, LOADED)
    answer = machine.reload()
    assert "in use is nvidia_drm, by a display" in answer["msg"]
    assert set(machine.used) == set(LOADED)
    assert machine.ran == [
        "systemctl stop nvidia-persistenced",
        "systemctl start nvidia-fabricmanager",
        "systemctl start nvidia-persistenced",
    ]
    assert machine.marker["failed"]["said"] in answer["msg"]


def test_the_count_of_a_module_that_others_use_is_no_obstacle(machine: Machine) -> None:
    machine.counts["nvidia"] = 12
    machine.load(OLD, LOADED)
    assert machine.reload()["changed"]
    assert machine.module.loaded() == NEW


def test_modules_on_disk_are_not_loaded_beside_the_former_nvidia(machine: Machine) -> None:
    machine.refused = {"rmmod nvidia_modeset": "Module nvidia_modeset is in use"}
    answer = machine.reload()
    assert "rmmod nvidia_modeset: Module nvidia_modeset is in use" in answer["msg"]
    assert "; unloaded now: nvidia_drm, nvidia_uvm. Those on disk do not fit" in answer["msg"]
    assert not any(words.startswith("modprobe") for words in machine.ran)
    assert machine.ran[-1] == "systemctl start nvidia-persistenced"
    assert machine.marker["failed"]["said"] in answer["msg"]


def test_nothing_is_loaded_twice_where_the_new_modules_do_not_load(machine: Machine) -> None:
    machine.refused = {"modprobe nvidia": "No such device"}
    assert "modprobe nvidia: No such device" in machine.reload()["msg"]
    assert not any(words.startswith("modprobe") for words in machine.ran)


SETTLE = "/usr/bin/udevadm settle --timeout=30"


def test_udev_handles_its_events_between_unloading_and_loading_and_before_the_daemons(
    machine: Machine,
) -> None:
    assert machine.reload()["changed"]
    ran = machine.ran
    steps = [words for words in ran if words == SETTLE or words.split()[0] in {"rmmod", "modprobe"}]
    assert [words.split()[0] for words in steps] == [
        *["rmmod"] * 4, "/usr/bin/udevadm", *["modprobe"] * 6, "/usr/bin/udevadm",
    ]  # fmt: skip
    assert ran.index("systemctl start nvidia-persistenced") > ran.index(SETTLE, 8)


@pytest.mark.parametrize("there", [True, False])
def test_udev_that_is_slow_or_absent_does_not_stop_the_reload(
    machine: Machine, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(
        machine.module.AnsibleModule, "warn", lambda _self, text: warned.append(text)
    )
    machine.udevadm = machine.udevadm if there else None
    machine.refused = {SETTLE: "Timed out for waiting the udev queue being empty."}
    assert machine.reload()["changed"]
    assert machine.module.loaded() == NEW
    assert [("Timed out" in text) for text in warned] == [True, True] * there


# A module that only a person has loaded, and a daemon that only a person has started.
PEER = {"nvidia_peermem": "-", **LOADED, "nvidia": "nvidia_uvm,nvidia_modeset,nvidia_peermem,"}


@pytest.fixture
def peer(machine: Machine) -> Machine:
    """A machine with a module and a daemon that no boot and no enabled unit starts."""
    machine.load(OLD, PEER)
    machine.units["nvidia-dcgm"] = "is-active"
    return machine


@pytest.mark.parametrize(
    "command",
    [
        "systemctl stop nvidia-persistenced",
        "rmmod nvidia_peermem",
        "rmmod nvidia_modeset",
        "rmmod nvidia",
        "modprobe nvidia",
        "modprobe nvidia_uvm",
        "modprobe nvidia_peermem",
        "systemctl start nvidia-dcgm",
    ],
)
def test_the_run_after_a_killed_one_loads_and_starts_all_that_was_there(
    peer: Machine, command: str
) -> None:
    peer.killed(command)
    assert peer.reload()["changed"]
    assert peer.module.loaded() == NEW
    assert set(peer.used) == set(PEER)
    assert peer.units["nvidia-dcgm"] == peer.units["nvidia-persistenced"] == "is-active"
    assert "reload" not in peer.marker
    assert not peer.reload()["changed"]


def test_a_killed_reload_is_finished_without_stopping_what_runs(peer: Machine) -> None:
    peer.killed("systemctl start nvidia-dcgm")
    peer.reload()
    assert not any(words.startswith(("rmmod", "systemctl stop")) for words in peer.ran)


def test_check_mode_announces_the_rest_of_a_killed_reload_and_changes_nothing(
    peer: Machine,
) -> None:
    peer.killed("modprobe nvidia_peermem")
    before = tree(peer.root)
    answer = peer.reload(check=True)
    assert answer["changed"]
    assert "a reload that was killed is not finished" in answer["diff"]["before"]
    assert tree(peer.root) == before
    assert peer.ran == []


def test_a_reload_that_was_killed_in_another_boot_is_over(peer: Machine) -> None:
    peer.killed("systemctl start nvidia-dcgm")
    marker = peer.marker
    marker["reload"]["boot_id"] = "another"
    (peer.state / "reboot-pending.json").write_text(json.dumps(marker))
    assert not peer.reload()["changed"]
    assert peer.ran == []


def test_modules_that_a_failed_reload_unloaded_are_loaded_by_the_next_one(peer: Machine) -> None:
    peer.refused = {"rmmod nvidia_modeset": "Module nvidia_modeset is in use"}
    assert peer.reload()["failed"]
    assert peer.marker["reload"]["modules"][0] == "nvidia_drm"
    peer.refused = {}
    assert peer.reload()["changed"]
    assert set(peer.used) == set(PEER)


def test_a_marker_that_was_there_before_stays_as_it_was(peer: Machine) -> None:
    marker = {"boot_id": "b", "because": "an upgrade", "tried": False, "failed": None}
    peer.state.mkdir()
    (peer.state / "reboot-pending.json").write_text(json.dumps(marker))
    assert peer.reload()["changed"]
    assert peer.marker == marker


def test_a_marker_that_cannot_be_read_is_named_before_anything_is_stopped(peer: Machine) -> None:
    peer.state.mkdir()
    (peer.state / "reboot-pending.json").write_text("{")
    assert "reboot-pending.json cannot be read" in peer.reload()["msg"]
    assert peer.ran == []
