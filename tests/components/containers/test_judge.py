"""The requirements of containers, and those that a host lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from gpufleet.components.changes import changes
from gpufleet.components.declare import declaration_of
from gpufleet.components.probe_settings import probe_settings
from gpufleet.components.resolver import resolve
from tests.support.host_documents import Row, declaration, snapshot

DECLARATION = declaration(gpu_containers={"toolkit": "1.20.0"}, gpu_expect={"count": 2})
RECEIPT = {"kind": "containers", "id": "engine", "path": "/", "engine": "docker", "changed": []}


def seen(**others: Any) -> Row:
    """A section as a host shows it that is as planned, with two cards."""
    return {
        "engine": {"name": "docker", "version": "26.1.5+dfsg1", "runtimes": ["nvidia", "runc"],
                   "live_restore": True, "error": None},
        "daemon": {"path": "/etc/docker/daemon.json", "exists": True, "error": None,
                   "runtimes": {"nvidia": "nvidia-container-runtime"}, "live_restore": True,
                   "cdi": True, "data_root": None},
        "toolkit": {"version": "1.20.0-1", "held": True},
        "cdi": [{"path": "/run/cdi/nvidia.yaml", "driver_version": "550.163.01", "error": None}],
        "dev_char": {"missing": []},
        "wrapper": "/usr/local/bin/nvidia-docker",
        "run": None,
        **others,
    }  # fmt: skip


@pytest.fixture
def host() -> Row:
    return snapshot(
        containers=seen(),
        receipts={"receipts": [deepcopy(RECEIPT)]},
        driver={"loaded": "550.163.01", "library": "550.163.01"},
    )


def rows(declared: Row, host: Row) -> list[Row]:
    plan = resolve(declared, host)
    assert plan["problems"] == []
    return [row for row in changes(plan, host) if row["what"] == "containers"]


def test_the_plan_says_everything_of_them() -> None:
    assert resolve(DECLARATION)["containers"] == {
        "engine": "docker", "image": None, "source": "distro", "toolkit": "1.20.0",
        "data_root": None, "accept_cves": [], "gpus": 2}  # fmt: skip
    assert resolve(declaration())["containers"] is None


def test_the_probe_has_what_to_ask() -> None:
    assert probe_settings(declaration_of(DECLARATION).spec)["containers"] == {
        "engine": "docker",
        "image": None,
    }
    assert probe_settings(declaration_of(declaration()).spec)["containers"] is None


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"engine": "lxc"}, "gpu_containers.engine"),
        ({"toolkit": 1.17}, "gpu_containers.toolkit"),
        ({"data_root": "srv"}, "gpu_containers.data_root"),
        ({"engin": "docker"}, "gpu_containers.engin"),
        ({"engine": "podman", "source": "docker_repo"}, "gpu_containers.source"),
        ({"engine": "podman", "data_root": "/srv"}, "gpu_containers.data_root"),
    ],
)
def test_a_declaration_of_the_wrong_shape_is_refused_with_its_place(given: Row, where: str) -> None:
    problems = resolve(declaration(gpu_containers=given))["problems"]
    assert [problem["where"] for problem in problems] == [where]


@pytest.mark.parametrize("toolkit", ["1.13.5", "1.14.0", "1.17.3", "1.17.7", "1.17.8", "1.19.0"])
def test_a_declared_toolkit_with_known_vulnerabilities_is_refused_until_they_are_accepted(
    toolkit: str,
) -> None:
    (problem,) = resolve(declaration(gpu_containers={"toolkit": toolkit}))["problems"]
    assert problem["code"] == "container-toolkit-vulnerable"
    assert problem["where"] == "gpu_containers.toolkit"
    assert f"toolkit {toolkit} has known vulnerabilities: CVE-" in problem["message"]
    assert 'declare toolkit: "1.19.1" or newer' in problem["remedy"]
    names = problem["message"].partition("vulnerabilities: ")[2].split(", ")
    assert f"accept_cves: [{', '.join(names)}]" in problem["remedy"]
    for accepted in (names[1:], names):
        plan = resolve(declaration(gpu_containers={"toolkit": toolkit, "accept_cves": accepted}))
        assert bool(plan["problems"]) is (accepted != names)
    assert [note for note in plan["notes"] if f"accepts: {', '.join(names)}" in note]


@pytest.mark.parametrize("toolkit", ["1.19.1", "1.20.0", None])
def test_a_toolkit_without_known_vulnerabilities_is_planned(toolkit: str | None) -> None:
    plan = resolve(declaration(gpu_containers={"toolkit": toolkit}))
    assert plan["problems"] == []
    assert not [note for note in plan["notes"] if "container toolkit" in note]


@pytest.mark.parametrize(
    ("declared", "installed", "candidate", "note"),
    [
        (None, "1.17.8-1", "1.20.0-1", 'declare gpu_containers.toolkit: "1.20.0"'),
        (None, "1.19.1-1", None, "Which release the repository offers was not read"),
        # What would be refused is not offered.
        (None, "1.17.7-1", "1.17.8-1", None),
        (None, "1.20.0-1", "1.20.0-1", None),
        (None, "1.20.0-1", "1.19.1-1", None),
        ("1.19.1", "1.19.1-1", "1.20.0-1", None),
    ],
)
def test_the_plan_says_that_an_installed_toolkit_stays_and_offers_the_upgrade(
    host: Row, declared: str | None, installed: str, candidate: str | None, note: str | None
) -> None:
    there = host["sections"]["containers"]["data"]
    there["toolkit"].update(version=installed, candidate=candidate)
    plan = resolve(declaration(gpu_containers={"toolkit": declared}), host)
    found = [each for each in plan["notes"] if "is installed and stays" in each]
    assert len(found) == (note is not None)
    assert (note or "") in "".join(found)
    assert rows(declaration(gpu_containers={"toolkit": declared}), host) == []


def test_a_host_as_planned_is_left_alone(host: Row) -> None:
    assert rows(DECLARATION, host) == []


def test_a_fresh_host(host: Row) -> None:
    nothing = seen(engine=None, toolkit=None, wrapper=None, cdi=[])
    fresh = snapshot(containers=nothing)
    assert [(row["action"], row["because"]) for row in rows(DECLARATION, fresh)] == [
        ("install", "docker is not installed")
    ]


Break = Callable[[Row], None]


def change(*path: str, to: Any) -> Break:
    def act(there: Row) -> None:
        for key in path[:-1]:
            there = there[key]
        there[path[-1]] = to

    return act


@pytest.mark.parametrize(
    ("break_it", "because"),
    [
        (change("toolkit", to=None), "toolkit is not installed"),
        (change("toolkit", "version", to="1.18.0-1"), "1.18.0-1, planned is 1.20.0"),
        (change("toolkit", "held", to=False), "not held"),
        (change("engine", "error", to="Cannot connect"), "does not answer: Cannot connect"),
        (change("engine", "runtimes", to=["runc"]), "running Docker does not know the runtime"),
        (change("engine", "live_restore", to=False), "running Docker has no live-restore"),
        (change("daemon", "runtimes", to={}), "does not register the runtime"),
        (
            change("daemon", "runtimes", to={"nvidia": "/usr/bin/runc"}),
            "has /usr/bin/runc as the runtime nvidia, not nvidia-container-runtime",
        ),
        (change("daemon", "runtimes", to={"nvidia": None}), "not nvidia-container-runtime"),
        (change("daemon", "live_restore", to=None), "does not set live-restore"),
        (change("daemon", "cdi", to=None), "does not turn on features.cdi"),
        (change("wrapper", to=None), "no nvidia-docker command"),
        (change("cdi", to=[]), "no CDI specification"),
        (change("dev_char", "missing", to=["/dev/char/195:0"]), "/dev/char/195:0 is missing"),
    ],
)
def test_what_is_not_as_planned_is_repaired(host: Row, break_it: Break, because: str) -> None:
    break_it(host["sections"]["containers"]["data"])
    (row,) = rows(DECLARATION, host)
    assert row["action"] == "repair"
    assert because in row["because"]


def test_the_plan_says_which_containers_run_with_gpus(host: Row) -> None:
    """An upgrade of the toolkit's packages reloads systemd beside them."""
    there = host["sections"]["containers"]["data"]
    there["toolkit"]["version"] = "1.16.2-1"
    there["running"] = [
        {"unit": "docker-1a.scope", "name": "train"},
        {"unit": "libpod-2b.scope", "name": None},
    ]
    (row,) = rows(DECLARATION, host)
    assert row["because"].endswith(
        "planned is 1.20.0; these containers with GPUs run: train, libpod-2b.scope"
    )
    there["toolkit"]["version"] = "1.20.0-1"
    assert rows(DECLARATION, host) == []


