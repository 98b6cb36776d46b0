"""GPUs in containers on a real host: real Docker and Podman, with stand-ins for NVIDIA's toolkit.

Cards are stand-ins, too: nodes that can be opened, and a version where the kernel shows a driver's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gpu_containers import CARDS, NO_CARDS, PODMAN, containers, wishes, words
from tests.support.lab_fleet import ROOT, Fleet
from tests.support.moments import some_slow

pytestmark = pytest.mark.lab
UP = ("--hosts", "lab1,lab2")
ARTIFACTS = ("--cuda", "8.0")

__all__ = ["wishes"]

THEIRS = '{"log-driver": "json-file", "labels": ["site=ber"]}'
CONTAINER = """
mkdir -p /etc/docker
apt-get update -q && apt-get install -qy --no-install-recommends docker.io busybox-static
tar -C / -c bin/busybox etc/debian_version | docker import - theirs
docker run --detach --name theirs --network none theirs /bin/busybox sleep infinity
"""
# What others use on a host, and a verification must leave as it is.
CHANGEABLE = """
systemctl show -p Id,DevicePolicy,DeviceAllow 'docker-*.scope' | sort
systemctl show -p UnitsLoadTimestampMonotonic
systemctl list-unit-files --no-legend --no-pager | grep -v '^session-'
find /dev -path /dev/pts -prune -o -path /dev/shm -prune -o -printf '%p %y %m %l\n' | sort
find /etc /run/cdi -printf '%p %m %l %s %T@\n' | sort
find /run -maxdepth 1 -name 'gpufleet*'
cut -d ' ' -f 1-3 /proc/mounts | grep -v ' /run/user/'
cat /proc/devices; cat /proc/modules
docker ps --all --format '{{.Names}} {{.State}}'; docker volume ls; docker images --quiet
"""
SINCE = "docker inspect --format '{{.State.Running}} {{.State.StartedAt}}' theirs"


@pytest.fixture(scope="module")
def theirs(fleet: Fleet, wishes: dict[str, Any]) -> Iterator[str]:
    """A Docker of somebody's, and since when his container runs."""
    fleet.on("lab1", f"mkdir -p /etc/docker; echo '{THEIRS}' >/etc/docker/daemon.json; {CONTAINER}")
    since = fleet.on("lab1", SINCE)
    assert since.startswith("true ")
    yield since
    assert fleet.on("lab1", SINCE) == since


def test_check_mode_says_all_of_it_and_changes_nothing(
    fleet: Fleet, wishes: dict[str, Any], theirs: str
) -> None:
    before = fleet.state("lab1")
    said = fleet.gpufleet("provision", "--check", *words(wishes)).stdout
    assert '"live-restore": true' in said
    assert "Would install nvidia-container-toolkit" in said
    assert fleet.state("lab1") == before


@pytest.mark.parametrize(
    ("damage", "words_said"),
    [
        ("echo '{\"a\": 1,}' >/etc/docker/daemon.json", "daemon.json is not valid JSON"),
        ("true", "accepted is 0000000000000000000000000000000000000000"),
    ],
    ids=["daemon.json damaged", "key rotated"],
)
def test_what_cannot_be_done_is_refused_and_docker_is_as_it_was(
    fleet: Fleet, wishes: dict[str, Any], theirs: str, damage: str, words_said: str
) -> None:
    fleet.on("lab1", f"cp /etc/docker/daemon.json /srv/daemon.json; {damage}")
    more = {"nvidia_docker_repo_key_fingerprint": "0" * 40} if damage == "true" else {}
    done = fleet.gpufleet("provision", *words(wishes, **more), status=None)
    assert done.returncode != 0
    assert words_said in done.stdout.replace("\n        ", " ").replace("\n", " ")
    fleet.on("lab1", "cp /srv/daemon.json /etc/docker/daemon.json")
    assert fleet.on("lab1", "cat /etc/docker/daemon.json").strip() == THEIRS
    fleet.on("lab1", "! dpkg -s nvidia-container-toolkit")


