"""A repository that stops apt or dnf is refused and reported; what a run removes first is not."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.base.host import Host
from gpufleet.components.driver import repositories
from gpufleet.components.resolver import resolve
from tests.support.healthy_host import data, document

CONTAINERS = "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"
CUDA = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
CONFLICT = [
    f"Conflicting values set for option Signed-By regarding source {CUDA} /: /a.gpg != ",
    "The list of sources could not be read.",
]


def row(path: str, uri: str, key: str | None) -> dict[str, Any]:
    return {
        "path": f"/etc/apt/sources.list.d/{path}",
        "uris": [uri],
        "suites": ["/"],
        "signed_by": key,
        "format": "list",
        "source_only": False,
    }


def causes(
    sources: list[dict[str, Any]],
    stopped: list[str] | None = None,
    driver: dict[str, Any] | None = None,
    system: str = "12",
    manager: str = "dpkg",
) -> list[str]:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    packages = data(snapshot, "packages")
    packages.update(sources=sources, manager=manager)
    packages.pop("stopped", None)
    if stopped is not None:
        packages["stopped"] = stopped
    data(snapshot, "os").update(id="debian", version_id=system)
    plan["driver"] = driver or plan["driver"]
    found = [fault.cause for fault in repositories.stopping(plan, Host(snapshot))]
    refused = resolve({"gpu_toolkits": ["11.8"]}, snapshot)["problems"]
    assert driver or [each["message"] for each in refused if each["where"] == "host"] == found
    return found


OWN = {"managed": True, "source": "nvidia_repo"}
TWO = [row("a.list", CUDA, "/a.gpg"), row("gpufleet-nvidia.sources", CUDA, "/b.gpg")]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sources": []}, None),
        ({"sources": [row("a.list", CUDA, "/a.gpg")], "stopped": []}, None),
        ({"sources": [row("a.list", CUDA, None), row("b.list", CUDA, None)]}, None),
        (
            {"sources": [row("a.list", CONTAINERS, "/a.gpg"), row("b.list", CONTAINERS, None)]},
            "defined with different keys, in /etc/apt/sources.list.d/a.list",
        ),
        ({"sources": TWO, "stopped": []}, None),
        ({"sources": TWO, "stopped": CONFLICT}, "defined with different keys"),
        ({"sources": TWO, "stopped": CONFLICT, "driver": OWN}, None),
        (
            {"sources": TWO, "stopped": [*CONFLICT, "Malformed entry 1"], "driver": OWN},
            "Malformed entry 1",
        ),
        ({"sources": [], "stopped": ["Type 'x' is not known on line 1"]}, "Type 'x' is not known"),
        ({"sources": [row("a.list", CUDA, "/a.gpg")], "system": "13"}, "whose key apt refuses"),
        ({"sources": [], "stopped": ["no repodata in /mnt"], "manager": "rpm"}, "dnf stops"),
    ],
)
def test_what_stops_the_package_manager_is_refused(given: dict[str, Any], says: str | None) -> None:
    found = causes(**given)
    assert len(found) == bool(says), found
    assert not says or says in found[0]


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        (
            "{0}/gpufleet-nvidia.sources: Signed-By names {1}/gpufleet-nvidia.asc, which is not",
            False,
        ),
        ("Malformed entry 1 in list file {0}/gpufleet-containers.list (Component)", False),
        ("{0}/docker.sources: Signed-By names {1}/docker.asc, which is not there", True),
        ("{0}/gpufleet-nvidia.sources: Signed-By names {1}/other.asc, which is not there", True),
        ("The list of sources could not be read.", True),
    ],
)
def test_what_a_run_writes_again_before_it_calls_apt_stops_nothing(text: str, stops: bool) -> None:
    said = text.format("/etc/apt/sources.list.d", "/etc/apt/keyrings")
    assert bool(causes([], [said])) is stops
