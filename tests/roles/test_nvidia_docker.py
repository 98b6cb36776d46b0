"""The nvidia-docker command: what it adds, and when it leaves a command alone; what differs by
distribution."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

ROLE = Path(__file__).resolve().parents[2] / "roles" / "nvidia_docker"


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def said(tmp_path: Path, engine: str, line: list[str], **environment: str) -> list[str]:
    """What the engine is called with when somebody calls nvidia-docker so."""
    text = jinja2.Template((ROLE / "templates/nvidia-docker.sh.j2").read_text()).render(
        __nvidia_docker_engine=engine
    )
    wrapper, fake = tmp_path / "nvidia-docker", tmp_path / engine
    wrapper.write_text(text)
    fake.write_text('#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done\n')
    wrapper.chmod(0o755)
    fake.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        [wrapper, *line], env={"PATH": path, **environment}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.split("\0")[:-1]


ADDED = {"docker": ["--gpus", "all"], "podman": ["--device", "nvidia.com/gpu=all"]}


@pytest.mark.parametrize(
    "line",
    [
        "run --name x -p 6006:6006 -v /data:/data tensorflow/tensorflow:latest-gpu",
        "run tensorflow/tensorflow:latest-gpu train.py --gpus 2",
        "run -it --rm image",
        "run -itp 8888:8888 image --runtime fast",
        "run -p8888:8888 image run --gpus all",
        "run --env=A=1 -e B=2 --label --gpus image",
        "create --name x image",
        "container run image",
        "--log-level debug run image",
        "-H tcp://host:2375 run image",
        "-D run image",
    ],
)
def test_run_and_create_get_the_gpus(tmp_path: Path, engine: str, line: str) -> None:
    words = line.split()
    at = next(i for i, word in enumerate(words) if word in {"run", "create"}) + 1
    assert said(tmp_path, engine, words) == [*words[:at], *ADDED[engine], *words[at:]]


@pytest.mark.parametrize(
    "line",
    [
        "ps --all",
        "",
        "--version",
        "cp x:/run /tmp/run",
        "exec x run --name y",
        "run --gpus 1 image",
        "run --gpus=device=0 image",
        "run --name x --runtime nvidia image",
        "run --runtime=nvidia image",
        "run --device nvidia.com/gpu=0 image",
        "run --device=nvidia.com/gpu=0 image",
        "image run",
    ],
)
def test_everything_else_is_left_alone(tmp_path: Path, engine: str, line: str) -> None:
    assert said(tmp_path, engine, line.split()) == line.split()


def test_words_with_blanks_and_patterns_stay_whole(tmp_path: Path, engine: str) -> None:
    words = ["run", "-e", "A=1 2", "image", "sh", "-c", "echo * $HOME 'x'", ""]
    assert said(tmp_path, engine, words) == [words[0], *ADDED[engine], *words[1:]]


@pytest.mark.parametrize(
    ("chosen", "docker", "podman"),
    [
        ("0,1", ["--gpus", '"device=0,1"'],
         ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"]),
        ("all", *ADDED.values()),
        ("", *ADDED.values()),
        ("none", [], []),
    ],
)  # fmt: skip
def test_nv_gpu_chooses_as_it_did(
    tmp_path: Path, chosen: str, docker: list[str], podman: list[str]
) -> None:
    for engine, added in (("docker", docker), ("podman", podman)):
        assert said(tmp_path, engine, ["run", "image"], NV_GPU=chosen) == ["run", *added, "image"]


# -- distributions --------------------------------------------------------------------------------


def variables(family: str, release: str) -> dict[str, Any]:
    """What the role reads for a distribution: the family's facts, then its release's."""
    found: dict[str, Any] = {}
    for name in (family, release):
        path = ROLE / "vars" / f"{name}.yml"
        found |= yaml.safe_load(path.read_text()) if path.exists() else {}
    return found


@pytest.mark.parametrize(
    ("family", "release", "docker", "podman"),
    [
        ("Debian", "Debian_11", ["docker.io"], None),
        ("Debian", "Debian_12", ["docker.io"], "podman"),
        ("Debian", "Debian_13", ["docker.io", "docker-cli"], "podman"),
        ("Debian", "Ubuntu_20", ["docker.io"], None),
        ("Debian", "Ubuntu_22", ["docker.io"], None),
        ("Debian", "Ubuntu_24", ["docker.io"], "podman"),
        ("RedHat", "RedHat_8", [], "podman"),
        ("RedHat", "Rocky_9", [], "podman"),
        ("RedHat", "Rocky_10", [], "podman"),
    ],
)
def test_what_each_distribution_has(
    family: str, release: str, docker: list[str], podman: str | None
) -> None:
    found = variables(family, release)
    assert found["__nvidia_docker_packages_docker"] == docker
    assert found["__nvidia_docker_packages_docker_repo"][0] == "docker-ce"
    assert (found["__nvidia_docker_packages_podman"] or [None])[0] == podman
    names = [entry["name"] for entry in found["__nvidia_docker_repositories"]]
    assert names == ["gpufleet-nvidia-container-toolkit", "gpufleet-docker"]


# -- the unit that describes the cards -------------------------------------------------------------

UNIT = (ROLE / "files/gpufleet-containers.service").read_text()
STARTS = [line.partition("=")[2] for line in UNIT.splitlines() if line.startswith("ExecStart=")]


def test_the_specification_waits_for_no_link() -> None:
    """`create-dev-char-symlinks --create-all` fails where nvidia-uvm is not loaded."""
    required = [line for line in STARTS if not line.startswith("-")]
    assert not [line for line in required if "create-" in line]
    assert "cdi generate" in required[-1]


def test_a_node_in_dev_starts_no_unit() -> None:
    """Programs of the driver's create /dev/nvidiactl also where no driver is loaded."""
    conditions = [line for line in UNIT.splitlines() if line.startswith("Condition")]
    assert conditions == ["ConditionPathExists=/proc/driver/nvidia/version"]


