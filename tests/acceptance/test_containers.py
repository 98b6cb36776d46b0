"""GPUs in containers on a real host: real Docker and Podman, with stand-ins for NVIDIA's toolkit.

Cards are stand-ins, too: nodes that can be opened, and a version where the kernel shows a driver's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gpu_containers import (
    CARDS,
    LEGACY,
    NO_CARDS,
    PODMAN,
    containers,
    declared,
    words,
)
from tests.support.lab_fleet import ROOT, Fleet

pytestmark = pytest.mark.lab
UP = ("--hosts", "lab1,lab2")
ARTIFACTS = ("--cuda", "8.0")

__all__ = ["declared"]

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
def theirs(fleet: Fleet, declared: dict[str, Any]) -> Iterator[str]:
    """A Docker of somebody's, and since when his container runs."""
    fleet.on("lab1", f"mkdir -p /etc/docker; echo '{THEIRS}' >/etc/docker/daemon.json; {CONTAINER}")
    since = fleet.on("lab1", SINCE)
    assert since.startswith("true ")
    yield since
    assert fleet.on("lab1", SINCE) == since


@pytest.mark.slow
def test_check_mode_says_all_of_it_and_changes_nothing(
    fleet: Fleet, declared: dict[str, Any], theirs: str
) -> None:
    before = fleet.state("lab1")
    output = fleet.gpufleet("provision", "--check", *words(declared)).stdout
    assert '"live-restore": true' in output
    assert "Would install nvidia-container-toolkit" in output
    assert fleet.state("lab1") == before


