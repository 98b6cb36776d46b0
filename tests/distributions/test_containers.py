"""Docker and Podman on stand-ins of Ubuntu: installed, held, left alone, removed.

Engines are Debian's, and real; NVIDIA's toolkit and the cards are stand-ins. The tests of an engine
on a release are one story on the same host, and run in their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.distribution_host import DistributionHost
from tests.support.gpu_containers import CARDS, LEGACY, NO_CARDS, PODMAN
from tests.support.lab_fleet import fresh, lab

TOOLKIT = {"libnvidia-container-tools", "libnvidia-container1", "nvidia-container-toolkit",
           "nvidia-container-toolkit-base"}  # fmt: skip
STORIES = ("ubuntu-22.04 docker", "ubuntu-24.04 docker", "ubuntu-24.04 podman")
CHECKS = ("runtime", "cdi", "gpus", "reload")
IMPORT = "tar -C / -c bin/busybox etc/debian_version | {} import - theirs"
pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    pytest.mark.parametrize("story", STORIES, indirect=True),
]


@dataclass
class Story:
    """A host, the engine that it gets, and what is declared for it."""

    host: DistributionHost
    engine: str
    declared: dict[str, Any]

    def words(self, **more: Any) -> tuple[str, ...]:
        """Inventory and variables, as the launcher takes them.

        The inventory is named: without one, `provision` starts a Debian under the host's name, and
        ends where the host is another distribution.
        """
        declared = self.host.declared(None, **{**self.declared, **more})
        return "-i", "inventory/lab", "-e", declared

    def judged(self, **more: Any) -> dict[str, dict[str, Any]]:
        """The checks of containers; others have no stand-in and may fail."""
        row = self.host.verdicts(None, None, **{**self.declared, **more})
        return {name: row[f"containers.{name}"] for name in CHECKS}


@pytest.fixture(scope="module")
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) \
        -> Iterator[Story]:  # fmt: skip
    """A fresh server with the repository of NVIDIA's toolkit on it, and no engine."""
    suite, _, engine = request.param.partition(" ")
    with fresh("co" + hashlib.sha256(request.param.encode()).hexdigest()[:6]) as fleet:
        lab(fleet, "up", "--hosts", "lab1", "--suite", suite)
        repository: Path = tmp_path_factory.mktemp("toolkit")
        lab(fleet, "toolkit-repository", str(repository))
        host = DistributionHost(fleet, suite)
        host.deliver(repository, "/srv/toolkit")
        if engine == "podman":
            host.on(PODMAN)
        yield Story(host, engine, {
            "gpu_containers": {"engine": engine, **LEGACY},
            "nvidia_docker_repo_url": "file:///srv/toolkit",
            "nvidia_docker_repo_key": "file:///srv/toolkit/key.asc",
            "nvidia_docker_repo_key_fingerprint": (repository / "fingerprint").read_text().strip(),
        })  # fmt: skip


def installed(host: DistributionHost) -> set[str]:
    """Packages of the toolkit that dpkg knows, also those removed but not purged."""
    listed = host.on("dpkg-query -W -f '${Package}\\n' '*nvidia-container*' 2>/dev/null || :")
    return set(listed.split())


def test_check_mode_says_what_it_would_install(story: Story) -> None:
    before = story.host.fleet.state("lab1")
    output = story.host.fleet.gpufleet("provision", "--check", *story.words()).stdout
    assert "Would install nvidia-container-toolkit" in output
    assert story.host.fleet.state("lab1") == before


def test_engine_and_toolkit_are_installed_and_held(story: Story) -> None:
    host = story.host
    host.fleet.gpufleet("provision", *story.words())
    assert installed(host) == TOOLKIT
    assert set(host.on("apt-mark showhold").split()) >= TOOLKIT
    # A newer toolkit is in the repository: it is not taken.
    host.apt("dist-upgrade")
    versions = host.on("dpkg-query -W -f '${Version}\\n' '*nvidia-container*'").split()
    assert set(versions) == {"1.17.8-1"}
    assert host.on(f"{story.engine} info") != ""


def test_a_second_run_changes_nothing(story: Story) -> None:
    before = story.host.fleet.state("lab1")
    output = story.host.fleet.gpufleet("provision", "--force", *story.words()).stdout
    assert "changed=0 " in output
    assert story.host.fleet.state("lab1") == before
    assert {row["verdict"] for row in story.host.verdicts(None, 0, **story.declared).values()} <= {
        "PASS", "NOT-DECLARED"}  # fmt: skip


def test_a_container_gets_the_cards_and_nothing_of_it_stays(story: Story) -> None:
    expected = {"gpu_expect": {"count": 2}}
    story.host.on(CARDS)
    assert story.judged(**expected)["cdi"]["verdict"] == "FAIL"
    # What has no stand-in here, such as the cards on the PCI bus, stays wrong.
    done = story.host.fleet.gpufleet("provision", *story.words(**expected), status=None)
    row = story.judged(**expected)
    assert {check["verdict"] for check in row.values()} == {"PASS"}, (row, done.stdout)
    engine = story.engine
    assert story.host.on(f"{engine} ps --all --quiet; {engine} images --quiet") == ""
    story.host.on(NO_CARDS)


def test_the_toolkit_goes_and_the_engine_stays_with_what_is_in_it(story: Story) -> None:
    host, engine = story.host, story.engine
    host.on("apt-get update -q; apt-get install -qy --no-install-recommends busybox-static; "
            + IMPORT.format(engine))  # fmt: skip
    output = host.fleet.gpufleet("remove", "--containers", *story.words()).stdout
    package = "docker.io" if engine == "docker" else "podman"
    assert f"The container engine, which gpufleet installed, stays: {package}" in output
    assert installed(host) == set()
    assert host.on("apt-mark showhold") == ""
    left = "/etc/docker/daemon.json /etc/apt/sources.list.d /etc/systemd /etc/cdi /run/cdi"
    assert host.on(f"grep -rls nvidia {left} || :") == ""
    assert host.on("find /etc /usr/local -name '*nvidia*'") == ""
    if engine == "docker":
        # 20.10 forgets a runtime at its next start, not at a reload.
        host.on("systemctl restart docker")
    assert "nvidia" not in host.on(f"{engine} info")
    assert "theirs" in host.on(f"{engine} images")
    run = f"{engine} run --rm --network none theirs /bin/busybox cat /etc/debian_version"
    assert host.on(run) == host.on("cat /etc/debian_version")
