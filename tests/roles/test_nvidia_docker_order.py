"""The role's order: what refuses comes first, who needs the runtime is named, nothing dangles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.warm_start import run_playbook

ROLE = Path(__file__).resolve().parents[2] / "roles" / "nvidia_docker"


def test_running_containers_are_seen_to_before_any_package_changes() -> None:
    """Packages reload systemd from 1.18 on: what comes after them comes too late."""
    for name, changing in (("install", "packages_"), ("remove", "apt")):
        tasks = yaml.safe_load((ROLE / f"tasks/{name}.yml").read_text())
        texts = [str(task) for task in tasks]
        first = next(at for at, text in enumerate(texts) if "running.yml" in text)
        assert first < next(
            at for at, text in enumerate(texts) if changing in text and "running.yml" not in text
        )


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("exit 0", 0),
        # nvidia-ctk before 1.12: https://github.com/urfave/cli answers so.
        ("echo \"No help topic for 'system'\" >&2; exit 3", 0),
        ("echo failed to create the link >&2; exit 1", 2),
    ],
)
def test_a_toolkit_without_the_links_command_refuses_nothing(
    tmp_path: Path, answer: str, status: int
) -> None:
    program = tmp_path / "nvidia-ctk"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    [linking] = [
        task
        for task in yaml.safe_load((ROLE / "tasks/running.yml").read_text())
        if "ansible.builtin.command" in task
    ]
    del linking["when"]
    played(tmp_path, [linking], status, PATH=f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.parametrize("name", ["install", "remove"])
def test_whatever_refuses_comes_before_the_journal_entry(name: str) -> None:
    """A journal entry of a run that was refused is an unfinished installation."""
    tasks = yaml.safe_load((ROLE / f"tasks/{name}.yml").read_text())
    journal = next(
        at for at, task in enumerate(tasks) if "gpufleet.gpu.gpu_installation_record" in task
    )
    before = [str(task) for task in tasks[:journal]]
    refuse = {
        "install": ("preflight.yml", "running.yml"),
        "remove": ("gpu_docker_daemon", "running.yml", "dependent.yml"),
    }
    for part in refuse[name]:
        assert [text for text in before if part in text], part
    for task in tasks[:journal]:
        # Nothing before it changes the host's packages or files.
        assert {"ansible.builtin.apt", "ansible.builtin.dnf", "ansible.builtin.file"}.isdisjoint(
            task
        )
        assert "gpufleet.gpu.gpu_docker_daemon" not in task or task["check_mode"] is True


def test_the_engine_is_never_purged() -> None:
    """Debian's docker.io takes all images with it when it is purged."""
    tasks = yaml.safe_load((ROLE / "tasks/remove.yml").read_text())
    purging = [task for task in tasks if (task.get("ansible.builtin.apt") or {}).get("purge")]
    assert [task["ansible.builtin.apt"]["name"] for task in purging] == [
        "{{ __nvidia_docker_toolkit }}"
    ]


