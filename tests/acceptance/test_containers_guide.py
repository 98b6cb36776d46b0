"""docs/how-to/containers.md does what it says: its commands are read from it, and run.

The image is made of the lab host's own programs and a real TensorBoard; the cards are nodes only.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gpu_containers import CARDS, declared, words
from tests.support.lab_fleet import ROOT, Fleet

pytestmark = [pytest.mark.lab, pytest.mark.slow]
UP = ("--hosts", "lab1,lab2")  # of which the second is for the other tests' fixture
ARTIFACTS = ("--cuda", "8.0")
__all__ = ["declared"]

GUIDE = ROOT / "docs" / "how-to" / "containers.md"
IMAGE = r"""
apt-get install -qy --no-install-recommends python3-venv curl
python3 -m venv /opt/board && /opt/board/bin/pip install --quiet tensorboard setuptools\<81
mkdir -p /srv/image/tmp /srv/image/root
tar -c --exclude=/usr/share/doc --exclude=/usr/lib/gcc --exclude='*.a' \
    /usr /bin /lib /lib64 /opt/board /etc/ld.so.cache /etc/passwd \
    -C /srv/image tmp root 2>/dev/null |
    docker import --change 'ENV PATH=/opt/board/bin:/usr/bin:/bin' - \
        tensorflow/tensorflow:latest-gpu
"""
# What a training would leave behind: its losses, for TensorBoard.
TRAIN = """
import sys
from tensorboard.summary import Writer
writer = Writer(sys.argv[1])
for step in range(10):
    writer.add_scalar("loss", 1 / (step + 1), step)
writer.close()
"""


def blocks(place: str) -> list[str]:
    """The commands that the guide has for a place, in its order."""
    fenced = re.compile(r"^```sh\n# ([^\n]+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    found = fenced.findall(GUIDE.read_text())
    return [commands for where, commands in found if where == place]


@pytest.fixture(scope="module")
def host(fleet: Fleet, declared: dict[str, object]) -> Fleet:
    """A host that is set up, with the image, and cards to be seen."""
    fleet.gpufleet("provision", *words(declared))
    fleet.on("lab1", IMAGE)
    fleet.on("lab1", CARDS)
    fleet.on("lab1", f"cat >/root/train.py <<'END'\n{TRAIN}\nEND")
    return fleet


@pytest.fixture
def desk(host: Fleet) -> Iterator[dict[str, str]]:
    """A machine on which `ssh gpu01` leads to the host; the tunnel ends with the test."""
    inventory = subprocess.run(
        [ROOT / "inventory/lab/hosts.py", "--host", "lab1"], env=host.environment,
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    known = json.loads(inventory)
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # a socket's path must be short
        ssh = Path(place, "ssh")
        ssh.write_text(
            f"#!/bin/sh\nexec /usr/bin/ssh -i {known['ansible_ssh_private_key_file']} -M -S"
            f" {place}/tunnel {known['ansible_ssh_common_args']}"
            f" -o HostName={known['ansible_host']} -o User={known['ansible_user']}"
            ' "$@"\n'
        )
        ssh.chmod(0o755)
        yield {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}
        end = ["/usr/bin/ssh", "-S", f"{place}/tunnel", "-O", "exit", "gpu01"]
        subprocess.run(end, check=False, capture_output=True)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_the_guide_does_what_it_says(host: Fleet, desk: dict[str, str]) -> None:
    run, some, copies, board, over = blocks("on the GPU host")
    (tunnel,) = blocks("on your own machine")

    host.on("lab1", f"cd /root; set -e\n{run}")
    assert "nvidia0" in host.on("lab1", "docker exec tf ls /dev").split()
    seen = host.on("lab1", some).split()
    assert "nvidia0" in seen
    assert "nvidia1" not in seen

    host.on("lab1", f"cd /root; set -e\n{copies}")
    assert host.on("lab1", "cat /root/train.copy.py").strip() == TRAIN.strip()
    assert "events.out" in host.on("lab1", "ls /data/logs")

    assert json.loads(host.on("lab1", f"set -e\n{board}")) == ["."]

    # Somebody else may have this port on the machine that the tests run on.
    port = free_port()
    commands = tunnel.replace("-L 6006:", f"-L {port}:")
    commands = commands.replace("localhost:6006/", f"localhost:{port}/")
    done = subprocess.run(
        ["sh", "-ec", commands], env=desk, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {".": {"loss": {"displayName": "", "description": ""}}}

    host.on("lab1", over)
    assert host.on("lab1", "docker ps --all --quiet") == ""
