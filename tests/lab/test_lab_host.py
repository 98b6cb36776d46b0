"""One real lab host, in a lab of its own: what a person or a role may count on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pip._internal.models.index import PyPI

from lab.settings import Lab
from tests.support.lab_fleet import instance
from tests.support.moments import wait_until

ROOT = Path(__file__).parents[2]
LAB = instance("host")
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.getuid() != 0, reason="lab hosts need root"),
]


def call(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lab", *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "GPUFLEET_LAB": LAB},
    )


def left_in_podman(lab: Lab) -> dict[str, str]:
    """The objects that podman still has under this lab's label."""
    listings = {
        "containers": ("ps", "--all"),
        "networks": ("network", "ls"),
        "images": ("images", "--all"),
    }
    return {
        what: subprocess.run(
            ["podman", *words, "--quiet", "--filter", f"label={lab.label}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for what, words in listings.items()
    }


NOTHING = {"containers": "", "networks": "", "images": ""}


@pytest.fixture(scope="module")
def running() -> Iterator[Lab]:
    lab = Lab.from_environment({**os.environ, "GPUFLEET_LAB": LAB})
    try:
        done = call("up", "--hosts", "lab1")
        assert done.returncode == 0, done.stderr
        yield lab
    finally:
        call("down")


def ssh(lab: Lab, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    host = json.loads(call("list", "--json").stdout)[0]
    return subprocess.run(
        [
            *("ssh", *options, *lab.ssh_options(), "-o", "BatchMode=yes", "-o", "ControlMaster=no"),
            *("-o", "ConnectTimeout=5", "-i", str(lab.key), f"deploy@{host['address']}", command),
        ],
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_listed(running: Lab) -> None:
    found = json.loads(call("list", "--json").stdout)
    assert [host.keys() for host in found] == [
        {"name", "address", "suite", "container", "state", "user", "key"}
    ]
    assert found[0]["name"] == "lab1"
    assert found[0]["suite"] == "bookworm"
    assert found[0]["container"] == f"gpufleet-{LAB}-lab1"
    assert found[0]["state"] == "running"


def test_systemd_has_started_everything(running: Lab) -> None:
    done = call("exec", "lab1", "--", "systemctl", "is-system-running")
    assert done.stdout.strip() == "running"


def test_exec_keeps_input_and_status(running: Lab) -> None:
    done = call("exec", "lab1", "--", "sh", "-c", "id -un; cat; exit 7", stdin="handed over")
    assert done.stdout == "root\nhanded over"
    assert done.returncode == 7


def test_login_by_key_becomes_root_without_a_password(running: Lab) -> None:
    done = ssh(running, "id -un; sudo -n id -un")
    assert done.stdout.split() == ["deploy", "root"], done.stderr


def test_a_host_with_another_key_is_refused(running: Lab, tmp_path: Path) -> None:
    known = running.known_hosts.read_text().split()
    other = tmp_path / "known_hosts"
    # The right address with a wrong key, as after somebody took the host's place.
    pair = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", pair], check=True)
    other.write_text(f"{known[0]} {' '.join((tmp_path / 'key.pub').read_text().split()[:2])}\n")
    done = ssh(running, "true", "-o", f"UserKnownHostsFile={other}")
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_a_second_up_changes_nothing(running: Lab) -> None:
    before = (running.state.read_bytes(), running.known_hosts.read_bytes())
    start = time.monotonic()
    assert call("up", "--hosts", "lab1").returncode == 0
    assert (running.state.read_bytes(), running.known_hosts.read_bytes()) == before
    assert time.monotonic() - start < 10


def test_another_suite_under_the_same_name_is_refused(running: Lab) -> None:
    done = call("up", "--hosts", "lab1", "--suite", "trixie")
    assert done.returncode == 1
    assert "lab1 runs bookworm, not trixie" in done.stderr


def test_a_lost_state_is_written_again(running: Lab) -> None:
    before = running.state.read_bytes()
    running.state.unlink()
    assert call("up", "--hosts", "lab1").returncode == 0
    assert running.state.read_bytes() == before


def test_python_index_is_verified_with_a_clean_environment(running: Lab) -> None:
    """An installer on the host uses https to the index, verified by the system's own store."""
    index = f"{PyPI.simple_url}/six/"
    for line in ssh(running, "cat /etc/pip.conf").stdout.splitlines():
        if line.startswith("index-url"):
            index = line.partition("=")[2].strip().rstrip("/") + "/six/"
    script = f"import urllib.request as u; print(u.urlopen({index!r}, timeout=60).status)"
    done = ssh(running, f'sudo -n env -i /usr/bin/python3 -c "{script}"')
    assert done.stdout.strip() == "200", done.stderr


def test_uv_verifies_the_index_too(running: Lab) -> None:
    """uv has certificates of its own, and must be told to use the system's."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed beside this Python")
    container = running.container("lab1")
    subprocess.run(["podman", "cp", uv, f"{container}:/usr/local/bin/uv"], check=True)
    install = "uv pip install --quiet --python /usr/bin/python3 --target /opt/six six"
    done = ssh(running, f"sudo -n env -i PATH=/usr/local/bin:/usr/bin:/bin {install}")
    assert done.returncode == 0, done.stderr
    assert call("exec", "lab1", "--", "test", "-f", "/opt/six/six.py").returncode == 0


def test_it_looks_like_a_server_of_its_own(running: Lab) -> None:
    hosts = ssh(running, "cat /etc/hosts").stdout
    assert "lab1" in hosts
    disks = ssh(running, "ls /dev").stdout.split()
    assert not [name for name in disks if name.startswith(("sd", "vd", "nvme", "nvidia"))]
    # Plain files, which a role can replace by renaming over them.
    each = "for f in hosts hostname resolv.conf"
    renamed = f"{each}; do cp /etc/$f /etc/$f.new && mv /etc/$f.new /etc/$f || exit 1; done"
    done = ssh(running, f"sudo -n sh -c '{renamed}'")
    assert done.returncode == 0, done.stderr


def end_suddenly(lab: Lab, *, all_of_it: bool) -> None:
    """End a host's processes, its monitor first: podman takes the host for running.

    `all_of_it`: its mounts and its network end as well, as where the machine stops.
    """
    inspect = ["podman", "container", "inspect", lab.container("lab1")]
    (found,) = json.loads(subprocess.run(inspect, check=True, capture_output=True).stdout)
    for pid in (found["State"]["ConmonPid"], found["State"]["Pid"]):
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists())
    if all_of_it:
        bridge = ["podman", "network", "inspect", "--format", "{{.NetworkInterface}}", lab.network]
        name = subprocess.run(bridge, check=True, capture_output=True, text=True).stdout.strip()
        for words in (
            ("umount", "--lazy", found["GraphDriver"]["Data"]["MergedDir"]),
            (
                "nsenter",
                f"--net={found['NetworkSettings']['SandboxKey']}",
                "ip",
                "link",
                "delete",
                "eth0",
            ),
            ("ip", "link", "delete", name),
            ("runc", "delete", "--force", found["Id"]),
        ):
            subprocess.run(words, check=True)
    assert podman_says(lab) == "running"


def podman_says(lab: Lab) -> str:
    inspect = ["podman", "inspect", "--format", "{{.State.Status}}", lab.container("lab1")]
    return subprocess.run(inspect, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("all_of_it", [False, True], ids=["processes", "all of it"])
def test_up_starts_a_dead_host(running: Lab, all_of_it: bool) -> None:
    before = json.loads(call("list", "--json").stdout)
    assert ssh(running, "sudo -n touch /var/lib/kept").returncode == 0
    end_suddenly(running, all_of_it=all_of_it)
    assert json.loads(call("list", "--json").stdout)[0]["state"] == "dead"
    done = call("exec", "lab1", "--", "true")
    assert f"lab1 does not run in the lab {LAB!r}" in done.stderr
    done = call("up", "--hosts", "lab1")
    assert done.returncode == 0, done.stderr
    assert json.loads(call("list", "--json").stdout) == before
    assert ssh(running, "ls /var/lib/kept").returncode == 0


def test_a_reboot_is_a_new_boot_at_the_same_address(running: Lab) -> None:
    before = json.loads(call("list", "--json").stdout)
    boot = ssh(running, "cat /proc/sys/kernel/random/boot_id").stdout
    assert ssh(running, "sudo -n touch /run/before /var/lib/before").returncode == 0
    ssh(running, "sudo -n systemctl reboot")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        now = ssh(running, "cat /proc/sys/kernel/random/boot_id")
        if now.returncode == 0 and now.stdout != boot:
            break
        time.sleep(0.5)
    else:
        pytest.fail(f"no new boot within a minute: {now.stderr}")
    assert json.loads(call("list", "--json").stdout) == before
    kept = ssh(running, "ls /run/before /var/lib/before")
    assert kept.stdout.split() == ["/var/lib/before"]
    done = call("exec", "lab1", "--", "systemctl", "is-system-running", "--wait")
    assert done.stdout.strip() == "running"


def test_up_starts_a_host_that_was_stopped(running: Lab) -> None:
    before = json.loads(call("list", "--json").stdout)
    stop = ["podman", "stop", "--time", "1", running.container("lab1")]
    subprocess.run(stop, check=True, capture_output=True)
    assert json.loads(call("list", "--json").stdout)[0]["state"] == "exited"
    done = call("up", "--hosts", "lab1")
    assert done.returncode == 0, done.stderr
    assert json.loads(call("list", "--json").stdout) == before
    assert ssh(running, "true").returncode == 0


def test_a_dead_host_leaves_its_address_to_the_next(running: Lab) -> None:
    end_suddenly(running, all_of_it=True)
    for words in (("down",), ("up", "--hosts", "lab1")):
        done = call(*words)
        assert done.returncode == 0, done.stderr
    assert ssh(running, "true").returncode == 0


def test_down_leaves_nothing_even_without_a_state(running: Lab) -> None:
    assert all(left_in_podman(running).values())
    running.state.unlink()
    done = call("down")
    assert done.returncode == 0, done.stderr
    assert left_in_podman(running) == NOTHING
    assert not running.directory.exists()
    assert not running.sockets.exists()
    assert list(running.images.glob("bookworm-*.tar")), "the built image stays for the next time"
    assert call("down").returncode == 0
    assert json.loads(call("list", "--json").stdout) == []


def test_down_clears_a_half_built_lab(running: Lab) -> None:
    """As left by a run that was killed after it had made only the network and an idle container."""
    podman = ["podman", "network", "create", "--label", running.label, running.network]
    subprocess.run(podman, check=True, capture_output=True)
    running.directory.mkdir(parents=True)
    (running.directory / ".key.partial").write_text("half a key")
    assert left_in_podman(running)["networks"]
    assert call("down").returncode == 0
    assert left_in_podman(running) == NOTHING
    assert not running.directory.exists()