@pytest.mark.parametrize(("failures", "calls", "status"), [(0, 1, 0), (2, 3, 0), (9, 4, 1)])
def test_the_specification_is_tried_again(
    tmp_path: Path, failures: int, calls: int, status: int
) -> None:
    program = tmp_path / "nvidia-ctk"
    program.write_text(f'#!/bin/sh\necho >>{tmp_path}/calls\n'
                       f'[ $(wc -l <{tmp_path}/calls) -gt {failures} ]\n')
    program.chmod(0o755)
    script = STARTS[-1].partition("-c '")[2].rstrip("'").replace("sleep $wait", ":")
    done = subprocess.run(["sh", "-c", script.replace("/usr/bin/nvidia-ctk", str(program))],
                          check=False)
    assert done.returncode == status
    assert len((tmp_path / "calls").read_text().splitlines()) == calls


# -- removal and upgrade ---------------------------------------------------------------------------


def test_running_containers_are_seen_to_before_any_package_changes() -> None:
    """Packages reload systemd from 1.18 on: what comes after them comes too late."""
    for name, changing in (("install", "packages_"), ("remove", "apt")):
        tasks = yaml.safe_load((ROLE / f"tasks/{name}.yml").read_text())
        texts = [str(task) for task in tasks]
        first = next(at for at, text in enumerate(texts) if "running.yml" in text)
        assert first < next(at for at, text in enumerate(texts)
                            if changing in text and "running.yml" not in text)


def test_the_engine_is_never_purged() -> None:
    """Debian's docker.io takes all images with it when it is purged."""
    tasks = yaml.safe_load((ROLE / "tasks/remove.yml").read_text())
    purging = [task for task in tasks if (task.get("ansible.builtin.apt") or {}).get("purge")]
    assert [task["ansible.builtin.apt"]["name"] for task in purging] == [
        "{{ __nvidia_docker_toolkit }}"]


# -- removal --------------------------------------------------------------------------------------


def reported(tmp_path: Path, packages: list[str]) -> str:
    """What the removal's own tasks say of this directory in the place of a host."""
    wanted = ("Check for Docker", "Find the repository that stays with Docker", "Report what stays")
    tasks = [task for task in yaml.safe_load((ROLE / "tasks/remove.yml").read_text())
             if task["name"] in wanted]
    assert len(tasks) == len(wanted)
    tasks[0]["ansible.builtin.find"]["paths"] = [str(tmp_path / "bin")]
    given = {"__nvidia_docker_sources": str(tmp_path / "sources"),
             "__nvidia_docker_keys": str(tmp_path / "keys"), "__nvidia_docker_suffix": ".sources",
             "__nvidia_docker_record": {"receipt": {"engine_packages": packages}}}
    book = tmp_path / "book.yml"
    book.write_text(yaml.safe_dump([{
        "hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks,
        "vars": {**given, "ansible_python_interpreter": sys.executable}}], width=1000))
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-i", "localhost,", book],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join(done.stdout.split("Report what stays")[1].split())


@pytest.mark.parametrize(("docker", "packages", "told"), [
    ("file", ["docker-ce"], True), ("link", ["docker-ce"], True), ("file", [], True),
    (None, ["podman"], False)])
def test_the_repository_that_stays_with_docker_is_named(
    tmp_path: Path, docker: str | None, packages: list[str], told: bool
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
    assert all((str(path) in text) is told for path in left)
    assert "sources/docker.sources" not in text
    assert all(f"installed, stays: {name}" in text for name in packages)
    assert ("container engine" in text) is bool(packages)