def test_an_older_engine_knows_no_cdi(host: Row) -> None:
    there = host["sections"]["containers"]["data"]
    there["engine"]["version"], there["daemon"]["cdi"] = "20.10.24+dfsg1", None
    assert rows(DECLARATION, host) == []


def test_a_specification_of_another_driver_is_made_again(host: Row) -> None:
    host["sections"]["driver"]["data"]["loaded"] = "560.35.05"
    (row,) = rows(DECLARATION, host)
    assert "is for driver 550.163.01, and 560.35.05 is loaded" in row["because"]


@pytest.mark.parametrize(
    ("devices", "instances", "because"),
    [
        (["0", "1", "all"], {0: 2, 1: 0}, "names 0 MIG instances of GPU 0, which has 2"),
        (["0:0", "0:1", "1", "all"], {0: 2, 1: 0}, None),
        (["0:0", "0:1", "1", "all"], {0: 0, 1: 0}, "names 2 MIG instances of GPU 0, which has 0"),
        (["mig0:0", "gpu1", "MIG-1f", "all"], {0: 2, 1: 0}, "names 1 MIG instance of GPU 0"),
        (["mig0:0", "mig1:0"], {0: 1, 1: 1}, None),
        (["10:0", "0", "1"], {0: 0, 10: 1}, None),
        (["GPU-1f", "all"], {0: 2, 1: 0}, None),
        (["0", "1", "all"], None, None),
    ],
)
def test_a_specification_of_other_mig_instances_is_made_again(
    host: Row, devices: list[str], instances: dict[int, int] | None, because: str | None
) -> None:
    host["sections"]["containers"]["data"]["cdi"][0]["devices"] = devices
    mig = instances and [
        {"gpu": gpu, "mode": "on" if count else "off", "instances": ["1g.10gb"] * count}
        for gpu, count in instances.items()
    ]
    host["sections"]["gpus"] = {"state": "ok", "data": {"mig": mig}, "error": None}
    found = [row["because"] for row in rows(DECLARATION, host)]
    assert len(found) == bool(because)
    assert (because or "") in "".join(found)