def played(tmp_path: Path, tasks: list[dict[str, Any]], status: int = 0, **environment: str) -> str:
    """The output of tasks of the role on this machine, in one line."""
    book = tmp_path / "book.yml"
    play = {
        "hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks,
        "vars": {"ansible_python_interpreter": sys.executable},
    }  # fmt: skip
    book.write_text(yaml.safe_dump([play], width=1000))
    done = run_playbook(book, **environment)
    assert done.returncode == status, done.stdout + done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("ps", "inspect", "report"),
    [
        (
            "echo 1a; echo 2b; echo 3c",
            "echo nvidia /train; echo runc /web; echo nvidia /infer",
            "is removed: train, infer. They go on running",
        ),
        # One has ended meanwhile.
        ("echo 1a; echo 2b", "echo nvidia /train; exit 1", "is removed: train. They"),
        ("echo 1a", "echo nvidia-experimental /train", None),
        ("true", "echo never asked >&2; exit 1", None),
        ("exit 1", "true", "Docker does not answer"),
        ("echo 1a", "exit 1", "Docker does not answer"),
    ],
)
def test_containers_that_need_the_runtime_are_named_before_it_goes(
    tmp_path: Path, ps: str, inspect: str, report: str | None
) -> None:
    engine = tmp_path / "docker"
    engine.write_text(f"#!/bin/sh\ncase $1 in ps) {ps} ;; inspect) {inspect} ;; esac\n")
    engine.chmod(0o755)
    tasks = yaml.safe_load((ROLE / "tasks/dependent.yml").read_text())
    text = played(tmp_path, tasks, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert ("use the runtime nvidia" in text) is (report is not None)
    assert (report or "") in text


@pytest.mark.parametrize("present", [(), ("path",), ("path", "service")])
def test_links_to_units_that_are_gone_are_removed_and_others_stay(
    tmp_path: Path, present: tuple[str, ...]
) -> None:
    """A toolkit before 1.18 takes the units' files away, and leaves them enabled."""
    wants, units = tmp_path / "multi-user.target.wants", tmp_path / "lib"
    wants.mkdir()
    units.mkdir()
    for kind in ("path", "service"):
        (wants / f"nvidia-cdi-refresh.{kind}").symlink_to(units / f"nvidia-cdi-refresh.{kind}")
        if kind in present:
            (units / f"nvidia-cdi-refresh.{kind}").touch()
    (wants / "theirs.service").symlink_to("/nowhere")
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/stopped; exit 5\n')
    systemctl.chmod(0o755)
    tasks = yaml.safe_load((ROLE / "tasks/units.yml").read_text())
    tasks[0]["ansible.builtin.find"]["paths"] = str(tmp_path)
    played(tmp_path, tasks, PATH=f"{tmp_path}:{os.environ['PATH']}")
    left = {f"nvidia-cdi-refresh.{kind}" for kind in present} | {"theirs.service"}
    assert {path.name for path in wants.iterdir()} == left
    assert (tmp_path / "stopped").exists() is (len(present) < 2)


def reported(tmp_path: Path, packages: list[str]) -> str:
    """The report of the removal's own tasks on this directory in the place of a host."""
    wanted = ("Check for Docker", "Find the repository that stays with Docker", "Report what stays")
    tasks = [
        task
        for task in yaml.safe_load((ROLE / "tasks/remove.yml").read_text())
        if task["name"] in wanted
    ]
    assert len(tasks) == len(wanted)
    tasks[0]["ansible.builtin.find"]["paths"] = [str(tmp_path / "bin")]
    given = {
        "__nvidia_docker_sources": str(tmp_path / "sources"),
        "__nvidia_docker_keys": str(tmp_path / "keys"),
        "__nvidia_docker_suffix": ".sources",
        "__nvidia_docker_record": {"receipt": {"engine_packages": packages}},
    }
    return played(tmp_path, [{**task, "vars": {**given, **task.get("vars", {})}} for task in tasks])


@pytest.mark.parametrize(
    ("docker", "packages", "reported_now"),
    [
        ("file", ["docker-ce"], True),
        ("link", ["docker-ce"], True),
        ("file", [], True),
        (None, ["podman"], False),
    ],
)
def test_the_repository_that_stays_with_docker_is_named(
    tmp_path: Path, docker: str | None, packages: list[str], reported_now: bool
) -> None:
    left = [tmp_path / "sources" / "gpufleet-docker.sources", tmp_path / "keys/gpufleet-docker.asc"]
    for path in (*left, tmp_path / "bin" / "docker", tmp_path / "sources" / "docker.sources"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    if docker == "file":
        (tmp_path / "bin" / "dockerd").touch()
    elif docker:
        (tmp_path / "bin" / "dockerd").symlink_to(tmp_path / "bin" / "docker")
    text = reported(tmp_path, packages)
    assert all((str(path) in text) is reported_now for path in left)
    assert "sources/docker.sources" not in text
    assert all(f"installed, stays: {name}" in text for name in packages)
    assert ("container engine" in text) is bool(packages)


# -- the engine's own process ---------------------------------------------------------------------


def with_role_vars(task: dict[str, Any], **given: Any) -> dict[str, Any]:
    """A task with the role's variables, and others."""
    own = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    return {**task, "vars": {**own, **task.get("vars", {}), **given}}


@pytest.mark.parametrize("option", ["--live-restore", "--data-root=/srv/docker", "--debug"])
@pytest.mark.parametrize("main", [True, False])
def test_only_options_of_the_engine_itself_are_refused(
    tmp_path: Path, option: str, main: bool
) -> None:
    """Any account can run a process of the engine's name."""
    names = ("Query Docker's main process", "Read its options", "Refuse conflicting Docker options")
    tasks = yaml.safe_load((ROLE / "tasks/preflight.yml").read_text())
    tasks = [with_role_vars(task) for task in tasks if task["name"] in names]
    assert len(tasks) == len(names)
    del tasks[0]["when"]
    with subprocess.Popen(
        ["sh", "-c", "read wait", "dockerd", option], stdin=subprocess.PIPE
    ) as it:
        systemctl = tmp_path / "systemctl"
        systemctl.write_text(f"#!/bin/sh\necho MainPID={it.pid if main else 0}\n")
        systemctl.chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
        conflict = main and option != "--debug"
        text = played(tmp_path, tasks, status=2 if conflict else 0, PATH=path)
        it.communicate()
    assert (f"dockerd runs with {option}, and" in text) is conflict


HAS = {"DockerRootDir": "/var/lib/docker", "Containers": 1, "Images": 2}


@pytest.mark.parametrize(
    ("info", "data_root", "refused"),
    [
        (HAS, None, ""),
        (HAS, "/var/lib/docker/", ""),
        ({**HAS, "DockerRootDir": "/var/lib/docker/100000.100000"}, "/var/lib/docker", ""),
        ({**HAS, "Containers": 0, "Images": 0}, "/srv/docker", ""),
        (HAS, "/srv/docker", "1 containers and 2 images in /var/lib/docker"),
        ({**HAS, "Containers": 0}, "/srv/docker", "data_root is /srv/docker, but Docker keeps 0"),
        ({**HAS, "Swarm": {"LocalNodeState": "inactive"}}, None, ""),
        ({**HAS, "Swarm": {"LocalNodeState": ""}}, None, ""),
        ({**HAS, "Swarm": {"LocalNodeState": "active"}}, None, "member of a swarm"),
        ({**HAS, "Swarm": {"LocalNodeState": "locked"}}, None, "member of a swarm"),
        (None, "/srv/docker", ""),
        # Docker names the target of a link.
        ({**HAS, "DockerRootDir": "/run/docker"}, "/var/run/docker", ""),
    ],
)
def test_what_would_part_docker_from_its_containers_is_refused(
    tmp_path: Path, info: dict[str, Any] | None, data_root: str | None, refused: str
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\ncat <<'E'\n{json.dumps(info)}\nE\n")
    docker.chmod(0o755)
    names = ("Query what Docker has", "Refuse a member", "Resolve the", "Refuse another data root")
    given = {
        "__nvidia_docker_pid": "1" if info else "0",
        "gpu_plan": {"containers": {"data_root": data_root, "engine": "docker"}},
    }
    tasks = yaml.safe_load((ROLE / "tasks/preflight.yml").read_text())
    tasks = [with_role_vars(task, **given) for task in tasks if task["name"].startswith(names)]
    assert len(tasks) == len(names)
    path = f"{tmp_path}:{os.environ['PATH']}"
    text = played(tmp_path, tasks, status=2 if refused else 0, PATH=path)
    assert refused in text
    assert ("Nothing was changed: " in text) is bool(refused)


@pytest.mark.parametrize("before", [None, '{"log-driver": "journald"}\n'])
def test_a_configuration_that_docker_rejects_is_taken_back_and_its_containers_survive(
    tmp_path: Path, before: str | None
) -> None:
    file = tmp_path / "daemon.json"
    if before:
        file.write_text(before)
    [merge] = [t for t in daemon_tasks() if "gpufleet.gpu.gpu_docker_daemon" in t]
    [block] = [t for t in daemon_tasks() if "block" in t]
    merge["gpufleet.gpu.gpu_docker_daemon"]["path"] = str(file)
    rescue = block["rescue"]
    restoring = rescue[0]["block"]
    assert "ansible.builtin.systemd_service" in restoring.pop()
    for task in restoring:
        for module, key in (("copy", "dest"), ("file", "path")):
            if arguments := task.get(f"ansible.builtin.{module}"):
                arguments[key] = str(file)
        if arguments := task.get("gpufleet.gpu.gpu_docker_daemon"):
            arguments["path"] = str(file)
    failing = {"ansible.builtin.fail": {"msg": "dockerd does not start"}}
    given = {
        "gpu_plan": {"containers": {"data_root": "/srv/docker", "engine": "docker"}},
        "__nvidia_docker_version_number": "28.0",
        "__nvidia_docker_version": {"stdout": "28.0"},
    }
    tasks = [with_role_vars(merge, **given), {"block": [failing], "rescue": rescue}]
    text = played(tmp_path, tasks, status=2)
    assert "rejects its new configuration (dockerd does not start). Docker runs with the" in text
    expected = {**json.loads(before or "{}"), "live-restore": True}
    assert json.loads(file.read_text()) == expected


def daemon_tasks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((ROLE / "tasks/docker.yml").read_text())
    return found


def test_version_locks_that_hold_nothing_give_way(tmp_path: Path) -> None:
    """dnf adds no lock where one of another version, or of none, names the package."""
    [block] = [
        task["block"]
        for task in yaml.safe_load((ROLE / "tasks/packages_dnf.yml").read_text())
        if "block" in task
    ]
    [release] = [task for task in block if "that do not hold" in task["name"]]
    locks = tmp_path / "versionlock.list"
    kept = ["# toolkit-0:1-1.*", "toolkit-0:1.17.8-1.*", "toolkit-base-0:1.1-1.*", "toolkit-base2"]
    gone = ["toolkit-0:1.17.80-1.*", "toolkit-0:1.17.8-10.*", "toolkit-1:1.17.8-1.*", "toolkit"]
    locks.write_text("\n".join([*gone, *kept]) + "\n")
    release["ansible.builtin.lineinfile"]["path"] = str(locks)
    package = {"version": "1.17.8", "release": "1", "epoch": None}
    facts = {"packages": {"toolkit": [package]}, "cacheable": True}
    played(
        tmp_path,
        [
            {"ansible.builtin.set_fact": facts},
            {**release, "loop": ["toolkit"]},
        ],
    )
    assert locks.read_text().splitlines() == kept
