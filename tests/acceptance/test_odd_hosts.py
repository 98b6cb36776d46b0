"""One run over a healthy host and over hosts that hang, are gone, are mute, full, bare, or babble.

The run ends within the deadline and 5 s, each host gets the verdict that is right for it, and the
healthy one is none the worse. Most of the odd hosts are accounts of lab1, in whose logins all goes
wrong, or ports of this machine that lead there badly or nowhere.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab_fleet import ROOT, Fleet

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="a file system is frozen: that takes root"),
]
ARTIFACTS = ("--cuda", "8.0")
UP = ("--hosts", "lab1,lab2")

DEADLINE_S = 40
# The end of a run: inventory, verdicts, documents.
MORE_S = 15

# What a login of each account does before it comes to a command.
LOGINS = {
    "flood": "yes 'Welcome to this host'",
    "complaint": "yes 'Something is wrong' >&2",
    "endless": "while :; do printf 'Loading modules ... '; done",
    "waiting": "sleep 600",
    "bare": "PATH=/nowhere",
    "banner": "seq -f 'Message %g of today' 300; echo '{\"schema\": 1}'",
    "frozen": "",
}

ACCOUNT = """
id {name} 2>/dev/null >&2 || useradd --create-home --shell /bin/bash {name}
install -d -o {name} -g {name} -m 700 /home/{name}/.ssh
install -o {name} -g {name} -m 600 /home/deploy/.ssh/authorized_keys /home/{name}/.ssh/
echo '{name} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/{name}
cat >/home/{name}/.bashrc <<'END'
{login}
END
"""

# Everything that the probe does there, it does on the frozen file system: a login writes its
# history, TensorFlow's script wants a directory, nvcc and a cuDNN write when they are asked. It is
# root's: what others could have written is not run.
FREEZE = """
set -e
cd /srv/frozen
mkdir -p tmp stacks/tensorflow-2.13.1/bin cuda-11.8/bin cuda-11.8/lib64
touch stacks/tensorflow-2.13.1/pyvenv.cfg
printf '#!/bin/sh\\necho >/srv/frozen/asked\\n' >cuda-11.8/bin/nvcc
chmod +x cuda-11.8/bin/nvcc
echo '#include <fcntl.h>
__attribute__((constructor)) static void hang(void) { open("/srv/frozen/opened", O_CREAT, 0600); }
' | gcc -xc -shared -fPIC -Wl,-soname,libcudnn.so.8 -o cuda-11.8/lib64/libcudnn.so.8 -
echo 'date >/srv/frozen/history' >/home/frozen/.bash_profile
fsfreeze --freeze /srv/frozen
"""

FULL_PLACES = "/tmp /var/tmp /var/lib/gpufleet"
FULL = f"""
for place in {FULL_PLACES}; do
  mkdir -p $place && mount -t tmpfs -o size=1m tmpfs $place && head -c 2M /dev/zero >$place/filler
done 2>/dev/null
mountpoint -q /var/lib/gpufleet
"""


@pytest.fixture
def frozen(fleet: Fleet, tmp_path: Path) -> Iterator[None]:
    """A file system of lab1 on which whoever writes falls into a true D state, until it thaws."""
    image = tmp_path / "frozen.img"
    with image.open("wb") as stream:
        stream.truncate(256 << 20)  # with less, the file system would count as full
    fleet.run("mkfs.ext4", "-q", "-F", image)
    # From outside: the device is this machine's, and not for the host to open.
    device = fleet.run("losetup", "--find", "--show", image).stdout.strip()
    name = f"gpufleet-{fleet.instance}-lab1"
    pid = fleet.run("podman", "inspect", "--format", "{{.State.Pid}}", name).stdout.strip()
    number = device.removeprefix("/dev/loop")
    try:
        fleet.run(
            "nsenter",
            "--target",
            pid,
            "--mount",
            "sh",
            "-ec",
            f"mkdir -p /srv/frozen; mknod /dev/frozen b 7 {number};"
            " mount /dev/frozen /srv/frozen; rm /dev/frozen",
        )
    finally:
        # A mounted one is freed when the host unmounts it, or is removed.
        fleet.run("losetup", "--detach", device)
    try:
        fleet.on("lab1", FREEZE)
        yield
    finally:
        fleet.on("lab1", "fsfreeze --unfreeze /srv/frozen", None)
        fleet.on("lab1", "timeout 20 sh -c 'until umount /srv/frozen; do sleep 0.2; done'", None)


def serve(handle: Callable[[socket.socket], None]) -> tuple[socket.socket, int]:
    """A port of this machine, each connection to it handled in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=handle, args=[connection], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener, listener.getsockname()[1]


def mute(connection: socket.socket) -> None:
    """Accepts, and never says a word."""
    with connection:
        threading.Event().wait()


def cutting(address: str, most_bytes: int) -> Callable[[socket.socket], None]:
    """Leads to a host's sshd, and closes when so much was sent there: amid the probe."""

    def lead(near: socket.socket) -> None:
        with near, socket.create_connection((address, 22)) as far:

            def back() -> None:
                try:
                    while data := far.recv(65536):
                        near.sendall(data)
                except OSError:
                    return

            threading.Thread(target=back, daemon=True).start()
            sent = 0
            while sent < most_bytes and (data := near.recv(65536)):
                far.sendall(data)
                sent += len(data)
            # Closing alone would not end what the other thread still waits for.
            for end in (near, far):
                end.shutdown(socket.SHUT_RDWR)

    return lead