@pytest.mark.parametrize(
    ("damage", "more", "words_said"),
    [
        pytest.param(
            "echo '{\"a\": 1,}' >/etc/docker/daemon.json", {}, "/etc/docker/daemon.json cannot be read: ",
            id="daemon.json damaged",
        ),
        pytest.param(
            "true", {"nvidia_docker_repo_key_fingerprint": "0" * 40},
            "accepted is 0000000000000000000000000000000000000000",
            id="key rotated", marks=pytest.mark.slow,
        ),
        pytest.param(
            "true", {"gpu_containers": {**LEGACY, "data_root": "/srv/other"}},
            "data_root is /srv/other, but Docker keeps 1 containers",
            id="another data root", marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_and_docker_is_as_it_was(
    fleet: Fleet,
    declared: dict[str, Any],
    theirs: str,
    *,
    damage: str,
    more: dict[str, Any],
    words_said: str,
) -> None:
    fleet.on("lab1", f"cp /etc/docker/daemon.json /srv/daemon.json; {damage}")
    try:
        done = fleet.gpufleet("provision", *words(declared, **more), status=None)
    finally:
        fleet.on("lab1", "cp /srv/daemon.json /etc/docker/daemon.json")
    assert done.returncode != 0
    assert words_said in " ".join((done.stdout + done.stderr).split())
    assert fleet.on("lab1", "cat /etc/docker/daemon.json").strip() == THEIRS
    fleet.on("lab1", "! dpkg -s nvidia-container-toolkit")


MOMENTS = [
    "test -e /etc/apt/sources.list.d/gpufleet-nvidia-container-toolkit.sources",
    "grep -q '^Package: nvidia-container-toolkit-base' /var/lib/dpkg/status",
    "grep -q live-restore /etc/docker/daemon.json",
    "test -e /etc/systemd/system/multi-user.target.wants/gpufleet-containers.service",
]


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_is_finished_by_the_next(
    fleet: Fleet, declared: dict[str, Any], theirs: str, moment: str
) -> None:
    # As before, so that each moment comes once more.
    fleet.gpufleet("provision", *words(declared, gpu_containers=None, gpu_prune=True))
    fleet.on(
        "lab1",
        f"echo '{THEIRS}' >/etc/docker/daemon.json; systemctl reload docker;"
        " rm -f /etc/apt/sources.list.d/gpufleet-nvidia-container-toolkit.sources",
    )
    fleet.on("lab1", f"! {moment}")
    fleet.killed(moment, ROOT / "gpufleet", "provision", *words(declared))
    assert "finish containers engine" in " ".join(
        fleet.gpufleet("plan", *words(declared)).stdout.split()
    )
    fleet.gpufleet("provision", *words(declared))
    assert "changed=0" in fleet.gpufleet("provision", "--force", *words(declared)).stdout
    assert fleet.on("lab1", SINCE) == theirs


def test_cards_are_seen_in_containers_and_kept(
    fleet: Fleet, declared: dict[str, Any], theirs: str
) -> None:
    fleet.gpufleet("provision", *words(declared))
    cards = {"gpu_expect": {"count": 2}}
    fleet.on("lab1", CARDS)
    assert containers(fleet, declared, **cards)["containers.cdi"]["verdict"] == "FAIL"

    def repaired() -> None:
        # What has no stand-in here, such as the cards on the PCI bus, stays wrong.
        fleet.gpufleet("provision", *words(declared, **cards), status=None)
        found = containers(fleet, declared, **cards)
        assert {name for name, check in found.items() if check["verdict"] == "PASS"} == {
            f"containers.{name}" for name in ("runtime", "cdi", "gpus", "reload", "vulnerable")
        }, found

    repaired()
    fleet.on("lab1", "sed -i s/535.261.03/550.163.01/ /srv/driver/nvidia/version")
    cdi = containers(fleet, declared, **cards)["containers.cdi"]
    assert "is for driver 535.261.03, and 550.163.01 is loaded" in cdi["cause"]
    repaired()
    fleet.on("lab1", "rm /dev/char/203:1")
    found = containers(fleet, declared, **cards)
    assert "/dev/char/203:1" in found["containers.reload"]["cause"]
    assert found["containers.gpus"]["verdict"] == "PASS"
    repaired()
    names = fleet.on("lab1", "docker ps --all --format '{{.Names}}'").split()
    assert names == ["theirs"]
    fleet.on("lab1", NO_CARDS)


def opened(fleet: Fleet, name: str) -> str:
    """The word "both" if a running container can open both cards, or its error."""
    # In a shell of its own, which ends at a file that it cannot open.
    script = "for node in /dev/nvidia0 /dev/nvidia1; do (: <>$node) || exit 0; done; echo both"
    return fleet.on("lab1", f"docker exec {name} /bin/busybox sh -c '{script}' 2>&1").strip()


@pytest.mark.slow
def test_running_containers_keep_their_gpus(
    fleet: Fleet, declared: dict[str, Any], theirs: str
) -> None:
    """A verification took them by a daemon-reload, and so did the packages of an upgrade."""
    cards = {"gpu_expect": {"count": 2}}
    fleet.gpufleet("provision", *words(declared))
    fleet.on("lab1", f"{CARDS} systemctl restart gpufleet-containers")
    for name, engine in (("plain", "docker run --gpus all"), ("given", "nvidia-docker run")):
        fleet.on(
            "lab1",
            f"{engine} --detach --rm --name {name} --network none theirs"
            " /bin/busybox sleep infinity",
        )
    before = fleet.on("lab1", CHANGEABLE)
    found = containers(fleet, declared, **cards)
    assert fleet.on("lab1", CHANGEABLE) == before
    assert (opened(fleet, "plain"), opened(fleet, "given")) == ("both", "both")
    output = found["containers.reload"]
    assert output["verdict"] == "PASS", output
    assert re.search(r"Container plain loses .*/dev/nvidia-uvm, ", output["evidence"])
    assert "Container given keeps its GPUs" in output["evidence"]

    newer = {**cards, "gpu_containers": {**LEGACY, "toolkit": "1.18.0"}}
    plan = " ".join(fleet.gpufleet("plan", *words(declared, **newer)).stdout.split())
    assert "these containers with GPUs run: " in plan
    done = fleet.gpufleet("provision", *words(declared, **newer), status=None)
    runtime = containers(fleet, declared, **newer)["containers.runtime"]
    assert "1.18.0" in runtime["evidence"], done.stdout
    assert (opened(fleet, "plain"), opened(fleet, "given")) == ("both", "both")
    # Nobody told systemd of this one: what is tested above can fail.
    fleet.on(
        "lab1",
        "docker run --gpus all --detach --rm --name late --network none theirs"
        " /bin/busybox sleep infinity",
    )
    assert opened(fleet, "late") == "both"
    fleet.on("lab1", "systemctl daemon-reload")
    assert "not permitted" in opened(fleet, "late")
    assert (opened(fleet, "plain"), opened(fleet, "given")) == ("both", "both")
    fleet.on("lab1", f"docker rm --force plain given late; {NO_CARDS}")


@pytest.mark.slow
def test_the_command_of_old_gives_all_cards(fleet: Fleet, declared: dict[str, Any]) -> None:
    fleet.gpufleet("provision", *words(declared))
    fleet.on("lab1", CARDS)
    line = "run --rm --network none theirs /bin/busybox ls /dev"
    seen = fleet.on("lab1", f"nvidia-docker {line}").split()
    assert {"nvidia0", "nvidia1", "nvidiactl"} <= set(seen)
    seen = fleet.on("lab1", f"NV_GPU=1 nvidia-docker {line}").split()
    assert "nvidia1" in seen
    assert "nvidia0" not in seen
    fleet.on("lab1", NO_CARDS)


@pytest.mark.slow
def test_an_option_beside_which_docker_would_not_start_is_refused(
    fleet: Fleet, declared: dict[str, Any], theirs: str
) -> None:
    fleet.gpufleet("provision", *words(declared))
    unit = "/etc/systemd/system/docker.service.d/theirs.conf"
    start = "ExecStart=/usr/sbin/dockerd -H fd:// --live-restore"
    fleet.on("lab1", f"mkdir -p $(dirname {unit}); echo '{THEIRS}' >/etc/docker/daemon.json")
    fleet.on("lab1", f"printf '%s\\n' '[Service]' ExecStart= '{start}' >{unit}")
    fleet.on("lab1", "systemctl daemon-reload; systemctl restart docker")
    done = fleet.gpufleet("provision", *words(declared), status=None)
    assert done.returncode != 0
    assert "dockerd runs with --live-restore" in " ".join(done.stdout.split())
    assert fleet.on("lab1", "cat /etc/docker/daemon.json").strip() == THEIRS
    live = THEIRS.replace("}", ', "live-restore": true}')
    fleet.on("lab1", f"rm {unit}; echo '{live}' >/etc/docker/daemon.json")
    fleet.on("lab1", "systemctl daemon-reload; systemctl restart docker")
    fleet.gpufleet("provision", *words(declared))


CONFIGURATION = "/etc/nvidia-container-runtime/config.toml"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        (
            "printf '[nvidia-container-cli]\\nno-cgroups = true\\n' >>",
            (
                "Started by docker run --gpus all or docker run --runtime=nvidia, a container"
                " cannot open /dev/nvidia0 (Operation not permitted)",
                "set no-cgroups = false",
            ),
        ),
        pytest.param(
            "printf '[nvidia-container-runtime]\\nmode = \"cdi\"\\n' >",
            ("A container could not be run", 'set mode = "auto"'),
        ),
    ],
    ids=["no-cgroups", "mode"],
)
def test_a_setting_of_the_toolkit_that_denies_gpus_is_named(
    fleet: Fleet, declared: dict[str, Any], theirs: str, damage: str, reported: tuple[str, str]
) -> None:
    """A container that nvidia-docker gives the devices by name has them all the same."""
    cards = {"gpu_expect": {"count": 2}}
    fleet.gpufleet("provision", *words(declared))
    fleet.on("lab1", f"{CARDS} systemctl restart gpufleet-containers")
    assert containers(fleet, declared, **cards)["containers.gpus"]["verdict"] == "PASS"
    fleet.on("lab1", f"cp {CONFIGURATION} /srv/config.toml; {damage}{CONFIGURATION}")
    before = fleet.on("lab1", CHANGEABLE)
    found = containers(fleet, declared, **cards)["containers.gpus"]
    assert fleet.on("lab1", CHANGEABLE) == before
    fleet.on("lab1", f"cp /srv/config.toml {CONFIGURATION}; {NO_CARDS}")
    assert found["verdict"] == "FAIL"
    assert reported[0] in found["cause"]
    assert reported[1] in found["remedy"]


@pytest.mark.slow
def test_a_process_that_is_only_called_dockerd_is_not_the_engine(
    fleet: Fleet, declared: dict[str, Any], theirs: str
) -> None:
    fleet.gpufleet("provision", *words(declared))
    fleet.on(
        "lab1",
        "cp /bin/sh /tmp/dockerd; systemd-run --unit called-dockerd --uid nobody"
        " /tmp/dockerd -c 'sleep 600; :' --data-root=/srv/own;"
        " until pgrep --exact --uid nobody dockerd; do :; done",
    )
    try:
        assert "changed=0" in fleet.gpufleet("provision", "--force", *words(declared)).stdout
    finally:
        fleet.on("lab1", "systemctl stop called-dockerd; rm /tmp/dockerd")


@pytest.mark.slow
def test_an_older_toolkit_leaves_no_link_to_a_unit_that_is_gone(
    fleet: Fleet, declared: dict[str, Any], theirs: str
) -> None:
    units = "find /etc/systemd/system -name 'nvidia-cdi-refresh.*'"
    # The units of 1.18.0 are configuration files, which dpkg keeps; 1.20.0 has them below /lib.
    fleet.on(
        "lab1",
        "systemctl disable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service;"
        " rm -f /etc/systemd/system/nvidia-cdi-refresh.*; systemctl daemon-reload",
    )
    newer = {"gpu_containers": {"toolkit": "1.20.0"}}
    fleet.gpufleet("provision", *words(declared, **newer))
    assert fleet.on("lab1", units) != ""
    fleet.gpufleet("provision", *words(declared))
    assert fleet.on("lab1", units) == ""
    fleet.on("lab1", "! systemctl is-active nvidia-cdi-refresh.path")
    assert "changed=0" in fleet.gpufleet("provision", "--force", *words(declared)).stdout


@pytest.mark.slow
def test_a_toolkit_that_stays_is_named_with_its_upgrade_and_its_vulnerability(
    fleet: Fleet, declared: dict[str, Any], theirs: str
) -> None:
    fleet.gpufleet("provision", *words(declared))
    undeclared: dict[str, Any] = {"gpu_containers": {}}
    plan = " ".join(fleet.gpufleet("plan", *words(declared, **undeclared)).stdout.split())
    assert "1.17.8 is installed and stays" in plan
    assert 'declare gpu_containers.toolkit: "1.20.0"' in plan
    found = containers(fleet, declared, **undeclared)["containers.vulnerable"]
    assert found["verdict"] == "FAIL"
    assert "CVE-2026-24260" in found["cause"]
    assert containers(fleet, declared)["containers.vulnerable"]["verdict"] == "PASS"


@pytest.mark.slow
def test_a_removal_is_refused_before_it_begins_and_names_who_needs_the_runtime(
    fleet: Fleet, declared: dict[str, Any], theirs: str
) -> None:
    fleet.gpufleet("provision", *words(declared))
    fleet.on(
        "lab1",
        "docker run --runtime=nvidia --detach --name needs --network none theirs"
        " /bin/busybox sleep infinity;"
        " cp /etc/docker/daemon.json /srv/daemon.json;"
        ' sed -i \'s/^{/{"default-runtime": "nvidia",/\' /etc/docker/daemon.json',
    )
    remove = ("remove", "--containers", "--yes", *words(declared))
    done = fleet.gpufleet(*remove, status=None)
    assert done.returncode != 0
    assert "nvidia is Docker's default-runtime" in " ".join(done.stdout.split())
    assert fleet.on("lab1", "ls /var/lib/gpufleet/journal") == ""
    fleet.on("lab1", "cp /srv/daemon.json /etc/docker/daemon.json")
    removed = " ".join(fleet.gpufleet(*remove).stdout.split())
    assert "use the runtime nvidia, which is removed: needs. They go on running" in removed
    assert fleet.on("lab1", "docker inspect --format '{{.State.Running}}' needs").strip() == "true"
    fleet.on("lab1", "! docker exec needs /bin/busybox true")
    fleet.gpufleet("provision", *words(declared))
    fleet.on("lab1", "docker exec needs /bin/busybox true; docker rm --force needs")


@pytest.mark.slow
def test_podman_gives_containers_the_cards_as_well(fleet: Fleet, declared: dict[str, Any]) -> None:
    podman = {"gpu_containers": {"engine": "podman"}, "gpu_expect": {"count": 2}}
    fleet.on("lab2", CARDS)
    fleet.on("lab2", PODMAN)
    fleet.gpufleet("provision", *words(declared, "lab2", **podman), status=None)
    output = fleet.gpufleet(
        "verify", "--json", *words(declared, "lab2", **podman), status=None
    ).stdout
    checks = {c["id"]: c for c in json.loads(output)["hosts"]["lab2"]["checks"]}
    for name in ("runtime", "cdi", "gpus", "reload"):
        assert checks[f"containers.{name}"]["verdict"] == "PASS", checks[f"containers.{name}"]
    assert "podman" in checks["containers.runtime"]["evidence"]
    assert fleet.on("lab2", "podman ps --all --quiet; podman images --quiet") == ""