def access(*instances: str) -> dict[str, int]:
    """The driver's capabilities for MIG, with a number for each GPU and compute instance."""
    numbers = {"mig/config": 1, "mig/monitor": 2}
    for name in instances:
        gpu, gi = name.split(":")
        first = 3 + 100 * int(gpu) + 10 * int(gi)
        numbers[f"gpu{gpu}/mig/gi{gi}/access"] = first
        numbers[f"gpu{gpu}/mig/gi{gi}/ci0/access"] = first + 1
    return numbers


@pytest.mark.parametrize(
    ("devices", "nodes", "there", "because"),
    [
        # The same names, before and after two GPU instances were exchanged for two others.
        (["0:0", "0:1", "all"], [13, 14, 23, 24], access("0:1", "0:2"), None),
        (["0:0", "0:1", "all"], [13, 14, 23, 24], access("0:1", "0:5"),
         "does not name /dev/nvidia-caps/nvidia-cap54 (gpu0/mig/gi5/ci0/access)"),
        (["0:0", "1", "all"], [13, 14, 23, 24], access("0:1"),
         "names /dev/nvidia-caps/nvidia-cap23, which belongs to no MIG instance"),
        (["0", "1", "all"], [1, 2], access(), None),
        # A GPU instance that has no compute instance.
        (["0:0", "all"], [13, 14], {**access("0:1"), "gpu0/mig/gi2/access": 23}, None),
        (["all"], [], access("0:1"), None),
        (["0:0", "all"], [13, 14], None, None),
        (["0:0", "all"], [13, 14], {}, None),
        (["0:0", "all"], None, access("0:5"), None),
    ],
)  # fmt: skip
def test_a_specification_with_nodes_of_other_mig_instances_is_made_again(
    host: Row,
    devices: list[str],
    nodes: list[int] | None,
    there: dict[str, int] | None,
    because: str | None,
) -> None:
    """A run may be killed between the change of the instances and the specification."""
    section = host["sections"]["containers"]["data"]
    section["cdi"][0]["devices"] = devices
    if nodes is not None:
        section["cdi"][0]["mig_nodes"] = nodes
    section["mig_capabilities"] = there
    found = [row["because"] for row in rows(DECLARATION, host)]
    assert len(found) == bool(because)
    assert (because or "") in "".join(found)


def test_without_cards_nothing_is_asked_of_them(host: Row) -> None:
    there = host["sections"]["containers"]["data"]
    there["cdi"], there["dev_char"] = [], {"missing": ["/dev/char/195:0"]}
    assert rows({**DECLARATION, "gpu_expect": {"count": 0}}, host) == []


def test_a_damaged_daemon_json_is_refused_before_anything_changes(host: Row) -> None:
    host["sections"]["containers"]["data"]["daemon"]["error"] = "line 3"
    (row,) = rows(DECLARATION, host)
    assert (row["action"], row["because"]) == (
        "refuse", "/etc/docker/daemon.json cannot be read: line 3")  # fmt: skip


def test_a_killed_run_is_finished(host: Row) -> None:
    entry = {"kind": "containers", "id": "engine", "state": "installing", "started": "then"}
    host["sections"]["receipts"]["data"]["journal"] = [entry]
    (row,) = rows(DECLARATION, host)
    because = "the journal records installing since then"
    assert (row["action"], row["because"]) == ("finish", because)


def test_what_nothing_declares_goes_where_that_is_declared(host: Row) -> None:
    assert rows(declaration(gpu_stacks=[]), host) == []
    (row,) = rows(declaration(gpu_stacks=[], gpu_prune=True), host)
    assert row["action"] == "remove"


def test_a_mangled_section_never_raises(host: Row) -> None:
    plan = resolve(DECLARATION, host)

    def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in inside:
            yield (*path, key)
            if isinstance(part, dict | list):
                yield from paths(part, (*path, key))

    section = host["sections"]["containers"]["data"]
    for *path, last in list(paths(section)):
        for odd in (None, 3, "x", [], {}, [None], True):
            mangled = deepcopy(host)
            inner: Any = mangled["sections"]["containers"]["data"]
            for key in path:
                inner = inner[key]
            inner[last] = odd
            assert isinstance(changes(plan, mangled), list)