MOMENTS = [
    "test -e /etc/apt/sources.list.d/gpufleet-nvidia-container-toolkit.sources",
    "grep -q '^Package: nvidia-container-toolkit-base' /var/lib/dpkg/status",
    "grep -q live-restore /etc/docker/daemon.json",
    "test -e /etc/systemd/system/multi-user.target.wants/gpufleet-containers.service",
]


@pytest.mark.parametrize("moment", some_slow(MOMENTS, MOMENTS[1:2]))
def test_a_killed_run_is_finished_by_the_next(
    fleet: Fleet, wishes: dict[str, Any], theirs: str, moment: str
) -> None:
    # As before, so that each moment comes once more.
    fleet.gpufleet("provision", *words(wishes, gpu_containers=None, gpu_prune=True))
    fleet.on("lab1", f"echo '{THEIRS}' >/etc/docker/daemon.json; systemctl reload docker;"
                     " rm -f /etc/apt/sources.list.d/gpufleet-nvidia-container-toolkit.sources")
    fleet.on("lab1", f"! {moment}")
    fleet.killed(moment, ROOT / "gpufleet", "provision", *words(wishes))
    assert "finish containers engine" in " ".join(
        fleet.gpufleet("plan", *words(wishes)).stdout.split())
    fleet.gpufleet("provision", *words(wishes))
    assert "changed=0" in fleet.gpufleet("provision", "--force", *words(wishes)).stdout
    assert fleet.on("lab1", SINCE) == theirs


def test_cards_are_seen_in_containers_and_kept(
    fleet: Fleet, wishes: dict[str, Any], theirs: str
) -> None:
    fleet.gpufleet("provision", *words(wishes))
    cards = {"gpu_expect": {"count": 2}}
    fleet.on("lab1", CARDS)
    assert containers(fleet, wishes, **cards)["containers.cdi"]["verdict"] == "FAIL"

    def mended() -> None:
        # What has no stand-in here, such as the cards on the PCI bus, stays wrong.
        fleet.gpufleet("provision", *words(wishes, **cards), status=None)
        found = containers(fleet, wishes, **cards)
        assert {name for name, check in found.items() if check["verdict"] == "PASS"} == {
            f"containers.{name}" for name in ("runtime", "cdi", "gpus", "reload")}, found

    mended()
    fleet.on("lab1", "sed -i s/535.261.03/550.163.01/ /srv/driver/nvidia/version")
    cdi = containers(fleet, wishes, **cards)["containers.cdi"]
    assert "is for driver 535.261.03, and 550.163.01 is loaded" in cdi["cause"]
    mended()
    fleet.on("lab1", "rm /dev/char/203:1")
    found = containers(fleet, wishes, **cards)
    assert "/dev/char/203:1" in found["containers.reload"]["cause"]
    assert found["containers.gpus"]["verdict"] == "PASS"
    mended()
    names = fleet.on("lab1", "docker ps --all --format '{{.Names}}'").split()
    assert names == ["theirs"]
    fleet.on("lab1", NO_CARDS)


def opened(fleet: Fleet, name: str) -> str:
    """Whether a running container can open both cards; what it says where it cannot."""
    # In a shell of its own, which ends at a file that it cannot open.
    script = "for node in /dev/nvidia0 /dev/nvidia1; do (: <>$node) || exit 0; done; echo both"
    return fleet.on("lab1", f"docker exec {name} /bin/busybox sh -c '{script}' 2>&1").strip()