@pytest.fixture
def inventory(fleet: Fleet, tmp_path: Path) -> Iterator[Path]:
    """The healthy host and all the odd ones."""
    output = fleet.run(ROOT / "inventory/lab/hosts.py", "--list").stdout
    known: dict[str, Any] = json.loads(output)["_meta"]["hostvars"]
    lab1, lab2 = known["lab1"], known["lab2"]
    address = lab1["ansible_host"]
    for name, login in LOGINS.items():
        fleet.on("lab1", ACCOUNT.format(name=name, login=login))
    fleet.on(
        "lab1",
        "yes 'All is logged here.' | head -200 >/etc/issue.long; printf"
        " 'Match User banner\\n  Banner /etc/issue.long\\n' >/etc/ssh/sshd_config.d/long.conf;"
        " systemctl reload ssh",
    )
    fleet.on("lab2", FULL)
    silent, silent_port = serve(mute)
    cut, cut_port = serve(cutting(address, 60000))
    refused = socket.create_server(("127.0.0.1", 0))
    refused_port = refused.getsockname()[1]
    refused.close()
    alias = f"{lab1['ansible_ssh_common_args']} -o HostKeyAlias={address}"
    near = {**lab1, "ansible_host": "127.0.0.1"}
    hosts = {
        "healthy": lab1,
        "full": lab2,
        "down": {**lab1, "ansible_host": f"{address.rpartition('.')[0]}.250"},
        "refused": {**near, "ansible_port": refused_port},
        # ssh gives up long before the deadline, also where this machine stalls meanwhile.
        "mute": {**near, "ansible_port": silent_port, "ansible_ssh_timeout": 5},
        "cut": {**near, "ansible_port": cut_port, "ansible_ssh_common_args": alias},
        **{name: {**lab1, "ansible_user": name} for name in LOGINS},
    }
    hosts["frozen"] |= {
        "gpu_prefix": "/srv/frozen",
        "gpu_stack_root": "/srv/frozen/stacks",
        "gpu_tmpdir": "/srv/frozen/tmp",
    }
    path = tmp_path / "odd.yml"
    path.write_text(
        json.dumps({"gpu_hosts": {"hosts": hosts, "vars": {"gpu_expect": {"count": 0}}}})
    )
    yield path
    silent.close()
    cut.close()
    fleet.on("lab2", f"umount {FULL_PLACES}", None)


def test_each_is_judged_rightly_in_time_and_none_disturbs_another(
    fleet: Fleet, inventory: Path, frozen: None, tmp_path: Path
) -> None:
    # The launcher's environment is made before the clock starts.
    fleet.gpufleet("resolve", "--tensorflow", "2.13.1")
    begin = time.monotonic()
    ended = fleet.gpufleet(
        "verify",
        "--json",
        "-i",
        str(inventory),
        "--deadline",
        str(DEADLINE_S),
        "--report",
        str(tmp_path / "reports"),
        status=1,
    )
    seconds = time.monotonic() - begin
    hosts = json.loads(ended.stdout)["hosts"]
    reported = {
        name: next(check for check in host["checks"] if check["verdict"] == host["verdict"])
        for name, host in hosts.items()
    }
    assert {name: (host["verdict"], reported[name]["id"]) for name, host in hosts.items()} == {
        "healthy": ("PASS", "host.probe"),
        "banner": ("PASS", "host.probe"),
        "full": ("FAIL", "host.disk"),
        "frozen": ("HUNG", "host.probe"),
        **dict.fromkeys(
            ("down", "refused", "mute", "cut", "flood", "complaint", "endless", "waiting", "bare"),
            ("UNREACHABLE", "host.reachable"),
        ),
    }
    for name, (cause, remedy) in {
        "full": ("No space is left in /tmp (0 MiB", "find what fills it"),
        "frozen": ("Probing 'stacks' hung", "processes in state D"),
        "down": ("ssh failed: ", "try by hand: ssh"),
        "refused": ("Connection refused", "try by hand: ssh"),
        "mute": ("during banner exchange", "try by hand: ssh"),
        "cut": ("The connection to cut broke during the probe", "journalctl -u ssh"),
        "flood": ("flood sends endless output", "profile files"),
        "complaint": ("complaint sends endless output", "profile files"),
        "endless": ("endless sends endless output", "profile files"),
        "waiting": (f"No answer within {DEADLINE_S} s", "profile files"),
        "bare": ("python3 was not found on bare", "ansible_python_interpreter"),
    }.items():
        assert cause in reported[name]["cause"], reported[name]
        assert remedy in reported[name]["remedy"], reported[name]
    assert "The login environment cannot be read" in reported["frozen"]["cause"]
    # An unreachable host is one check, also in JUnit.
    cases = ET.parse(tmp_path / "reports/latest/junit.xml").getroot()[0]
    per_host = [str(case.get("name")).partition("[")[2].removesuffix("]") for case in cases]
    assert {name: per_host.count(name) for name in hosts} == {
        name: len(host["checks"]) for name, host in hosts.items()
    }
    assert seconds < DEADLINE_S + MORE_S, f"the run took {seconds:.1f} s"


def test_nothing_of_the_probe_stays_once_the_file_system_thaws(fleet: Fleet) -> None:
    fleet.on("lab1", "timeout 20 sh -c 'while pgrep -f ^python3.-I; do sleep 0.2; done'")
    assert fleet.on("lab1", "ls -d /tmp/gpufleet-* 2>/dev/null || :") == ""
