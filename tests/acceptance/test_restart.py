"""The driver's reboot on a host that really restarts: once, taken up after a kill, never in a loop.

The host is a container, and its reboot a restart of the container, with a boot id of its own. A
kernel module cannot be loaded there, as for a card that is broken or a key that is not enrolled;
the stand-in for it and for the driver's library are files that carry a version, and nothing else.
A driver that comes back is in test_vm.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab_fleet import ROOT, Done, Fleet

pytestmark = pytest.mark.lab

UP = ("--hosts", "lab1")
MARKER = "/var/lib/gpufleet/reboot-pending.json"
VERSION = "535.261.03"

# On the host, once: stand-ins of an installed driver, and a note of each boot.
PREPARE = f"""
set -e
modules=/lib/modules/$(uname -r)/updates/dkms libraries=/usr/lib/x86_64-linux-gnu
mkdir -p $modules
echo 'const char told[] __attribute__((section(".modinfo"), used)) = "version={VERSION}";' |
    gcc -x c -c - -o $modules/nvidia.ko
depmod
echo | gcc -x c -shared -Wl,-soname,libcuda.so.1 - -o $libraries/libcuda.so.{VERSION}
ln -s libcuda.so.{VERSION} $libraries/libcuda.so.1
cat >/etc/systemd/system/boots.service <<'E'
[Service]
Type=oneshot
ExecStart=sh -c 'cat /proc/sys/kernel/random/boot_id >>/root/boots'
[Install]
WantedBy=multi-user.target
E
systemctl enable --quiet --now boots
"""


@pytest.fixture(scope="module")
def host(fleet: Fleet) -> Fleet:
    fleet.on("lab1", PREPARE)
    return fleet


@pytest.fixture
def play(tmp_path: Path) -> Path:
    """A playbook that makes the plan, and then does no more than the role's last step."""
    role = {"name": "gpufleet.gpu.nvidia_driver", "tasks_from": "restart"}
    tasks = [{"ansible.builtin.include_role": role}]
    roles = ["gpufleet.gpu.gpu_plan"]
    play = {"hosts": "lab1", "become": True, "gather_facts": False, "roles": roles}
    path = tmp_path / "restart.yml"
    path.write_text(json.dumps([{**play, "tasks": tasks}]))
    return path


def declared(reboot: str = "auto", count: int = 1) -> str:
    """A host with a managed driver, and with a GPU of which nothing is to be seen."""
    return json.dumps(
        {
            "gpu_driver": {"branch": "535"},
            "gpu_driver_reboot": reboot,
            "gpu_expect": {"count": count},
            "gpu_stacks": [],
            "gpu_toolkits": [],
        }
    )


def words(play: Path, **wanted: Any) -> list[str | Path]:
    program = ROOT / ".venv" / "bin" / "ansible-playbook"
    return [program, play, "-i", str(ROOT / "inventory" / "lab"), "-e", declared(**wanted)]


def restart(fleet: Fleet, play: Path, **wanted: Any) -> tuple[Done, str]:
    """The run, and what it said on one line."""
    done = fleet.run(*words(play, **wanted), status=None)
    return done, " ".join(done.stdout.split())


def boots(fleet: Fleet) -> list[str]:
    """The id of each boot, the last one being the present."""
    found = fleet.on("lab1", "systemctl start boots; cat /root/boots").split()
    return list(dict.fromkeys(found))


def marker(fleet: Fleet) -> Any:
    return json.loads(fleet.on("lab1", f"cat {MARKER}"))


def fresh(fleet: Fleet) -> int:
    """No marker; the number of boots so far."""
    fleet.on("lab1", f"rm -f {MARKER}")
    return len(boots(fleet))


def test_check_mode_says_that_it_would_reload_and_does_nothing(host: Fleet, play: Path) -> None:
    before = fresh(host)
    output = host.run(*words(play), "--check", "--diff").stdout
    assert f"+kernel module nvidia {VERSION}" in output
    assert len(boots(host)) == before
    assert host.on("lab1", f"ls {MARKER} 2>/dev/null || :") == ""


def test_one_reboot_and_none_after_it_when_the_driver_still_does_not_load(
    host: Fleet, play: Path
) -> None:
    before = fresh(host)
    done, output = restart(host, play)
    assert done.returncode
    assert (
        "The driver does not run as declared: the kernel module is not loaded, after the reboot"
        " that" in output
    )
    assert "modprobe nvidia" in output, "what loading it said is the cause"
    assert "Remedy: on lab1: modprobe nvidia; journalctl -k" in output
    ids = boots(host)
    assert len(ids) == before + 1
    reported = marker(host)
    assert (reported["boot_id"], reported["tried"]) == (ids[-2], True)
    assert reported["failed"]["boot_id"] == ids[-1]

    for _ in range(2):
        done, output = restart(host, play)
        assert done.returncode
        assert "after the reboot that should have fixed it" in output
    assert boots(host) == ids

    # Told to have no GPU, it needs no driver that runs.
    done, _ = restart(host, play, count=0)
    assert done.returncode == 0
    assert host.on("lab1", f"ls {MARKER} 2>/dev/null || :") == ""
    assert boots(host) == ids


def test_a_run_that_was_killed_before_the_reboot_is_taken_up_once(host: Fleet, play: Path) -> None:
    before = fresh(host)
    # A kill that comes late finds a reboot that the host refused: nothing of it is under way.
    host.on("lab1", "systemctl mask --quiet --runtime reboot.target")
    host.killed(f"""grep -qs '"tried": true' {MARKER}""", *words(play))
    host.on("lab1", "systemctl unmask --quiet --runtime reboot.target")
    assert len(boots(host)) == before
    noted = marker(host)

    done, output = restart(host, play)
    assert done.returncode
    assert "after the reboot that should have fixed it" in output
    assert len(boots(host)) == before + 1
    reported = marker(host)
    assert (reported["since"], reported["boot_id"]) == (noted["since"], noted["boot_id"])


def test_never_means_never_and_the_verification_names_what_is_pending(
    host: Fleet, play: Path
) -> None:
    before = fresh(host)
    done, output = restart(host, play, reboot="never")
    assert done.returncode == 0
    pending = "A reboot is pending: the kernel module is not loaded; loading it reports: modprobe"
    assert pending in output
    assert "gpu_driver_reboot: never" in output
    assert len(boots(host)) == before

    found = host.verdicts(1, "-e", declared("never"))["lab1"]["driver.pending"]
    assert found["verdict"] == "FAIL"
    assert f"provisioning does not reboot, since {marker(host)['since']}" in found["cause"]
    assert found["remedy"] == "reboot lab1 at a suitable time"


def test_the_machine_that_ansible_runs_on_is_not_rebooted(host: Fleet, play: Path) -> None:
    before = fresh(host)
    # With the machine's own boot id, the host looks like the control node that it shares it with.
    host.on("lab1", "umount /proc/sys/kernel/random/boot_id")
    try:
        done, output = restart(host, play)
        assert done.returncode == 0
        assert "Ansible itself runs on this host, so it is not rebooted" in output
    finally:
        host.on("lab1", "mount --bind /dev/.boot_id /proc/sys/kernel/random/boot_id")
    assert len(boots(host)) == before