def test_running_containers_keep_their_gpus(
    fleet: Fleet, wishes: dict[str, Any], theirs: str
) -> None:
    """A verification took them by a daemon-reload, and so did the packages of an upgrade."""
    cards = {"gpu_expect": {"count": 2}}
    fleet.gpufleet("provision", *words(wishes))
    fleet.on("lab1", f"{CARDS} systemctl restart gpufleet-containers")
    for name, engine in (("plain", "docker run --gpus all"), ("given", "nvidia-docker run")):
        fleet.on("lab1", f"{engine} --detach --rm --name {name} --network none theirs"
                         " /bin/busybox sleep infinity")
    before = fleet.on("lab1", CHANGEABLE)
    found = containers(fleet, wishes, **cards)
    assert fleet.on("lab1", CHANGEABLE) == before
    assert (opened(fleet, "plain"), opened(fleet, "given")) == ("both", "both")
    said = found["containers.reload"]
    assert said["verdict"] == "PASS", said
    assert "Container plain loses /dev/nvidia-uvm, /dev/nvidia0" in said["evidence"]
    assert "Container given keeps its GPUs" in said["evidence"]

    newer = {**cards, "gpu_containers": {"toolkit": "1.18.0"}}
    plan = " ".join(fleet.gpufleet("plan", *words(wishes, **newer)).stdout.split())
    assert "these containers with GPUs run: " in plan
    fleet.gpufleet("provision", *words(wishes, **newer), status=None)
    assert "1.18.0" in containers(fleet, wishes, **newer)["containers.runtime"]["evidence"]
    assert (opened(fleet, "plain"), opened(fleet, "given")) == ("both", "both")
    # Nobody told systemd of this one: what is tested above can fail.
    fleet.on("lab1", "docker run --gpus all --detach --rm --name late --network none theirs"
                     " /bin/busybox sleep infinity")
    assert opened(fleet, "late") == "both"
    fleet.on("lab1", "systemctl daemon-reload")
    assert "not permitted" in opened(fleet, "late")
    assert (opened(fleet, "plain"), opened(fleet, "given")) == ("both", "both")
    fleet.on("lab1", f"docker rm --force plain given late; {NO_CARDS}")


def test_the_command_of_old_gives_all_cards(fleet: Fleet, wishes: dict[str, Any]) -> None:
    fleet.gpufleet("provision", *words(wishes))
    fleet.on("lab1", CARDS)
    line = "run --rm --network none theirs /bin/busybox ls /dev"
    seen = fleet.on("lab1", f"nvidia-docker {line}").split()
    assert {"nvidia0", "nvidia1", "nvidiactl"} <= set(seen)
    seen = fleet.on("lab1", f"NV_GPU=1 nvidia-docker {line}").split()
    assert "nvidia1" in seen
    assert "nvidia0" not in seen
    fleet.on("lab1", NO_CARDS)


def test_an_option_beside_which_docker_would_not_start_is_refused(
    fleet: Fleet, wishes: dict[str, Any], theirs: str
) -> None:
    fleet.gpufleet("provision", *words(wishes))
    unit = "/etc/systemd/system/docker.service.d/theirs.conf"
    start = "ExecStart=/usr/sbin/dockerd -H fd:// --live-restore"
    fleet.on("lab1", f"mkdir -p $(dirname {unit}); echo '{THEIRS}' >/etc/docker/daemon.json")
    fleet.on("lab1", f"printf '%s\\n' '[Service]' ExecStart= '{start}' >{unit}")
    fleet.on("lab1", "systemctl daemon-reload; systemctl restart docker")
    done = fleet.gpufleet("provision", *words(wishes), status=None)
    assert done.returncode != 0
    assert "dockerd runs with --live-restore" in " ".join(done.stdout.split())
    assert fleet.on("lab1", "cat /etc/docker/daemon.json").strip() == THEIRS
    live = THEIRS.replace("}", ', "live-restore": true}')
    fleet.on("lab1", f"rm {unit}; echo '{live}' >/etc/docker/daemon.json")
    fleet.on("lab1", "systemctl daemon-reload; systemctl restart docker")
    fleet.gpufleet("provision", *words(wishes))


def test_podman_gives_containers_the_cards_as_well(fleet: Fleet, wishes: dict[str, Any]) -> None:
    podman = {"gpu_containers": {"engine": "podman"}, "gpu_expect": {"count": 2}}
    fleet.on("lab2", CARDS)
    fleet.on("lab2", PODMAN)
    fleet.gpufleet("provision", *words(wishes, "lab2", **podman), status=None)
    said = fleet.gpufleet("verify", "--json", *words(wishes, "lab2", **podman), status=None).stdout
    checks = {c["id"]: c for c in json.loads(said)["hosts"]["lab2"]["checks"]}
    for name in ("runtime", "cdi", "gpus", "reload"):
        assert checks[f"containers.{name}"]["verdict"] == "PASS", checks[f"containers.{name}"]
    assert "podman" in checks["containers.runtime"]["evidence"]
    assert fleet.on("lab2", "podman ps --all --quiet; podman images --quiet") == ""
